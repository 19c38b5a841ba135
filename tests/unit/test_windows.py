"""Maintenance windows: their syntax, and when they are open."""

from __future__ import annotations

import zoneinfo
from datetime import date, datetime, timedelta
from functools import cache, reduce
from importlib.util import find_spec
from operator import and_
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.windows import (
    Window,
    closes_at,
    format_window,
    is_open,
    next_common,
    next_open,
    parse_window,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

MINUTE = timedelta(minutes=1)
ZONES = ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC")

thorough = settings(max_examples=amount(150), derandomize=True)


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"{text}Z")


# --- As people write them -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("sat,sun 02:00 4h Europe/Berlin", Window((5, 6), 120, timedelta(hours=4), "Europe/Berlin")),
        ("mon-fri 22:30 90m", Window((0, 1, 2, 3, 4), 1350, timedelta(minutes=90), "UTC")),
        ("daily 03:00 1h UTC", Window((0, 1, 2, 3, 4, 5, 6), 180, timedelta(hours=1), "UTC")),
        ("fri-mon 00:00 2h", Window((0, 4, 5, 6), 0, timedelta(hours=2), "UTC")),
        ("Sunday,MON,Tuesday 23:59 7d", Window((0, 1, 6), 1439, timedelta(days=7), "UTC")),
        ("wed-wed 12:00 1s", Window((2,), 720, timedelta(seconds=1), "UTC")),
        ("mon-wed,tue,tue,sat 01:00 1h", Window((0, 1, 2, 5), 60, timedelta(hours=1), "UTC")),
        ("DAILY 01:00 1D2H30M", Window((0, 1, 2, 3, 4, 5, 6), 60, timedelta(hours=26, minutes=30), "UTC")),
        ("  sat \t 02:00   60  Etc/GMT+5 ", Window((5,), 120, timedelta(minutes=1), "Etc/GMT+5")),
        (
            "sat 02:00 4h America/Argentina/Buenos_Aires",
            Window((5,), 120, timedelta(hours=4), "America/Argentina/Buenos_Aires"),
        ),
    ],
)
def test_parse(text: str, window: Window) -> None:
    assert parse_window(text) == window


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the days are missing."),
        ("   ", "the days are missing."),
        ("sat", "the start is missing."),
        ("sat 02:00", "the duration is missing."),
        ("mno 02:00 4h", "'mno' is not a day. Did you mean 'mon'? Write days like sat,sun or mon-fri or daily."),
        ("sat,wedensday 02:00 4h", "'wedensday' is not a day. Did you mean 'wednesday'?"),
        ("mon-fry 02:00 4h", "'fry' is not a day. Did you mean 'fri'?"),
        ("dayly 02:00 4h", "'dayly' is not a day. Did you mean 'daily'?"),
        ("xyzzy 02:00 4h", "'xyzzy' is not a day. Write days like"),
        ("02:00 sat 4h", "'02:00' is not a day."),
        ("mon- 02:00 4h", "'mon-' is not a day. Did you mean 'mon'?"),
        ("-fri 02:00 4h", "'-fri' is not a day. Did you mean 'fri'?"),
        ("mon-wed-fri 02:00 4h", "'wed-fri' is not a day."),
        ("sat, sun 02:00 4h", "extra comma in 'sat,'. Write days without spaces, like sat,sun."),
        (",sat 02:00 4h", "extra comma in ',sat'."),
        ("mon,daily 02:00 4h", "daily means all days. Do not combine it with other days."),
        ("sat 2:00 4h", "'2:00' is not a time of day. Write a start from 00:00 to 23:59, like 02:00."),
        ("sat 24:00 4h", "'24:00' is not a time of day."),
        ("sat 02:60 4h", "'02:60' is not a time of day."),
        ("sat 02:00:00 4h", "'02:00:00' is not a time of day."),
        ("sat ٠٢:٠٠ 4h", "is not a time of day."),
        ("sat 4h 02:00", "'4h' is not a time of day."),
        ("sat 02:00 long", "'long' is not a duration. Write it like 90m, 4h or 1h30m."),
        ("sat 02:00 20000d", "the duration is '20000d'. Write more than 0 and at most 7d."),
        ("sat 02:00 -4h", "'-4h' is not a duration."),
        ("sat 02:00 UTC", "'UTC' is not a duration."),
        ("sat 02:00 0s", "the duration is '0s'. Write more than 0 and at most 7d."),
        ("sat 02:00 7d1s", "the duration is '7d1s'. Write more than 0 and at most 7d."),
        ("sat 02:00 1.5s", "the duration is '1.5s'. Write whole seconds, like 90s."),
        ("sat 02:00 1d 2h", "'2h' is not a time zone. Write the duration as one word, like 1h30m."),
        ("sat 02:00 1d 2h UTC", "'2h' is not a time zone. Write the duration as one word, like 1h30m."),
        ("sat 02:00 4h UTC now", "unexpected text after the time zone: 'now'."),
        ("sat 02:00 4h Europe/Berln", "'Europe/Berln' is not a time zone. Did you mean 'Europe/Berlin'?"),
        ("sat 02:00 4h berlin", "'berlin' is not a time zone. Did you mean 'Europe/Berlin'?"),
        ("sat 02:00 4h utc", "'utc' is not a time zone. Did you mean 'UTC'?"),
        ("sat 02:00 4h Europe", "'Europe' is not a time zone."),
        ("sat 02:00 4h Middle/Of/Nowhere/At/All", "is not a time zone. Use an IANA name like Europe/Berlin or UTC."),
    ],
)
def test_an_invalid_window_is_rejected(text: str, says: str) -> None:
    with pytest.raises(ValueError, match="is not a maintenance window") as caught:
        parse_window(text)
    assert says in str(caught.value)
    assert str(caught.value).startswith(repr(text))
    assert str(caught.value).endswith("Write a window like 'sat,sun 02:00 4h Europe/Berlin'.")


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "/usr/share/zoneinfo/Europe/Berlin",
        "Europe/../Europe/Berlin",
        "Europe//Berlin",
        "Europe/Berlin/",
        "./UTC",
        "~/zone",
        "C:\\zone",
        "Europe/Berlin\0",
        "Europe",
        "zone.tab",
        "tzdata.zi",
        "posixrules",
        "localtime",
        "posix/Europe/Berlin",
        "right/Europe/Berlin",
        "Zürich",
        "\udc80",
        "A" * 80,
    ],
)
def test_a_time_zone_cannot_be_a_path(name: str) -> None:
    with pytest.raises(ValueError, match="is not a time zone") as caught:
        parse_window(f"sat 02:00 4h {name}")
    assert len(str(caught.value)) < 500
    with pytest.raises(ValueError, match="is not a time zone"):
        is_open([Window((5,), 120, timedelta(hours=4), name)], at("2025-01-01T00:00"))


