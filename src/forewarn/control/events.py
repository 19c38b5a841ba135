"""/v1/events: list, approve, postpone and cancel events. A tenant sees and approves the events of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec.structs import asdict

from forewarn.control.explanations import ExplanationShape, explanation
from forewarn.control.history import HISTORY, history_page
from forewarn.control.input import TIME_FORMAT, read_body, read_duration, read_time
from forewarn.control.paging import All, Paging, page, prefix_hint, rows_page, single_match
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    DryRun,
    Duration,
    Name,
    NoMembers,
    TimeOrDuration,
    help_text,
    json_response,
    page_of,
)
from forewarn.core import approvals
from forewarn.core.access import Role
from forewarn.delivery.event_shapes import EventShape
from forewarn.errors import BadRequestBody, EventEnded, UnknownEvent, UnknownResource
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine


class EventExplanationShape(ExplanationShape):
    """What the operation of an event waits for."""

    event: EventShape


class EventsQuery(Paging):
    """Which events to list."""

    all: All = False
    group: Annotated[Name, help_text("Only events of this group.")] = ""


class Postponement(DryRun):
    """How far to postpone an event."""

    by: Annotated[Duration | None, help_text("Time to add to the current NotBefore. Give this or until.")] = None
    until: Annotated[TimeOrDuration | None, help_text("The new NotBefore. Give this or by.")] = None


class EventControl:
    """Events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        one, path, operator = EventShape, "/v1/events/{id}", Role.OPERATOR
        return [
            Route(
                "GET",
                "/v1/events",
                self.events,
                "List events.",
                page_of("events", EventShape),
                tenant=True,
                query=EventsQuery,
            ),
            Route("GET", path, self.event, "Return an event.", one, tenant=True),
            Route(
                "GET",
                f"{path}/history",
                self.history,
                "Return the history of an event.",
                HISTORY,
                tenant=True,
                query=Paging,
            ),
            Route("GET", f"{path}/explain", self.explain, "Explain what an event waits for.", EventExplanationShape),
            Route(
                "POST",
                f"{path}/approve",
                self.approve,
                "Approve an event, so that it can start before NotBefore.",
                one,
                operator,
                tenant=True,
                body=NoMembers,
            ),
            Route(
                "POST",
                f"{path}/cancel",
                self.cancel,
                "Cancel an event that has not started.",
                one,
                operator,
                body=NoMembers,
            ),
            Route("POST", f"{path}/postpone", self.postpone, "Postpone an event.", one, operator, body=Postponement),
        ]

    async def events(self, request: HttpRequest) -> Response:
        requested, own = request.state.query.group, caller(request).group
        if own and requested not in ("", own):
            return page("events", (), None)  # a tenant must not learn whether the group exists
        found, last_key = await rows_page(request, self._engine.records.events, own or requested)
        return page("events", map(EventShape.of, found), last_key)

    async def event(self, request: HttpRequest) -> Response:
        return json_response(EventShape.of(await self._find(request)))

    async def history(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        own = caller(request).group  # rows about the whole operation name VMs of other groups
        history_filter = HistoryFilter(event=event.id, operation=event.operation, groups=(own,) if own else ())
        return await history_page(self._engine, request, history_filter)

    async def explain(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        operation = await self._engine.records.operation(event.operation)
        if operation is None:
            raise UnknownResource(what="operation", name=event.operation, hint="")
        return json_response(
            EventExplanationShape(**asdict(explanation(self._engine, operation)), event=EventShape.of(event))
        )

    async def approve(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        event = await self._find_live(request)
        token = caller(request)
        await self._engine.approve([event.id], token.name, token.group)
        return json_response(EventShape.of(await self._find(request)))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        event = await self._find_live(request)
        after = await self._engine.cancel(event.id, caller(request).name)
        return json_response(EventShape.of(after))

    async def postpone(self, request: HttpRequest) -> Response:
        """`by` is added to NotBefore; `until` replaces it."""
        body = await read_body(request, Postponement)
        event = await self._find_live(request)
        until, by = self._until(body, event), caller(request).name
        if body.dry_run:
            after, _ = self._engine.preview(approvals.postpone, event.id, by, until)
        else:
            after = await self._engine.postpone(event.id, by, until)
        return json_response(EventShape.of(after))

    def _until(self, body: Postponement, event: Event) -> datetime:
        delay = read_duration(body.by, "/by")
        new_time = read_time(body.until, "/until", self._engine.clock.now())
        if (delay is None) == (new_time is None):
            raise BadRequestBody(pointer="/by", problem="give either /by or /until, not both", allowed=TIME_FORMAT)
        return event.not_before + delay if delay is not None else new_time  # type: ignore[return-value]

    async def _find(self, request: HttpRequest) -> Event:
        """Find by id, in any letter case, or by an unambiguous prefix of it."""
        prefix, own = request.path_params["id"].lower(), caller(request).group
        found = await self._engine.records.events_by_prefix(prefix, own)
        if one := single_match(found):
            return one
        live = (event.id for event in self._engine.live_events() if own in ("", event.group))
        raise UnknownEvent(event_id=request.path_params["id"], hint=prefix_hint(found, prefix, live))

    async def _find_live(self, request: HttpRequest) -> Event:
        event = await self._find(request)
        if not event.status.live:
            raise EventEnded(event_id=event.id, status=event.status.lower())
        return event
