"""What has changed from one document to the next, each thing said once. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import NobodyToApprove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.agent.identity import Me
    from forewarn.wire.document_reader import ToldDocument, ToldEvent

SCHEDULED, STARTED, CHANGED, GONE = WHATS = ("scheduled", "started", "changed", "gone")
BELIEVED_AFTER_SECONDS = 10.0
"""A document that went back may be an old one that was sent by mistake; one that stays is true."""
_MOST_GONE = 1000


class BaseChange(NamedTuple):
    """What happened to an event."""

    what: str
    """`scheduled`: it is announced. `started`: it happens now; also when it is first seen so. `changed`: it is told
    otherwise than before, its NotBefore for example. `gone`: it is told no more."""
    event: ToldEvent
    """As it is told now; what is gone, as it was told last."""
    before: ToldEvent | None = None
    """As it was told before; None: it was not."""

    @property
    def waits(self) -> bool:
        """Whether the event waits for an approval or for its NotBefore."""
        return self.what != GONE and not has_started(self.event)

    @property
    def cancelled(self) -> bool:
        """It is gone, and never started."""
        return self.what == GONE and not has_started(self.event)

    @property
    def over(self) -> bool:
        """It is gone, and had started."""
        return self.what == GONE and has_started(self.event)

    def concerns(self, me: Me) -> bool:
        """Whether it is about this machine: what has named it so far still is."""
        told = [self.event.resources] + ([self.before.resources] if self.before is not None else [])
        return any(me.listed_as(resources) is not None for resources in told)


class Change(BaseChange):
    """What happened to an event, and a way to answer."""

    sender: Callable[[ToldEvent], bool] | None = None
    """What approves: the client that it came from."""

    def of(self, sender: Callable[[ToldEvent], bool]) -> Change:
        """The same, from this client."""
        bound = Change(*self)
        bound.sender = sender
        return bound

    def approve(self) -> bool:
        """Let the event start now, for all machines that it names. True: it was approved.

        What does not wait for that, or is gone by then, is left alone: False. While the endpoint is in trouble it is
        tried again, for a minute; then that trouble is raised.
        """
        if self.sender is None:
            raise NobodyToApprove
        return self.waits and self.sender(self.event)


def has_started(event: ToldEvent) -> bool:
    """Whether it is told as Started."""
    return event.status.casefold() == "started"


def compare(before: Iterable[ToldEvent], now: Iterable[ToldEvent]) -> list[Change]:
    """From these events to those: in the order of those, and at the end what is gone."""
    known = {event.id: event for event in before}
    changes, listed = [], set()
    for event in now:
        if event.id in listed:
            continue
        listed.add(event.id)
        change = _of_one(known.get(event.id), event)
        if change is not None:
            changes.append(change)
    return changes + [Change(GONE, event, event) for event in known.values() if event.id not in listed]


def _of_one(before: ToldEvent | None, event: ToldEvent) -> Change | None:
    if before == event:
        return None
    started = has_started(event)
    if before is None:
        return Change(STARTED if started else SCHEDULED, event)
    return Change(STARTED if started and not has_started(before) else CHANGED, event, before)


class Account:
    """What somebody has been told so far."""

    def __init__(self) -> None:
        self._incarnation = -1
        self._told: dict[str, ToldEvent] = {}
        self._gone: dict[str, None] = {}
        """The ids of what was said to be gone, the newest last: an id never comes back."""
        self._back_since: float | None = None
        self._last: ToldDocument | None = None

    def is_at(self, document: ToldDocument | None) -> bool:
        """Whether this document holds nothing new, however long one waits."""
        return document is not None and document == self._last and self._back_since is None

    def take(self, document: ToldDocument, now: float) -> list[Change]:
        """What is new in the document that came at this moment of real seconds. To be called for every answer, also
        when the document is the same: a document that went back is believed when it has stayed for a while."""
        if document.incarnation >= self._incarnation:
            self._back_since = None
        elif self._back_since is None:
            self._back_since = now
        doubtful = self._back_since is not None and now - self._back_since < BELIEVED_AFTER_SECONDS
        self._last = document
        changes = compare(self._told.values(), document.events)
        if doubtful:
            changes = [change for change in changes if self._holds_whatever_comes(change)]
        else:
            self._incarnation, self._back_since = document.incarnation, None
        for change in changes:
            self._note(change)
        return changes

    @property
    def events(self) -> tuple[ToldEvent, ...]:
        """Those that there are, as far as this account knows."""
        return tuple(self._told.values())

    @property
    def incarnation(self) -> int | None:
        """The one that is believed; None: nothing was told yet."""
        return self._incarnation if self._incarnation >= 0 else None

    def in_doubt(self) -> bool:
        """Whether the last document was too old to be believed: it is to be asked for again soon."""
        return self._back_since is not None

    def _holds_whatever_comes(self, change: Change) -> bool:
        """An old document cannot know of what is new, nor that something has started."""
        return change.what in (SCHEDULED, STARTED) and change.event.id not in self._gone

    def _note(self, change: Change) -> None:
        event_id = change.event.id
        if change.what != GONE:
            self._told[event_id] = change.event
            self._gone.pop(event_id, None)
            return
        del self._told[event_id]
        self._gone[event_id] = None
        if len(self._gone) > _MOST_GONE:
            del self._gone[next(iter(self._gone))]
