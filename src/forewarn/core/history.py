"""History: the kinds of its entries, and the functions with which commands write them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from forewarn.core.events import EventStatus, Trigger, step
from forewarn.core.fleet import HostState
from forewarn.core.operations import OperationStatus
from forewarn.core.rollouts import RolloutStatus
from forewarn.core.state import HistoryEntry, HistorySnapshot
from forewarn.core.steps import COMMAND_COST, at_once
from forewarn.core.waits import open_waits
from forewarn.errors import UnknownEvent, UnknownResource, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft, ServiceState
    from forewarn.core.steps import Steps


HISTORY_KINDS = {
    "requested": "An operation was requested.",
    "not-notified": "A scope that an operation affects was not notified of it.",
    "scheduled": "An event was scheduled for a scope.",
    "approved": "An event was approved: it may start before NotBefore. After its start, this has no effect.",
    "postponed": "NotBefore of an event was moved to a later time.",
    "started": "An event started.",
    "executed": "The fabric finished the work of an operation.",
    "marked-done": "An operator marked the work of an operation as done.",
    "failed": "The work of an operation failed.",
    "healthy": "The VMs of a host were healthy after its update.",
    "unhealthy": "The VMs of a host were not healthy after its update, or the update did not end in time.",
    "completed": "A started event was completed.",
    "cancelled": "An event, or an operation without events, was cancelled.",
    "rollout-started": "A rollout was started.",
    "wave-scheduled": "The next wave of a rollout was scheduled.",
    "rollout-paused": "A rollout was paused: it schedules no new wave until it is resumed.",
    "rollout-resumed": "A rollout was resumed.",
    "rollout-completed": "A rollout has updated all its hosts.",
    "rollout-stopped": "A rollout stopped because of an unhealthy host.",
    "rollout-cancelled": "A rollout was cancelled.",
    "host-in-service": "A host was returned to service.",
    "host-degraded": "A host was marked as degraded: its hardware is expected to fail.",
    "host-failed": "A host failed.",
    "spare-host-added": "The simulated fabric added a host, because no existing host was suitable for a VM.",
    "enabled": "Event delivery to a scope was enabled.",
    "disabled": "Event delivery to a scope was disabled, by the inactivity timeout or by a fault.",
    "fault-added": "A fault was added to the metadata endpoint.",
    "fault-cleared": "A fault was cleared before it expired.",
    "fault-expired": "A fault reached its maximum count or duration.",
    "clock-jumped": "The system clock jumped: starts, inactivity and retention are held.",
    "clock-accepted": "The service uses the system time again, because it was stable or an operator accepted it.",
    "policy-changed": "The policy of a group was changed.",
    "fleet-applied": "A fleet file was applied, or a part of the fleet was changed.",
    "token-created": "A token was created.",
    "token-revoked": "A token was revoked, or ended because its group was removed.",
    "session-started": "A user signed in to the portal.",
    "session-ended": "A user signed out of the portal, or an admin ended the session. What it made ended with it.",
    "webhook-added": "A webhook was added.",
    "webhook-removed": "A webhook was removed.",
    "changes-lost": "The write-ahead log was damaged, or a standby of the database took over. Changes before this row "
    "are lost.",
    "restored": "The database was restored from a backup. Rows after the backup are lost.",
    "database-failover": "Another server of the database took over. The last changes before this row may be lost.",
}

HOST_STATE_KINDS = {
    HostState.IN_SERVICE: "host-in-service",
    HostState.DEGRADED: "host-degraded",
    HostState.FAILED: "host-failed",
}
ROLLOUT_END_KINDS = {
    RolloutStatus.DONE: "rollout-completed",
    RolloutStatus.STOPPED: "rollout-stopped",
    RolloutStatus.CANCELLED: "rollout-cancelled",
}


def check_kind(kind: str) -> str:
    """Return what is wrong with a kind in a filter, or an empty text."""
    if kind in HISTORY_KINDS:
        return ""
    hint = nearest(kind, HISTORY_KINDS)
    return f"{shown(kind)} is not a kind of history entry.{hint} Kinds: {', '.join(HISTORY_KINDS)}."


# --- Rows that commands write ---------------------------------------------------------------------


ENGINE = "forewarn"
"""The `by` of a change that no caller requested: a timer, a policy or a report of the fabric made it."""


SKIPPED_NUMBERS = 1_000_000
"""How many incarnations and history rows are skipped after a restore or lost commits. Clients see no number twice."""


SKIPPING_KINDS = ("changes-lost", "restored", "database-failover")
"""Kinds of rows before which numbers were skipped."""


def changes_lost(time: datetime, sequence: int, reason: str) -> HistoryEntry:
    """Return the row after a gap in the history. The store writes it when it has lost commits."""
    return HistoryEntry(time, "changes-lost", ENGINE, sequence, reason=reason)


def events_of(draft: Draft | ServiceState, operation: Operation) -> list[Event]:
    """Return the live events of an operation."""
    return [event for event_id in operation.events if (event := draft.event(event_id)) is not None]


def find_event(draft: Draft, event_id: str) -> Event:
    """Return the live event with this id."""
    event = draft.event(event_id)
    if event is None:
        known = (event.id for event in islice(draft.live_events(), 100))
        raise UnknownEvent(event_id=event_id, hint=nearest(event_id, known))
    return event


def find_operation(draft: Draft, operation_id: str) -> Operation:
    """Return the live operation with this id."""
    operation = draft.operation(operation_id)
    if operation is None:
        raise UnknownResource(what="active operation", name=operation_id, hint="")
    return operation


def record_event(draft: Draft, now: datetime, kind: str, by: str, event: Event, reason: str = "") -> None:
    """Add a row about an event to history. `event`: as it is now."""
    draft.record(event_entry(draft, now, kind, by, event, reason))


def event_entry(draft: Draft, now: datetime, kind: str, by: str, event: Event, reason: str = "") -> HistoryEntry:
    """Return a row about an event."""
    operation = find_operation(draft, event.operation)
    return HistoryEntry(
        time=now,
        kind=kind,
        by=by,
        group=event.group,
        event=event.id,
        operation=operation.id,
        vms=event.resources,
        reason=reason,
        host=operation.host,
        type=event.type,
        cause=operation.cause,
        snapshot=HistorySnapshot.of(event),
        waits=open_waits(draft, operation, event),
    )


def record_operation(draft: Draft, now: datetime, kind: str, by: str, operation: Operation, reason: str = "") -> None:
    """Add a row about a whole operation to history."""
    draft.record(operation_entry(now, kind, by, operation)._replace(vms=operation.vms, reason=reason))


def operation_entry(now: datetime, kind: str, by: str, operation: Operation) -> HistoryEntry:
    """Return a row about an operation, without its VMs."""
    return HistoryEntry(
        time=now,
        kind=kind,
        by=by,
        operation=operation.id,
        host=operation.host,
        type=operation.type,
        cause=operation.cause,
    )


def record_clock(draft: Draft, now: datetime, by: str, reason: str, *, accepted: bool) -> None:
    """Add a row about a jump of the system clock to history, or about its acceptance."""
    draft.record(HistoryEntry(time=now, kind="clock-accepted" if accepted else "clock-jumped", by=by, reason=reason))


def end_in_steps(
    draft: Draft, now: datetime, operation: Operation, status: OperationStatus, by: str, reason: str = ""
) -> Steps[Operation]:
    """End an operation and its events: started events are completed, scheduled events are cancelled."""
    yield from end_events_in_steps(draft, now, events_of(draft, operation), by, reason)
    operation = operation._replace(status=status, ended_at=now, reason=reason or operation.reason)
    draft.put_operation(operation)
    if operation.request.rollout:
        draft.rollouts_to_step[operation.request.rollout] = None
    return operation


end = at_once(end_in_steps)


def end_events_in_steps(draft: Draft, now: datetime, events: Iterable[Event], by: str, reason: str = "") -> Steps[None]:
    """Complete the events that have started, and cancel the others. They leave their documents."""
    for event in events:
        started = event.status is EventStatus.STARTED
        ended = step(event, Trigger.FINISH if started else Trigger.CANCEL, now)
        draft.put_event(ended)
        record_event(draft, now, "completed" if started else "cancelled", by, ended, reason)
        yield COMMAND_COST


end_events = at_once(end_events_in_steps)


def cancel_in_steps(draft: Draft, now: datetime, operation: Operation, by: str, reason: str = "") -> Steps[Operation]:
    """Cancel an operation that has not started, and all its events."""
    if not events_of(draft, operation):  # its events have a row each
        record_operation(draft, now, "cancelled", by, operation, reason)
    return (yield from end_in_steps(draft, now, operation, OperationStatus.CANCELLED, by, reason))


cancel = at_once(cancel_in_steps)
