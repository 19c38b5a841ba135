"""How the engine fares: how long commits take, how late what is due is done, and whether the disk takes it."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


COMMIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LAG_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Histogram:
    """How many values were at most as large as each bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Measurements:
    """Counted since the start of the process."""

    def __init__(self) -> None:
        self.commits = Histogram(COMMIT_BOUNDS)
        """Seconds from handing a batch to the store until it is on disk."""
        self.lag = Histogram(LAG_BOUNDS)
        """Seconds from when something was due until it was looked at; not in virtual time, which waits."""
        self.failed_commits = 0
        self.problem = ""
        """Why the last commit failed; empty: it did not."""
        self.late_seconds: Callable[[], float] = lambda: 0.0
        """How long ago the first thing was due that is not done yet."""

    def commit_ended(self, seconds: float, error: BaseException | None) -> None:
        self.commits.observe(seconds)
        self.failed_commits += error is not None
        self.problem = str(error) if error is not None else ""
