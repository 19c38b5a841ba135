"""SystemClock and VirtualClock. No other module reads the time."""

from __future__ import annotations

import asyncio
import heapq
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST_WAIT_SECONDS = 1.0
"""The system clock can jump. Waking up every second limits how late that is noticed."""


def real_seconds() -> float:
    """Return monotonic seconds, for rate limits, long polls and timeouts."""
    return time.monotonic()


def unix_seconds() -> int:
    """Return the system time, also with a virtual clock. Receivers check signatures against it."""
    return int(time.time())


class SystemClock:
    """The system time."""

    virtual = False

    def now(self) -> datetime:
        return datetime.now(UTC)

    async def sleep_until(self, moment: datetime) -> None:
        seconds = (moment - self.now()).total_seconds()
        await asyncio.sleep(min(max(seconds, 0), _LONGEST_WAIT_SECONDS))


class VirtualClock:
    """A clock that only moves when it is set, and only forward."""

    virtual = True

    def __init__(self, start: datetime | None = None) -> None:
        # Whole seconds, so that advancing by the notice reaches NotBefore exactly.
        self._now = start or datetime.now(UTC).replace(microsecond=0)
        self._sleepers: list[tuple[datetime, int, asyncio.Future[None]]] = []
        self._order = 0
        self.on_sleep: Callable[[], None] = lambda: None
        """Called when a task starts to wait for a time."""
        self.on_move: Callable[[], None] = lambda: None
        """Called when the time has changed."""

    def now(self) -> datetime:
        return self._now

    def set(self, moment: datetime) -> None:
        """Move to this time and wake the tasks that are due. A past time changes nothing."""
        self._now = max(self._now, moment)
        self.on_move()
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def resume(self, moment: datetime) -> None:
        """Continue at a stored time. Only at startup, before anyone has read the time."""
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
        """Return when the next sleeping task is due."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    @property
    def sleeping(self) -> int:
        """Number of sleeping tasks."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)
