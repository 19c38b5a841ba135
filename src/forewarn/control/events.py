"""/v1/events: list, approve, postpone and cancel events. A tenant sees and approves the events of its group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from msgspec.structs import asdict

from forewarn.control.explanations import ExplanationShape, explanation
from forewarn.control.filters import NameCheck, find_event, find_vm, one_of, vm_pattern
from forewarn.control.input import TIME_FORMAT, read_body, read_duration, read_time
from forewarn.control.paging import All, Counting, page, rows_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    DryRun,
    Duration,
    Name,
    NameIfAny,
    NoMembers,
    Shape,
    TimeOrDuration,
    choice,
    help_text,
    json_response,
    page_of,
)
from forewarn.core import approvals
from forewarn.core.access import Role
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import EventStatus
from forewarn.core.operations import CAUSES
from forewarn.core.shell_patterns import is_pattern
from forewarn.delivery.event_shapes import EventShape
from forewarn.errors import (
    BadRequestBody,
    EventEnded,
    InsufficientRole,
    UnknownResource,
)
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine


class EventExplanationShape(ExplanationShape):
    """What the operation of an event waits for."""

    event: EventShape


_STATUSES = tuple(status.lower() for status in EventStatus)


class EventsQuery(Counting):
    """Which events to list."""

    all: All = False
    group: Annotated[Name, help_text("Only events of this group.")] = ""
    vm: Annotated[Name, help_text("Only events of this VM, or of VMs that match this shell pattern.")] = ""
    host: Annotated[Name, help_text("Only events of operations on this host.")] = ""
    type: Annotated[Name, choice(*EVENT_TYPES), help_text("Only events of this type.")] = ""
    cause: Annotated[Name, choice(*CAUSES), help_text("Only events of operations with this cause.")] = ""
    status: Annotated[
        Name, choice(*_STATUSES), help_text("Only events with this status. An ended one includes ended events.")
    ] = ""


class Approval(DryRun):
    """Which events to approve: those that wait for an approval."""

    vm: Annotated[NameIfAny | None, help_text("All events of this VM. Give this or all.")] = None
    all: Annotated[bool | None, help_text("All events that the caller can see. Give this or vm.")] = None


class ApprovedShape(Shape):
    """The events that a request approved, or would approve."""

    dry_run: bool
    events: list[EventShape]


class Postponement(DryRun):
    """How far to postpone an event."""

    by: Annotated[Duration | None, help_text("Time to add to the current NotBefore. Give this or until.")] = None
    until: Annotated[TimeOrDuration | None, help_text("The new NotBefore. Give this or by.")] = None


class EventControl:
    """Events."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def routes(self) -> list[Route]:
        one, path, operator = EventShape, "/v1/events/{id}", Role.OPERATOR
        return [
            Route(
                "GET",
                "/v1/events",
                self.events,
                "List events.",
                page_of("events", EventShape, counted=True),
                tenant=True,
                query=EventsQuery,
            ),
            Route(
                "POST",
                "/v1/events/approve",
                self.approve_several,
                "Approve all events of a VM, or all events, that wait for an approval.",
                ApprovedShape,
                operator,
                tenant=True,
                body=Approval,
            ),
            Route("GET", path, self.event, "Return an event.", one, tenant=True),
            Route(
                "GET",
                f"{path}/explain",
                self.explain,
                "Explain what an event waits for.",
                EventExplanationShape,
                tenant=True,
            ),
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
        query: EventsQuery = request.state.query
        token, records = caller(request), self._engine.records
        own = token.group
        if own and query.group not in ("", own):
            return page("events", (), None)  # a tenant must not learn whether the group exists
        if own and query.host:
            raise InsufficientRole(role=token.role.value, what="Events by host", needed="viewer, operator or admin")
        status = one_of("status", query.status, EventStatus)
        filters = ListFilter(
            live=not query.all and (not status or EventStatus(status).live),
            group=own or query.group,
            generation=token.generation,
            vm=vm_pattern(self._engine.fleet, token, query.vm),
            host=query.host,
            type=one_of("type", query.type, EVENT_TYPES),
            cause=one_of("cause", query.cause, CAUSES),
            status=status,
        )
        found, last_key = await rows_page(request, records.events, lambda event: len(event.resources), filters)
        if not found:
            check = NameCheck(self._engine, self._slices, token)
            if not is_pattern(query.vm):
                await check.vm(query.vm)
            await check.groups((query.group,) if query.group and not own else ())
            await check.host(query.host)
        total = await records.count_events(filters) if query.count else None
        return page("events", await self._slices.collect(map(EventShape.of, found)), last_key, total)

    async def event(self, request: HttpRequest) -> Response:
        return json_response(EventShape.of(await self._find(request)))

    async def explain(self, request: HttpRequest) -> Response:
        event = await self._find(request)
        operation = await self._engine.records.operation(event.operation)
        if operation is None:
            raise UnknownResource(what="operation", name=event.operation, hint="")
        await self._slices.turn()  # it can have many events
        return json_response(
            EventExplanationShape(
                **asdict(explanation(self._engine, operation, caller(request).group)), event=EventShape.of(event)
            )
        )

    async def approve(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        event = await self._find_live(request)
        token = caller(request)
        await self._engine.approve([event.id], token.name, _tenant(token))
        return json_response(EventShape.of(await self._engine.records.event(event.id) or event))

    async def approve_several(self, request: HttpRequest) -> Response:
        body = await read_body(request, Approval)
        if bool(body.vm) == bool(body.all):
            raise BadRequestBody(pointer="/vm", problem="give either /vm or /all", allowed="the name of a VM")
        token, fleet = caller(request), self._engine.fleet
        if body.vm:
            find_vm(fleet, token, body.vm)  # raises if there is no such VM
        ids = [
            event.id
            for event in self._engine.live_events()
            if event.status is EventStatus.SCHEDULED
            and event.approved_at is None
            and token.sees(event)
            and (not body.vm or body.vm in event.resources)
        ]
        if ids and not body.dry_run:
            await self._engine.approve(ids, token.name, _tenant(token))
        found = [await self._engine.records.event(event_id) for event_id in ids]
        shapes = await self._slices.collect(EventShape.of(event) for event in found if event is not None)
        return json_response(ApprovedShape(bool(body.dry_run), shapes))

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
            after = await self._engine.preview_in_steps(approvals.postpone_in_steps, event.id, by, until)
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
        return await find_event(self._engine, caller(request), request.path_params["id"])

    async def _find_live(self, request: HttpRequest) -> Event:
        event = await self._find(request)
        if not event.status.live:
            raise EventEnded(event_id=event.id, status=event.status.lower())
        return event


def _tenant(token: Token) -> Token | None:
    """Return the token if it is limited to the events of its group."""
    return token if token.role is Role.TENANT else None
