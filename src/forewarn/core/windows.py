"""Maintenance windows: the hours of the week in which operations of the platform may start on a group.

A window is written in the local time of the people who agreed to it, and everything else in Forewarn
is UTC; the two meet only in `_openings_of_week`. There, when the clocks change:

- A start that the clocks skip happens as much later as they are moved: 02:30 on the night on which
  02:00 becomes 03:00 is 03:30. No night goes without its window.
- A start that the clocks show twice is the first of the two. No night has two windows.
- A length is time that passes, not time that the clocks show: 4h are always four hours.

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
_LONGEST = timedelta(days=7)

_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*")
_NOT_IANA = re.compile(r"(posix|right)/.*|localtime|posixrules")
"""Files that stand among the zones but are no zones: what they mean differs from machine to machine."""

_FOR_GOOD = timedelta(days=400)
"""Windows that leave no gap for so long never close: every change of the clocks has been among them."""


class Window(NamedTuple):
    """Hours that return every week. They may run over midnight and over the end of the week."""

    days: tuple[int, ...]
    """The days on which it starts: Monday is 0, sorted, each once."""
    start_minutes: int
    """When it starts, in minutes after midnight by the clocks of its zone."""
    length: timedelta
    zone: str
    """The IANA name of the zone."""


# --- As people write them -------------------------------------------------------------------------


def parse_window(text: str) -> Window:
    """Read `sat,sun 02:00 4h Europe/Berlin`: days, start, length and, unless it is UTC, the zone.

    Fleet files, the command line and the API all write windows like this. What cannot be read is a
    ValueError that says which part is wrong and what would be right.
    """
    words = text.split()
    days, start, length, zone, *rest = [*words, *[""] * (4 - len(words))]
    try:
        window = Window(_parse_days(days), _parse_start(start), _parse_length(length), zone or "UTC")
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
    """Write a window the way `parse_window` reads it. What means the same is written the same."""
    hours, minutes = divmod(window.start_minutes, 60)
    return f"{_format_days(window.days)} {hours:02}:{minutes:02} {format_duration(window.length)} {window.zone}"


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
        # A range may run over the end of the week: fri-mon are four days.
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
            continue  # it belongs to a run that began earlier, perhaps last week
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


def _parse_length(text: str) -> timedelta:
    if not text:
        raise ValueError("the duration is missing.")
    try:
        length = parse_duration(text)
    except BadDuration:
        raise ValueError(f"{_quoted(text)} is not a duration. Write it like 90m, 4h or 1h30m.") from None
    if not timedelta(0) < length <= _LONGEST:
        raise ValueError(f"the duration is {_quoted(text)}. Write more than 0 and at most 7d.")
    if length.microseconds:
        raise ValueError(f"the duration is {_quoted(text)}. Write whole seconds, like 90s.")
    return length


@cache
def _zone(name: str) -> tzinfo:
    """The zone of this name. UTC is there even on a machine without a time zone database."""
    if name == "UTC":
        return UTC
    # The name becomes the name of a file, so only what looks like a zone's is tried.
    if _ZONE.fullmatch(name) and not _NOT_IANA.fullmatch(name):
        try:
            return ZoneInfo(name)
        except (KeyError, ValueError, OSError):
            pass  # not there, not a zone's file, or a folder: to the writer it is all the same
    raise ValueError(f"{_quoted(name)} is not a time zone.{_zone_hint(name)}")


def _zone_hint(name: str) -> str:
    """What would be right. All zones are looked up, which is slow, but somebody is waiting for an explanation."""
    known = sorted(zone for zone in available_timezones() if not _NOT_IANA.fullmatch(zone))
    if not known:
        return " This machine has no time zones except UTC. Install tzdata."
    # The commonest slip is to write the city alone, which is too short to be near.
    meant = [zone for zone in known if f"/{zone}".lower().endswith(f"/{name}".lower())]
    if name and meant:
        return f" Did you mean {min(meant, key=len)!r}?"
    return nearest(name, known) or " Use an IANA name like Europe/Berlin or UTC."


def _quoted(text: str) -> str:
    """What was written, cut where it is too long to be a slip."""
    return repr(text if len(text) <= 80 else f"{text[:77]}...")


# --- When they are open ---------------------------------------------------------------------------


def is_open(windows: Sequence[Window], moment: datetime) -> bool:
    """Whether operations may start at this moment, given in UTC. The end of a window is outside of it."""
    return next_open(windows, moment) == moment


def next_open(windows: Sequence[Window], moment: datetime) -> datetime:
    """The first moment, not before this one, at which the windows are open."""
    if not windows:
        return moment
    return max(moment, min(next(_openings(window, moment)).start for window in windows))


def next_common(
    sets: Iterable[Sequence[Window]], moment: datetime, horizon: timedelta = timedelta(days=36)
) -> datetime | None:
    """The first moment, not before this one, at which all of the sets are open; each is one group's windows.

    None if there is none up to the horizon, the horizon itself included.
    """
    # Groups often share their windows, and a set that was looked at need not be looked at again.
    streams = [_all_openings(windows, moment) for windows in {tuple(windows) for windows in sets} if windows]
    heads = [next(stream) for stream in streams]
    candidate, last = moment, moment + horizon
    # Each turn goes on to an opening later than any before, so there are no more turns than openings.
    while candidate <= last:
        for position, stream in enumerate(streams):
            while heads[position].end <= candidate:
                heads[position] = next(stream)
        start = max((head.start for head in heads), default=candidate)
        if start <= candidate:
            return candidate
        candidate = start
    return None


def closes_at(windows: Sequence[Window], moment: datetime) -> datetime | None:
    """When the windows that are open at this moment close; what overlaps or adjoins counts as one.

    None if they are not open, or never close.
    """
    end = moment
    for opening in _all_openings(windows, moment):
        if opening.start > end:
            break
        end = max(end, opening.end)
        if end - moment > _FOR_GOOD:
            return None
    return end if end > moment else None


class _Opening(NamedTuple):
    """One time that a window is open, in UTC: from the start until just before the end."""

    start: datetime
    end: datetime


def _all_openings(windows: Iterable[Window], moment: datetime) -> Iterator[_Opening]:
    """The openings of several windows that end after the moment, in the order of their starts."""
    return merge(*(_openings(window, moment) for window in windows))


def _openings(window: Window, moment: datetime) -> Iterator[_Opening]:
    """The openings of a window that end after the moment, in the order of time. They do not run out."""
    if not window.days:
        raise ValueError("A maintenance window without days never opens. Name at least one day.")
    # One day earlier than it seems: where the zone is behind UTC, Sunday evening is Monday.
    first = (moment - window.length).toordinal() - 1
    for monday in count(first - (first - 1) % 7, 7):  # day 1 of the calendar is a Monday
        for opening in _openings_of_week(window, monday):
            if opening.end > moment:
                yield opening


@lru_cache(1024)
def _openings_of_week(window: Window, monday: int) -> tuple[_Opening, ...]:
    """The openings that begin in the week of this Monday, by its number in the calendar.

    Remembered, because many operations are weighed against the same windows of the same few weeks.
    """
    clock = time(*divmod(window.start_minutes, 60), tzinfo=_zone(window.zone))
    # Adding to a local time would move the hands of the clock; real time passes in UTC only.
    starts = [datetime.combine(date.fromordinal(monday + day), clock).astimezone(UTC) for day in window.days]
    return tuple(_Opening(start, start + window.length) for start in starts)
