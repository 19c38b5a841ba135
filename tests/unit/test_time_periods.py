"""Times and periods in the past."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.durations import parse_past_time, parse_period

NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("30d", NOW - timedelta(days=30)),
        ("1h30m", NOW - timedelta(minutes=90)),
        ("2041-03-05", datetime(2041, 3, 5, tzinfo=UTC)),
        ("20410305", datetime(2041, 3, 5, tzinfo=UTC)),
        ("2041-03-05T02:00", datetime(2041, 3, 5, 2, tzinfo=UTC)),
        ("2041-03-05T02:00:00Z", datetime(2041, 3, 5, 2, tzinfo=UTC)),
        ("2041-03-05T02:00:00+02:00", datetime(2041, 3, 5, tzinfo=UTC)),
    ],
)
def test_a_past_time(text: str, moment: datetime) -> None:
    assert parse_past_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "yesterday", "2041-03", "2041-13-01", "-3d", "0001-01-01T00:00+10:00", "90"])
def test_an_invalid_time_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller makes its own message
        parse_past_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2041", (2041, 1, 1), (2042, 1, 1)),
        ("2041-03", (2041, 3, 1), (2041, 4, 1)),
        ("2041-12", (2041, 12, 1), (2042, 1, 1)),
        ("2041-02-28", (2041, 2, 28), (2041, 3, 1)),
        ("2040-02-28", (2040, 2, 28), (2040, 2, 29)),
    ],
)
def test_a_span(text: str, since: tuple[int, int, int], until: tuple[int, int, int]) -> None:
    assert parse_period(text) == (datetime(*since, tzinfo=UTC), datetime(*until, tzinfo=UTC))


@pytest.mark.parametrize(
    "text", ["", "march", "2041-3", "2041-13", "2041-02-29", "2041-03-05T02", "9999", "9999-12-31"]
)
def test_an_invalid_period_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the caller makes its own message
        parse_period(text)
