"""When each group last asked. Kept in memory at every poll, written each minute."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.durations import from_text, to_text
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.scheduler import Timers
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock


WRITE_EVERY = timedelta(minutes=1)


class LastSeen:
    """Who has asked since it was last looked at, and what of that is not yet on disk."""

    def __init__(self, clock: Clock, writer: Writer, timers: Timers, limits: OperatorLimits) -> None:
        self.polled: set[str] = set()
        """Groups that asked since `take`: the server adds to it, without a look at the clock."""
        self.held: Collection[str] = ()
        """The groups of which somebody waits for an answer: they are listening, however long ago they asked."""
        self._clock = clock
        self._writer = writer
        self._timers = timers
        self._longest = limits.quicken(limits.inactivity_timeout)
        self._watched: set[str] = set()
        """Groups with an entry for their silence in the timers: one each."""
        self._unwritten: set[str] = set()
        self._written_at: datetime | None = None

    def take(self) -> None:
        """Note that all who asked were heard now."""
        self.polled.update(self.held)
        if self.polled:
            known = self.polled & self._writer.state.deliveries.keys()  # others have left the fleet since
            self._writer.record_seen(dict.fromkeys(known, self._clock.now()))
            self._unwritten |= known
            self.polled.clear()

    def last_seen_at(self, group: str) -> datetime | None:
        """When the group last asked, of one group alone: many are looked at one after the other."""
        if (group in self.polled or group in self.held) and self._writer.state.delivery(group) is not None:
            return self._clock.now()
        return self._writer.state.last_seen_at(group)

    def forgive_downtime(self) -> None:
        """The service's own downtime is not silence: move what was heard along by it."""
        alive_at = self._writer.state.facts.get("alive_at")
        if alive_at is None or self._clock.virtual:
            return
        downtime = max(self._clock.now() - from_text(alive_at), timedelta(0))
        heard = {group: last_seen_at + downtime for group, last_seen_at in self._writer.state.last_seen.items()}
        self._writer.record_seen(heard)
        self._unwritten = set(heard)

    # --- Silence ------------------------------------------------------------------------------------

    def watch(self, group: str, after: datetime | None = None) -> bool:
        """Note when the group will have been silent for too long; False when that has come already."""
        if group in self._watched:  # what is noted for it comes no later, and is looked at again then
            return True
        last_seen_at = self._writer.state.last_seen_at(group)
        if last_seen_at is None:
            return False
        moment = last_seen_at + self._longest
        if after is not None and moment <= after:
            return False
        self._timers.add(moment, "inactivity", group)
        self._watched.add(group)
        return True

    def silent_among(self, groups: list[str], now: datetime) -> list[str]:
        """Which of the groups whose time has come have been silent; the others are watched again."""
        self._watched.difference_update(groups)
        return [group for group in groups if not self.watch(group, after=now)]

    def look_again(self, silent: list[str], now: datetime) -> None:
        """That these are silent could not be written: it is still to be done."""
        for group in silent:
            self._timers.add(now, "inactivity", group)
        self._watched.update(silent)

    # --- Writing ------------------------------------------------------------------------------------

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return self._written_at is None or self._clock.now() - self._written_at >= WRITE_EVERY

    async def write(self) -> None:
        """Put on disk who was heard when, and that the service is alive."""
        self.take()
        unwritten, self._unwritten = self._unwritten, set()

        def write(draft: Draft, now: datetime) -> None:
            moments = {group: draft.last_seen_at(group) for group in unwritten if draft.delivery(group)}
            draft.changes.last_seen = {group: moment for group, moment in moments.items() if moment}
            draft.changes.facts["alive_at"] = to_text(now)

        try:
            await self._writer.execute(write)
        except StoreFailed:
            self._unwritten |= unwritten
            raise
        self._written_at = self._clock.now()
