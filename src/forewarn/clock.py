"""SystemClock and VirtualClock. No other module reads the time."""

from __future__ import annotations

import asyncio
import heapq
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import from_text, to_text

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_SLEEP_SECONDS = 1.0
"""The system clock can jump. Waking up every second limits how late that is noticed."""

MAX_STEP = timedelta(minutes=1)
"""A larger change of the system clock is a jump."""
STABLE_TIME = timedelta(minutes=10)
"""The service uses the new time when no jump has happened for this long, unless an operator accepts it earlier."""

LAST_VIRTUAL_TIME = datetime(9000, 1, 1, tzinfo=UTC)
"""Python has no dates after year 9999. Until then there is room for every notice, pause and window."""


def real_seconds() -> float:
    """Return monotonic seconds without the time of a suspend, for rate limits, long polls and timeouts."""
    return time.monotonic()


def cpu_seconds() -> float:
    """Return the CPU time that the process has used."""
    return time.process_time()


def unix_seconds() -> int:
    """Return the system time, also with a virtual clock. Receivers check signatures against it."""
    return int(time.time())


def system_time() -> datetime:
    """Return the system time, also with a virtual clock. Sessions of people expire by it."""
    return datetime.fromtimestamp(time.time(), UTC)


def seconds_since_boot() -> float:
    """Return the seconds since the machine booted, with the time that it was suspended."""
    # macOS has no CLOCK_BOOTTIME. There, CLOCK_MONOTONIC includes the time of a suspend.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def read_boot_id() -> str:
    """Return the id that Linux creates at each boot, or an empty string."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except (OSError, UnicodeError):
        return ""


class ClockJump(NamedTuple):
    """A jump of the system clock that is not accepted yet."""

    number: int
    """Counts the jumps since the start of the process."""
    seen_at: datetime
    """The service's time when it noticed the jump. It continues from there, without the jump."""
    system_time: datetime
    """The system time after the jump."""

    @property
    def step(self) -> timedelta:
        """How far the system time is ahead of the service's time."""
        return self.system_time - self.seen_at

    @property
    def until(self) -> datetime:
        """The service's time when it accepts the system time, if there is no other jump."""
        return self.seen_at + STABLE_TIME


class StoredClock(NamedTuple):
    """What the service stores about its clock, to notice at the next start that the system clock was set."""

    boot_id: str
    booted_at: datetime
    """When the machine booted, by the service's time."""

    @classmethod
    def parse(cls, text: str) -> StoredClock:
        boot_id, _, booted_at = text.rpartition(" ")
        return cls(boot_id, from_text(booted_at))

    def __str__(self) -> str:
        return f"{self.boot_id} {to_text(self.booted_at)}"


class SystemClock:
    """The system time, without jumps.

    The difference between system time and time since boot is the time of the boot. It changes only if the system clock
    is set: NTP adjusts the speed of both clocks, and both continue during a suspend. After a jump, `now` continues as
    if the jump had not happened, until `accept` is called. So a wrong time has no effect, however short it was.
    """

    virtual = False

    def __init__(
        self,
        system_seconds: Callable[[], float] = time.time,
        boot_seconds: Callable[[], float] = seconds_since_boot,
        boot_id: str | None = None,
    ) -> None:
        self.jump: ClockJump | None = None
        """The last jump, until it is accepted."""
        self.jumps = 0
        self._system_seconds = system_seconds
        self._boot_seconds = boot_seconds
        self._boot_id = read_boot_id() if boot_id is None else boot_id
        system, since_boot = self._read()
        self._booted_at = self._system_booted_at = system - since_boot

    def now(self) -> datetime:
        system, since_boot = self._read()
        self._look(system, since_boot)
        if self.jump is None:
            self._booted_at = self._system_booted_at
            return datetime.fromtimestamp(system, UTC)
        return datetime.fromtimestamp(since_boot + self._booted_at, UTC)

    def accept(self) -> timedelta:
        """Use the system time from now on. Returns how far the service's time moves."""
        step = timedelta(seconds=self._system_booted_at - self._booted_at)
        self.jump = None
        return step

    def use(self, time: datetime) -> None:
        """Continue at this time, because the system clock is wrong: as if it had jumped to its time now."""
        system, since_boot = self._read()
        self._look(system, since_boot)
        self._booted_at = time.timestamp() - since_boot
        self.jumps += 1
        self.jump = ClockJump(self.jumps, time, datetime.fromtimestamp(system, UTC))

    def stored(self) -> StoredClock:
        return StoredClock(self._boot_id, datetime.fromtimestamp(self._booted_at, UTC))

    def resume(self, stored: StoredClock, alive_at: datetime) -> None:
        """Continue at the time that the service would have now if the system clock was not set since `alive_at`.

        After another boot the distance from `alive_at` is unknown, but the time cannot be earlier. A node can begin to
        lead when its clock has jumped: then it continues at its own time.
        """
        system, since_boot = self._read()
        self._look(system, since_boot)
        earliest = alive_at.timestamp()
        if self.jump is not None:
            self._booted_at = max(self._booted_at, earliest - since_boot)
            return
        expected = stored.booted_at.timestamp() + since_boot
        # Within the same boot, a container can have a time of boot of its own. Then the comparison says nothing.
        if not self._boot_id or stored.boot_id != self._boot_id or expected < earliest - MAX_STEP.total_seconds():
            expected = max(earliest, system)
        self._booted_at = self._system_booted_at = expected - since_boot
        self._look(system, since_boot)

    def _read(self) -> tuple[float, float]:
        """Read both clocks at the same time: again, if the process was stopped in between."""
        while True:
            before = self._boot_seconds()
            system = self._system_seconds()
            after = self._boot_seconds()
            if after - before < 1:
                return system, after

    def _look(self, system: float, since_boot: float) -> None:
        booted_at = system - since_boot
        if abs(booted_at - self._system_booted_at) > MAX_STEP.total_seconds():
            self.jumps += 1
            seen_at = datetime.fromtimestamp(since_boot + self._booted_at, UTC)
            self.jump = ClockJump(self.jumps, seen_at, datetime.fromtimestamp(system, UTC))
        self._system_booted_at = booted_at

    async def sleep_until(self, wake_at: datetime) -> None:
        seconds = (wake_at - self.now()).total_seconds()
        await asyncio.sleep(min(max(seconds, 0), _MAX_SLEEP_SECONDS))


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

    def set(self, now: datetime) -> None:
        """Move to this time and wake the tasks that are due. A past time changes nothing."""
        self._now = max(self._now, now)
        self.on_move()
        while self._sleepers and self._sleepers[0][0] <= self._now:
            _, _, sleeper = heapq.heappop(self._sleepers)
            if not sleeper.done():
                sleeper.set_result(None)

    def resume(self, now: datetime) -> None:
        """Continue at a stored time. Only at startup, before anyone has read the time."""
        self._now = now

    async def sleep_until(self, wake_at: datetime) -> None:
        if wake_at <= self._now:
            return
        self._order += 1
        sleeper = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (wake_at, self._order, sleeper))
        self.on_sleep()
        await sleeper

    def next_wake_up(self) -> datetime | None:
        """Return when the next sleeping task is due."""
        while self._sleepers and self._sleepers[0][2].done():
            heapq.heappop(self._sleepers)
        return self._sleepers[0][0] if self._sleepers else None

    @property
    def sleeper_count(self) -> int:
        """Number of sleeping tasks."""
        return sum(not sleeper.done() for _, _, sleeper in self._sleepers)
