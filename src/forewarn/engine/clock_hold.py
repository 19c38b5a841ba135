"""After a jump of the system clock, hold what happens because of the time: starts, inactivity and retention.

The hold ends when there was no other jump for ten minutes, or when an operator accepts the new time.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from forewarn.clock import MAX_STEP, SystemClock
from forewarn.core.durations import format_duration, format_time, to_text
from forewarn.core.history import ENGINE, record_clock
from forewarn.errors import ClockNotJumped, VirtualClockAccepted
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.clock import ClockJump
    from forewarn.engine.last_seen import LastSeen
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock

_log = get_logger(__name__)


def describe_step(jump: ClockJump) -> str:
    """Describe a jump: `forward by 1h`."""
    return f"{'forward' if jump.seen_at < jump.system_time else 'back'} by {format_duration(abs(jump.step))}"


class ClockHold:
    """Whether the scheduler must wait, because the system clock jumped. Other clocks do not jump."""

    def __init__(self, clock: Clock, writer: Writer, last_seen: LastSeen) -> None:
        self._clock = clock if isinstance(clock, SystemClock) else None
        self._writer = writer
        self._last_seen = last_seen
        self._noticed = 0
        """Number of the last jump that was noticed."""
        self._unrecorded: deque[ClockJump] = deque()
        """Jumps that are not on disk, because the disk fails."""
        self._has_compared = False
        self.on_change: Callable[[], None] = lambda: None
        """Called when a hold has begun or ended."""

    @property
    def jump(self) -> ClockJump | None:
        """The jump because of which the scheduler waits."""
        return self._clock.jump if self._clock is not None else None

    @property
    def jumps(self) -> int:
        """Number of jumps since the start of the process."""
        return self._clock.jumps if self._clock is not None else 0

    async def update(self) -> bool:
        """Record a new jump, and end the hold if the time is stable. Returns whether the scheduler must wait."""
        if self._clock is None:
            return False
        now = self._clock.now()
        jump = self._clock.jump
        if jump is None:
            return False
        is_new = jump.number > self._noticed
        if is_new:
            self._noticed = jump.number
            self._unrecorded.append(jump)
            _log.warning(
                "system_clock_jumped",
                f"The system clock jumped {describe_step(jump)}. Starts, inactivity and retention wait.",
                service_time=to_text(jump.seen_at),
                system_time=to_text(jump.system_time),
                until=to_text(jump.until),
            )
            self.on_change()
        await self._record_noticed()
        if not is_new and now >= jump.until:
            await self._end(self._clock, jump, ENGINE)
        return self._clock.jump is not None

    def compare(self, time: datetime) -> datetime | None:
        """Compare with the time of the database, on a node that follows, which records nothing.

        Returns the time of this node if it differs.

        When it starts, the node uses the time of the database if its own differs. A later jump of its clock is accepted
        when the time is stable, as on a leader, but not while only the time before the jump agrees.
        """
        if self._clock is None:
            return None
        now, jump = self._clock.now(), self._clock.jump
        system_time = now + jump.step if jump is not None else now
        agrees, agrees_later = (abs(each - time) <= MAX_STEP for each in (now, system_time))
        is_first, self._has_compared = not self._has_compared, True
        if not agrees and not agrees_later and is_first:
            self._clock.use(time)
        elif jump is not None and (agrees_later if agrees else now >= jump.until):
            self._clock.accept()
            self._unrecorded.clear()
        if agrees and agrees_later:
            return None
        return system_time if agrees or is_first else now

    async def accept(self, by: str) -> None:
        """End the hold: an operator says that the system time is right."""
        if self._clock is None:
            raise VirtualClockAccepted
        self._clock.now()
        if self._clock.jump is None:
            raise ClockNotJumped
        await self._end(self._clock, self._clock.jump, by)

    async def _end(self, clock: SystemClock, jump: ClockJump, by: str) -> None:
        await self._record_noticed()
        await self._record(by, jump, accepted=True)
        if clock.jump is not jump:  # another jump during the commit
            return
        self._last_seen.shift(clock.accept())
        self.on_change()
        _log.info("system_clock_accepted", "The service uses the system time again.", by=by, time=to_text(clock.now()))

    async def _record_noticed(self) -> None:
        """Record the jumps that are not on disk. One whose commit fails is recorded later."""
        while self._unrecorded:
            jump = self._unrecorded.popleft()  # so that nobody else records it meanwhile
            try:
                await self._record(ENGINE, jump, accepted=False)
            except BaseException:
                self._unrecorded.appendleft(jump)
                raise

    async def _record(self, by: str, jump: ClockJump, *, accepted: bool) -> None:
        reason = f"{describe_step(jump)}, from {format_time(jump.seen_at)} to {format_time(jump.system_time)}"
        await self._writer.execute(partial(record_clock, by=by, reason=reason, accepted=accepted))
