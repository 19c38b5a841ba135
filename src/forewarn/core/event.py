"""What a group is told: events, and the document that lists them."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime, timedelta


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
