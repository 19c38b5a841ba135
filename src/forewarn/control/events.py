"""/v1/events: what groups are told, and what is said to it. Tenants see and approve those of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.explanations import explanation
from forewarn.control.history import HISTORY, history_page
from forewarn.control.input import A_MOMENT, Query, read_fields
from forewarn.control.paging import ALL, PAGING, hint, only, page, rows_page
from forewarn.control.routing import DRY_RUN, Endpoint, caller
from forewarn.control.schema import (
    LENGTH,
    MAYBE_MOMENT,
    MAYBE_NUMBER,
    MAYBE_TEXT,
    MOMENT,
    MOMENT_OR_LENGTH,
    NAME,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    page_schema,
    record,
    ref,
)
from forewarn.core import approvals
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import Status
from forewarn.errors import AlreadyOver, BadRequestBody, Unknown, UnknownEvent
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

    from forewarn.control.input import Fields
    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine


POSTPONED = (
    Field("by", LENGTH, "How much later than it would start now; or else say until when."),
    Field("until", MOMENT_OR_LENGTH, "The moment before which it must not start."),
    DRY_RUN,
)


class EventControl:
    """Events."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = ref("Event"), "/v1/events/{id}", Role.OPERATOR
        of_group = Field("group", NAME, "Only those of this group.")
        return [
            Endpoint(
                "GET",
                "/v1/events",
                self.events,
                "List events.",
                page_schema("events", "Event"),
                tenant=True,
                query=(of_group, ALL, *PAGING),
            ),
            Endpoint("GET", path, self.event, "See an event.", one, tenant=True),
            Endpoint(
                "GET",
                f"{path}/history",
                self.history,
                "See what happened to an event.",
                HISTORY,
                tenant=True,
                query=PAGING,
            ),
            Endpoint("GET", f"{path}/explain", self.explain, "See why an event waits.", ref("EventExplanation")),
            Endpoint(
                "POST",
                f"{path}/approve",
                self.approve,
                "Let an event start before its time.",
                one,
                operator,
                tenant=True,
                body=(),
            ),
            Endpoint("POST", f"{path}/cancel", self.cancel, "Withdraw an event.", one, operator, body=()),
            Endpoint(
                "POST", f"{path}/postpone", self.postpone, "Let an event wait longer.", one, operator, body=POSTPONED
            ),
        ]

    async def events(self, request: HttpRequest) -> Response:
        asked, own = Query(request).text("group"), caller(request).group
        if own and asked not in ("", own):
            return page("events", (), None)  # not a tenant's to see: as if there were none
        found, following = await rows_page(request, self._engine.archive.events, own or asked)
        return page("events", map(event_shape, found), following)

    async def event(self, request: HttpRequest) -> Response:
        return JSONResponse(event_shape(await self._find(request)))

    async def history(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        own = caller(request).group  # what is about the operation as a whole names VMs of others
        sought = HistoryFilter(event=event.id, operation=event.operation, groups=(own,) if own else ())
        return await history_page(self._engine, request, sought)

    async def explain(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        operation = await self._engine.archive.operation(event.operation)
        if operation is None:
            raise Unknown(what="operation", name=event.operation, hint="")
        return JSONResponse({"event": event_shape(event), **explanation(self._engine, operation)})

    async def approve(self, request: HttpRequest) -> Response:
        await read_fields(request)
        event = await self._find_live(request)
        token = caller(request)
        await self._engine.approve([event.id], token.name, token.group or None)
        return JSONResponse(event_shape(await self._find(request)))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_fields(request)
        event = await self._find_live(request)
        after = await self._engine.cancel(event.id, caller(request).name)
        return JSONResponse(event_shape(after))

    async def postpone(self, request: HttpRequest) -> Response:
        """`by` counts from NotBefore, `until` is a moment."""
        fields = await read_fields(request)
        event = await self._find_live(request)
        until, by = self._until(fields, event), caller(request).name
        if fields.flag("dry_run"):
            after, _ = self._engine.preview(approvals.postpone, event.id, by, until)
        else:
            after = await self._engine.postpone(event.id, by, until)
        return JSONResponse(event_shape(after))

    def _until(self, fields: Fields, event: Event) -> Any:
        length, moment = fields.length("by"), fields.moment("until", self._engine.clock.now())
        if (length is None) == (moment is None):
            raise BadRequestBody(pointer="/by", problem="or /until must be given, one of them", valid=A_MOMENT)
        return event.not_before + length if length is not None else moment

    async def _find(self, request: HttpRequest) -> Event:
        """By its id, in any letter case, or by the beginning of it where that is clear."""
        wanted, own = request.path_params["id"].lower(), caller(request).group
        found = await self._engine.archive.events_beginning(wanted, own)
        if one := only(found):
            return one
        live = (event.id for event in self._engine.live_events() if own in ("", event.group))
        raise UnknownEvent(event_id=request.path_params["id"], hint=hint(found, wanted, live))

    async def _find_live(self, request: HttpRequest) -> Event:
        event = await self._find(request)
        if not event.status.live:
            raise AlreadyOver(event_id=event.id, status=event.status.lower())
        return event


SHAPES: dict[str, Schema] = {
    "Event": record(
        {
            "id": TEXT,
            "operation": TEXT,
            "group": TEXT,
            "type": choice(*EVENT_TYPES),
            "status": choice(*(status.lower() for status in Status)),
            "vms": TEXTS,
            "not_before": MOMENT,
            "description": TEXT,
            "source": choice("platform", "user"),
            "duration_seconds": MAYBE_NUMBER,
            "created_at": MOMENT,
            "approved_at": MAYBE_MOMENT,
            "approved_by": MAYBE_TEXT,
            "started_at": MAYBE_MOMENT,
            "ended_at": MAYBE_MOMENT,
        }
    ),
}


def event_shape(event: Event) -> dict[str, Any]:
    """An event with all that is known of it."""
    return {
        "id": event.id,
        "operation": event.operation,
        "group": event.group,
        "type": event.type,
        "status": event.status.lower(),
        "vms": list(event.resources),
        "not_before": to_text_if_any(event.not_before),
        "description": event.description,
        "source": event.source.lower(),
        "duration_seconds": seconds(event.duration),
        "created_at": to_text_if_any(event.created_at),
        "approved_at": to_text_if_any(event.approved_at),
        "approved_by": event.approved_by,
        "started_at": to_text_if_any(event.started_at),
        "ended_at": to_text_if_any(event.ended_at),
    }
