"""Progress of operations: start, execution, settling and end."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core import history, placement
from forewarn.core.durations import format_duration, format_time, round_up_to_second, to_text
from forewarn.core.event_types import Verb
from forewarn.core.events import Event, Trigger, due, may_start, step
from forewarn.core.operations import CAUSES, CauseTarget, Health, Operation, OperationStatus
from forewarn.core.rollouts import skip_reason
from forewarn.core.state import UP_AT
from forewarn.core.steps import COMMAND_COST, at_once
from forewarn.core.waits import TERMINATE, arrivals, coupled_deletions, first_names, keeps_to_windows
from forewarn.core.windows import is_open, next_common
from forewarn.errors import BadOption, WrongOperationStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft, ServiceState
    from forewarn.core.steps import Steps

WINDOW_RECHECK = timedelta(days=1)
"""How long to wait before checking windows again that do not overlap."""


def advance_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str, *, together: bool = False
) -> Steps[Operation | None]:
    """Start an operation if all its events may start, or end it if it has settled.

    `together`: the caller has already checked deletions that wait for each other.
    """
    operation = draft.operation(operation_id)
    if operation is None or not operation.status.live:
        return None
    yield 1 + len(operation.events)
    if operation.status is OperationStatus.PENDING:
        events = history.events_of(draft, operation)
        if not _may_start(draft, now, operation, events, together=together):
            return operation
        if _windows_closed(draft, now, operation):
            return (yield from _postpone_to_window(draft, now, operation))
        operation = yield from _start(draft, now, limits, operation, events)
        yield from _start_waiting_deletions(draft, now, limits, events)
    if operation.status is OperationStatus.STARTED and _has_settled(operation, now):
        operation = yield from history.end_in_steps(draft, now, operation, OperationStatus.DONE, history.ENGINE)
        placement.after_end(draft, now, operation)
        yield operation.cost
    return operation


advance = at_once(advance_in_steps)


def _may_start(draft: Draft, now: datetime, operation: Operation, events: list[Event], *, together: bool) -> bool:
    """Return whether all events may start, including coupled deletions, and no VM is on its way to the host."""
    if (operation.holds_until is not None and now < operation.holds_until) or arrivals(draft, operation):
        return False
    return all(may_start(event, now) and (together or not _coupled(draft, event, now)) for event in events)


def _coupled(draft: Draft, event: Event, now: datetime) -> bool:
    """Return whether a deletion waits for another one that is not approved (contract, section 4)."""
    return now < event.not_before and any(other.approved_at is None for other in coupled_deletions(draft, event))


def _start_waiting_deletions(draft: Draft, now: datetime, limits: OperatorLimits, started: list[Event]) -> Steps[None]:
    """Start approved deletions that waited for a deletion without approval, which has started at its NotBefore."""
    for event in started:
        waiting = coupled_deletions(draft, event) if event.approved_at is None else []
        if all(other.approved_at is not None for other in waiting):
            for other in waiting:
                yield from advance_in_steps(draft, now, limits, other.operation, together=True)


# --- Windows ----------------------------------------------------------------------------------------


def _windowed(draft: Draft, operation: Operation) -> list[str]:
    """Return the scopes with windows that have not approved."""
    fleet = draft.fleet
    # A scope has several events if VMs of it have arrived later.
    approved = {event.scope: True for event in history.events_of(draft, operation)}
    for event in history.events_of(draft, operation):
        approved[event.scope] &= event.approved_at is not None
    scopes = dict.fromkeys(fleet.scope_of(fleet.vm(name)) for name in operation.concerned(fleet))
    return [scope for scope in scopes if not approved.get(scope) and fleet.group_of(scope).windows]


def _windows_closed(draft: Draft, now: datetime, operation: Operation) -> bool:
    """Return whether a window closed before the start: the service was down, or the policy has changed."""
    return keeps_to_windows(operation) and any(
        not is_open(draft.fleet.group_of(scope).windows, now) for scope in _windowed(draft, operation)
    )


def next_start_in_windows(draft: Draft, operation: Operation, earliest: datetime) -> datetime | None:
    """Return the first time at which the windows of all groups that have not approved are open together."""
    return next_common((draft.fleet.group_of(scope).windows for scope in _windowed(draft, operation)), earliest)


def _postpone_to_window(draft: Draft, now: datetime, operation: Operation) -> Steps[Operation]:
    start = round_up_to_second(now)
    until = next_start_in_windows(draft, operation, start)
    deadline = operation.request.postpone_deadline
    if until is None and deadline is not None and now >= deadline:
        reason = "the maintenance windows no longer overlap, and the postpone deadline has passed"
        return (yield from history.cancel_in_steps(draft, now, operation, history.ENGINE, reason))
    until = until or start + WINDOW_RECHECK
    reason = "the maintenance window was closed"
    return (yield from postpone_operation(draft, now, operation, until, history.ENGINE, reason))


def postpone_operation(
    draft: Draft, now: datetime, operation: Operation, until: datetime, by: str, reason: str
) -> Steps[Operation]:
    """Postpone an operation: all its events that are not approved get the same NotBefore."""
    events = history.events_of(draft, operation)
    moved: list[tuple[Event, str]] = []
    for event in events:
        after = step(event, Trigger.POSTPONE, now, until=until) if event.approved_at is None else event
        if after is not event:
            draft.put_event(after)
            moved.append((after, f"from {format_time(event.not_before, zone=False)} to {format_time(until)}"))
            yield COMMAND_COST
    notified = {event.scope for event in events}
    # Without an event that carries the time, the operation must.
    if not moved or any(scope not in notified for scope in _windowed(draft, operation)):
        operation = operation._replace(holds_until=max(until, operation.holds_until or until))
        draft.put_operation(operation)
    # Last, because each row contains what its event waits for now.
    for event, text in moved:
        history.record_event(draft, now, "postponed", by, event, f"{text}: {reason}" if reason else text)
        yield COMMAND_COST
    return operation


def exclude_downtime(draft: Draft, now: datetime, limits: OperatorLimits, downtime: timedelta) -> None:
    """Move NotBefore of all events without an approval later, because nobody could poll while the service was down.

    The same commit says that the service is up, so that no downtime counts twice.
    """
    draft.changes.facts[UP_AT] = to_text(now)
    moved = []
    for event in draft.live_events():
        if due(event) is not None:
            until = round_up_to_second(event.not_before + downtime)
            moved.append(step(event, Trigger.POSTPONE, now, until=until))
            draft.put_event(moved[-1])
    for event in moved:
        reason = f"to {format_time(event.not_before)}: the service was down for {format_duration(downtime)}"
        history.record_event(draft, now, "postponed", history.ENGINE, event, reason)


# --- Start and end ------------------------------------------------------------------------------------


def _start(
    draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation, events: list[Event]
) -> Steps[Operation]:
    bound = operation.host and operation.vms and CAUSES[operation.cause].target is not CauseTarget.HOST
    if bound and not operation.concerned(draft.fleet):
        return history.cancel(draft, now, operation, history.ENGINE, "it no longer applies to its VMs")
    if operation.request.rollout and (reason := skip_reason(draft.fleet, operation.host)):
        return history.cancel(draft, now, operation, history.ENGINE, reason)
    if operation.moves_vms or operation.verb is Verb.START:
        operation = yield from placement.choose_destinations(draft, now, limits, operation)
        if operation.verb is Verb.MIGRATE and not operation.moves:
            reason = "no host can take any of its VMs"
            if CAUSES[operation.cause].target is CauseTarget.TENANTS:  # it cannot stay on a degraded host
                draft.to_redeploy[operation.id] = None
                reason += ", so it is redeployed"
            return history.cancel(draft, now, operation, history.ENGINE, reason)
    operation = operation._replace(
        status=OperationStatus.STARTED,
        started_at=now,
        settles_at=now + limits.at(operation.request.speed).settle_time(operation.cause),
        executed_at=None if operation.verb else now,
    )
    for event in events:
        after = step(event, Trigger.START, now)
        draft.put_event(after)
        history.record_event(draft, now, "started", history.ENGINE, after, _start_reason(event, now))
        yield COMMAND_COST
    draft.put_operation(operation)
    yield COMMAND_COST
    return operation


def _start_reason(event: Event, now: datetime) -> str:
    if event.approved_at is not None:
        return "approved"
    return "no notice" if event.created_at == now else "NotBefore reached"


def _has_settled(operation: Operation, now: datetime) -> bool:
    if operation.executed_at is None or operation.settles_at is None or now < operation.settles_at:
        return False
    return not operation.request.rollout or operation.health is not Health.UNKNOWN


def record_executed(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    operation_id: str,
    by: str = history.ENGINE,
    placed: Mapping[str, str] | None = None,
) -> None:
    """Record that the work is done. If an operator reports it, the operation ends without settling.

    `placed`: VMs that are on another host now than the order said, each with its host.
    """
    operation = draft.operation(operation_id)
    if operation is None or operation.status is not OperationStatus.STARTED or operation.executed_at is not None:
        return
    by_hand = by != history.ENGINE
    reported = (placed or {}).items()
    known = {vm: host for vm, host in reported if not placement.placed_problem(draft, operation, vm, host)}
    operation = operation._replace(
        moves=tuple((dict(operation.moves) | known).items()),
        executed_at=now,
        settles_at=now if by_hand else operation.settles_at,
        health=Health.GOOD if by_hand else operation.health,
    )
    draft.put_operation(operation)
    ignored = [f"{vm} to {host}" for vm, host in reported if vm not in known]
    text = f"; ignored, because they are not in the fleet: {first_names(ignored)}" if ignored else ""
    history.record_operation(draft, now, "executed", by, operation, _describe_work(operation) + text)
    placement.after_work(draft, now, operation)
    advance(draft, now, limits, operation_id)


def _describe_work(operation: Operation) -> str:
    moved = ", ".join(f"{name} to {host}" for name, host in operation.moves)
    return f"{operation.cause}: {moved}" if moved else operation.cause


def mark_done(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    operation_id: str,
    by: str,
    placed: Mapping[str, str] | None = None,
) -> Operation:
    """Mark a started operation as done and healthy, on behalf of an operator, who may say where its VMs are now."""
    operation = _find_started(draft, operation_id)
    for vm, host in (placed or {}).items():
        problem = placement.placed_problem(draft, operation, vm, host)
        if not problem and operation.executed_at is not None:
            problem = "its work is already recorded as done, with the hosts of that time"
        if problem:
            raise BadOption(name="host", value=f"{vm}={host}", problem=f"{problem}.")
    record_executed(draft, now, limits, operation_id, by, placed)
    if operation.executed_at is not None:  # it was settling, or its health was being checked
        draft.put_operation(operation._replace(settles_at=now, health=Health.GOOD))
        history.record_operation(draft, now, "marked-done", by, operation)
        advance(draft, now, limits, operation_id)
    return draft.changes.operations[operation_id]


def failed_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str, by: str, reason: str
) -> Steps[Operation]:
    """Fail an operation. Its events end, so that applications can undo their preparations."""
    operation = _find_started(draft, operation_id)._replace(health=Health.BAD)
    history.record_operation(draft, now, "failed", by, operation, reason)
    return (yield from history.end_in_steps(draft, now, operation, OperationStatus.FAILED, by, reason))


failed = at_once(failed_in_steps)


def failed_if_live(draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str, reason: str) -> None:
    """Fail an operation that the fabric reports as failed, unless an operator has ended it already."""
    operation = draft.operation(operation_id)
    if operation is not None and operation.status is OperationStatus.STARTED and operation.executed_at is None:
        failed(draft, now, limits, operation_id, history.ENGINE, reason)


def record_health(
    draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str, unhealthy: Sequence[str]
) -> None:
    """Record the health of the VMs after the work."""
    operation = draft.operation(operation_id)
    if operation is None or operation.status is not OperationStatus.STARTED or operation.health is not Health.UNKNOWN:
        return
    operation = operation._replace(
        health=Health.BAD if unhealthy else Health.GOOD, reason=_describe_unhealthy(unhealthy)
    )
    draft.put_operation(operation)
    history.record_operation(
        draft, now, "unhealthy" if unhealthy else "healthy", history.ENGINE, operation, operation.reason
    )
    draft.rollouts_to_step[operation.request.rollout] = None
    advance(draft, now, limits, operation_id)


def _describe_unhealthy(unhealthy: Sequence[str]) -> str:
    return f"not healthy in time: {first_names(unhealthy)}" if unhealthy else ""


def _find_started(draft: Draft, operation_id: str) -> Operation:
    operation = history.find_operation(draft, operation_id)
    if operation.status is not OperationStatus.STARTED:
        problem = "Only a started operation can be marked done or failed."
        raise WrongOperationStatus(operation_id=operation_id, status=operation.status.value, problem=problem)
    return operation


def describe_due(operation: Operation) -> str:
    """Describe what happens to an operation when it becomes due."""
    subject = operation.host or first_names(operation.vms)
    return f"{operation.cause} of {subject} {'starts' if operation.status is OperationStatus.PENDING else 'ends'}."


def when_due(draft: Draft | ServiceState, operation: Operation) -> datetime | None:
    """Return when the operation becomes due without any further request."""
    if operation.status is OperationStatus.PENDING:
        events = history.events_of(draft, operation)
        times = [due(event) or (event.not_before if event.type == TERMINATE else None) for event in events]
        return max((time for time in (*times, operation.holds_until) if time), default=None)
    if operation.status is OperationStatus.STARTED and operation.executed_at is not None:
        return operation.settles_at
    return None
