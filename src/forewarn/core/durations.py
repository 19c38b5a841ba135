"""Parse and format durations, times and periods.

`90s`, `14m50s`, `7d`, `PT10M`; `2026-03-05 02:00:00 UTC`, `2026-03-05T02:00:00Z`; `2026-03`, `30d` ago.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

from forewarn.errors import BadDuration, DurationTooLong

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_FORM = re.compile(r"(?:([0-9]+)d ?)?(?:([0-9]+)h ?)?(?:([0-9]+)m ?)?(?:([0-9]+(?:\.[0-9]+)?)s)?")
_ISO_FORM = re.compile(r"p((?:[0-9]+d)?)(?:t((?:[0-9]+h)?(?:[0-9]+m)?(?:[0-9]+(?:\.[0-9]+)?s)?))?")
MAX_DURATION = timedelta(days=3660)
"""Limit for durations, and for the distance of a time from now."""


# --- Durations ------------------------------------------------------------------------------------


def parse_duration(text: str) -> timedelta:
    """Read `14m50s`, `1d2h`, `PT10M`, or a bare number of seconds."""
    cleaned = text.strip().lower()
    if iso := _ISO_FORM.fullmatch(cleaned):
        cleaned = iso[1] + (iso[2] or "")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", cleaned):
        cleaned += "s"
    match = _FORM.fullmatch(cleaned)
    if not cleaned or match is None:
        raise BadDuration(text=text)
    seconds = sum(
        float(part) * factor for part, factor in zip(match.groups(), _UNITS.values(), strict=True) if part is not None
    )
    if seconds > MAX_DURATION.total_seconds():
        raise DurationTooLong(text=text, maximum=format_duration(MAX_DURATION))
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Format a duration as `parse_duration` reads it, in whole seconds."""
    seconds = round(duration.total_seconds())
    if seconds < 0:
        return "-" + format_duration(-duration)
    parts = []
    for unit, factor in _UNITS.items():
        count, seconds = divmod(seconds, factor)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_seconds(seconds: float) -> str:
    """Format a number of seconds from an untrusted source, which may be too large for a timedelta."""
    try:
        return format_duration(timedelta(seconds=seconds))
    except OverflowError:
        return "an unknown time"


def format_exact_duration(duration: timedelta) -> str:
    """Format a duration with fractions of a second."""
    return format_duration(duration) if not duration.microseconds else f"{duration.total_seconds():g}s"


def seconds(duration: timedelta | None) -> float | None:
    """Return the duration in seconds."""
    return None if duration is None else duration.total_seconds()


# --- Times for programs --------------------------------------------------------------------------


def round_up_to_second(time: datetime) -> datetime:
    """Round up to a whole second, because times on the wire have no fractions."""
    if time.microsecond == 0:
        return time
    return time.replace(microsecond=0) + timedelta(seconds=1)


@lru_cache(256)
def to_text(time: datetime, timespec: str = "microseconds") -> str:
    """Format a time as ISO 8601 in UTC. With microseconds, the text sorts in the order of time.

    Cached, because all changes of one command have the same time.
    """
    return time.astimezone(timezone.utc).isoformat(timespec=timespec).replace("+00:00", "Z")


def to_text_if_any(time: datetime | None, timespec: str = "microseconds") -> str | None:
    """Format a time, or return None for None."""
    return to_text(time, timespec) if time is not None else None


def from_text(text: str) -> datetime:
    """Parse the format of `to_text`. Python 3.10 cannot parse the Z."""
    return datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)


# --- Times for people ----------------------------------------------------------------------------


def format_time(time: datetime, *, zone: bool = True) -> str:
    """Format a time as `2026-03-05 02:00:00 UTC`, or without the zone."""
    return f"{time:%Y-%m-%d %H:%M:%S}{' UTC' if zone else ''}"


def format_relative_time(time: datetime, now: datetime) -> str:
    """Format the distance from now: `in 5m`, `5m ago`, or `now` for less than a second."""
    away = time - now
    if abs(away) < timedelta(seconds=1):
        return "now"
    return f"in {format_duration(away)}" if away > timedelta(0) else f"{format_duration(-away)} ago"


def parse_time(text: str) -> datetime:
    """Parse a time; without a zone it is UTC. Raises ValueError."""
    time = from_text(text)
    try:
        return (time if time.tzinfo else time.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except OverflowError as error:
        raise ValueError(text) from error


def parse_future_time(text: str, now: datetime) -> datetime:
    """Parse a time, or a duration from now. Raises ValueError."""
    return _parse_away(text, now, 1)


def parse_past_time(text: str, now: datetime) -> datetime:
    """Parse a time, or a duration before now. Raises ValueError."""
    return _parse_away(text, now, -1)


class TooFarAwayError(ValueError):
    """A time is farther away than MAX_DURATION."""


def _parse_away(text: str, now: datetime, sign: int) -> datetime:
    if not text.isdecimal():  # 20260101 is a date, not a number of seconds
        try:
            return now + sign * parse_duration(text)
        except DurationTooLong as error:
            raise TooFarAwayError from error
        except BadDuration:
            pass
    return parse_time(text)


# --- Periods of the past --------------------------------------------------------------------------


A_PAST_TIME = "a time like 2026-03-05T02:00:00Z, a date like 2026-03-05, or how long ago, like 30d"
A_PERIOD = "a year like 2026, a month like 2026-03, or a day like 2026-03-05"

_SPAN = re.compile(r"([0-9]{4})(?:-([0-9]{2})(?:-([0-9]{2}))?)?")


class Period(NamedTuple):
    """A period from `since` (inclusive) to `until` (exclusive)."""

    since: datetime
    until: datetime


def parse_period(text: str) -> Period:
    """Parse a year, a month or a day. Raises ValueError."""
    match = _SPAN.fullmatch(text)
    if match is None:
        raise ValueError(text)
    year, month, day = (int(part) if part else 0 for part in match.groups())
    since = datetime(year, month or 1, day or 1, tzinfo=timezone.utc)
    if day:
        return Period(since, datetime.fromordinal(since.toordinal() + 1).replace(tzinfo=timezone.utc))
    if month:
        return Period(since, datetime(year + month // 12, month % 12 + 1, 1, tzinfo=timezone.utc))
    return Period(since, datetime(year + 1, 1, 1, tzinfo=timezone.utc))


# --- Backoff --------------------------------------------------------------------------------------


def backoff_seconds(
    failures: int,
    first: float = 1.0,
    maximum: float = float("inf"),
    *,
    spread: tuple[float, float] = (1.0, 1.0),
    jitter: float = 1.0,
) -> float:
    """Seconds to wait after this many failures in a row: `first`, then twice as long each time, up to `maximum`.

    The result is multiplied by a factor from `spread`, which `jitter` (from 0 to 1) selects. This spreads the
    retries of clients that failed at the same time.
    """
    low, high = spread
    doubled = first * 2.0 ** min(max(failures, 1) - 1, 60)
    return min(doubled, maximum) * (low + (high - low) * min(max(jitter, 0.0), 1.0))
