"""Events, the document that lists them, and their life as a table (docs/contract.md, section 4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.durations import to_text
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import EventAlreadyStarted, EventEnded, EventNotDue, EventNotStarted, ForewarnError


class Status(StrEnum):
    """Where an event is in its life. Only the first two are ever on the wire."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"

    @property
    def live(self) -> bool:
        return self is Status.SCHEDULED or self is Status.STARTED


class Source(StrEnum):
    """Who brought the event about."""

    PLATFORM = "Platform"
    USER = "User"


class Event(NamedTuple):
    """What one group is told of one operation. Its id never changes."""

    id: str
    operation: str
    group: str
    type: str
    status: Status
    resources: tuple[str, ...]
    not_before: datetime
    description: str
    source: Source
    duration: timedelta | None
    """How long the interruption lasts; None: unknown or not applicable."""
    created_at: datetime
    approved_at: datetime | None = None
    approved_by: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class Document(NamedTuple):
    """What a group would be answered now: its live events in the order they came about.

    `enabling` names the period since the group's service was last enabled; incarnations
    count within it. It is empty while the group has never asked.
    """

    group: str
    enabling: str
    incarnation: int
    events: tuple[Event, ...]
    enabled: bool


# --- The life of an event (contract, section 4) ---------------------------------------------------


class Trigger(StrEnum):
    """What can be asked of an event."""

    APPROVE = "approve"
    START = "start"
    FINISH = "finish"
    CANCEL = "cancel"
    POSTPONE = "postpone"


_S, _T = Status, Trigger

TRANSITIONS: dict[tuple[Status, Trigger], Status | type[ForewarnError]] = {
    (_S.SCHEDULED, _T.APPROVE): _S.SCHEDULED,
    (_S.SCHEDULED, _T.START): _S.STARTED,
    (_S.SCHEDULED, _T.FINISH): EventNotStarted,
    (_S.SCHEDULED, _T.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _T.POSTPONE): _S.SCHEDULED,
    # A client repeats its approval on every poll: once started it is simply heard again.
    (_S.STARTED, _T.APPROVE): _S.STARTED,
    (_S.STARTED, _T.START): _S.STARTED,
    (_S.STARTED, _T.FINISH): _S.COMPLETED,
    (_S.STARTED, _T.CANCEL): EventAlreadyStarted,
    (_S.STARTED, _T.POSTPONE): EventAlreadyStarted,
    (_S.COMPLETED, _T.APPROVE): EventEnded,
    (_S.COMPLETED, _T.START): EventEnded,
    (_S.COMPLETED, _T.FINISH): _S.COMPLETED,
    (_S.COMPLETED, _T.CANCEL): EventEnded,
    (_S.COMPLETED, _T.POSTPONE): EventEnded,
    (_S.CANCELLED, _T.APPROVE): EventEnded,
    (_S.CANCELLED, _T.START): EventEnded,
    (_S.CANCELLED, _T.FINISH): EventEnded,
    (_S.CANCELLED, _T.CANCEL): _S.CANCELLED,
    (_S.CANCELLED, _T.POSTPONE): EventEnded,
}


def step(event: Event, trigger: Trigger, now: datetime, by: str = "", until: datetime | None = None) -> Event:
    """The event after the trigger; the same object when nothing changes. NotBefore only ever moves later."""
    after = TRANSITIONS[event.status, trigger]
    if not isinstance(after, Status):
        raise after(event_id=event.id, status=event.status.lower())
    if trigger is Trigger.APPROVE and event.status is Status.SCHEDULED and event.approved_at is None:
        return event._replace(approved_at=now, approved_by=by)
    if trigger is Trigger.POSTPONE and until is not None and until > event.not_before:
        return event._replace(not_before=until)
    if after is event.status:
        return event
    if trigger is Trigger.START:
        if not may_start(event, now):
            raise EventNotDue(event_id=event.id, not_before=to_text(event.not_before))
        return event._replace(status=after, started_at=now)
    return event._replace(status=after, ended_at=now)


def may_start(event: Event, now: datetime) -> bool:
    """Approved, or its time has come; advice never does."""
    return EVENT_TYPES[event.type].starts and (event.approved_at is not None or now >= event.not_before)


def due(event: Event) -> datetime | None:
    """When time alone lets this event start; None when nothing is left to wait for, or it never starts."""
    if event.status is Status.SCHEDULED and event.approved_at is None and EVENT_TYPES[event.type].starts:
        return event.not_before
    return None
