"""Pauses and timeouts of requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.retry import MAX_PAUSE, MAX_REQUESTS, MIN_PAUSE, RequestPacer, pause_after, response_seconds


def test_pauses_begin_near_a_second_and_double_up_to_the_longest() -> None:
    assert [pause_after("failing", number, 1.0) for number in range(1, 8)] == [1, 2, 4, 8, 10, 10, 10]


def test_jitter_spreads_all_pauses() -> None:
    for number in (1, 3, 1000):
        assert (
            pause_after("failing", number, 0.0) < pause_after("failing", number, 0.5) < pause_after("gone", number, 1)
        )


def test_the_pause_after_429_is_at_least_a_second() -> None:
    assert pause_after("failing", 1, 0.0) < 1 == pause_after("throttled", 1, 0.0)


@pytest.mark.parametrize(("retry_after", "pause"), [(None, 1), (0.0, 1), (3.0, 3), (10.0, 10), (86400.0, 10)])
def test_retry_after_is_used_up_to_the_maximum_pause(retry_after: float | None, pause: float) -> None:
    assert pause_after("throttled", 1, 1.0, retry_after) == pause


@given(
    kind=st.sampled_from(["failing", "throttled", "unreachable", "whatever"]),
    in_a_row=st.integers(-1, 10**9),
    luck=st.floats(-1, 2),
    retry_after=st.none() | st.floats(allow_nan=False),
)
def test_no_pause_is_too_short_or_too_long(kind: str, in_a_row: int, luck: float, retry_after: float | None) -> None:
    assert MIN_PAUSE <= pause_after(kind, in_a_row, luck, retry_after) <= MAX_PAUSE


def test_only_the_first_response_may_take_two_minutes() -> None:
    assert response_seconds(has_document=False, timeouts=0) == 130
    assert response_seconds(has_document=True, timeouts=0) == 10


def test_after_a_timeout_the_next_timeout_is_longer_up_to_a_maximum() -> None:
    assert [response_seconds(has_document=True, timeouts=number) for number in (1, 2, 3, 99)] == [25] * 4


def test_the_poll_interval_includes_the_time_of_the_request() -> None:
    pace = RequestPacer(1.0)
    assert pace.admit(100.0, is_poll=True) == 0
    assert pace.pause(100.25, 100.0, at_once=False) == 0.75
    assert pace.admit(101.0, is_poll=True) == 0
    assert pace.pause(105.0, 101.0, at_once=False) == 0
    assert pace.pause(101.0, 101.0, at_once=True) == 0


@given(steps=st.lists(st.tuples(st.floats(0, 0.5), st.booleans()), max_size=60))
def test_never_more_than_the_limit_in_a_second(steps: list[tuple[float, bool]]) -> None:
    """However many want to ask, and for what."""
    pace, now = RequestPacer(1.0), 0.0
    sent: dict[bool, list[float]] = {True: [], False: []}
    for passed, is_poll in steps:
        now += passed
        while room := pace.admit(now, is_poll=is_poll):
            now += room
        sent[is_poll].append(now)
    for moments, most in ((sorted(sent[True] + sent[False]), MAX_REQUESTS), *((some, 4) for some in sent.values())):
        for first, beyond in zip(moments, moments[most:], strict=False):
            assert beyond - first >= 1.0


@pytest.mark.parametrize("is_poll", [True, False])
def test_one_kind_leaves_room_for_the_other(is_poll: bool) -> None:
    pace = RequestPacer(1.0)
    rooms = [pace.admit(100.0, is_poll=is_poll) for _ in range(6)]
    assert [room == 0 for room in rooms] == [True] * 4 + [False] * 2
    assert pace.admit(100.0, is_poll=not is_poll) == 0
    assert pace.admit(100.0, is_poll=not is_poll) > 1
