"""Lengths of time as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.durations import format_duration, parse_duration
from forewarn.errors import BadDuration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("14m50s", 890), ("2h", 7200), ("7d", 604800), ("1d 2h", 93600), ("45", 45), ("0.5s", 0.5), ("0", 0)],
)
def test_parse(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "1x", "s", "-5m", "5m3h", "1e3", "99999d", "1 2", "١m"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(BadDuration, match="Write it like"):
        parse_duration(text)


def test_a_negative_length_is_written_with_a_minus() -> None:
    assert format_duration(timedelta(seconds=-90)) == "-1m30s"


@given(st.integers(0, 3660 * 86400))
def test_what_is_written_is_read_again(seconds: int) -> None:
    length = timedelta(seconds=seconds)
    assert parse_duration(format_duration(length)) == length