def test_a_long_text_is_no_window() -> None:
    with pytest.raises(ValueError, match="it has more than 100 characters") as caught:
        parse_window("sat 02:00 4h " + "A" * 5000)
    assert len(str(caught.value)) < 200


def test_the_empty_name_is_no_zone() -> None:
    with pytest.raises(ValueError, match="'' is not a time zone"):
        is_open([Window((5,), 120, timedelta(hours=4), "")], at("2025-01-01T00:00"))


def test_utc_needs_no_time_zone_database() -> None:
    zoneinfo.reset_tzpath(to=[])
    try:
        assert is_open([parse_window("daily 00:00 1d")], at("2025-01-01T00:00"))
        if find_spec("tzdata") is None:
            with pytest.raises(ValueError, match="This machine knows none but UTC: install tzdata"):
                parse_window("sat 02:00 4h Asia/Kathmandu")
    finally:
        zoneinfo.reset_tzpath()


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("sunday,saturday 02:00 240m Europe/Berlin", "sat,sun 02:00 4h Europe/Berlin"),
        ("mon,tue,wed,thu,fri 22:30 90m", "mon-fri 22:30 1h30m UTC"),
        ("tue-mon 03:00 24h", "daily 03:00 1d UTC"),
        ("mon,fri,sat,sun 00:00 2h", "fri-mon 00:00 2h UTC"),
        ("mon,sun 00:05 2h", "sun,mon 00:05 2h UTC"),
        ("fri,mon,wed 00:00 2h", "mon,wed,fri 00:00 2h UTC"),
        ("sun-tue,thu 00:00 2h", "thu,sun-tue 00:00 2h UTC"),
    ],
)
def test_equivalent_windows_have_one_form(text: str, canonical: str) -> None:
    assert format_window(parse_window(text)) == canonical


