"""Moments and spans of the past, as people write them: `2026-03-05`, `30d` ago, the whole of `2026-03`. In UTC."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from forewarn.core.durations import parse_duration
from forewarn.errors import BadDuration

A_PAST_MOMENT = "a moment like 2026-03-05T02:00:00Z, a date like 2026-03-05, or how long ago, like 30d"
A_SPAN = "a year like 2026, a month like 2026-03, or a day like 2026-03-05"

_SPAN = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")


class Span(NamedTuple):
    """From a moment on, up to another, which is not part of it."""

    since: datetime
    until: datetime


def parse_past_moment(text: str, now: datetime) -> datetime:
    """Read a moment, or how long ago it was; else a ValueError."""
    if not text.isdecimal():  # 20260101 is meant as a date, if anything
        with suppress(BadDuration):
            return now - parse_duration(text)
    moment = datetime.fromisoformat(text)
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def parse_span(text: str) -> Span:
    """Read a year, a month or a day; else a ValueError."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day = (int(part) if part else 0 for part in match.groups())
    since = datetime(year, month or 1, day or 1, tzinfo=UTC)
    if day:
        return Span(since, datetime.fromordinal(since.toordinal() + 1).replace(tzinfo=UTC))
    if month:
        return Span(since, datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC))
    return Span(since, datetime(year + 1, 1, 1, tzinfo=UTC))
