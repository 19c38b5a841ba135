"""How long to wait between attempts."""

from __future__ import annotations

_MOST_DOUBLINGS = 60
"""Beyond this a float of seconds says nothing new; and it must not overflow."""


def backoff_seconds(failures: int, first: float, most: float) -> float:
    """How long to wait after this many failures in a row: `first`, then twice as long each time, at most `most`."""
    return min(first * 2.0 ** min(max(failures - 1, 0), _MOST_DOUBLINGS), most)