some_windows = st.builds(
    Window,
    st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
    st.integers(0, 1439),
    st.integers(1, 7 * 86400).map(lambda seconds: timedelta(seconds=seconds)),
    st.sampled_from(sorted(zone for zone in zoneinfo.available_timezones() if zone != "localtime")),
)


@thorough
@given(some_windows)
def test_a_formatted_window_is_parsed_back(window: Window) -> None:
    assert parse_window(format_window(window)) == window


# --- When they are open ---------------------------------------------------------------------------


def test_no_windows_restrict_nothing() -> None:
    moment = at("2025-03-30T01:23:45.678901")
    assert is_open([], moment)
    assert next_open([], moment) == moment
    assert closes_at([], moment) is None
    assert next_common([], moment) == moment
    assert next_common([[], ()], moment) == moment


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        pytest.param("wed 02:00 4h", "2025-01-01T02:00", "2025-01-01T06:00", id="as it is written"),
        pytest.param("wed 22:00 4h", "2025-01-01T22:00", "2025-01-02T02:00", id="over midnight"),
        pytest.param("sun 22:00 4h", "2025-01-05T22:00", "2025-01-06T02:00", id="over the end of the week"),
        pytest.param("wed 00:00 1d Asia/Tokyo", "2024-12-31T15:00", "2025-01-01T15:00", id="east: a day earlier"),
        pytest.param("wed 20:00 1h America/New_York", "2025-01-02T01:00", "2025-01-02T02:00", id="west: a day later"),
        pytest.param("sun 22:00 4h America/New_York", "2025-01-06T03:00", "2025-01-06T07:00", id="west: a week later"),
        pytest.param("sun 02:30 2h Europe/Berlin", "2025-03-30T01:30", "2025-03-30T03:30", id="skipped: 03:30"),
        pytest.param("sun 03:00 2h Europe/Berlin", "2025-03-30T01:00", "2025-03-30T03:00", id="right after the gap"),
        pytest.param("sun 02:30 2h Europe/Berlin", "2025-10-26T00:30", "2025-10-26T02:30", id="twice: the first"),
        pytest.param("sat 22:00 6h Europe/Berlin", "2025-03-29T21:00", "2025-03-30T03:00", id="real time over a gap"),
        pytest.param("sat 22:00 6h Europe/Berlin", "2025-10-25T20:00", "2025-10-26T02:00", id="real time over a fold"),
        pytest.param("sun 02:15 1h Australia/Lord_Howe", "2025-10-04T15:45", "2025-10-04T16:45", id="half an hour gap"),
        pytest.param(
            "sun 01:45 1h Australia/Lord_Howe", "2025-04-05T14:45", "2025-04-05T15:45", id="half an hour fold"
        ),
        pytest.param("fri 02:00 1h Pacific/Apia", "2011-12-30T12:00", "2011-12-30T13:00", id="the day is skipped"),
        pytest.param("sun 00:00 2h America/St_Johns", "2010-11-07T02:30", "2010-11-07T04:30", id="fold over midnight"),
    ],
)
def test_a_window_opens_and_closes(text: str, start: str, end: str) -> None:
    windows = [parse_window(text)]
    instant = timedelta(microseconds=1)
    begin, finish = at(start), at(end)
    assert not is_open(windows, begin - instant)
    assert next_open(windows, begin - instant) == begin
    assert closes_at(windows, begin - instant) is None
    for moment in (begin, begin + instant, finish - instant):
        assert is_open(windows, moment)
        assert next_open(windows, moment) == moment
        assert closes_at(windows, moment) == finish
    assert not is_open(windows, finish)


