"""One function for the pause between attempts."""

from __future__ import annotations

import pytest

from forewarn.system.backoff import backoff_seconds


@pytest.mark.parametrize(
    ("failures", "seconds"), [(0, 5), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (8, 300), (10**9, 300)]
)
def test_each_pause_is_twice_as_long_up_to_the_longest(failures: int, seconds: float) -> None:
    assert backoff_seconds(failures, 5, 300) == seconds


def test_the_first_pause_is_not_longer_than_the_longest() -> None:
    assert backoff_seconds(1, 60, 10) == 10
