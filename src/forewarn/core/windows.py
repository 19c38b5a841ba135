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
from bisect import bisect_left, bisect_right
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from functools import cache, lru_cache
from heapq import merge
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from forewarn.core.durations import format_duration, parse_duration
from forewarn.core.steps import finish
from forewarn.errors import BadDuration, DurationTooLong, nearest, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from forewarn.core.steps import Steps

_DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_SHORT_DAYS = tuple(name[:3] for name in _DAYS)
_DAY_NUMBERS = {name: number for names in (_SHORT_DAYS, _DAYS) for number, name in enumerate(names)}
_DAILY = "daily"

_START = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])")
_MAX_DURATION = timedelta(days=7)

_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_NOT_IANA = re.compile(r"(posix|right)/.*|localtime|posixrules")
"""Files in the time zone database that are not time zones. Their meaning depends on the machine."""

_WEEK = timedelta(days=7)
_FULL_CYCLE = timedelta(days=15)
"""Openings last up to a week. So if windows are open for two weeks, they stay open while the weeks repeat."""
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


MAX_WINDOWS = 200
"""Maximum number of windows of a group."""
MAX_WINDOW_TEXT = 100
"""Maximum number of characters of a window."""


def parse_window(text: str) -> Window:
    """Parse `sat,sun 02:00 4h Europe/Berlin`: days, start, duration and time zone (default UTC).

    Fleet files, the command line and the API use this format. Raises ValueError with the wrong part and a hint.
    """
    if len(text) > MAX_WINDOW_TEXT:
        raise ValueError(f"{shown(text)} is not a maintenance window: it has more than {MAX_WINDOW_TEXT} characters.")
    words = text.split()
    days, start, duration, zone, *rest = [*words, *[""] * (4 - len(words))]
    try:
        window = Window(_parse_days(days), _parse_start(start), _parse_duration(duration), zone or "UTC")
        if zone[:1].isdigit():
            raise ValueError(f"{shown(zone)} is not a time zone. Write the duration as one word, like 1h30m.")
        _zone(window.zone)
        if rest:
            raise ValueError(f"unexpected text after the time zone: {shown(rest[0])}.")
    except ValueError as error:
        raise ValueError(
            f"{shown(text)} is not a maintenance window: {error} Write a window like 'sat,sun 02:00 4h Europe/Berlin'."
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
            raise ValueError(f"extra comma in {shown(text)}. Write days without spaces, like sat,sun.")
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
        f"{shown(word)} is not a day.{nearest(word, [*_DAY_NUMBERS, _DAILY])} "
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
        raise ValueError(f"{shown(text)} is not a time of day. Write a start from 00:00 to 23:59, like 02:00.")
    return int(match[1]) * 60 + int(match[2])


def _parse_duration(text: str) -> timedelta:
    if not text:
        raise ValueError("the duration is missing.")
    try:
        duration = parse_duration(text)
    except DurationTooLong:
        duration = timedelta.max
    except BadDuration:
        raise ValueError(f"{shown(text)} is not a duration. Write it like 90m, 4h or 1h30m.") from None
    if not timedelta(0) < duration <= _MAX_DURATION:
        raise ValueError(f"the duration is {shown(text)}. Write more than 0 and at most 7d.")
    if duration.microseconds:
        raise ValueError(f"the duration is {shown(text)}. Write whole seconds, like 90s.")
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
    raise ValueError(f"{shown(name)} is not a time zone.{_zone_hint(name)}")


def _zone_hint(name: str) -> str:
    """Return a suggestion for an unknown time zone. Reading all zones is slow, but only errors need it."""
    known = sorted(zone for zone in available_timezones() if not _NOT_IANA.fullmatch(zone))
    if not known:
        return " This machine has no time zones except UTC. Install tzdata."
    # The most common mistake is the city alone, which `nearest` does not find.
    meant = [zone for zone in known if f"/{zone}".lower().endswith(f"/{name}".lower())]
    if name and meant:
        return f" Did you mean {shown(min(meant, key=len))}?"
    return nearest(name, known) or " Use an IANA name like Europe/Berlin or UTC."


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
    calendars = [Calendar(windows, start) for windows in {tuple(windows) for windows in sets} if windows]
    return finish(first_common(calendars, start, horizon))


def first_common(
    calendars: Sequence[Calendar], start: datetime, horizon: timedelta = timedelta(days=36)
) -> Steps[datetime | None]:
    """Return the first time from `start` on at which all calendars are open; None: not up to the horizon."""
    candidate, last = start, start + horizon
    while candidate <= last:
        # Each iteration moves to a later opening, so the loop ends.
        latest = candidate
        for calendar in calendars:
            opens_at = yield from calendar.next_open(candidate)
            latest = max(latest, opens_at)
        if latest == candidate:
            return candidate
        candidate = latest
    return None


class Calendar:
    """The times at which any of several windows is open, from a time on. Each week is computed once."""

    def __init__(self, windows: Sequence[Window], after: datetime) -> None:
        self._windows = windows
        self._after = after
        first = min((after - window.duration).toordinal() for window in windows) - 1
        self._monday = first - (first - 1) % 7
        """The next week to compute."""
        self._upcoming: list[_Opening] = []
        """Computed openings that may start after some that are not computed yet."""
        self._starts: list[datetime] = []
        self._ends: list[datetime] = []
        """The open times without overlaps, in order."""

    def next_open(self, time: datetime) -> Steps[datetime]:
        """Return the first time from `time` on at which it is open. `time` is not before its start."""
        while not self._ends or self._ends[-1] <= time:
            self._add_week()
            yield len(self._windows)
        yield 1
        return max(time, self._starts[bisect_right(self._ends, time)])

    def _add_week(self) -> None:
        for window in self._windows:
            self._upcoming += _openings_of_week(window, self._monday)
        self._upcoming.sort()
        self._monday += 7
        # One day earlier: in time zones ahead of UTC, Monday begins on Sunday.
        complete_until = datetime.combine(date.fromordinal(self._monday - 1), time(tzinfo=UTC))
        count = bisect_left(self._upcoming, complete_until, key=lambda opening: opening.start)
        for opening in self._upcoming[:count]:
            if opening.end <= self._after:
                continue
            if self._ends and opening.start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], opening.end)
            else:
                self._starts.append(opening.start)
                self._ends.append(opening.end)
        del self._upcoming[:count]


