"""Approve, cancel or postpone an event."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core import history
from forewarn.core.durations import format_time, round_up_to_second
from forewarn.core.events import EventStatus, Trigger, step
from forewarn.core.operations import CAUSES
from forewarn.core.progress import advance_in_steps, next_start_in_windows, postpone_operation
from forewarn.core.steps import COMMAND_COST, at_once
from forewarn.core.waits import TERMINATE, coupled_deletions, keeps_to_windows
from forewarn.errors import (
    BadOption,
    CannotPostpone,
    EventAlreadyStarted,
    EventIsAdvisory,
    UnknownStartRequest,
    WrongOperationStatus,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from forewarn.core.access import Token
    from forewarn.core.events import Event
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps


ENDED_EVENT_RETENTION = timedelta(days=1)
"""How long after the end of an event its scope can still approve it, without an effect."""


def approve_in_steps(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    ids: Sequence[str],
    by: str,
    *,
    tenant: Token | None = None,
    scope: str = "",
) -> Steps[None]:
    """Approve the events: all of them, or none if one is unknown.

    With the token of a tenant or the scope of a VM, only its own events are known. The id of another event is rejected
    like an invented one. VMs repeat their approvals: the id of an event that ended lately is accepted, and nothing
    changes. They also approve whatever they see, and an approval of an advisory changes nothing. For everybody else it
    is an error.
    """
    events = []
    for event_id in dict.fromkeys(ids):
        event = draft.event(event_id) if tenant or scope else history.find_event(draft, event_id)
        if event is None and _ended_lately(draft, now, event_id, scope):
            continue
        if event is None or (tenant is not None and not tenant.sees(event)) or scope not in ("", event.scope):
            raise UnknownStartRequest(event_id=event_id)
        if event.status is EventStatus.ADVISORY and not scope:
            raise EventIsAdvisory(event_id=event.id)
        events.append(event)
    approved: dict[object, Event] = {}
    for event in events:
        after = step(event, Trigger.APPROVE, now, by=by)
        if after is not event:
            draft.put_event(after)
            if event.status is EventStatus.STARTED:
                history.record_event(draft, now, "approved", by, after, "after the start, without an effect")
                continue
            history.record_event(draft, now, "approved", by, after)
            # Deletions of a scope wait for each other, so advancing one of them advances all.
            approved[(event.scope, TERMINATE) if event.type == TERMINATE else event.id] = event
            yield COMMAND_COST
    for event in approved.values():
        yield from _move_with(draft, now, limits, event)


approve = at_once(approve_in_steps)


def _ended_lately(draft: Draft, now: datetime, event_id: str, scope: str) -> bool:
    ended = draft.ended_event(event_id)
    return ended is not None and ended.scope == scope and now - ended.ended_at < ENDED_EVENT_RETENTION


def _move_with(draft: Draft, now: datetime, limits: OperatorLimits, event: Event) -> Steps[None]:
    """Advance the operation of an event, and deletions that may have waited for it."""
    coupled = coupled_deletions(draft, event)
    itself = draft.event(event.id)
    together = [*coupled, itself] if itself is not None else coupled
    all_approved = all(other.approved_at is not None for other in together)
    if coupled and now < event.not_before and not all_approved:
        return  # they still wait for each other
    for operation_id in dict.fromkeys((event.operation, *(other.operation for other in coupled))):
        yield from advance_in_steps(draft, now, limits, operation_id, together=all_approved)


def cancel_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, event_id: str, by: str, reason: str = ""
) -> Steps[Event]:
    """Cancel the operation of an event that has not started, and with it all events of the operation."""
    event = history.find_event(draft, event_id)
    step(event, Trigger.CANCEL, now)  # raises if the event cannot be cancelled
    yield from history.cancel_in_steps(draft, now, history.find_operation(draft, event.operation), by, reason)
    yield from _move_with(draft, now, limits, event)
    return draft.changes.events[event_id]


cancel = at_once(cancel_in_steps)


def cancel_operation_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str, by: str, reason: str = ""
) -> Steps[Operation]:
    """Cancel an operation by its id. It may have no events."""
    operation = history.find_operation(draft, operation_id)
    if operation.started_at is not None or not operation.status.live:
        raise WrongOperationStatus(
            operation_id=operation_id,
            status=operation.status.value,
            problem="Only a pending operation can be cancelled.",
        )
    events = history.events_of(draft, operation)
    operation = yield from history.cancel_in_steps(draft, now, operation, by, reason)
    for event in events:
        yield from _move_with(draft, now, limits, event)
    return operation


def postpone_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, event_id: str, by: str, until: datetime
) -> Steps[Event]:
    """Postpone routine platform work, for all groups that have not approved: in their windows, up to the deadline."""
    event = history.find_event(draft, event_id)
    operation = history.find_operation(draft, event.operation)
    if event.started_at is not None:
        raise EventAlreadyStarted(event_id=event_id)
    if not CAUSES[operation.cause].routine or operation.request.postpone_deadline is None:
        problem = f"its cause is {operation.cause}. Only routine platform work can be postponed."
        raise CannotPostpone(event_id=event_id, problem=problem)
    if event.approved_at is not None:
        raise CannotPostpone(
            event_id=event_id, problem=f"{event.approved_by} has approved it. You can still cancel it."
        )
    if until <= event.not_before:
        problem = f"the event's NotBefore is already {format_time(event.not_before)}. Use a later time."
        raise BadOption(name="until", value=format_time(until), problem=problem)
    new_start: datetime | None = round_up_to_second(until)
    if keeps_to_windows(operation):
        new_start = next_start_in_windows(draft, operation, round_up_to_second(until))
    deadline = operation.request.postpone_deadline
    if new_start is None or new_start > deadline:
        window = f" (the next window opens at {format_time(new_start)})" if new_start and new_start > until else ""
        problem = f"{format_time(until)}{window} is after the postpone deadline, {format_time(deadline)}."
        raise CannotPostpone(event_id=event_id, problem=problem)
    yield from postpone_operation(draft, now, operation, new_start, by, "")
    return draft.changes.events[event_id]


postpone = at_once(postpone_in_steps)
