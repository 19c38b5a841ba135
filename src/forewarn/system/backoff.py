"""How long to wait before the next try."""

from __future__ import annotations


def backoff_seconds(
    failures: int,
    first: float = 1.0,
    longest: float = float("inf"),
    *,
    spread: tuple[float, float] = (1.0, 1.0),
    luck: float = 1.0,
) -> float:
    """Seconds to wait after this many failures in a row: `first`, then twice as long each time, up to `longest`.

    The result is multiplied by a factor from `spread`, which `luck` (from 0 to 1) selects. It keeps clients apart that
    all failed at the same moment.
    """
    least, most = spread
    doubled = first * 2.0 ** min(max(failures, 1) - 1, 60)
    return min(doubled, longest) * (least + (most - least) * min(max(luck, 0.0), 1.0))