def closes_at(windows: Sequence[Window], at: datetime) -> datetime | None:
    """Return when the windows that are open at this time close. Overlapping and adjacent windows count as one.

    None if they are not open, or never close.
    """
    return _closes_at(tuple(windows), at)


@lru_cache(256)
def _closes_at(windows: tuple[Window, ...], at: datetime) -> datetime | None:
    """Cached, because all events of an operation ask the same."""
    end = at
    while end - at <= _ALWAYS_OPEN_AFTER:
        begin = end
        for opening in _all_openings(windows, begin):
            if opening.start > end:
                return end if end > at else None
            end = max(end, opening.end)
            if end - begin > _FULL_CYCLE:
                break
        end = max(end, _repeats_until(windows, begin, at + _ALWAYS_OPEN_AFTER))
    return None


def _repeats_until(windows: Sequence[Window], begin: datetime, horizon: datetime) -> datetime:
    """Return until when each week is like the one before: up to a week before a time zone changes its offset."""
    zones = {_zone(window.zone) for window in windows}
    time = begin
    while time <= horizon and all(
        time.astimezone(zone).utcoffset() == (time + _WEEK).astimezone(zone).utcoffset() for zone in zones
    ):
        time += _WEEK
    return time


class _Opening(NamedTuple):
    """One opening of a window in UTC; the end is exclusive."""

    start: datetime
    end: datetime


def _all_openings(windows: Iterable[Window], after: datetime) -> Iterator[_Opening]:
    """Openings of several windows that end after this time, ordered by start."""
    return merge(*(_openings(window, after) for window in windows))


def _openings(window: Window, after: datetime) -> Iterator[_Opening]:
    """Openings of a window that end after this time, in order. The iterator is endless."""
    # One day earlier, because in time zones behind UTC, Sunday evening is Monday in UTC.
    first = (after - window.duration).toordinal() - 1
    for monday in count(first - (first - 1) % 7, 7):  # day 1 of the calendar is a Monday
        for opening in _openings_of_week(window, monday):
            if opening.end > after:
                yield opening


@lru_cache(4096)
def _openings_of_week(window: Window, monday: int) -> tuple[_Opening, ...]:
    """Return the openings that start in the week of this Monday (proleptic ordinal).

    Cached, because many operations use the same windows in the same few weeks.
    """
    if not window.days:
        raise ValueError("A maintenance window without days never opens. Name at least one day.")
    clock = time(*divmod(window.start_minutes, 60), tzinfo=_zone(window.zone))
    # Convert to UTC before adding the duration, because local time may jump.
    starts = [datetime.combine(date.fromordinal(monday + day), clock).astimezone(UTC) for day in window.days]
    return tuple(_Opening(start, start + window.duration) for start in starts)
