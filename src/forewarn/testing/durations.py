"""Reads durations and times that a test passes. An error says what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import MAX_DURATION, format_duration, parse_duration
from forewarn.core.operations import parse_interruption
from forewarn.errors import BadOption, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping

__tracebackhide__ = True

Duration = float | str | timedelta
"""A duration as a test writes it. A number is in seconds."""
UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
DEFAULT_TIMEOUT = timedelta(seconds=30)
"""The real time that a VM has to see each step of the clock."""


def read_step(duration: object, units: Mapping[str, Any]) -> timedelta:
    """Return how far to move the clock: by a text, a timedelta, or numbers with units."""
    if isinstance(duration, str):
        total = parse_duration(duration)
    elif duration is None or isinstance(duration, timedelta):
        total = duration or timedelta(0)
    else:
        problem = 'it needs a unit, as in advance(minutes=15) or advance("15m").'
        raise BadOption(name="duration", value=duration, problem=problem)
    for unit in units:
        if unit not in UNITS:
            problem = f"unknown unit. Units: {', '.join(UNITS)}.{nearest(unit, UNITS)}"
            raise BadOption(name=unit, value=units[unit], problem=problem)
    for unit, number in units.items():
        try:
            total += timedelta(**{unit: number})
        except (TypeError, ValueError, OverflowError):
            raise BadOption(name=unit, value=number, problem=f"use a number, as in {unit}=15.") from None
    if not timedelta(0) <= total <= MAX_DURATION:
        problem = f"the clock only moves forward, by at most {MAX_DURATION.days} days at a time."
        raise BadOption(name="duration", value=format_duration(total), problem=problem)
    return total


def read_duration(name: str, duration: Duration) -> timedelta:
    """Return a duration. A bare number is in seconds."""
    if isinstance(duration, str):
        return parse_duration(duration)
    if isinstance(duration, timedelta):
        return duration
    try:
        return timedelta(seconds=duration)
    except (TypeError, ValueError, OverflowError):
        problem = 'use a number of seconds, a string like "90s", or a timedelta.'
        raise BadOption(name=name, value=duration, problem=problem) from None


def read_interruption(name: str, duration: Duration) -> timedelta:
    """Return the duration of an interruption. It can be "unknown"."""
    return parse_interruption(duration) if isinstance(duration, str) else read_duration(name, duration)


def read_optional_duration(name: str, duration: Duration | None) -> timedelta | None:
    """Return a duration, or None if there is none."""
    return None if duration is None else read_duration(name, duration)


def read_timeout(timeout: Duration | None, seen_by: list[str]) -> timedelta:
    """Return the real time that each VM has to see a step."""
    if timeout is None:
        return DEFAULT_TIMEOUT
    if not seen_by:
        raise BadOption(name="timeout", value=timeout, problem="it needs seen_by: name the VMs to wait for.")
    duration = read_duration("timeout", timeout)
    if duration <= timedelta(0):
        raise BadOption(name="timeout", value=timeout, problem="use more than 0s.")
    return duration


def read_time(name: str, time: object) -> datetime:
    """Return a time. Without a time zone it is in UTC."""
    if not isinstance(time, datetime):
        raise BadOption(name=name, value=time, problem="use a datetime, as in forewarn.now + timedelta(hours=2).")
    return time if time.tzinfo else time.replace(tzinfo=UTC)
