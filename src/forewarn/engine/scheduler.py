"""The scheduler: what is due when, and a tick of the engine when something is due."""

from __future__ import annotations

import asyncio
import heapq
import logging
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING

from forewarn.clock import VirtualClock
from forewarn.core.durations import from_text
from forewarn.errors import ClockBusy, ClockNotVirtual, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime

    from forewarn.engine.executor import Executor
    from forewarn.engine.history import Retention
    from forewarn.engine.last_seen import LastSeen
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, ClockBarrier


class Timers:
    """A heap of moments."""

    def __init__(self) -> None:
        self.sooner = asyncio.Event()
        """Set when something has become due earlier than all before it."""
        self._heap: list[tuple[datetime, str, int, str]] = []
        self._numbers = count()
        """What is due at one moment comes in the order in which it was noted: ids are random, and must not decide."""

    def add(self, moment: datetime, kind: str, key: str) -> None:
        heapq.heappush(self._heap, (moment, kind, next(self._numbers), key))
        if self._heap[0][0] == moment:
            self.sooner.set()

    def next(self) -> datetime | None:
        """The first moment at which something is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, now: datetime) -> list[tuple[str, str]]:
        """All that is due by now, in its order, as (kind, key)."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, kind, _, key = heapq.heappop(self._heap)
            due.append((kind, key))
        return due


# --- Ticks ----------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

LOOK_AGAIN_SECONDS = 1.0
"""A wall clock can jump, and a disk can be full: nothing is waited for longer than this without another look."""


class Scheduler:
    """The passing of time, for one engine."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        last_seen: LastSeen,
        writer: Writer,
        executor: Executor,
        retention: Retention,
        tick: Callable[[], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._last_seen = last_seen
        self._writer = writer
        self._executor = executor
        self._retention = retention
        self._tick = tick
        self._task: asyncio.Task[None] | None = None
        self._moving = asyncio.Lock()
        """One at a time moves a virtual clock: each is to see every step of its own."""
        self._awaited: list[str] = []
        """VMs that whoever moves it is waiting for."""

    def resume(self) -> None:
        """Virtual time goes on where it stood; no time goes back behind what has happened."""
        facts = self._writer.state.facts
        known = [from_text(facts[name]) for name in ("virtual_now", "alive_at") if name in facts]
        latest = max(known, default=None)
        if latest is None:
            return
        if isinstance(self._clock, VirtualClock):
            self._clock.resume(latest)
        elif latest > self._clock.now() + timedelta(minutes=1):
            logger.warning("The data was last used at %s, which is still to come by the system clock.", latest)

    def start(self) -> None:
        self._retention.begin()
        if isinstance(self._clock, VirtualClock):
            self._clock.on_sleep = self._executor.changed.set
        else:
            self._writer.measurements.late_seconds = self._late_seconds
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._retention.stop()

    async def advance(self, length: timedelta, audience: ClockBarrier | None = None) -> datetime:
        """Move a virtual clock, from deadline to deadline; returns when all that is due by then is done.

        An audience takes in each step before the next, the last one too.
        """
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise ClockNotVirtual
        if self._awaited:  # moving the clock under them would be to pass them over, waiting for them may take long
            raise ClockBusy(vms=", ".join(self._awaited))
        async with self._moving:
            target = clock.now() + length
            await self._until_taken_in(clock, audience)
            while True:
                self._last_seen.take()
                moments = [moment for moment in (self._timers.next(), clock.next_waking()) if moment]
                if not moments or min(moments) > target:
                    break
                clock.set(min(moments))
                if audience is not None:  # it asks all the time, also in the time that was passed over
                    self._last_seen.polled |= audience.groups
                await self._tick()
                await self._until_taken_in(clock, audience)
            clock.set(target)
            await self._last_seen.write()
            await self._retention.settle()
            return clock.now()

    async def _until_taken_in(self, clock: VirtualClock, audience: ClockBarrier | None) -> None:
        await self.until_quiet(clock)
        while audience is not None and (missing := audience.missing()):
            self._awaited = missing
            try:
                await audience.wait()
            finally:
                self._awaited = []
            await self.until_quiet(clock)  # it may have answered by an approval: that is the next thing to see

    async def until_quiet(self, clock: VirtualClock) -> None:
        """Until no command is under way and the fabric only waits for time to move."""
        with self._writer.hurry():
            while True:
                await self._writer.until_idle()
                self._executor.changed.clear()
                if len(self._executor) <= clock.sleeping:
                    return
                await self._executor.changed.wait()

    async def _run(self) -> None:
        """Under a clock that runs by itself: tick when something is due, and write each minute who was heard."""
        while True:
            try:
                if self._last_seen.due:
                    await self._last_seen.write()
                self._retention.begin()
                if (late := self._late_seconds()) > 0:
                    self._writer.measurements.scheduler_delay.observe(late)
                await self._tick()
                seconds = self._seconds_to_next()
            except Exception as error:  # whatever it is, time must not stand still for it
                expected = isinstance(error, StoreFailed)
                logger.warning("What is due is tried again: %s", error, exc_info=not expected)
                seconds = LOOK_AGAIN_SECONDS
                await asyncio.sleep(seconds)
            # Not wait_for: before Python 3.12 it can swallow the cancellation that is to end this loop.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._timers.sooner.wait()

    def _late_seconds(self) -> float:
        moment = self._timers.next()
        return (self._clock.now() - moment).total_seconds() if moment is not None else 0.0

    def _seconds_to_next(self) -> float:
        self._timers.sooner.clear()
        moment = self._timers.next()
        if moment is None:
            return LOOK_AGAIN_SECONDS
        return min(max((moment - self._clock.now()).total_seconds(), 0.0), LOOK_AGAIN_SECONDS)
