"""Parse and format values of a group's policy, for the fleet file, the command line and the API.

Invalid values raise ValueError with a hint. The caller adds the location.
"""

from __future__ import annotations

from datetime import timedelta

from forewarn.core.durations import format_duration, parse_duration
from forewarn.core.event_types import EVENT_TYPES
from forewarn.errors import BadDuration, DurationTooLong, shown

MIN_TERMINATE_NOTICE = EVENT_TYPES["Terminate"].min_notice
MAX_TERMINATE_NOTICE = timedelta(minutes=15)
OS_IMAGE_NOTICE = timedelta(minutes=15)
"""The only notice of OS image changes that Azure allows (contract, 4.52)."""


def parse_terminate_notice(text: str) -> timedelta:
    """Parse `PT10M`, as Azure writes it, or `10m`."""
    bounds = f"Write it from PT{_minutes(MIN_TERMINATE_NOTICE)}M to PT{_minutes(MAX_TERMINATE_NOTICE)}M."
    return _parse_notice(text, MIN_TERMINATE_NOTICE, MAX_TERMINATE_NOTICE, bounds)


def parse_os_image_notice(text: str) -> timedelta:
    """Parse `PT15M` or `15m`: no other notice is allowed."""
    only = f"Only {_minutes(OS_IMAGE_NOTICE)} minutes are allowed. Write PT{_minutes(OS_IMAGE_NOTICE)}M."
    return _parse_notice(text, OS_IMAGE_NOTICE, OS_IMAGE_NOTICE, only)


def _parse_notice(text: str, minimum: timedelta, maximum: timedelta, hint: str) -> timedelta:
    try:
        duration = parse_duration(text)
    except DurationTooLong:
        raise ValueError(f"{shown(text)} is too long. {hint}") from None
    except BadDuration:
        raise ValueError(f"{shown(text)} is not a duration. {hint}") from None
    if not minimum <= duration <= maximum:
        raise ValueError(f"{shown(text)} is {format_duration(duration)}. {hint}")
    return duration


def format_notice(duration: timedelta | None) -> str | None:
    """Format a notice as Azure writes it."""
    if duration is None:
        return None
    minutes, seconds = divmod(round(duration.total_seconds()), 60)
    return f"PT{minutes}M{seconds}S" if seconds else f"PT{minutes}M"


def _minutes(duration: timedelta) -> int:
    return round(duration.total_seconds() / 60)
