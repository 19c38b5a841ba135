"""When each scope last polled: updated in memory at every poll, written to the store once a minute."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.clock import SystemClock
from forewarn.core.durations import from_text, to_text
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.scheduler import Timers
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock


WRITE_INTERVAL = timedelta(minutes=1)


class LastSeen:
    """Scopes that polled recently, and which of their times are not on disk yet."""

    def __init__(self, clock: Clock, writer: Writer, timers: Timers, limits: OperatorLimits) -> None:
        self.polled: set[str] = set()
        """Scopes that polled since `record_polls`. The metadata server adds to it without reading the clock."""
        self.long_polling: Collection[str] = ()
        """Scopes with an open long poll. They count as seen now."""
        self._clock = clock
        self._writer = writer
        self._timers = timers
        self._inactivity_timeout = limits.quicken(limits.inactivity_timeout)
        self._watched: set[str] = set()
        """Scopes with an inactivity timer. Each has at most one."""
        self._unwritten: set[str] = set()
        self._written_at: datetime | None = None

    def record_polls(self) -> None:
        """Set the last-seen time of all scopes that polled to now."""
        self.polled.update(self.long_polling)
        if self.polled:
            known = self.polled & self._writer.state.deliveries.keys()  # others have left the fleet
            self._writer.record_seen(dict.fromkeys(known, self._clock.now()))
            self._unwritten |= known
            self.polled.clear()

    def last_seen_at(self, scope: str) -> datetime | None:
        """Return when the scope last polled.

        Does not call `record_polls`: callers that read many scopes would repeat it for each.
        """
        if (scope in self.polled or scope in self.long_polling) and self._writer.state.delivery(scope) is not None:
            return self._clock.now()
        return self._writer.state.last_seen_at(scope)

    def exclude_downtime(self) -> None:
        """Add the service's own downtime to all last-seen times, so that it does not count as inactivity."""
        alive_at = self._writer.state.facts.get("alive_at")
        if alive_at is None or self._clock.virtual:
            return
        now = self._clock.now()
        downtime = max(now - from_text(alive_at), timedelta(0))
        # Not after now: with several nodes, scopes have polled other nodes meanwhile.
        self._set({scope: min(time + downtime, max(time, now)) for scope, time in self._writer.state.last_seen.items()})

    def start_watching(self) -> None:
        """Start to watch for inactivity. All earlier timers are gone."""
        self._watched.clear()
        self._written_at = None

    def take_unwritten(self) -> dict[str, datetime]:
        """Return the times that are not written yet. A node that follows sends them to the leader."""
        self.record_polls()
        unwritten, self._unwritten = self._unwritten, set()
        state = self._writer.state
        return {scope: time for scope in unwritten if (time := state.last_seen_at(scope)) is not None}

    def record(self, times: Mapping[str, datetime]) -> None:
        """Record polls that another node has seen, or that could not be sent."""
        known = {
            scope: max(time, self._writer.state.last_seen_at(scope) or time)
            for scope, time in times.items()
            if self._writer.state.delivery(scope) is not None
        }
        self._writer.record_seen(known)
        self._unwritten |= known.keys()

    def shift(self, step: timedelta) -> None:
        """Follow a step of the clock, so that it does not change how long ago the scopes polled."""
        self._add(step)
        self._timers.remove("inactivity")
        watched, self._watched = self._watched, set()
        for scope in watched:
            self.watch(scope)
        self._written_at = None

    def _add(self, duration: timedelta) -> None:
        self._set({scope: time + duration for scope, time in self._writer.state.last_seen.items()})

    def _set(self, times: dict[str, datetime]) -> None:
        self._writer.record_seen(times)
        self._unwritten = set(times)

    # --- Inactivity ---------------------------------------------------------------------------------

    def watch(self, scope: str, after: datetime | None = None) -> bool:
        """Set the inactivity timer of a scope. Returns False if the timeout is not after `after`."""
        if scope in self._watched:  # its timer is not later, and sets a new one when it is due
            return True
        last_seen_at = self._writer.state.last_seen_at(scope)
        if last_seen_at is None:
            return False
        inactive_at = last_seen_at + self._inactivity_timeout
        if after is not None and inactive_at <= after:
            return False
        self._timers.add(inactive_at, "inactivity", scope)
        self._watched.add(scope)
        return True

    def find_inactive(self, scopes: list[str], now: datetime) -> list[str]:
        """Return those of the scopes with a due timer that are inactive. The others get a new timer."""
        self._watched.difference_update(scopes)
        return [scope for scope in scopes if not self.watch(scope, after=now)]

    def reschedule(self, inactive: list[str], now: datetime) -> None:
        """Set the timers of these scopes again, because the commit that should disable them failed."""
        for scope in inactive:
            self._timers.add(now, "inactivity", scope)
        self._watched.update(inactive)

    # --- Writing ------------------------------------------------------------------------------------

    @property
    def is_write_due(self) -> bool:
        return self._written_at is None or abs(self._clock.now() - self._written_at) >= WRITE_INTERVAL

    async def write(self) -> None:
        """Write the last-seen times to the store, and that the service is alive."""
        self.record_polls()
        unwritten, self._unwritten = self._unwritten, set()

        def write(draft: Draft, now: datetime) -> None:
            times = {scope: draft.last_seen_at(scope) for scope in unwritten if draft.delivery(scope)}
            draft.changes.last_seen = {scope: time for scope, time in times.items() if time}
            draft.changes.facts["alive_at"] = to_text(now)
            stored = self._clock.stored() if isinstance(self._clock, SystemClock) else ""
            draft.changes.facts["system_clock"] = str(stored)

        try:
            await self._writer.execute(write)
        except StoreFailed:
            self._unwritten |= unwritten
            raise
        self._written_at = self._clock.now()