@pytest.mark.parametrize(
    ("texts", "moment", "end"),
    [
        (["wed 02:00 1h", "wed 03:00 1h"], "2025-01-01T02:30", "2025-01-01T04:00"),
        (["wed 02:00 8h", "wed 03:00 1h"], "2025-01-01T02:30", "2025-01-01T10:00"),
        (["wed 02:00 1h", "wed 03:01 1h"], "2025-01-01T02:30", "2025-01-01T03:00"),
        (["mon-fri 00:00 1d"], "2025-01-01T02:30", "2025-01-04T00:00"),
        (["daily 00:00 1d"], "2025-01-01T02:30", None),
        (["mon 00:00 7d"], "2025-01-01T02:30", None),
        (["daily 00:00 12h", "daily 12:00 12h"], "2025-01-01T12:00", None),
        # The day on which the clocks are set back has 25 hours.
        (["daily 00:00 1d Europe/Berlin"], "2025-01-01T02:30", "2025-10-26T22:00"),
        (["daily 00:00 25h Europe/Berlin"], "2025-01-01T02:30", None),
    ],
)
def test_windows_that_touch_close_as_one(texts: list[str], moment: str, end: str | None) -> None:
    assert closes_at([parse_window(text) for text in texts], at(moment)) == (end and at(end))


@pytest.mark.parametrize(
    ("sets", "moment", "common"),
    [
        ([["sat 02:00 4h"], ["daily 05:00 1h"]], "2025-01-01T00:00", "2025-01-04T05:00"),
        ([["sat 02:00 4h"], [], ["sat 02:00 4h"]], "2025-01-04T03:21:09.5", "2025-01-04T03:21:09.5"),
        ([["sat 02:00 4h"], ["daily 06:00 1h"]], "2025-01-01T00:00", None),
        ([["sat 00:00 1d"], ["sun 00:00 1d"]], "2025-01-01T00:00", None),
        ([["mon 09:00 1h", "thu 09:00 1h"], ["tue 09:00 1h", "thu 09:59 1h"]], "2025-01-03T00:00", "2025-01-09T09:59"),
        # They meet only while New York has changed its clocks and Berlin has not.
        (
            [["daily 06:00 1h Europe/Berlin"], ["daily 01:00 1h America/New_York"]],
            "2025-02-20T00:00",
            "2025-03-10T05:00",
        ),
        ([["daily 06:00 1h Europe/Berlin"], ["daily 01:00 1h America/New_York"]], "2025-03-30T00:00", None),
    ],
)
def test_common(sets: list[list[str]], moment: str, common: str | None) -> None:
    groups = [[parse_window(text) for text in texts] for texts in sets]
    assert next_common(groups, at(moment)) == (common and at(common))


def test_the_search_includes_the_horizon() -> None:
    groups = [[parse_window("sat 02:00 4h")]]
    moment = at("2025-01-03T02:00")
    assert next_common(groups, moment, timedelta(days=1)) == moment + timedelta(days=1)
    assert next_common(groups, moment, timedelta(days=1) - timedelta.resolution) is None


def test_a_window_without_days_does_not_hang() -> None:
    with pytest.raises(ValueError, match="Name at least one day"):
        next_open([Window((), 0, timedelta(hours=1), "UTC")], at("2025-01-01T00:00"))


# --- Against a model that watches the clocks minute by minute -------------------------------------


class Season(NamedTuple):
    """Some weeks, as minutes from the first, and the minutes in which clocks are changed."""

    first: datetime
    minutes: int
    changes: tuple[int, ...]


