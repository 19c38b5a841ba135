"""/v1/events: what groups are told, and what is said to it. Tenants see and approve those of their group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.core import approvals
from forewarn.core.access import Role
from forewarn.errors import AlreadyOver, BadRequestBody, Unknown, UnknownEvent
from forewarn.ports import HistoryFilter
from forewarn.server.bodies import A_MOMENT, read_fields
from forewarn.server.endpoints import Endpoint, caller
from forewarn.server.finding import hint, only
from forewarn.server.history_control import HISTORY, history_page
from forewarn.server.operation_control import DRY_RUN, explanation
from forewarn.server.paging import ALL, PAGING, page, rows_page
from forewarn.server.queries import Query
from forewarn.wire import control as shapes
from forewarn.wire.schema import LENGTH, MOMENT_OR_LENGTH, NAME, Field, ref
from forewarn.wire.shapes_schema import page_schema

if TYPE_CHECKING:
    from starlette.requests import Request as HttpRequest

    from forewarn.core.events import Event
    from forewarn.engine import Engine
    from forewarn.server.bodies import Fields

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
        return page("events", map(shapes.event_shape, found), following)

    async def event(self, request: HttpRequest) -> Response:
        return JSONResponse(shapes.event_shape(await self._find(request)))

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
        return JSONResponse({"event": shapes.event_shape(event), **explanation(self._engine, operation)})

    async def approve(self, request: HttpRequest) -> Response:
        await read_fields(request)
        event = await self._find_live(request)
        token = caller(request)
        await self._engine.order(approvals.approve, [event.id], token.name, token.group or None)
        return JSONResponse(shapes.event_shape(await self._find(request)))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_fields(request)
        event = await self._find_live(request)
        after = await self._engine.order(approvals.cancel, event.id, caller(request).name)
        return JSONResponse(shapes.event_shape(after))

    async def postpone(self, request: HttpRequest) -> Response:
        """`by` counts from NotBefore, `until` is a moment."""
        fields = await read_fields(request)
        event = await self._find_live(request)
        until, by = self._until(fields, event), caller(request).name
        if fields.flag("dry_run"):
            after, _ = self._engine.preview(approvals.postpone, event.id, by, until)
        else:
            after = await self._engine.order(approvals.postpone, event.id, by, until)
        return JSONResponse(shapes.event_shape(after))

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
