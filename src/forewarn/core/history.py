"""History: its kinds of entries, and what every command writes and looks up."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from forewarn.core.events import Status, Trigger, step
from forewarn.core.operations import Progress
from forewarn.core.state import Entry
from forewarn.errors import UnknownEvent, UnknownResource, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft, ServiceState


HISTORY_KINDS = {
    "requested": "An operation was asked for.",
    "not told": "A group that an operation touches does not listen: it gets no notice.",
    "scheduled": "A group is told of an event.",
    "approved": "An event may start before its time.",
    "postponed": "NotBefore has moved later.",
    "started": "An event has started.",
    "carried out": "The work of an operation is done.",
    "said to be done": "Somebody has said that the work is done.",
    "failed": "The work of an operation could not be done.",
    "healthy": "The VMs of a host are well after its update.",
    "unhealthy": "VMs of a host are not well after its update.",
    "completed": "An event that had started is over.",
    "cancelled": "An event, or an operation that nobody was told of, is withdrawn.",
    "rollout started": "A walk over hosts begins.",
    "wave announced": "The groups on the next hosts of a rollout are told.",
    "rollout paused": "A rollout announces nothing more.",
    "rollout resumed": "A rollout walks on.",
    "rollout done": "A rollout has updated all of its hosts.",
    "rollout stopped": "A rollout has come to a host that is not well.",
    "rollout cancelled": "A rollout was ended by hand.",
    "host in-use": "A host is well again.",
    "host degraded": "A host is expected to fail.",
    "host failed": "A host has failed.",
    "spare host added": "No host fitted, so the simulated fabric has a new one.",
    "enabled": "A group has begun to listen.",
    "disabled": "A group has been silent for too long, and is told no more.",
    "fault added": "The endpoint will fail on purpose.",
    "fault cleared": "A fault was ended by hand.",
    "fault over": "A fault has come to its bound.",
    "policy changed": "A group's policy is another.",
    "fleet applied": "A fleet file was applied.",
    "token created": "A token was given out.",
    "token revoked": "A token opens nothing any more.",
    "webhook added": "Somebody else is told from now on.",
    "webhook removed": "Somebody else is told no more.",
}


# --- Lookups and records of commands -------------------------------------------------------------


ENGINE = "forewarn"
"""Author of changes that nobody requested: due times, policies and reports of the fabric."""


def events_of(draft: Draft | ServiceState, operation: Operation) -> list[Event]:
    """Return the active events of an operation."""
    return [event for event_id in operation.events if (event := draft.event(event_id)) is not None]


def find_event(draft: Draft, event_id: str) -> Event:
    """Return the active event of that id."""
    event = draft.event(event_id)
    if event is None:
        known = (event.id for event in islice(draft.live_events(), 100))
        raise UnknownEvent(event_id=event_id, hint=nearest(event_id, known))
    return event


def find_operation(draft: Draft, operation_id: str) -> Operation:
    """Return the active operation of that id."""
    operation = draft.operation(operation_id)
    if operation is None:
        raise UnknownResource(what="active operation", name=operation_id, hint="")
    return operation


def record_event(draft: Draft, now: datetime, what: str, by: str, event: Event, why: str = "") -> None:
    """Record a history row about an event."""
    draft.record(
        Entry(
            at=now,
            what=what,
            by=by,
            group=event.group,
            event=event.id,
            operation=event.operation,
            vms=event.resources,
            why=why,
            host=operation.host if (operation := draft.operation(event.operation)) is not None else "",
        )
    )


def record_operation(draft: Draft, now: datetime, what: str, by: str, operation: Operation, why: str = "") -> None:
    """Record a history row about an operation."""
    draft.record(
        Entry(at=now, what=what, by=by, operation=operation.id, vms=operation.vms, why=why, host=operation.host)
    )


def end(draft: Draft, now: datetime, operation: Operation, progress: Progress, by: str, why: str = "") -> Operation:
    """End an operation and its events. Started events are completed, others are cancelled."""
    end_events(draft, now, events_of(draft, operation), by, why)
    operation = operation._replace(progress=progress, ended_at=now, outcome=why or operation.outcome)
    draft.put_operation(operation)
    if operation.request.rollout:
        draft.rollouts_to_step[operation.request.rollout] = None
    return operation


def end_events(draft: Draft, now: datetime, events: Iterable[Event], by: str, why: str = "") -> None:
    """Complete or cancel events, which removes them from the documents."""
    for event in events:
        started = event.status is Status.STARTED
        draft.put_event(step(event, Trigger.FINISH if started else Trigger.CANCEL, now))
        record_event(draft, now, "completed" if started else "cancelled", by, event, why)


def cancel(draft: Draft, now: datetime, operation: Operation, by: str, why: str = "") -> Operation:
    """Cancel an operation that has not started, and its events."""
    if not events_of(draft, operation):  # otherwise the rows of its events say it
        record_operation(draft, now, "cancelled", by, operation, why)
    return end(draft, now, operation, Progress.CANCELLED, by, why)
