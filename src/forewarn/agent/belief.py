"""Which events there are, when the endpoint contradicts itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.wire.reading import ToldDocument, ToldEvent

DOUBT_SECONDS = 10.0


class Belief:
    """An incarnation never goes back, but for a group that is enabled anew after a day of silence.

    So a document with a lower one is old: what it lists is heeded, since to prepare too early does no harm; what it
    lacks is not taken for gone, since to undo too early does. If it stays, it is believed.
    """

    def __init__(self, doubt_seconds: float = DOUBT_SECONDS) -> None:
        self.incarnation: int | None = None
        """The highest that was told, or believed after all."""
        self._events: tuple[ToldEvent, ...] = ()
        self._doubt_seconds = doubt_seconds
        self._doubted_since: float | None = None

    def take(self, document: ToldDocument, seconds: float) -> tuple[ToldEvent, ...]:
        """The events that there are, as far as can be told at this moment of real time."""
        if self.incarnation is None or document.incarnation >= self.incarnation:
            return self._believe(document)
        if self._doubted_since is None:
            self._doubted_since = seconds
        if seconds - self._doubted_since >= self._doubt_seconds:
            return self._believe(document)
        known = {event.id for event in self._events}
        self._events += tuple(event for event in document.events if event.id not in known)
        return self._events

    def _believe(self, document: ToldDocument) -> tuple[ToldEvent, ...]:
        self.incarnation, self._events, self._doubted_since = document.incarnation, document.events, None
        return self._events

    def in_doubt(self) -> bool:
        """Whether the same document is to be taken again after a while."""
        return self._doubted_since is not None
