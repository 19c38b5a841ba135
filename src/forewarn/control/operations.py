"""/v1/operations: asking for something to happen, and how it goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, UnsetType

from forewarn.control.events import EventShape
from forewarn.control.explanations import ExplanationShape, explanation
from forewarn.control.history import HISTORY, history_page
from forewarn.control.idempotency import make_once
from forewarn.control.input import read_body, read_length, read_moment
from forewarn.control.paging import Paging, PagingAll, hint, only, page, rows_page
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    Body,
    DryRun,
    Length,
    Moment,
    MomentOrLength,
    NoMembers,
    Shape,
    answer,
    choice,
    help_text,
    page_of,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import CAUSES, OVERRIDES, CauseRequest, FailedAttempt, Health, Operation, Progress
from forewarn.core.placement import choose_host
from forewarn.core.requests import request as ask_for
from forewarn.errors import BadRequestBody, UnknownResource, WrongOperationStatus
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response

    from forewarn.core.events import Event
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine


MOST_DESTINATIONS = 20
"""For how many VMs it is said beforehand where they would go."""


class OperationShape(Shape):
    """An operation with its events."""

    id: str
    cause: Annotated[str, choice(*CAUSES)]
    type: str | None
    host: str | None
    vms: list[str]
    requested_by: str
    requested_at: Moment
    notice_seconds: float | None
    postpone_until: Moment | None
    overrides: list[Annotated[str, choice(*OVERRIDES)]]
    rollout: str | None
    progress: Annotated[str, choice(*(progress.value for progress in Progress))]
    health: Annotated[str, choice(*(health.value for health in Health if health.value))] | None
    outcome: str | None
    events: list[EventShape]
    not_told: dict[str, str]
    moves: dict[str, str]
    holds_until: Moment | None
    started_at: Moment | None
    carried_out_at: Moment | None
    settles_at: Moment | None
    ended_at: Moment | None
    last_failure: Annotated[str | None, help_text("Why the fabric's last attempt failed; it is tried again.")]
    next_attempt_at: Annotated[Moment | None, help_text("When the fabric is to try again.")]
    destinations: dict[str, str | None] | UnsetType = UNSET
    """In the answer to a request: where the VMs would go if it were now."""

    @classmethod
    def of(cls, operation: Operation, events: Iterable[Event], failed: FailedAttempt | None = None) -> Self:
        asked = operation.request
        return cls(
            id=operation.id,
            cause=operation.cause,
            type=operation.type or None,
            host=operation.host or None,
            vms=list(operation.vms),
            requested_by=operation.requested_by,
            requested_at=to_text(operation.requested_at),
            notice_seconds=seconds(asked.notice),
            postpone_until=to_text_if_any(asked.deadline),
            overrides=list(asked.overrides),
            rollout=asked.rollout or None,
            progress=operation.progress.value,
            health=operation.health.value or None,
            outcome=operation.outcome or None,
            events=list(map(EventShape.of, events)),
            not_told=dict(operation.unnoticed),
            moves=dict(operation.moves),
            holds_until=to_text_if_any(operation.holds_until),
            started_at=to_text_if_any(operation.started_at),
            carried_out_at=to_text_if_any(operation.carried_out_at),
            settles_at=to_text_if_any(operation.settles_at),
            ended_at=to_text_if_any(operation.ended_at),
            last_failure=failed.problem if failed is not None else None,
            next_attempt_at=to_text_if_any(failed.next_at) if failed is not None else None,
        )


class RequestedShape(Shape):
    """What a request has begun, or would begin."""

    dry_run: bool
    operations: list[OperationShape]


class OperationRequest(DryRun, kw_only=True):
    """What is to happen."""

    cause: Annotated[str, choice(*CAUSES), help_text("What is to happen.")]
    vms: Annotated[list[str] | None, help_text("The VMs it is to happen to; or else name a host.")] = None
    host: Annotated[str | None, help_text("The host it is to happen to, with all that is on it.")] = None
    type: Annotated[
        Annotated[str, choice("", *EVENT_TYPES)] | None,
        help_text("The type of event, where the cause can have several."),
    ] = None
    duration: Annotated[Length | None, help_text("How long the interruption lasts, where the cause has one.")] = None
    notice: Annotated[Length | None, help_text("How long beforehand it is told.")] = None
    postpone_until: Annotated[MomentOrLength | None, help_text("Up to when it may be postponed.")] = None
    overrides: Annotated[list[Annotated[str, choice(*OVERRIDES)]] | None, help_text("What is insisted on.")] = None


class FailureReport(Body):
    """Why the work of an operation failed."""

    why: Annotated[str | None, help_text("What went wrong, for history.")] = None


class OperationControl:
    """Operations."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = OperationShape, "/v1/operations/{id}", Role.OPERATOR
        return [
            Endpoint(
                "GET",
                "/v1/operations",
                self.operations,
                "List operations.",
                page_of("operations", OperationShape),
                query=PagingAll,
            ),
            Endpoint(
                "POST",
                "/v1/operations",
                self.request,
                "Ask for something to happen.",
                RequestedShape,
                operator,
                body=OperationRequest,
                status=201,
                other_status=200,
                makes=True,
                leads_to=((path, "/operations/0/id"), ("/v1/events/{id}", "/operations/0/events/0/id")),
            ),
            Endpoint("GET", path, self.operation, "See an operation, until it is done and after.", one),
            Endpoint(
                "GET", f"{path}/explain", self.explain, "See why an operation waits, or waited.", ExplanationShape
            ),
            Endpoint(
                "GET", f"{path}/history", self.history, "See what happened to an operation.", HISTORY, query=Paging
            ),
            Endpoint("POST", f"{path}/done", self.done, "Say that the work is done.", one, operator, body=NoMembers),
            Endpoint(
                "POST", f"{path}/failed", self.failed, "Say that the work failed.", one, operator, body=FailureReport
            ),
            Endpoint(
                "POST",
                f"{path}/cancel",
                self.cancel,
                "Withdraw an operation that waits.",
                one,
                operator,
                body=NoMembers,
            ),
        ]

    async def request(self, request: HttpRequest) -> Response:
        body = await read_body(request, OperationRequest)
        asked = CauseRequest(
            cause=body.cause,
            vms=tuple(body.vms or ()),
            host=body.host or "",
            type=body.type or "",
            duration=read_length(body.duration, "/duration"),
            notice=read_length(body.notice, "/notice"),
            deadline=read_moment(body.postpone_until, "/postpone_until", self._engine.clock.now()),
            overrides=tuple(body.overrides or ()),
        )
        if not asked.vms and not asked.host:
            problem = "must name at least one VM, or /host must name a host"
            raise BadRequestBody(pointer="/vms", problem=problem, valid="a list of at least one VM name")
        by, dry_run = caller(request).name, bool(body.dry_run)

        def decide(draft: Draft, now: datetime, terms: Terms) -> RequestedShape:
            operations = ask_for(draft, now, terms, asked, by)
            found = []
            for operation, expected in zip(operations, _destinations(draft, operations), strict=True):
                shape = OperationShape.of(operation, (draft.changes.events[event_id] for event_id in operation.events))
                shape.destinations = expected
                found.append(shape)
            return RequestedShape(dry_run, found)

        if dry_run:
            return answer(self._engine.preview(decide)[0])
        return await make_once(self._engine, request, decide)

    async def operations(self, request: HttpRequest) -> Response:
        found, following = await rows_page(request, self._engine.records.operations)
        return page("operations", [await self._shape(operation) for operation in found], following)

    async def operation(self, request: HttpRequest) -> Response:
        return answer(await self._shape(await self._find(request)))

    async def explain(self, request: HttpRequest) -> Response:
        return answer(explanation(self._engine, await self._find(request)))

    async def history(self, request: HttpRequest) -> Response:
        operation = await self._find(request)
        return await history_page(self._engine, request, HistoryFilter(operation=operation.id))

    async def done(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        operation = await self._find_live(request)
        after = await self._engine.mark_done(operation.id, caller(request).name)
        return answer(await self._shape(after))

    async def failed(self, request: HttpRequest) -> Response:
        body = await read_body(request, FailureReport)
        operation = await self._find_live(request)
        by, why = caller(request).name, body.why or ""
        after = await self._engine.mark_failed(operation.id, by, why)
        return answer(await self._shape(after))

    async def cancel(self, request: HttpRequest) -> Response:
        await read_body(request, NoMembers)
        operation = await self._find_live(request)
        after = await self._engine.cancel_operation(operation.id, caller(request).name)
        return answer(await self._shape(after))

    async def _shape(self, operation: Operation) -> OperationShape:
        found = [await self._engine.records.event(event_id) for event_id in operation.events]
        failed = self._engine.failed_attempt(operation.id)
        return OperationShape.of(operation, (event for event in found if event is not None), failed)

    async def _find(self, request: HttpRequest) -> Operation:
        """By its id, or by the beginning of it where that is clear."""
        wanted = request.path_params["id"].lower()
        found = await self._engine.records.operations_beginning(wanted)
        live = {operation.id: operation for operation in self._engine.live_operations()}
        if one := only(found):
            return live.get(one.id, one)
        raise UnknownResource(what="operation", name=request.path_params["id"], hint=hint(found, wanted, live))

    async def _find_live(self, request: HttpRequest) -> Operation:
        operation = await self._find(request)
        if not operation.progress.live:
            problem = "An operation that has ended cannot be changed."
            raise WrongOperationStatus(operation_id=operation.id, progress=operation.progress.value, problem=problem)
        return operation


def _destinations(draft: Draft, operations: Sequence[Operation]) -> Iterable[dict[str, str | None]]:
    """Where the VMs would go if it were now; None: no host fits."""
    left = MOST_DESTINATIONS
    for operation in operations:
        expected: dict[str, str | None] = {}
        pending = operation.progress is Progress.PENDING
        for name in operation.concerned(draft.fleet)[:left] if operation.moves_vms else ():
            expected[name] = choose_host(draft, draft.fleet.vm(name)) if pending else None
        left -= len(expected)
        yield expected | dict(operation.moves)
