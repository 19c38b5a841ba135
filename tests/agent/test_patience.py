"""How long is waited."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.endpoint.pace import MOST_POLLS, MOST_REQUESTS, Pace
from forewarn.agent.endpoint.patience import LONGEST_PAUSE, SHORTEST_PAUSE, answer_seconds, pause_after


def test_pauses_begin_near_a_second_and_double_up_to_the_longest() -> None:
    assert [pause_after("failing", number, 1.0) for number in range(1, 8)] == [1, 2, 4, 8, 10, 10, 10]


def test_luck_spreads_them_also_the_longest() -> None:
    for number in (1, 3, 1000):
        assert (
            pause_after("failing", number, 0.0) < pause_after("failing", number, 0.5) < pause_after("gone", number, 1)
        )


def test_who_was_throttled_pauses_a_second_at_least() -> None:
    assert pause_after("failing", 1, 0.0) < 1 == pause_after("throttled", 1, 0.0)


@pytest.mark.parametrize(("asked", "pause"), [(None, 1), (0.0, 1), (3.0, 3), (10.0, 10), (86400.0, 10)])
def test_what_the_endpoint_asks_for_is_heeded_as_far_as_a_preempt_allows(asked: float | None, pause: float) -> None:
    assert pause_after("throttled", 1, 1.0, asked) == pause


@given(
    kind=st.sampled_from(["failing", "throttled", "unreachable", "whatever"]),
    in_a_row=st.integers(-1, 10**9),
    luck=st.floats(-1, 2),
    asked=st.none() | st.floats(allow_nan=False),
)
def test_no_pause_is_too_short_or_too_long(kind: str, in_a_row: int, luck: float, asked: float | None) -> None:
    assert SHORTEST_PAUSE <= pause_after(kind, in_a_row, luck, asked) <= LONGEST_PAUSE


def test_the_first_answer_may_take_two_minutes_and_others_may_not() -> None:
    assert answer_seconds(has_document=False, silences=0) == 130
    assert answer_seconds(has_document=True, silences=0) == 10


def test_after_silence_there_is_more_time_since_it_may_be_the_first_answer_again() -> None:
    assert [answer_seconds(has_document=True, silences=number) for number in (1, 2, 3, 99)] == [30, 130, 130, 130]


def test_at_rest_it_is_one_poll_in_its_time_whatever_the_exchange_took() -> None:
    pace = Pace(1.0)
    pace.begin(100.0)
    assert pace.pause(100.25, 100.0, at_once=False) == 0.75
    pace.begin(101.0)
    assert pace.pause(105.0, 101.0, at_once=False) == 0
    assert pace.pause(101.0, 101.0, at_once=True) == 0


@given(
    steps=st.lists(st.tuples(st.floats(0, 3), st.booleans(), st.booleans()), max_size=60),
    poll_seconds=st.floats(0.25, 5),
)
def test_never_more_than_the_limit_in_a_second(steps: list[tuple[float, bool, bool]], poll_seconds: float) -> None:
    """Whatever an endpoint says, and however many approvals come in between."""
    pace, now, begun, polls = Pace(poll_seconds), 0.0, [], []
    for took, at_once, approves in steps:
        if approves:
            now += pace.room(now, MOST_REQUESTS)
            pace.begin(now)
            begun.append(now)
        else:
            now += pace.room(now, MOST_POLLS)
            pace.begin(now)
            begun.append(now)
            polls.append(now)
            now += took + pace.pause(now + took, now, at_once=at_once)
    for moments, most in ((begun, MOST_REQUESTS), (polls, MOST_POLLS)):
        for first, beyond in zip(moments, moments[most:], strict=False):
            assert beyond - first >= 1.0 - 1e-6
