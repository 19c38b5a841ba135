"""Maintenance windows: hours of the week in which platform operations may start on a group.

Windows are in local time; everything else in Forewarn is UTC. Only `_openings_of_week` converts. When daylight saving
time begins or ends:

- A start that is skipped moves by the same amount: 02:30 becomes 03:30 when 02:00 becomes 03:00. No window is lost.
- A start that occurs twice means the first occurrence. No window opens twice.
- Durations are elapsed time: 4h are always four hours.

A group without windows is not restricted.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache, lru_cache
from heapq import merge
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from forewarn.core.durations import format_duration, parse_duration
from forewarn.errors import BadDuration, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_DAYS = tuple(name[:3] for name in _DAYS)
_DAY_NUMBERS = {name: number for names in (_SHORT_DAYS, _DAYS) for number, name in enumerate(names)}
_DAILY = "daily"

_START = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_MAX_DURATION = timedelta(days=7)

_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_NOT_IANA = re.compile(r"(posix|right)/.*|localtime|posixrules")
"""Files in the time zone database that are not time zones. Their meaning depends on the machine."""

_ALWAYS_OPEN_AFTER = timedelta(days=400)
"""Windows without a gap for this long never close: the period includes all clock changes."""


class Window(NamedTuple):
    """Weekly hours. They may cross midnight and the end of the week."""

    days: tuple[int, ...]
    """Days on which it starts (Monday is 0), sorted and unique."""
    start_minutes: int
    """Start in minutes after midnight, local time."""
    duration: timedelta
    zone: str
    """IANA name of the time zone."""


# --- Parsing and formatting -----------------------------------------------------------------------


def parse_window(text: str) -> Window:
    """Parse `sat,sun 02:00 4h Europe/Berlin`: days, start, duration and time zone (default UTC).

    Fleet files, the command line and the API use this format. Raises ValueError with the wrong part and a hint.
    """
    words = text.split()
    days, start, duration, zone, *rest = [*words, *[""] * (4 - len(words))]
    try:
        window = Window(_parse_days(days), _parse_start(start), _parse_duration(duration), zone or "UTC")
        if zone[:1].isdigit():
            raise ValueError(f"{_quoted(zone)} is not a time zone. Write the duration as one word, like 1h30m.")
        _zone(window.zone)
        if rest:
            raise ValueError(f"unexpected text after the time zone: {_quoted(rest[0])}.")
    except ValueError as error:
        raise ValueError(
            f"{_quoted(text)} is not a maintenance window: {error} "
            "Write a window like 'sat,sun 02:00 4h Europe/Berlin'."
        ) from None
    return window


def format_window(window: Window) -> str:
    """Format a window as `parse_window` reads it. Equal windows have equal text."""
    hours, minutes = divmod(window.start_minutes, 60)
    return f"{_format_days(window.days)} {hours:02}:{minutes:02} {format_duration(window.duration)} {window.zone}"


def _parse_days(text: str) -> tuple[int, ...]:
    if not text:
        raise ValueError("the days are missing.")
    if text.lower() == _DAILY:
        return tuple(range(7))
    found: set[int] = set()
    for item in text.split(","):
        if not item:
            raise ValueError(f"extra comma in {_quoted(text)}. Write days without spaces, like sat,sun.")
        first, dash, last = item.partition("-")
        begin = _parse_day(first or item)
        end = _parse_day(last or item) if dash else begin
        # A range may cross the end of the week: fri-mon are four days.
        found.update((begin + step) % 7 for step in range((end - begin) % 7 + 1))
    return tuple(sorted(found))


def _parse_day(word: str) -> int:
    number = _DAY_NUMBERS.get(word.lower())
    if number is not None:
        return number
    if word.lower() == _DAILY:
        raise ValueError("daily means all days. Do not combine it with other days.")
    raise ValueError(
        f"{_quoted(word)} is not a day.{nearest(word, [*_DAY_NUMBERS, _DAILY])} "
        "Write days like sat,sun or mon-fri or daily."
    )


def _format_days(days: tuple[int, ...]) -> str:
    if len(days) == 7:
        return _DAILY
    words = []
    for first in days:
        if (first - 1) % 7 in days:
            continue  # part of a range that started earlier, perhaps last week
        run = [first]
        while (run[-1] + 1) % 7 in days:
            run.append((run[-1] + 1) % 7)
        names = [_SHORT_DAYS[day] for day in run]
        words += [f"{names[0]}-{names[-1]}"] if len(run) > 2 else names
    return ",".join(words)


def _parse_start(text: str) -> int:
    if not text:
        raise ValueError("the start is missing.")
    match = _START.fullmatch(text)
    if match is None:
        raise ValueError(f"{_quoted(text)} is not a time of day. Write a start from 00:00 to 23:59, like 02:00.")
    return int(match[1]) * 60 + int(match[2])


def _parse_duration(text: str) -> timedelta:
    if not text:
        raise ValueError("the duration is missing.")
    try:
        duration = parse_duration(text)
    except BadDuration:
        raise ValueError(f"{_quoted(text)} is not a duration. Write it like 90m, 4h or 1h30m.") from None
    if not timedelta(0) < duration <= _MAX_DURATION:
        raise ValueError(f"the duration is {_quoted(text)}. Write more than 0 and at most 7d.")
    if duration.microseconds:
        raise ValueError(f"the duration is {_quoted(text)}. Write whole seconds, like 90s.")
    return duration


@cache
def _zone(name: str) -> tzinfo:
    """Return the time zone of this name. UTC works without a time zone database."""
    if name == "UTC":
        return UTC
    # ZoneInfo opens a file of this name, so check its form first.
    if _ZONE.fullmatch(name) and not _NOT_IANA.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # missing, not a time zone file, or a folder
    raise ValueError(f"{_quoted(name)} is not a time zone.{_zone_hint(name)}")


def _zone_hint(name: str) -> str:
    """Return a suggestion for an unknown time zone. Reading all zones is slow, but only errors need it."""
    known = sorted(zone for zone in available_timezones() if not _NOT_IANA.fullmatch(zone))
    if not known:
        return " This machine has no time zones except UTC. Install tzdata."
    # The most common mistake is the city alone, which `nearest` does not find.
    meant = [zone for zone in known if f"/{zone}".lower().endswith(f"/{name}".lower())]
    if name and meant:
        return f" Did you mean {min(meant, key=len)!r}?"
    return nearest(name, known) or " Use an IANA name like Europe/Berlin or UTC."


def _quoted(text: str) -> str:
    """Quote user input, shortened."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# --- Open times -----------------------------------------------------------------------------------


