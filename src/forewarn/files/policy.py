"""Parse and format values of a group's policy, for the fleet file, the command line and the API.

Invalid values raise ValueError with a hint. The caller adds the location.
"""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.durations import format_duration, parse_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import BadDuration

MIN_TERMINATE_NOTICE = EVENT_TYPES["Terminate"].least_notice
MAX_TERMINATE_NOTICE = timedelta(minutes=15)


def parse_terminate_notice(text: str) -> timedelta:
    """Parse `PT10M`, as Azure writes it, or `10m`."""
    bounds = f"Write it from PT{_minutes(MIN_TERMINATE_NOTICE)}M to PT{_minutes(MAX_TERMINATE_NOTICE)}M"
    try:
        length = parse_duration(text)
    except BadDuration:
        raise ValueError(f"{text!r} is not a duration. {bounds}.") from None
    if not MIN_TERMINATE_NOTICE <= length <= MAX_TERMINATE_NOTICE:
        raise ValueError(f"{text!r} is {format_duration(length)}. {bounds}.")
    return length


def format_terminate_notice(length: timedelta | None) -> str | None:
    """Format a terminate notice as Azure writes it."""
    if length is None:
        return None
    minutes, seconds = divmod(round(length.total_seconds()), 60)
    return f"PT{minutes}M{seconds}S" if seconds else f"PT{minutes}M"


def _minutes(length: timedelta) -> int:
    return round(length.total_seconds() / 60)
