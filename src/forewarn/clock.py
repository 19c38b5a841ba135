"""SystemClock and VirtualClock: the only module that reads the time."""

from __future__ import annotations

import asyncio
import heapq
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_WAIT_SECONDS = 1.0
"""A wall clock can jump. Looking again each second bounds how late that is noticed."""


def real_seconds() -> float:
    """Seconds that always run, whatever the clock says: for rate limits, held polls and time-outs."""
    return time.monotonic()


def unix_seconds() -> int:
    """The machine's own time, whatever the clock says: for signatures, which others check by their own."""
    return int(time.time())


class SystemClock:
    """The machine's own time."""

    virtual = False

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, moment: datetime) -> None:
        seconds = (moment - self.now()).total_seconds()
        await asyncio.sleep(min(max(seconds, 0), _LONGEST_WAIT_SECONDS))


class VirtualClock:
    """Time that stands still until it is moved. It only moves forward."""

    virtual = True

    def __init__(self, start: datetime | None = None) -> None:
        # Whole seconds, so that moving on by a notice's length reaches its NotBefore exactly.
        self._now = start or datetime.now(UTC).replace(microsecond=0)
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = 0
        self.on_sleep: Callable[[], None] = lambda: None
        """Called when somebody begins to wait: whoever moves the clock may have waited for that."""
        self.on_move: Callable[[], None] = lambda: None
        """Called when the time has changed."""

    def now(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        """Move to the moment and wake whoever waited for it; a moment that has passed changes nothing."""
        self._now = max(self._now, moment)
        self.on_move()
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def resume(self, moment: datetime) -> None:
        """Go on at a moment from before: only at a start, when nobody has seen the time yet."""
        self._now = moment

    async def sleep_until(self, moment: datetime) -> None:
        if moment <= self._now:
            return
        self._order += 1
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (moment, self._order, sleeper))
        self.on_sleep()
        await sleeper

    def next_waking(self) -> datetime | None:
        """When the first sleeper is to be woken."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    @property
    def sleeping(self) -> int:
        """How many wait for time to move."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)
