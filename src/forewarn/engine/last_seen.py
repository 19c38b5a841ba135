"""When each scope last polled or approved: updated in memory at once, written to the store a few times a day.

Each minute, a part of the scopes that have polled is written, so that a scope is written four times within the
inactivity timeout. A small fleet is written completely each minute.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING

from forewarn.clock import SystemClock
from forewarn.core import enabling
from forewarn.core.durations import from_text, to_text
from forewarn.core.events import due
from forewarn.core.state import UP_AT
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
MIN_WRITTEN = 100
"""Number of scopes that are written each minute at least."""
MAX_SHIFTED = 2000
"""Number of scopes that are written at once, when the times of all scopes have moved."""
WATCHED_AT_ONCE = 20_000
"""Number of scopes that get an inactivity timer in one turn of the event loop."""
SHORT_DOWNTIME = 100
"""A downtime of less than this part of the inactivity timeout does not move the times of the scopes."""
UP_INTERVAL = timedelta(seconds=5)
"""How often the service stores that it is up, while an event waits for its NotBefore."""
MAX_DOWNTIME = timedelta(seconds=10)
"""A longer downtime is no notice. It is not shorter, because the stored time can be UP_INTERVAL old."""


class LastSeen:
    """Scopes that polled recently, and which of their times are not on disk yet."""

    def __init__(self, clock: Clock, writer: Writer, timers: Timers, limits: OperatorLimits) -> None:
        self.polled: set[str] = set()
        """Scopes that polled or approved since `record_polls`. The server adds to it without reading the clock."""
        self.long_polling: Collection[str] = ()
        """Scopes with an open long poll. They count as seen now."""
        self.downtime = timedelta(0)
        """How long nobody could poll: the service was down or stopped. Nothing is written until the events have moved
        by it."""
        self._clock = clock
        self._writer = writer
        self._timers = timers
        self._inactivity_timeout = limits.quicken(limits.inactivity_timeout)
        self._watched: set[str] = set()
        """Scopes with an inactivity timer. Each has at most one."""
        self._unwatched: list[str] = []
        """Scopes that get a timer soon."""
        self._unwritten: dict[str, None] = {}
        """Scopes that have polled since they were written, in the order in which they will be written."""
        self._shifted = 0
        """How many of them are written soon, because their times have moved."""
        self._written_at: datetime | None = None
        self._looked_at: datetime | None = None
        """When it last looked for events that wait for their NotBefore."""

    def record_polls(self) -> None:
        """Set the last-seen time of all scopes that polled to now."""
        self.polled.update(self.long_polling)
        if self.polled:
            known = self.polled & self._writer.state.deliveries.keys()  # others have left the fleet
            self._writer.record_seen(dict.fromkeys(known, self._clock.now()))
            self._unwritten.update(dict.fromkeys(known))
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
        downtime = now - from_text(alive_at)
        if downtime < self._inactivity_timeout / SHORT_DOWNTIME:
            return
        # Not after now: with several nodes, scopes have polled other nodes meanwhile.
        self._set({scope: min(time + downtime, max(time, now)) for scope, time in self._writer.state.last_seen.items()})

    def measure_downtime(self) -> None:
        """Measure for how long the service was down before its start, if that is too long to count as notice."""
        facts = self._writer.state.facts
        known = [from_text(facts[name]) for name in ("alive_at", UP_AT) if name in facts]
        found = self._clock.now() - max(known) if known and not self._clock.virtual else timedelta(0)
        self.downtime = found if found > MAX_DOWNTIME else timedelta(0)

    def add_pause(self, seconds: float) -> None:
        """Add a time in which the process was stopped, or its machine suspended, if that is too long for a notice."""
        pause = timedelta(seconds=seconds)
        if pause > MAX_DOWNTIME:
            self.downtime += pause

    def start_watching(self) -> None:
        """Start to watch for inactivity, with times from the store. All earlier timers are gone."""
        state = self._writer.state
        self._writer.set_polls_known_from(self._clock.now() if len(state.deliveries) > MIN_WRITTEN else None)
        self._watched.clear()
        self._unwatched = [*state.deliveries]
        self._written_at = self._looked_at = None
        self._shifted = 0

    def take_unwritten(self) -> dict[str, datetime]:
        """Return the times that are not written yet. A node that follows sends them to the leader."""
        self.record_polls()
        unwritten, self._unwritten = self._unwritten, {}
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
        self._unwritten.update(dict.fromkeys(known))

    def shift(self, step: timedelta) -> None:
        """Follow a step of the clock, so that it does not change how long ago the scopes polled."""
        self._add(step)
        self._timers.remove("inactivity")
        known_from = self._writer.state.polls_known_from
        self._writer.set_polls_known_from(known_from + step if known_from is not None else None)
        self._unwatched += self._watched
        self._watched.clear()
        self._written_at = None

    def _add(self, duration: timedelta) -> None:
        self._set({scope: time + duration for scope, time in self._writer.state.last_seen.items()})

    def _set(self, times: dict[str, datetime]) -> None:
        self._writer.record_seen(times)
        self._unwritten = dict.fromkeys(set(times))  # not in the order of the table: neighbours share a page
        self._shifted = len(self._unwritten)

    # --- Inactivity ---------------------------------------------------------------------------------

    def watch_next(self) -> None:
        """Set the inactivity timers of the next scopes after a start."""
        for scope in self._unwatched[-WATCHED_AT_ONCE:]:
            delivery = self._writer.state.delivery(scope)
            if delivery is not None and delivery.enabled:
                self.watch(scope)
        del self._unwatched[-WATCHED_AT_ONCE:]

    def watch(self, scope: str, after: datetime | None = None) -> bool:
        """Set the inactivity timer of a scope. Returns False if the timeout is not after `after`."""
        if scope in self._watched:  # its timer is not later, and sets a new one when it is due
            return True
        last_seen_at = self._writer.state.last_seen_at(scope)
        if last_seen_at is None:
            return False
        inactive_at = enabling.inactive_at(self._writer.state, last_seen_at, self._inactivity_timeout)
        if after is not None and inactive_at <= after:
            return False
        look_at = last_seen_at + self._inactivity_timeout  # it may have polled until then
        if after is not None and look_at <= after:
            look_at = inactive_at
        self._timers.add(look_at, "inactivity", scope)
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
        if self.downtime:
            return False
        return (
            self._written_at is None or self._shifted > 0 or abs(self._clock.now() - self._written_at) >= WRITE_INTERVAL
        )

    @property
    def is_up_due(self) -> bool:
        """Whether the service must store that it is up, because an event waits for its NotBefore.

        Looks at the events once in an interval. The commit that schedules an event says that the service is up, too.
        """
        now = self._clock.now()
        if self.downtime:
            return False
        if self._looked_at is not None and abs(now - self._looked_at) < UP_INTERVAL:
            return False
        self._looked_at = now
        return any(due(event) is not None for event in self._writer.state.events.values())

    async def write_up(self) -> None:
        """Store that the service is up."""

        def write(draft: Draft, now: datetime) -> None:
            draft.changes.facts[UP_AT] = to_text(now)

        await self._writer.execute(write)

    def _number_to_write(self) -> int:
        """Return how many scopes are written now: so many that all of them are within a part of the timeout."""
        if self._shifted:
            return MAX_SHIFTED
        share = WRITE_INTERVAL / (self._inactivity_timeout * enabling.MAX_AGE)
        return max(MIN_WRITTEN, ceil(len(self._writer.state.deliveries) * share))

    async def write_all_shifted(self) -> None:
        """Write what is due, and all times that have moved: the stored ones are wrong by more than their age."""
        await self.write()
        while self._shifted:
            await self.write()

    async def write(self) -> None:
        """Write the last-seen times that are due to the store, and that the service is alive."""
        self.record_polls()
        unwritten = [*islice(self._unwritten, self._number_to_write())]
        for scope in unwritten:
            del self._unwritten[scope]

        def write(draft: Draft, now: datetime) -> None:
            times = {scope: draft.last_seen_at(scope) for scope in unwritten if draft.delivery(scope)}
            draft.changes.last_seen = {scope: time for scope, time in times.items() if time}
            draft.changes.facts["alive_at"] = to_text(now)
            stored = self._clock.stored() if isinstance(self._clock, SystemClock) else ""
            draft.changes.facts["system_clock"] = str(stored)

        try:
            await self._writer.execute(write)
        except StoreFailed:
            self._unwritten = dict.fromkeys((*unwritten, *self._unwritten))
            raise
        self._shifted = max(self._shifted - len(unwritten), 0) if unwritten else 0
        self._written_at = self._clock.now()
