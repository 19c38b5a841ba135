"""The scheduler: a queue of timers, and a loop that processes what is due."""

from __future__ import annotations

import asyncio
import heapq
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING

from forewarn.clock import LAST_VIRTUAL_TIME, MAX_STEP, StoredClock, SystemClock, VirtualClock, seconds_since_boot
from forewarn.core.durations import format_duration, format_time, from_text, to_text
from forewarn.errors import BadOption, ClockBusy, ClockNotVirtual, StoreFailed
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import datetime, timedelta

    from forewarn.engine.clock_hold import ClockHold
    from forewarn.engine.executor import Executor
    from forewarn.engine.history import Retention
    from forewarn.engine.last_seen import LastSeen
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, ClockBarrier


class Timers:
    """A priority queue of (time, kind, key)."""

    def __init__(self) -> None:
        self.new_earliest = asyncio.Event()
        """Set when a new timer is due before all others."""
        self._heap: list[tuple[datetime, str, int, str]] = []
        self._numbers = count()
        """Orders timers of the same time by when they were added. Ids are random, so they must not decide."""

    def add(self, time: datetime, kind: str, key: str) -> None:
        heapq.heappush(self._heap, (time, kind, next(self._numbers), key))
        if self._heap[0][0] == time:
            self.new_earliest.set()

    def next_time(self) -> datetime | None:
        """Return the time of the first timer."""
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now: datetime) -> list[tuple[str, str]]:
        """Remove and return all due timers, in order, as (kind, key)."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, kind, _, key = heapq.heappop(self._heap)
            due.append((kind, key))
        return due

    def clear(self) -> None:
        """Remove all timers."""
        self._heap = []

    def remove(self, kind: str) -> None:
        """Remove all timers of a kind."""
        self._heap = [timer for timer in self._heap if timer[1] != kind]
        heapq.heapify(self._heap)


# --- Ticks ----------------------------------------------------------------------------------------


_log = get_logger(__name__)

MAX_WAIT_SECONDS = 1.0
"""Maximum wait between two checks, because the system clock can jump and a full disk can have room again."""


def _not_late() -> float:
    return 0.0


class Scheduler:
    """Processes what is due, and advances a virtual clock, for one engine."""

    def __init__(
        self,
        clock: Clock,
        timers: Timers,
        last_seen: LastSeen,
        writer: Writer,
        executor: Executor,
        retention: Retention,
        clock_hold: ClockHold,
        tick: Callable[[], Awaitable[None]],
    ) -> None:
        self._clock = clock
        self._timers = timers
        self._last_seen = last_seen
        self._writer = writer
        self._executor = executor
        self._retention = retention
        self._clock_hold = clock_hold
        self._tick = tick
        self._task: asyncio.Task[None] | None = None
        self._wakes_by: float | None = None
        """Until when the current wait ends, in seconds since boot."""
        self._advance_lock = asyncio.Lock()
        """Held while the virtual clock advances: two callers must not mix their steps."""
        self._awaited_vms: list[str] = []
        """VMs that the current advance waits for."""

    def resume(self, facts: Mapping[str, str]) -> None:
        """Continue a virtual clock at the last stored time. Notice if the system clock was set since then."""
        known = [from_text(facts[name]) for name in ("virtual_now", "alive_at") if name in facts]
        latest = max(known, default=None)
        if latest is None:
            return
        if isinstance(self._clock, VirtualClock):
            self._clock.resume(latest)
            return
        if isinstance(self._clock, SystemClock) and facts.get("system_clock") and "alive_at" in facts:
            self._clock.resume(StoredClock.parse(facts["system_clock"]), from_text(facts["alive_at"]))
        if latest > self._clock.now() + MAX_STEP:  # data of a virtual clock
            _log.warning(
                "system_clock_behind",
                "The system clock is behind the last stored time.",
                last_stored_time=to_text(latest),
            )

    def start(self) -> None:
        if self._clock_hold.jump is None:
            self._retention.start_if_due()
        if isinstance(self._clock, VirtualClock):
            self._clock.on_sleep = self._executor.changed.set
        else:
            self._writer.measurements.late_seconds = self._late_seconds
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = self._wakes_by = None
        self._writer.measurements.late_seconds = _not_late
        await self._retention.stop()

    async def advance(self, duration: timedelta, barrier: ClockBarrier | None = None) -> datetime:
        """Advance a virtual clock from timer to timer. Returns when everything due by then is done.

        With a barrier, its VMs must see each step before the next one, and also the last.
        """
        clock = self._clock
        if not isinstance(clock, VirtualClock):
            raise ClockNotVirtual
        if self._awaited_vms:  # they must see each step, and waiting for them here could take long
            raise ClockBusy(vms=", ".join(self._awaited_vms))
        async with self._advance_lock:
            if duration > LAST_VIRTUAL_TIME - clock.now():
                problem = (
                    f"the clock is at {format_time(clock.now())} and cannot pass {format_time(LAST_VIRTUAL_TIME)}."
                )
                raise BadOption(name="by", value=format_duration(duration), problem=problem)
            target = clock.now() + duration
            await self._wait_for_barrier(clock, barrier)
            while True:
                self._last_seen.record_polls()
                times = [time for time in (self._timers.next_time(), clock.next_wake_up()) if time]
                if not times or min(times) > target:
                    break
                clock.set(min(times))
                if barrier is not None:  # its VMs poll all the time, also during the skipped time
                    self._last_seen.polled |= barrier.scopes
                await self._tick()
                await self._wait_for_barrier(clock, barrier)
            clock.set(target)
            await self._last_seen.write()
            await self._retention.finish()
            return clock.now()

    async def _wait_for_barrier(self, clock: VirtualClock, barrier: ClockBarrier | None) -> None:
        await self.wait_until_idle(clock)
        while barrier is not None and (missing := barrier.missing()):
            self._awaited_vms = missing
            try:
                await barrier.wait()
            finally:
                self._awaited_vms = []
            await self.wait_until_idle(clock)  # a VM may have approved an event, which changes its document

    async def wait_until_idle(self, clock: VirtualClock) -> None:
        """Wait until no command is in progress and all fabric work waits for the clock."""
        with self._writer.without_deferral():
            while True:
                await self._writer.wait_until_idle()
                self._executor.changed.clear()
                if len(self._executor) <= clock.sleeper_count:
                    return
                await self._executor.changed.wait()

    async def _run(self) -> None:
        """With the system clock: process what is due, and once a minute write the last-seen times that are due."""
        while True:
            try:
                if self._last_seen.is_write_due:
                    await self._last_seen.write()
                elif self._last_seen.is_up_due:
                    await self._last_seen.write_up()
                if self._clock_hold.jump is None:
                    self._retention.start_if_due()
                await self._tick()
                seconds = self._seconds_to_next()
            except Exception as error:  # noqa: BLE001 - the scheduler must never stop
                if isinstance(error, StoreFailed):
                    _log.warning(
                        "due_items_not_processed",
                        "Cannot process due events; retrying.",
                        error=str(error),
                    )
                else:
                    _log.exception("scheduler_failed", "Unexpected error in the scheduler; retrying.")
                seconds = MAX_WAIT_SECONDS
                await asyncio.sleep(seconds)
            self._wakes_by = seconds_since_boot() + seconds
            # Not wait_for: before Python 3.12 it can swallow the cancellation that ends this loop.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._timers.new_earliest.wait()
            self.notice_pause()
            self._wakes_by = None

    def notice_pause(self) -> None:
        """Notice that the process was stopped, or its machine suspended, during a wait: nobody could poll."""
        now = seconds_since_boot()
        if self._wakes_by is not None and now > self._wakes_by:
            self._last_seen.add_pause(now - self._wakes_by)
            self._wakes_by = now

    def _late_seconds(self) -> float:
        due_at = self._timers.next_time() if self._clock_hold.jump is None else None
        return (self._clock.now() - due_at).total_seconds() if due_at is not None else 0.0

    def _seconds_to_next(self) -> float:
        self._timers.new_earliest.clear()
        due_at = self._timers.next_time()
        if due_at is None or self._clock_hold.jump is not None:
            return MAX_WAIT_SECONDS
        return min(max((due_at - self._clock.now()).total_seconds(), 0.0), MAX_WAIT_SECONDS)
