"""Measurements of the engine: duration of commits, delay of the scheduler, and failed commits."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


COMMIT_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
DELAY_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0)


class Histogram:
    """Counts of observed values, by upper bound."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Measurements:
    """Measurements since the start of the process."""

    def __init__(self) -> None:
        self.commits = Histogram(COMMIT_BOUNDS)
        """Seconds between the start of a commit and its end, when it is on disk."""
        self.scheduler_delay = Histogram(DELAY_BOUNDS)
        """Seconds between an item's due time and its processing. Not measured with a virtual clock."""
        self.failed_commits = 0
        self.problem = ""
        """Error of the last commit; empty if it succeeded."""
        self.late_seconds: Callable[[], float] = lambda: 0.0
        """Seconds since the due time of the oldest item that is not yet processed."""

    def commit_ended(self, seconds: float, error: BaseException | None) -> None:
        self.commits.observe(seconds)
        self.failed_commits += error is not None
        self.problem = str(error) if error is not None else ""
