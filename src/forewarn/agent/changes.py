"""Compares each document with the one before it and reports every change once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import ChangeWithoutClient

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from forewarn.agent.identity import MachineIdentity
    from forewarn.wire.document_reader import EventsDocument, ScheduledEvent

SCHEDULED, STARTED, CHANGED, GONE = CHANGE_KINDS = ("scheduled", "started", "changed", "gone")
OLD_DOCUMENT_SECONDS = 10.0
"""After this time, a document with a lower incarnation is accepted. Before, it may be an old one sent by mistake."""
_MAX_GONE = 1000


class BaseChange(NamedTuple):
    """A change of one event."""

    kind: str
    """`scheduled`: the event is new. `started`: the event has started, or was Started when first seen. `changed`: a
    field has changed, for example NotBefore. `gone`: the event is no longer in the document."""
    event: ScheduledEvent
    """The event now; for a `gone` event, its last form."""
    before: ScheduledEvent | None = None
    """The event before the change; None: it was not in the document."""

    @property
    def waits(self) -> bool:
        """Whether the event waits for an approval or for its NotBefore. A recommendation waits for nothing."""
        return self.kind != GONE and not has_started(self.event) and not is_advisory(self.event)

    @property
    def cancelled(self) -> bool:
        """Whether the event is gone and never started."""
        return self.kind == GONE and not has_started(self.event)

    @property
    def over(self) -> bool:
        """Whether the event is gone and had started."""
        return self.kind == GONE and has_started(self.event)

    def concerns(self, me: MachineIdentity) -> bool:
        """Whether the event names this machine now, or did before the change."""
        resource_lists = [self.event.resources] + ([self.before.resources] if self.before is not None else [])
        return any(me.listed_as(resources) is not None for resources in resource_lists)


class Change(BaseChange):
    """A change of one event, with `approve`."""

    approver: Callable[[ScheduledEvent], bool] | None = None
    """Sends the approval. Set by the client that found the change."""

    def bound_to(self, approver: Callable[[ScheduledEvent], bool]) -> Change:
        """Return the same change with this approver."""
        bound = Change(*self)
        bound.approver = approver
        return bound

    def approve(self) -> bool:
        """Start the event now, for all machines that it names. Return True if it was approved.

        Return False if the event has started, is gone or is a recommendation. If the endpoint fails, retry for a
        minute, then raise its error.
        """
        if self.approver is None:
            raise ChangeWithoutClient
        return self.waits and self.approver(self.event)


def has_started(event: ScheduledEvent) -> bool:
    """Whether the event's status is Started."""
    return event.status.casefold() == "started"


_STARTING_TYPES = frozenset(name.casefold() for name, kind in EVENT_TYPES.items() if kind.starts)
ADVISORY_TYPES = frozenset(name.casefold() for name, kind in EVENT_TYPES.items() if not kind.starts)
"""In lower case, as are those that start: letter case has no meaning."""


def is_advisory(event: ScheduledEvent) -> bool:
    """Whether the event is a recommendation: it never starts, needs no approval, and its NotBefore is no deadline.

    An event of a type that starts, such as a Preempt, is none, whatever its status.
    """
    kind = event.type.casefold()
    return kind in ADVISORY_TYPES or (event.status.casefold() == "advisory" and kind not in _STARTING_TYPES)


def deadline_of(event: ScheduledEvent) -> datetime | None:
    """Return when the event starts at the latest; None: it has started, never starts, or its NotBefore is unknown."""
    return None if is_advisory(event) else event.not_before


def compare(before: Iterable[ScheduledEvent], now: Iterable[ScheduledEvent]) -> list[Change]:
    """Return the changes from one list of events to another: in the order of the new list, then the events that are
    gone."""
    known = {event.key: event for event in before}
    changes, listed = [], set()
    for event in now:
        if event.key in listed:
            continue
        listed.add(event.key)
        change = _change_of(known.get(event.key), event)
        if change is not None:
            changes.append(change)
    return changes + [Change(GONE, event, event) for event in known.values() if event.key not in listed]


def _change_of(before: ScheduledEvent | None, event: ScheduledEvent) -> Change | None:
    if before == event:
        return None
    started = has_started(event)
    if before is None:
        return Change(STARTED if started else SCHEDULED, event)
    return Change(STARTED if started and not has_started(before) else CHANGED, event, before)


class ChangeTracker:
    """The events that a reader of documents has already seen."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._events: dict[str, ScheduledEvent] = {}
        self._gone: dict[str, None] = {}
        """Keys of gone events, the newest last. An id is never used again."""
        self._old_since: float | None = None
        self._last: EventsDocument | None = None

    def is_up_to_date_with(self, document: EventsDocument | None) -> bool:
        """Whether a reader that waits for a change of this document misses nothing."""
        return document is not None and document == self._last and self._old_since is None

    def update(self, document: EventsDocument, now: float) -> list[Change]:
        """Return the changes in this document, received at `now` in real seconds.

        Call it for every response, even with the same document: an old document is accepted after it has stayed for a
        while.
        """
        if document.incarnation >= self._incarnation:
            self._old_since = None
        elif self._old_since is None:
            self._old_since = now
        is_old = self._old_since is not None and now - self._old_since < OLD_DOCUMENT_SECONDS
        self._last = document
        changes = compare(self._events.values(), document.events)
        if is_old:
            changes = [change for change in changes if self._is_certain(change)]
        else:
            self._incarnation, self._old_since = document.incarnation, None
        for change in changes:
            self._apply(change)
        return changes

    @property
    def events(self) -> tuple[ScheduledEvent, ...]:
        """The current events."""
        return tuple(self._events.values())

    @property
    def incarnation(self) -> int | None:
        """The incarnation of the last accepted document; None: no document yet."""
        return self._incarnation if self._incarnation >= 0 else None

    def has_old_document(self) -> bool:
        """Whether the last document had a lower incarnation and is not accepted yet. Poll again soon."""
        return self._old_since is not None

    def _is_certain(self, change: Change) -> bool:
        """Whether the change is real even if the document is old: an old document cannot contain newer events or
        starts."""
        return change.kind in (SCHEDULED, STARTED) and change.event.key not in self._gone

    def _apply(self, change: Change) -> None:
        key = change.event.key
        if change.kind != GONE:
            self._events[key] = change.event
            self._gone.pop(key, None)
            return
        del self._events[key]
        self._gone[key] = None
        if len(self._gone) > _MAX_GONE:
            del self._gone[next(iter(self._gone))]
