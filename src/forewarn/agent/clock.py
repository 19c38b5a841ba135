"""The time as an agent knows it: its own seconds, and the moment by the endpoint's clock."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone


def real_seconds() -> float:
    """Seconds that always run, whatever anybody's clock says: for pauses, time-outs and silences."""
    return time.monotonic()


def real_moment() -> datetime:
    """The machine's own date and time: for what is signed or written down, never for what is decided."""
    return datetime.now(timezone.utc)


def pause(seconds: float) -> None:
    """Wait so long, whatever happens."""
    time.sleep(seconds)


BELIEVED = timedelta(days=1)
LAST_YEAR = 9000
"""Later moments are no time of day: with them there is nothing to reckon with."""


class EndpointClock:
    """What time it is where events are decided.

    NotBefore is a moment of the endpoint's clock. The machine's own may be wrong, and a rehearsal may move the
    endpoint's on by hours. Each answer says the time in its Date header; between answers it goes on by itself.
    An answer that is days off what was expected is only believed when the next one says the same: by one wrong Date
    events would be approved long before their time.
    """

    def __init__(self) -> None:
        self._base: datetime | None = None
        self._read_at = 0.0
        self._doubted: tuple[datetime, float] | None = None

    def set(self, moment: datetime) -> None:
        """An answer that was just received says that it is this moment."""
        if moment.year >= LAST_YEAR:
            return
        seconds = real_seconds()
        expected = [self.now()]
        if self._doubted is not None:
            expected.append(self._doubted[0] + timedelta(seconds=seconds - self._doubted[1]))
        if any(abs(moment - each) <= BELIEVED for each in expected):
            self._base, self._read_at, self._doubted = moment, seconds, None
        else:
            self._doubted = (moment, seconds)

    def now(self) -> datetime:
        """The machine's own time as long as no answer has come."""
        if self._base is None:
            return datetime.now(timezone.utc)
        return self._base + timedelta(seconds=real_seconds() - self._read_at)