def season(first: str, days: int, *changes: str) -> Season:
    return Season(at(first), days * 1440, tuple((at(change) - at(first)) // MINUTE for change in changes))


SEASONS = (
    # New York, Berlin, Lord Howe.
    season("2025-02-24T00:00", 64, "2025-03-09T07:00", "2025-03-30T01:00", "2025-04-05T15:00"),
    # Lord Howe, Berlin, New York.
    season("2025-09-22T00:00", 64, "2025-10-04T15:30", "2025-10-26T01:00", "2025-11-02T06:00"),
)


@cache
def clock_faces(weeks: Season, zone: str) -> tuple[list[int], dict[int, int]]:
    """What the clocks show in each minute, in minutes too, and the minute in which they first show that."""
    there = zoneinfo.ZoneInfo(zone)
    shown: list[int] = []
    for minute in range(0, weeks.minutes, 30):  # these zones change their clocks on the half hour
        offset = (weeks.first + minute * MINUTE).astimezone(there).utcoffset()
        assert offset is not None
        shown.extend(range(minute + offset // MINUTE, minute + offset // MINUTE + 30))
    first_shown: dict[int, int] = {}
    for minute, face in enumerate(shown):
        first_shown.setdefault(face, minute)
    return shown, first_shown


def open_minutes(weeks: Season, windows: Sequence[Window]) -> bytes:
    """A byte for each minute: 1 if it is within a window."""
    minutes = bytearray(weeks.minutes)
    for window in windows:
        shown, first_shown = clock_faces(weeks, window.zone)
        # In zones ahead of UTC one day more begins before the weeks are over.
        for day in range(weeks.minutes // 1440 + 1):
            if date.weekday(weeks.first + timedelta(days=day)) not in window.days:
                continue
            face = day * 1440 + window.start_minutes
            if not shown[0] <= face <= shown[-1]:
                continue
            start = first_shown.get(face)
            if start is None:  # skipped: as if the clocks had not been changed
                before = max(minute for minute in range(weeks.minutes) if shown[minute] < face)
                jump = next(minute for minute in range(weeks.minutes) if shown[minute] > face)
                assert before == jump - 1
                start = before + face - shown[before]
            end = min(start + window.duration // MINUTE, weeks.minutes)
            minutes[start:end] = b"\1" * (end - start)
    return bytes(minutes)


def both_open(some: Sequence[bytes]) -> bytes:
    return reduce(and_, (int.from_bytes(minutes) for minutes in some)).to_bytes(len(some[0]))


window_lists = st.lists(
    st.builds(
        Window,
        st.sets(st.integers(0, 6), min_size=1).map(lambda days: tuple(sorted(days))),
        st.integers(0, 1439) | st.integers(90, 200),  # the second is where clocks are changed
        st.integers(1, 600).map(MINUTE.__mul__) | st.integers(1, 7 * 1440).map(MINUTE.__mul__),
        st.sampled_from(ZONES),
    ),
    min_size=1,
    max_size=3,
)
seasons_and_minutes = st.sampled_from(SEASONS).flatmap(
    lambda weeks: st.tuples(
        st.just(weeks),
        st.builds(int.__add__, st.sampled_from(weeks.changes), st.integers(-3 * 1440, 3 * 1440) | st.integers(-99, 99)),
    )
)
within_a_minute = st.sampled_from([timedelta(0), timedelta(microseconds=1), MINUTE - timedelta.resolution])


@thorough
@given(window_lists, seasons_and_minutes, within_a_minute)
def test_windows_open_by_local_time(windows: list[Window], place: tuple[Season, int], past: timedelta) -> None:
    weeks, middle = place
    expected = open_minutes(weeks, windows)
    edges = [m + 1 for m in range(middle - 2880, middle + 2880) if expected[m] != expected[m + 1]]
    for minute in {middle, *range(middle - 100, middle + 100, 7), *edges, *(edge - 1 for edge in edges)}:
        moment = weeks.first + minute * MINUTE + past
        opens = weeks.first + expected.index(1, minute) * MINUTE
        closed = expected.find(0, minute)
        assert is_open(windows, moment) == bool(expected[minute])
        assert next_open(windows, moment) == max(moment, opens)
        if not expected[minute]:
            assert closes_at(windows, moment) is None
        elif closed >= 0:
            assert closes_at(windows, moment) == weeks.first + closed * MINUTE
        else:
            end = closes_at(windows, moment)
            assert end is None or end >= weeks.first + weeks.minutes * MINUTE


@thorough
@given(st.lists(window_lists, min_size=2, max_size=4), seasons_and_minutes, within_a_minute)
def test_common_openings_follow_local_time(
    sets: list[list[Window]], place: tuple[Season, int], past: timedelta
) -> None:
    weeks, minute = place
    horizon = timedelta(days=16)
    moment = weeks.first + minute * MINUTE + past
    expected = both_open([open_minutes(weeks, windows) for windows in sets])
    first = expected.find(1, minute)
    common = next_common(sets, moment, horizon)
    if first < 0 or weeks.first + first * MINUTE > moment + horizon:
        assert common is None
    else:
        assert common == max(moment, weeks.first + first * MINUTE)
        assert all(is_open(windows, common) for windows in sets)


def test_the_search_ends_for_groups_without_a_common_opening() -> None:
    sets = [[parse_window(f"daily {hour:02}:00 1h {zone}")] for hour in range(24) for zone in ZONES]
    assert next_common(sets, at("2025-01-01T00:00"), timedelta(days=400)) is None
