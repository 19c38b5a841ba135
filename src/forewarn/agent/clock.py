"""The agent's clocks: real seconds that always advance, and the endpoint's clock."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone


def real_seconds() -> float:
    """Seconds of a clock that always advances, independent of the date: for pauses and timeouts."""
    return time.monotonic()


def system_time() -> datetime:
    """The machine's date and time: for signatures and records, never for decisions."""
    return datetime.now(timezone.utc)


def pause(seconds: float) -> None:
    """Sleep."""
    time.sleep(seconds)


MAX_CLOCK_JUMP = timedelta(days=1)
FIRST_INVALID_YEAR = 9000
"""Later dates are not valid times, and arithmetic with them could overflow."""


class EndpointClock:
    """The time by the endpoint's clock.

    NotBefore is a time of the endpoint's clock. The machine's own clock may be wrong, and a test may advance the
    endpoint's clock by hours. Each response has the time in its Date header; between responses this clock advances by
    itself.

    A time that differs by days from the expected one is accepted only when the next response confirms it: one wrong
    Date header could cause approvals long before their time.
    """

    def __init__(self) -> None:
        self._time: datetime | None = None
        self._read_at = 0.0
        self._unconfirmed: tuple[datetime, float] | None = None

    def set(self, time_there: datetime) -> None:
        """Set the clock from the Date header of a response that was just received."""
        if time_there.year >= FIRST_INVALID_YEAR:
            return
        seconds = real_seconds()
        expected = [self.now()]
        if self._unconfirmed is not None:
            expected.append(self._unconfirmed[0] + timedelta(seconds=seconds - self._unconfirmed[1]))
        if any(abs(time_there - each) <= MAX_CLOCK_JUMP for each in expected):
            self._time, self._read_at, self._unconfirmed = time_there, seconds, None
        else:
            self._unconfirmed = (time_there, seconds)

    def now(self) -> datetime:
        """Return the endpoint's time; before the first response, the machine's own."""
        if self._time is None:
            return datetime.now(timezone.utc)
        return self._time + timedelta(seconds=real_seconds() - self._read_at)
