"""How long a poll may be held, as its Prefer headers say it."""

from __future__ import annotations

import pytest

from forewarn.wire.prefer_header import MAX_WAIT_SECONDS, parse_wait

READ: dict[str, int | None] = {
    "wait=10": 10,
    "WAIT=10": 10,
    'wait="10"': 10,
    "wait = 10": 10,
    "wait=10; because=of": 10,
    "respond-async, wait=10": 10,
    ", ,wait=10": 10,
    'other="a, wait=5", wait=7': 7,
    r'other="a\", wait=5", wait=7': 7,
    "wait=10, wait=20": 10,
    "wait=0": 0,
    "wait=007": 7,
    "wait=60": 60,
    "wait=61": MAX_WAIT_SECONDS,
    "wait=" + "9" * 10_000: MAX_WAIT_SECONDS,
    "wait=" + "0" * 10_000: 0,
    "": None,
    "wait": None,
    "wait=": None,
    'wait=""': None,
    'wait="': None,
    'wait="5': None,
    "wait=abc": None,
    "wait=abc, wait=10": None,
    "wait=-1": None,
    "wait=1.5": None,
    "wait=5 6": None,
    "wait=\xb2": None,
    "waiting=5": None,
    "respond-async; wait=5": None,
    'other="never closed, wait=5': None,
}


@pytest.mark.parametrize(("text", "seconds"), READ.items(), ids=[text[:30] for text in READ])
def test_a_valid_wait_is_parsed_and_any_other_is_none(text: str, seconds: int | None) -> None:
    assert parse_wait([text]) == seconds


def test_several_headers_are_one_list() -> None:
    assert parse_wait(["respond-async", "wait=10", "wait=20"]) == 10
    assert parse_wait([]) is None
