"""/v1/operations: request operations, and follow them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, UnsetType

from forewarn.control.explanations import ExplanationShape, explanation
from forewarn.control.filters import NameCheck, find_operation, one_of, vm_pattern
from forewarn.control.idempotency import create_once
from forewarn.control.input import read_body, read_duration, read_interruption, read_time
from forewarn.control.paging import All, Counting, page, rows_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    MAX_REASON,
    Body,
    Description,
    DryRun,
    Duration,
    HostsOfVMs,
    Interruption,
    Name,
    NameIfAny,
    NoMembers,
    RequireNotice,
    Shape,
    Speed,
    Time,
    TimeOrDuration,
    VMNames,
    at_most,
    choice,
    help_text,
    json_response,
    page_of,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES, Verb
from forewarn.core.operations import (
    CAUSES,
    OVERRIDES,
    Cause,
    CauseRequest,
    CauseTarget,
    FailedAttempt,
    Health,
    Operation,
    OperationStatus,
)
from forewarn.core.placement import choose_host
from forewarn.core.requests import IMAGE_CHANGES, request_in_steps
from forewarn.core.shell_patterns import is_pattern
from forewarn.core.steps import COMMAND_COST
from forewarn.delivery.event_shapes import EventShape
from forewarn.errors import BadOption, BadRequestBody, WrongOperationStatus
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.events import Event
    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine


MAX_DESTINATIONS = 20
"""Maximum number of VMs for which a response predicts the destination host."""


class OperationShape(Shape):
    """An operation with its events."""

    id: str
    cause: Annotated[str, choice(*CAUSES)]
    type: str | None
    verb: Annotated[
        Annotated[str, choice(*(verb.value for verb in Verb))] | None,
        help_text("The work that the fabric does; null: none."),
    ]
    host: str | None
    vms: list[str]
    requested_by: str
    requested_at: Time
    notice_seconds: float | None
    postpone_deadline: Time | None
    overrides: list[Annotated[str, choice(*OVERRIDES)]]
    rollout: str | None
    status: Annotated[str, choice(*(status.value for status in OperationStatus))]
    health: Annotated[str, choice(*(health.value for health in Health if health.value))] | None
    reason: str | None
    events: list[EventShape]
    not_notified: dict[str, str]
    moves: dict[str, str]
    holds_until: Time | None
    started_at: Time | None
    executed_at: Time | None
    settles_at: Time | None
    ended_at: Time | None
    last_failure: Annotated[str | None, help_text("Error of the fabric's last attempt. The service retries it.")]
    next_attempt_at: Annotated[Time | None, help_text("Time of the next attempt.")]
    destinations: dict[str, str | None] | UnsetType = UNSET
    """Only in the response to a request: the hosts that the VMs would move to now."""

    @classmethod
    def of(cls, operation: Operation, events: Iterable[Event], failed: FailedAttempt | None = None) -> Self:
        requested = operation.request
        return cls(
            id=operation.id,
            cause=operation.cause,
            type=operation.type or None,
            verb=operation.verb.value if operation.verb is not None else None,
            host=operation.host or None,
            vms=list(operation.vms),
            requested_by=operation.requested_by,
            requested_at=to_text(operation.requested_at),
            notice_seconds=seconds(requested.notice),
            postpone_deadline=to_text_if_any(requested.postpone_deadline),
            overrides=list(requested.overrides),
            rollout=requested.rollout or None,
            status=operation.status.value,
            health=operation.health.value or None,
            reason=operation.reason or None,
            events=list(map(EventShape.of, events)),
            not_notified=dict(operation.not_notified),
            moves=dict(operation.moves),
            holds_until=to_text_if_any(operation.holds_until),
            started_at=to_text_if_any(operation.started_at),
            executed_at=to_text_if_any(operation.executed_at),
            settles_at=to_text_if_any(operation.settles_at),
            ended_at=to_text_if_any(operation.ended_at),
            last_failure=failed.problem if failed is not None else None,
            next_attempt_at=to_text_if_any(failed.next_at) if failed is not None else None,
        )


class RequestedShape(Shape):
    """The operations that a request created, or would create."""

    dry_run: bool
    operations: list[OperationShape]


class CauseShape(Shape):
    """A cause that an operation can have."""

    name: Annotated[str, choice(*CAUSES)]
    meaning: str
    target: Annotated[
        str,
        choice(*(target.value for target in CauseTarget)),
        help_text("vm and shared: request it for VMs. host and tenants: request it for a host."),
    ]
    types: Annotated[list[str], help_text("Possible event types, the default first; empty: there is no event.")]
    source: Annotated[str, choice("platform", "user")]
    notice_seconds: Annotated[float | None, help_text("The default notice; null: it depends on the group.")]
    duration_seconds: Annotated[float | None, help_text("The default interruption; null: there is none.")]
    routine: Annotated[bool, help_text("Whether it waits for maintenance windows and can be postponed.")]
    dangerous: Annotated[bool, help_text("Whether VMs or their OS disks are lost, or VMs stop, or there is no notice.")]

    @classmethod
    def of(cls, cause: Cause) -> Self:
        notice = EVENT_TYPES[cause.types[0]].min_notice if cause.types and cause.notice is None else cause.notice
        return cls(
            name=cause.name,
            meaning=cause.meaning,
            target=cause.target.value,
            types=list(cause.types),
            source=cause.source.lower(),
            notice_seconds=None if cause.verb in _NOTICE_BY_POLICY else seconds(notice),
            duration_seconds=seconds(cause.duration),
            routine=cause.routine,
            dangerous=cause.dangerous,
        )


_NOTICE_BY_POLICY = (Verb.REIMAGE, Verb.DELETE)
"""The policy of the group decides whether and how long before these a group gets notice."""


class CausesShape(Shape):
    """All causes."""

    causes: list[CauseShape]


class OperationRequest(DryRun, kw_only=True):
    """The operation to request."""

    cause: Annotated[str, choice(*CAUSES), help_text("The cause of the operation.")]
    vms: Annotated[VMNames | None, help_text("The VMs that it affects. Give this, host or group.")] = None
    host: Annotated[NameIfAny | None, help_text("The host that it affects, with all VMs on it. Give this or vms.")] = (
        None
    )
    group: Annotated[
        NameIfAny | None,
        help_text("With reimage and image-upgrade: the group whose running VMs it affects, instead of vms."),
    ] = None
    type: Annotated[
        Annotated[str, choice("", *EVENT_TYPES)] | None,
        help_text("The event type, if the cause allows several."),
    ] = None
    duration: Annotated[Interruption | None, help_text("Duration of the interruption, if the cause has one.")] = None
    notice: Annotated[Duration | None, help_text("Time between the notification of the groups and the start.")] = None
    postpone_deadline: Annotated[
        TimeOrDuration | None, help_text("The latest time to which its events can be postponed.")
    ] = None
    overrides: Annotated[
        Annotated[list[Annotated[str, choice(*OVERRIDES)]], at_most(len(OVERRIDES))] | None,
        help_text("Rules to override. Each use is recorded in history."),
    ] = None
    description: Description = None
    require_notice: RequireNotice = None
    speed: Speed = None


class OperationsQuery(Counting):
    """Which operations to list."""

    all: All = False
    group: Annotated[Name, help_text("Only operations with an event of this group.")] = ""
    vm: Annotated[Name, help_text("Only operations on this VM, or on VMs that match this shell pattern.")] = ""
    host: Annotated[Name, help_text("Only operations on this host.")] = ""
    type: Annotated[Name, choice(*EVENT_TYPES), help_text("Only operations with events of this type.")] = ""
    cause: Annotated[Name, choice(*CAUSES), help_text("Only operations with this cause.")] = ""
    status: Annotated[
        Name,
        choice(*(status.value for status in OperationStatus)),
        help_text("Only operations with this status. An ended one includes ended operations."),
    ] = ""
    todo: Annotated[bool, help_text("Only operations that have started, and whose work is not done.")] = False


class WorkReport(Body):
    """What the work of an operation has changed."""

    hosts: Annotated[
        HostsOfVMs | None,
        help_text("The host of each VM after the work, if the fabric or the operator who did the work has chosen it."),
    ] = None


class FailureReport(Body):
    """Why an operation failed."""

    reason: Annotated[Annotated[str, at_most(MAX_REASON)] | None, help_text("Why it failed. Recorded in history.")] = (
        None
    )


class OperationControl:
    """Operations."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices

    def routes(self) -> list[Route]:
        one, path, operator = OperationShape, "/v1/operations/{id}", Role.OPERATOR
        return [
            Route("GET", "/v1/causes", self.causes, "List the causes that an operation can have.", CausesShape),
            Route(
                "GET",
                "/v1/operations",
                self.operations,
                "List operations.",
                page_of("operations", OperationShape, counted=True),
                query=OperationsQuery,
            ),
            Route(
                "POST",
                "/v1/operations",
                self.request,
                "Request an operation.",
                RequestedShape,
                operator,
                body=OperationRequest,
                status=201,
                other_status=200,
                creates=True,
                links=((path, "/operations/0/id"), ("/v1/events/{id}", "/operations/0/events/0/id")),
            ),
            Route("GET", path, self.operation, "Return an operation.", one),
            Route("GET", f"{path}/explain", self.explain, "Explain what an operation waits for.", ExplanationShape),
            Route(
                "POST", f"{path}/done", self.done, "Mark a started operation as done.", one, operator, body=WorkReport
            ),
            Route(
                "POST",
                f"{path}/failed",
                self.failed,
                "Mark a started operation as failed.",
                one,
                operator,
                body=FailureReport,
            ),
            Route(
                "POST",
                f"{path}/cancel",
                self.cancel,
                "Cancel a pending operation.",
                one,
                operator,
                body=NoMembers,
            ),
        ]

    async def request(self, request: HttpRequest) -> Response:
        body = await read_body(request, OperationRequest)
        requested = CauseRequest(
            cause=body.cause,
            vms=tuple(body.vms or ()),
            host=body.host or "",
            type=body.type or "",
            duration=read_interruption(body.duration, "/duration"),
            notice=read_duration(body.notice, "/notice"),
            postpone_deadline=read_time(body.postpone_deadline, "/postpone_deadline", self._engine.clock.now()),
            overrides=tuple(body.overrides or ()),
            description=body.description,
            require_notice=bool(body.require_notice),
            speed=1.0 if body.speed is None else body.speed,
        )
        group = body.group or ""
        if group and (requested.vms or requested.host or requested.cause not in IMAGE_CHANGES):
            problem = f"must be given without vms and host, and with one of {', '.join(IMAGE_CHANGES)}"
            raise BadRequestBody(pointer="/group", problem=problem, allowed="the name of a group")
        if not requested.vms and not requested.host and not group:
            problem = "must name at least one VM. Or give a host, or a group for a new OS image"
            raise BadRequestBody(pointer="/vms", problem=problem, allowed="a list of VM names")
        by, dry_run = caller(request).name, bool(body.dry_run)

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[RequestedShape]:
            named = requested._replace(vms=_running(draft.fleet, group)) if group else requested
            operations = yield from request_in_steps(draft, now, limits, named, by)
            found = []
            for operation, expected in zip(operations, _destinations(draft, operations), strict=True):
                shape = OperationShape.of(operation, (draft.changes.events[event_id] for event_id in operation.events))
                shape.destinations = expected
                found.append(shape)
                yield COMMAND_COST
            return RequestedShape(dry_run, found)

        if dry_run:
            return json_response(await self._engine.preview_in_steps(decide))
        return await create_once(self._engine, request, decide)

    async def causes(self, _: HttpRequest) -> Response:
        return json_response(CausesShape(list(map(CauseShape.of, CAUSES.values()))))

    async def operations(self, request: HttpRequest) -> Response:
        query: OperationsQuery = request.state.query
        records = self._engine.records
        status = one_of("status", query.status, (status.value for status in OperationStatus))
        filters = ListFilter(
            live=not query.all and (not status or OperationStatus(status).live),
            group=query.group,
            vm=vm_pattern(self._engine.fleet, caller(request), query.vm),
            host=query.host,
            type=one_of("type", query.type, EVENT_TYPES),
            cause=one_of("cause", query.cause, CAUSES),
            status=status,
            unexecuted=query.todo,
        )
        if query.todo:
            filters = filters._replace(live=True)
        found, last_key = await rows_page(request, records.operations, _names, filters)
        if not found:
            check = NameCheck(self._engine, self._slices, caller(request))
            if not is_pattern(query.vm):
                await check.vm(query.vm)
            await check.groups((query.group,) if query.group else ())
            await check.host(query.host)
        total = await records.count_operations(filters) if query.count else None
        shapes = []
        for operation in found:  # one in a slice: it can have many events
            events, failed = await self._events(operation), self._engine.failed_attempt(operation.id)
            shape = partial(OperationShape.of, operation, failed=failed)
            shapes += await self._slices.collect(map(shape, [events]), 1)
        return page("operations", shapes, last_key, total)

    async def operation(self, request: HttpRequest) -> Response:
        return json_response(await self._shape(await self._find(request)))

    async def explain(self, request: HttpRequest) -> Response:
        operation = await self._find(request)
        await self._slices.turn()  # it can have many events
        return json_response(explanation(self._engine, operation))

    async def done(self, request: HttpRequest) -> Response:
        body = await read_body(request, WorkReport)
        operation = await self._find_live(request)
        after = await self._engine.mark_done(operation.id, caller(request).name, body.hosts)
        return json_response(await self._shape(after))

    async def failed(self, request: HttpRequest) -> Response:
        body = await read_body(request, FailureReport)
        operation = await self._find_live(request)
        by, reason = caller(request).name, body.reason or ""
        after = await self._engine.mark_failed(operation.id, by, reason)
        return json_response(await self._shape(after))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        operation = await self._find_live(request)
        after = await self._engine.cancel_operation(operation.id, caller(request).name)
        return json_response(await self._shape(after))

    async def _shape(self, operation: Operation) -> OperationShape:
        events, failed = await self._events(operation), self._engine.failed_attempt(operation.id)
        await self._slices.turn()  # it can have many events
        return OperationShape.of(operation, events, failed)

    async def _events(self, operation: Operation) -> list[Event]:
        found = [await self._engine.records.event(event_id) for event_id in operation.events]
        return [event for event in found if event is not None]

    async def _find(self, request: HttpRequest) -> Operation:
        return await find_operation(self._engine, request.path_params["id"])

    async def _find_live(self, request: HttpRequest) -> Operation:
        operation = await self._find(request)
        if not operation.status.live:
            problem = "An operation that has ended cannot be changed."
            raise WrongOperationStatus(operation_id=operation.id, status=operation.status.value, problem=problem)
        return operation


def _names(operation: Operation) -> int:
    """Return how many names of VMs an operation has in a response. An event has as many characters as some names."""
    return len(operation.vms) + 10 * len(operation.events)


def _running(fleet: Fleet, group: str) -> tuple[str, ...]:
    """Return the running VMs of a group."""
    fleet.known_group(group)
    running = tuple(name for name in fleet.members(group) if not fleet.vms[name].deallocated)
    if not running:
        raise BadOption(name="group", value=group, problem="it has no running VM. Start one first.")
    return running


def _destinations(draft: Draft, operations: Sequence[Operation]) -> Iterable[dict[str, str | None]]:
    """Return the host that each VM would move to now; None: no host can take it."""
    left = MAX_DESTINATIONS
    for operation in operations:
        expected: dict[str, str | None] = {}
        pending = operation.status is OperationStatus.PENDING
        for name in operation.concerned(draft.fleet)[:left] if operation.moves_vms else ():
            expected[name] = choose_host(draft, draft.fleet.vm(name)) if pending else None
        left -= len(expected)
        yield expected | dict(operation.moves)
