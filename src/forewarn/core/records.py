"""What every order writes and looks up: rows of history, an operation's events, the end of an operation."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from forewarn.core.event import Status
from forewarn.core.ledger import Entry
from forewarn.core.lifecycle import Trigger, step
from forewarn.core.operations import Progress
from forewarn.errors import Unknown, UnknownEvent, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.draft import Draft
    from forewarn.core.event import Event
    from forewarn.core.ledger import Ledger
    from forewarn.core.operations import Operation

ENGINE = "forewarn"
"""Who did what nobody asked for: time, policy, the fabric's reports."""


def events_of(draft: Draft | Ledger, operation: Operation) -> list[Event]:
    """The live events of an operation."""
    return [event for event_id in operation.events if (event := draft.event(event_id)) is not None]


def find_event(draft: Draft, event_id: str) -> Event:
    """The live event of that id."""
    event = draft.event(event_id)
    if event is None:
        known = (event.id for event in islice(draft.live_events(), 100))
        raise UnknownEvent(event_id=event_id, hint=nearest(event_id, known))
    return event


def find_operation(draft: Draft, operation_id: str) -> Operation:
    """The operation of that id, if it is live."""
    operation = draft.operation(operation_id)
    if operation is None:
        raise Unknown(what="operation under way", name=operation_id, hint="")
    return operation


def note_event(draft: Draft, now: datetime, what: str, by: str, event: Event, why: str = "") -> None:
    """A row of history about an event."""
    draft.note(
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


def note_operation(draft: Draft, now: datetime, what: str, by: str, operation: Operation, why: str = "") -> None:
    """A row of history about an operation as a whole."""
    draft.note(Entry(at=now, what=what, by=by, operation=operation.id, vms=operation.vms, why=why, host=operation.host))


def end(draft: Draft, now: datetime, operation: Operation, progress: Progress, by: str, why: str = "") -> Operation:
    """End an operation, and with it its events: what has started is completed, what has not is cancelled."""
    end_events(draft, now, events_of(draft, operation), by, why)
    operation = operation._replace(progress=progress, ended_at=now, outcome=why or operation.outcome)
    draft.put_operation(operation)
    if operation.request.rollout:
        draft.stirred[operation.request.rollout] = None
    return operation


def end_events(draft: Draft, now: datetime, events: Iterable[Event], by: str, why: str = "") -> None:
    """Take events out of their documents."""
    for event in events:
        started = event.status is Status.STARTED
        draft.put_event(step(event, Trigger.FINISH if started else Trigger.CANCEL, now))
        note_event(draft, now, "completed" if started else "cancelled", by, event, why)


def cancel(draft: Draft, now: datetime, operation: Operation, by: str, why: str = "") -> Operation:
    """Withdraw an operation that has not started; all its events disappear."""
    if not events_of(draft, operation):  # else they say so
        note_operation(draft, now, "cancelled", by, operation, why)
    return end(draft, now, operation, Progress.CANCELLED, by, why)
