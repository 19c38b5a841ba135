"""/v1/events: what groups are told, and what is said to it. Tenants see and approve those of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec.structs import asdict

from forewarn.control.explanations import ExplanationShape, explanation
from forewarn.control.history import HISTORY, history_page
from forewarn.control.input import A_MOMENT, read_body, read_length, read_moment
from forewarn.control.paging import All, Paging, hint, only, page, rows_page
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    DryRun,
    Length,
    Moment,
    MomentOrLength,
    Name,
    NoMembers,
    Shape,
    answer,
    choice,
    help_text,
    page_of,
)
from forewarn.core import approvals
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import Status
from forewarn.errors import BadRequestBody, EventEnded, UnknownEvent, UnknownResource
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine


class EventShape(Shape):
    """An event with all that is known of it."""

    id: str
    operation: str
    group: str
    type: Annotated[str, choice(*EVENT_TYPES)]
    status: Annotated[str, choice(*(status.lower() for status in Status))]
    vms: list[str]
    not_before: Moment
    description: str
    source: Annotated[str, choice("platform", "user")]
    duration_seconds: float | None
    created_at: Moment
    approved_at: Moment | None
    approved_by: str | None
    started_at: Moment | None
    ended_at: Moment | None

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            id=event.id,
            operation=event.operation,
            group=event.group,
            type=event.type,
            status=event.status.lower(),
            vms=list(event.resources),
            not_before=to_text(event.not_before),
            description=event.description,
            source=event.source.lower(),
            duration_seconds=seconds(event.duration),
            created_at=to_text(event.created_at),
            approved_at=to_text_if_any(event.approved_at),
            approved_by=event.approved_by,
            started_at=to_text_if_any(event.started_at),
            ended_at=to_text_if_any(event.ended_at),
        )


class EventExplanationShape(ExplanationShape):
    """Why an event waits: why its operation does."""

    event: EventShape


class EventsQuery(Paging):
    """Which events."""

    all: All = False
    group: Annotated[Name, help_text("Only those of this group.")] = ""


class Postponement(DryRun):
    """Until when an event waits."""

    by: Annotated[Length | None, help_text("How much later than it would start now; or else say until when.")] = None
    until: Annotated[MomentOrLength | None, help_text("The moment before which it must not start.")] = None


class EventControl:
    """Events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = EventShape, "/v1/events/{id}", Role.OPERATOR
        return [
            Endpoint(
                "GET",
                "/v1/events",
                self.events,
                "List events.",
                page_of("events", EventShape),
                tenant=True,
                query=EventsQuery,
            ),
            Endpoint("GET", path, self.event, "See an event.", one, tenant=True),
            Endpoint(
                "GET",
                f"{path}/history",
                self.history,
                "See what happened to an event.",
                HISTORY,
                tenant=True,
                query=Paging,
            ),
            Endpoint("GET", f"{path}/explain", self.explain, "See why an event waits.", EventExplanationShape),
            Endpoint(
                "POST",
                f"{path}/approve",
                self.approve,
                "Let an event start before its time.",
                one,
                operator,
                tenant=True,
                body=NoMembers,
            ),
            Endpoint("POST", f"{path}/cancel", self.cancel, "Withdraw an event.", one, operator, body=NoMembers),
            Endpoint(
                "POST", f"{path}/postpone", self.postpone, "Let an event wait longer.", one, operator, body=Postponement
            ),
        ]

    async def events(self, request: HttpRequest) -> Response:
        asked, own = request.state.query.group, caller(request).group
        if own and asked not in ("", own):
            return page("events", (), None)  # not a tenant's to see: as if there were none
        found, following = await rows_page(request, self._engine.records.events, own or asked)
        return page("events", map(EventShape.of, found), following)

    async def event(self, request: HttpRequest) -> Response:
        return answer(EventShape.of(await self._find(request)))

    async def history(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        own = caller(request).group  # what is about the operation as a whole names VMs of others
        sought = HistoryFilter(event=event.id, operation=event.operation, groups=(own,) if own else ())
        return await history_page(self._engine, request, sought)

    async def explain(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        operation = await self._engine.records.operation(event.operation)
        if operation is None:
            raise UnknownResource(what="operation", name=event.operation, hint="")
        return answer(EventExplanationShape(**asdict(explanation(self._engine, operation)), event=EventShape.of(event)))

    async def approve(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        event = await self._find_live(request)
        token = caller(request)
        await self._engine.approve([event.id], token.name, token.group or None)
        return answer(EventShape.of(await self._find(request)))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        event = await self._find_live(request)
        after = await self._engine.cancel(event.id, caller(request).name)
        return answer(EventShape.of(after))

    async def postpone(self, request: HttpRequest) -> Response:
        """`by` counts from NotBefore, `until` is a moment."""
        body = await read_body(request, Postponement)
        event = await self._find_live(request)
        until, by = self._until(body, event), caller(request).name
        if body.dry_run:
            after, _ = self._engine.preview(approvals.postpone, event.id, by, until)
        else:
            after = await self._engine.postpone(event.id, by, until)
        return answer(EventShape.of(after))

    def _until(self, body: Postponement, event: Event) -> datetime:
        length = read_length(body.by, "/by")
        moment = read_moment(body.until, "/until", self._engine.clock.now())
        if (length is None) == (moment is None):
            raise BadRequestBody(pointer="/by", problem="or /until must be given, but not both", valid=A_MOMENT)
        return event.not_before + length if length is not None else moment  # type: ignore[return-value]

    async def _find(self, request: HttpRequest) -> Event:
        """By its id, in any letter case, or by the beginning of it where that is clear."""
        wanted, own = request.path_params["id"].lower(), caller(request).group
        found = await self._engine.records.events_beginning(wanted, own)
        if one := only(found):
            return one
        live = (event.id for event in self._engine.live_events() if own in ("", event.group))
        raise UnknownEvent(event_id=request.path_params["id"], hint=hint(found, wanted, live))

    async def _find_live(self, request: HttpRequest) -> Event:
        event = await self._find(request)
        if not event.status.live:
            raise EventEnded(event_id=event.id, status=event.status.lower())
        return event
