"""Events, the document that lists them, and their state machine (docs/explanation/contract.md, section 4)."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.durations import to_text
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import (
    EventAlreadyStarted,
    EventEnded,
    EventIsAdvisory,
    EventNotDue,
    EventNotStarted,
    ForewarnError,
)


class EventStatus(StrEnum):
    """Status of an event. Completed and Cancelled never appear on the wire."""

    SCHEDULED = "Scheduled"
    STARTED = "Started"
    ADVISORY = "Advisory"
    """A recommendation: it never starts, and it has no NotBefore on the wire."""
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"

    @property
    def live(self) -> bool:
        return self is not EventStatus.COMPLETED and self is not EventStatus.CANCELLED


def first_status(event_type: str) -> EventStatus:
    """Return the status of a new event. Only a recommendation is an advisory."""
    return EventStatus.SCHEDULED if EVENT_TYPES[event_type].starts else EventStatus.ADVISORY


class Source(StrEnum):
    """Who caused the event."""

    PLATFORM = "Platform"
    USER = "User"


class Event(NamedTuple):
    """The notice of one operation to one scope. Its id never changes."""

    id: str
    operation: str
    group: str
    scope: str
    """The VMs that see and approve it (`Fleet.scope_of`)."""
    type: str
    status: EventStatus
    resources: tuple[str, ...]
    not_before: datetime
    description: str
    source: Source
    duration: timedelta | None
    """How long the interruption lasts; None: unknown or not applicable."""
    created_at: datetime
    approved_at: datetime | None = None
    """When it was first approved. An approval after the start has no effect."""
    approved_by: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    generation: int = 0
    """The generation of its group (`Fleet.generation`)."""


class Document(NamedTuple):
    """The current document of a scope: its active events in the order of their creation.

    `enabling` counts how often the scope was enabled. Incarnations count within one enabling, so documents of a scope
    are ordered by both. It is 0 while the scope is not enabled.
    """

    scope: str
    enabling: int
    incarnation: int
    events: tuple[Event, ...]
    enabled: bool


# --- State machine of an event (contract, section 4)------------------------------------------------


class Trigger(StrEnum):
    """Transitions of an event."""

    APPROVE = "approve"
    START = "start"
    FINISH = "finish"
    CANCEL = "cancel"
    POSTPONE = "postpone"


_S, _T = EventStatus, Trigger

TRANSITIONS: dict[tuple[EventStatus, Trigger], EventStatus | type[ForewarnError]] = {
    (_S.SCHEDULED, _T.APPROVE): _S.SCHEDULED,
    (_S.SCHEDULED, _T.START): _S.STARTED,
    (_S.SCHEDULED, _T.FINISH): EventNotStarted,
    (_S.SCHEDULED, _T.CANCEL): _S.CANCELLED,
    (_S.SCHEDULED, _T.POSTPONE): _S.SCHEDULED,
    # Clients repeat their approval on every poll, so approving a started event is not an error.
    (_S.STARTED, _T.APPROVE): _S.STARTED,
    (_S.STARTED, _T.START): _S.STARTED,
    (_S.STARTED, _T.FINISH): _S.COMPLETED,
    (_S.STARTED, _T.CANCEL): EventAlreadyStarted,
    (_S.STARTED, _T.POSTPONE): EventAlreadyStarted,
    # Clients approve whatever they see, so approving an advisory is not an error either.
    (_S.ADVISORY, _T.APPROVE): _S.ADVISORY,
    (_S.ADVISORY, _T.START): EventIsAdvisory,
    (_S.ADVISORY, _T.FINISH): EventIsAdvisory,
    (_S.ADVISORY, _T.CANCEL): _S.CANCELLED,
    (_S.ADVISORY, _T.POSTPONE): EventIsAdvisory,
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
    """Return the event after the trigger, or the same object if nothing changes. NotBefore only moves later."""
    after = TRANSITIONS[event.status, trigger]
    if not isinstance(after, EventStatus):
        raise after(event_id=event.id, status=event.status.lower())
    if after is EventStatus.ADVISORY:
        return event
    if trigger is Trigger.APPROVE and event.approved_at is None:
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
    """Return whether the event is approved or due. An advisory never starts."""
    return event.status is not EventStatus.ADVISORY and (event.approved_at is not None or now >= event.not_before)


def due(event: Event) -> datetime | None:
    """Return the time at which the event becomes due; None if it is approved, has started or never starts."""
    if event.status is EventStatus.SCHEDULED and event.approved_at is None:
        return event.not_before
    return None