def is_open(windows: Sequence[Window], at: datetime) -> bool:
    """Return whether the windows are open at this time (UTC). The end of a window is exclusive."""
    return next_open(windows, at) == at


def next_open(windows: Sequence[Window], start: datetime) -> datetime:
    """Return the first time from `start` on at which the windows are open."""
    if not windows:
        return start
    return max(start, min(next(_openings(window, start)).start for window in windows))


def next_common(
    sets: Iterable[Sequence[Window]], start: datetime, horizon: timedelta = timedelta(days=36)
) -> datetime | None:
    """Return the first time from `start` on at which the windows of all groups are open.

    None if there is none up to and including the horizon.
    """
    # Groups often have the same windows, so skip duplicates.
    streams = [_all_openings(windows, start) for windows in {tuple(windows) for windows in sets} if windows]
    heads = [next(stream) for stream in streams]
    candidate, last = start, start + horizon
    # Each iteration moves to a later opening, so the loop ends.
    while candidate <= last:
        for position, stream in enumerate(streams):
            while heads[position].end <= candidate:
                heads[position] = next(stream)
        start = max((head.start for head in heads), default=candidate)
        if start <= candidate:
            return candidate
        candidate = start
    return None


def closes_at(windows: Sequence[Window], at: datetime) -> datetime | None:
    """Return when the windows that are open at this time close. Overlapping and adjacent windows count as one.

    None if they are not open, or never close.
    """
    end = at
    for opening in _all_openings(windows, at):
        if opening.start > end:
            break
        end = max(end, opening.end)
        if end - at > _ALWAYS_OPEN_AFTER:
            return None
    return end if end > at else None


class _Opening(NamedTuple):
    """One opening of a window in UTC; the end is exclusive."""

    start: datetime
    end: datetime


def _all_openings(windows: Iterable[Window], after: datetime) -> Iterator[_Opening]:
    """Openings of several windows that end after this time, ordered by start."""
    return merge(*(_openings(window, after) for window in windows))


def _openings(window: Window, after: datetime) -> Iterator[_Opening]:
    """Openings of a window that end after this time, in order. The iterator is endless."""
    if not window.days:
        raise ValueError("A maintenance window without days never opens. Name at least one day.")
    # One day earlier, because in time zones behind UTC, Sunday evening is Monday in UTC.
    first = (after - window.duration).toordinal() - 1
    for monday in count(first - (first - 1) % 7, 7):  # day 1 of the calendar is a Monday
        for opening in _openings_of_week(window, monday):
            if opening.end > after:
                yield opening


@lru_cache(1024)
def _openings_of_week(window: Window, monday: int) -> tuple[_Opening, ...]:
    """Return the openings that start in the week of this Monday (proleptic ordinal).

    Cached, because many operations use the same windows in the same few weeks.
    """
    clock = time(*divmod(window.start_minutes, 60), tzinfo=_zone(window.zone))
    # Convert to UTC before adding the duration, because local time may jump.
    starts = [datetime.combine(date.fromordinal(monday + day), clock).astimezone(UTC) for day in window.days]
    return tuple(_Opening(start, start + window.duration) for start in starts)
