"""Passes the time of a run: moves a virtual clock, at full speed or at a given one, or waits for the system clock."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.clock import VirtualClock, real_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from datetime import datetime

    from forewarn.core.scenarios import RunOptions
    from forewarn.engine.engine import Engine
    from forewarn.ports import ClockBarrier


MOVE_INTERVAL_SECONDS = 0.1
"""Interval between moves of a virtual clock, if the run has a speed."""
MAX_WAIT_SECONDS = 1.0
"""Maximum wait before the clock is read again, because a system clock can jump."""
GRACE = timedelta(seconds=10)
"""Additional time for the service's own work, if the clock does not wait for it."""
ROUNDING = timedelta(seconds=1)
"""NotBefore is rounded up to whole seconds."""


class RunStopped(Exception):
    """The run was stopped."""


class Pace:
    """Lets time pass for one run."""

    def __init__(
        self, engine: Engine, options: RunOptions, scopes: Collection[str], barrier: ClockBarrier | None = None
    ) -> None:
        self._engine = engine
        self._options = options
        self._scopes = scopes
        self._last_moved = real_seconds()
        self.virtual = isinstance(engine.clock, VirtualClock)
        self.request_speed = 1.0 if self.virtual or options.speed is None else options.speed
        """Divisor of all requested durations. It is 1 with a virtual clock, which moves faster instead."""
        self.limits = engine.limits.at(self.request_speed)
        self.changed = asyncio.Event()
        """Set when a document has changed, or when the run must stop."""
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barrier = StoppableBarrier(barrier, self._stopping) if barrier is not None else None
        self.moving: asyncio.Task[None] | None = None
        """The current move of the clock."""

    def stop(self) -> None:
        if not self._stopping.done():
            self._stopping.set_result(None)
        self.changed.set()

    def raise_if_stopped(self) -> None:
        """Raise RunStopped if the run must stop."""
        if self._stopping.done():
            raise RunStopped

    def deadline(self, duration: timedelta) -> datetime:
        """Return the time by which something with this maximum duration must have happened."""
        slack = ROUNDING if self.virtual else ROUNDING + GRACE
        return self._engine.clock.now() + self.limits.quicken(duration) + slack

    async def until(
        self, condition: Callable[[], bool], deadline: datetime, next_due: Callable[[], datetime | None]
    ) -> bool:
        """Let time pass until the condition is true. Return False if the deadline comes first."""
        while not condition():
            self.raise_if_stopped()
            if self._engine.clock.now() >= deadline:
                return False
            self.changed.clear()
            await self._pass_time(deadline, next_due)
        return True

    async def _pass_time(self, deadline: datetime, next_due: Callable[[], datetime | None]) -> None:
        left = deadline - self._engine.clock.now()
        if not self.virtual:
            if self._options.enable:
                self._keep_scopes_enabled()
            await self._wait(min(left.total_seconds(), MAX_WAIT_SECONDS))
        elif self._options.speed is None:
            if next_due() is None:  # work has just started; its end is known when the fabric has done it
                await self._move(timedelta(0))
            await self._move(min(left, self._step(next_due())))
        else:
            await self._move_at_speed(self._options.speed, left)

    def _step(self, due: datetime | None) -> timedelta:
        """Return the time until something of this run happens."""
        clock = self._engine.clock
        waking = clock.next_wake_up() if isinstance(clock, VirtualClock) else None
        times = [time for time in (due, waking) if time is not None and time > clock.now()]
        max_step = self._engine.limits.quicken(self._engine.limits.inactivity_timeout) / 2
        return min(min(times) - clock.now(), max_step) if times else max_step

    async def _move_at_speed(self, speed: float, left: timedelta) -> None:
        """Move by whole seconds only: with fractions, NotBefore would be rounded up each time."""
        due_seconds = int((real_seconds() - self._last_moved) * speed)
        if due_seconds < 1:
            await self._wait(max(1 / speed, MOVE_INTERVAL_SECONDS) if speed < 1 else MOVE_INTERVAL_SECONDS)
            return
        self._last_moved += due_seconds / speed
        await self._move(min(left, timedelta(seconds=due_seconds)))
        # Do not catch up on the time spent waiting for VMs: they would miss the steps in between.
        if self._barrier is not None:
            self._last_moved = real_seconds()

    async def _move(self, duration: timedelta) -> None:
        self._keep_scopes_enabled()
        self.moving = asyncio.create_task(self._advance(duration))
        await asyncio.wait({self.moving, self._stopping}, return_when=asyncio.FIRST_COMPLETED)
        self.raise_if_stopped()  # the move itself continues
        self.moving.result()

    async def _advance(self, duration: timedelta) -> None:
        """Move the clock. Nothing else in this module does."""
        await self._engine.advance(duration, self._barrier)

    def _keep_scopes_enabled(self) -> None:
        """Count the scopes as polled: nobody can poll as fast as a run moves the clock."""
        self._engine.polled.update(self._scopes)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self.changed.wait()


class StoppableBarrier:
    """A clock barrier that stops waiting when the run must stop."""

    def __init__(self, barrier: ClockBarrier, stopping: asyncio.Future[None]) -> None:
        self._barrier = barrier
        self._stopping = stopping

    @property
    def scopes(self) -> set[str]:
        return self._barrier.scopes

    def missing(self) -> list[str]:
        return [] if self._stopping.done() else self._barrier.missing()

    async def wait(self) -> None:
        waiting = asyncio.create_task(self._wait())
        try:
            await asyncio.wait({waiting, self._stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
        finally:
            waiting.cancel()

    async def _wait(self) -> None:
        await self._barrier.wait()
