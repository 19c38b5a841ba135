"""Reads lengths of time and moments that a test gives. An error says what to write instead."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forewarn.core.durations import MAX_DURATION, format_duration, parse_duration
from forewarn.errors import BadOption, nearest

if TYPE_CHECKING:
    from collections.abc import Mapping


Length = float | str | timedelta
"""A number is in seconds."""
UNITS = ("weeks", "days", "hours", "minutes", "seconds", "milliseconds", "microseconds")
SEEN_WITHIN = timedelta(seconds=30)
"""How long, in real time, each VM may take to see a step of the clock."""


def distance(length: object, units: Mapping[str, Any]) -> timedelta:
    """How far to move the clock: a text, or numbers of units."""
    if isinstance(length, str):
        total = parse_duration(length)
    elif length is None or isinstance(length, timedelta):
        total = length or timedelta(0)
    else:
        problem = 'it needs a unit, as in advance(minutes=15) or advance("15m").'
        raise BadOption(name="length", value=length, problem=problem)
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
        raise BadOption(name="length", value=format_duration(total), problem=problem)
    return total


def length_of(name: str, length: Length) -> timedelta:
    """A length; a bare number is in seconds."""
    if isinstance(length, str):
        return parse_duration(length)
    if isinstance(length, timedelta):
        return length
    try:
        return timedelta(seconds=length)
    except (TypeError, ValueError, OverflowError):
        problem = 'use a number of seconds, a string like "90s", or a timedelta.'
        raise BadOption(name=name, value=length, problem=problem) from None


def length_if_any(name: str, length: Length | None) -> timedelta | None:
    """The same for an option that may be left out."""
    return None if length is None else length_of(name, length)


def limit_of(limit: Length | None, seen_by: list[str]) -> timedelta:
    """How long each VM may take for a step, in real time."""
    if limit is None:
        return SEEN_WITHIN
    if not seen_by:
        raise BadOption(name="limit", value=limit, problem="it needs seen_by: name the VMs to wait for.")
    length = length_of("limit", limit)
    if length <= timedelta(0):
        raise BadOption(name="limit", value=limit, problem="use more than 0s.")
    return length


def moment_of(name: str, moment: object) -> datetime:
    """A moment; one without a zone is in UTC."""
    if not isinstance(moment, datetime):
        raise BadOption(name=name, value=moment, problem="use a datetime, as in forewarn.now + timedelta(hours=2).")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
