"""Durations and times as people and programs write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.core.durations import (
    format_duration,
    format_exact_duration,
    format_relative_time,
    format_time,
    from_text,
    parse_duration,
    parse_future_time,
    parse_past_time,
    parse_time,
    to_text,
    to_text_if_any,
)
from forewarn.errors import BadDuration, DurationTooLong


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("14m50s", 890), ("2h", 7200), ("7d", 604800), ("1d 2h", 93600), ("45", 45), ("0.5s", 0.5), ("0", 0)],
)
def test_parse(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "soon", "1x", "s", "-5m", "5m3h", "1e3", "1 2", "١m"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(BadDuration, match="Write it like"):
        parse_duration(text)


def test_a_duration_that_is_too_long_is_named_as_such() -> None:
    with pytest.raises(DurationTooLong, match=r"'99999d' is too long. The maximum is 3660d"):
        parse_duration("99999d")


def test_a_negative_duration_has_a_minus() -> None:
    assert format_duration(timedelta(seconds=-90)) == "-1m30s"


@given(st.integers(0, 3660 * 86400))
def test_a_formatted_duration_is_parsed_back(seconds: int) -> None:
    length = timedelta(seconds=seconds)
    assert parse_duration(format_duration(length)) == length


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (90, "1m30s"), (0.5, "0.5s"), (61.25, "61.25s")])
def test_a_fractional_duration_is_formatted_exactly(seconds: float, text: str) -> None:
    assert format_exact_duration(timedelta(seconds=seconds)) == text


# --- Moments --------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 3, 5, 2, 0, 0, 123456, tzinfo=UTC)


def test_a_time_for_programs() -> None:
    assert to_text(MOMENT) == "2026-03-05T02:00:00.123456Z"
    assert to_text(MOMENT, "milliseconds") == "2026-03-05T02:00:00.123Z"
    assert to_text_if_any(MOMENT, "seconds") == "2026-03-05T02:00:00Z"
    assert to_text_if_any(None, "seconds") is None
    assert to_text(MOMENT.astimezone(timezone(timedelta(hours=2)))) == to_text(MOMENT)
    assert from_text(to_text(MOMENT)) == MOMENT


def test_a_time_for_people() -> None:
    assert format_time(MOMENT) == "2026-03-05 02:00:00 UTC"
    assert format_time(MOMENT, zone=False) == "2026-03-05 02:00:00"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "now"), (0.9, "now"), (-0.9, "now"), (1, "in 1s"), (-1, "1s ago"), (300, "in 5m"), (-86400, "1d ago")],
)
def test_the_distance_to_a_time(seconds: float, text: str) -> None:
    assert format_relative_time(MOMENT + timedelta(seconds=seconds), MOMENT) == text


def test_a_time_that_a_user_writes() -> None:
    two = datetime(2026, 3, 5, 2, tzinfo=UTC)
    for text in ("2026-03-05T02:00:00Z", "2026-03-05 02:00", "2026-03-05T03:00:00+01:00"):
        assert parse_time(text) == two
        assert parse_time(text).tzinfo == UTC
    assert parse_future_time("2h", two) == two + timedelta(hours=2)
    assert parse_past_time("2h", two) == two - timedelta(hours=2)
    assert parse_future_time("20260305", two) == two.replace(hour=0)
    for text in ("soon", "", "0001-01-01T00:00:00+14:00"):
        with pytest.raises(ValueError):  # noqa: PT011 - the caller adds the name of the option
            parse_time(text)
