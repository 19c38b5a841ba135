"""How long to wait before the next try."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.durations import backoff_seconds


def test_each_pause_is_twice_the_one_before_up_to_the_longest() -> None:
    assert [backoff_seconds(failures, 0.5, 3) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]


def test_before_the_first_failure_it_is_the_first_pause() -> None:
    assert backoff_seconds(0, 0.5, 3) == backoff_seconds(1, 0.5, 3)


@pytest.mark.parametrize(("jitter", "seconds"), [(-1, 7), (0, 7), (0.5, 8.5), (1, 10), (2, 10)])
def test_jitter_selects_from_the_spread(jitter: float, seconds: float) -> None:
    assert backoff_seconds(1, 10, 100, spread=(0.7, 1.0), jitter=jitter) == pytest.approx(seconds)


@given(st.integers(0, 10**9), st.floats(0.01, 3600), st.floats(1, 3600), st.floats(0, 1))
def test_it_never_shrinks_and_never_exceeds_the_maximum(
    failures: int, first: float, maximum: float, jitter: float
) -> None:
    spread = (0.8, 1.2)
    pause = backoff_seconds(failures, first, maximum, spread=spread, jitter=jitter)
    assert (
        0 < pause <= backoff_seconds(failures + 1, first, maximum, spread=spread, jitter=jitter) <= maximum * 1.2 + 1e-9
    )
