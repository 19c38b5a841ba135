"""How time passes in a run: a virtual clock is moved, at once or at a pace; the system's is waited for."""

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


LOOK_EVERY_SECONDS = 0.1
"""At a pace, how often a virtual clock is moved on."""
LONGEST_WAIT_SECONDS = 1.0
"""A wall clock can jump: nothing is waited for longer than this without another look."""
GRACE = timedelta(seconds=10)
"""What the service's own work may take where time does not wait for it."""
ROUNDING = timedelta(seconds=1)
"""NotBefore is told in whole seconds, rounded up."""


class RunStopped(Exception):
    """Somebody has stopped the run."""


class Pace:
    """The passing of time, for one run."""

    def __init__(
        self, engine: Engine, options: RunOptions, groups: Collection[str], barrier: ClockBarrier | None = None
    ) -> None:
        self._engine = engine
        self._options = options
        self._groups = groups
        self._last_moved = real_seconds()
        self.virtual = isinstance(engine.clock, VirtualClock)
        self.request_speed = 1.0 if self.virtual or options.speed is None else options.speed
        """How many times shorter what is asked for must be: a virtual clock is moved instead."""
        self.limits = engine.limits.at(self.request_speed)
        self.changed = asyncio.Event()
        """Set when a document has changed, and when the run is to stop."""
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barrier = Watchers(barrier, self._stopping) if barrier is not None else None
        self.moving: asyncio.Task[None] | None = None
        """A move of the clock that is under way."""

    def stop(self) -> None:
        if not self._stopping.done():
            self._stopping.set_result(None)
        self.changed.set()

    def refuse_stopped(self) -> None:
        """Whoever takes a step looks first whether there is to be another."""
        if self._stopping.done():
            raise RunStopped

    def deadline(self, length: timedelta) -> datetime:
        """When something that may take so long is late."""
        slack = ROUNDING if self.virtual else ROUNDING + GRACE
        return self._engine.clock.now() + self.limits.quicken(length) + slack

    async def until(
        self, happened: Callable[[], bool], deadline: datetime, next_due: Callable[[], datetime | None]
    ) -> bool:
        """Let time pass until it has happened; False when the deadline comes first."""
        while not happened():
            self.refuse_stopped()
            if self._engine.clock.now() >= deadline:
                return False
            self.changed.clear()
            await self._pass_time(deadline, next_due)
        return True

    async def _pass_time(self, deadline: datetime, next_due: Callable[[], datetime | None]) -> None:
        left = deadline - self._engine.clock.now()
        if not self.virtual:
            if self._options.enable:
                self._keep_listening()
            await self._wait(min(left.total_seconds(), LONGEST_WAIT_SECONDS))
        elif self._options.speed is None:
            if next_due() is None:  # work that has just begun: when it is over is known once it is done
                await self._move(timedelta(0))
            await self._move(min(left, self._step(next_due())))
        else:
            await self._move_at_pace(self._options.speed, left)

    def _step(self, due: datetime | None) -> timedelta:
        """How far it is to the next moment at which something of this run happens."""
        clock = self._engine.clock
        waking = clock.next_wake_up() if isinstance(clock, VirtualClock) else None
        moments = [moment for moment in (due, waking) if moment is not None and moment > clock.now()]
        longest = self._engine.limits.quicken(self._engine.limits.inactivity_timeout) / 2
        return min(min(moments) - clock.now(), longest) if moments else longest

    async def _move_at_pace(self, speed: float, left: timedelta) -> None:
        """Whole seconds only: virtual time that has fractions makes every NotBefore a little later."""
        owed = int((real_seconds() - self._last_moved) * speed)
        if owed < 1:
            await self._wait(max(1 / speed, LOOK_EVERY_SECONDS) if speed < 1 else LOOK_EVERY_SECONDS)
            return
        self._last_moved += owed / speed
        await self._move(min(left, timedelta(seconds=owed)))
        if self._barrier is not None:  # what was spent on waiting for VMs is not caught up with: they would see nothing
            self._last_moved = real_seconds()

    async def _move(self, length: timedelta) -> None:
        self._keep_listening()
        self.moving = asyncio.create_task(self._move_on(length))
        await asyncio.wait({self.moving, self._stopping}, return_when=asyncio.FIRST_COMPLETED)
        self.refuse_stopped()  # the move itself goes on to its end
        self.moving.result()

    async def _move_on(self, length: timedelta) -> None:
        """The one place where the clock is moved."""
        await self._engine.advance(length, self._barrier)

    def _keep_listening(self) -> None:
        """While a run moves the clock nobody can ask often enough: that is not the groups' silence."""
        self._engine.polled.update(self._groups)

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0)):
                await self.changed.wait()


class Watchers:
    """An barrier that is not waited for any more when the run is to stop."""

    def __init__(self, barrier: ClockBarrier, stopping: asyncio.Future[None]) -> None:
        self._barrier = barrier
        self._stopping = stopping

    @property
    def groups(self) -> set[str]:
        return self._barrier.groups

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
