"""The time of the endpoint."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.agent.clock import EndpointClock

SOON = timedelta(minutes=1)


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def is_about(clock: EndpointClock, moment: datetime) -> bool:
    return abs(clock.now() - moment) < SOON


def test_it_is_the_time_of_the_machine_before_the_first_response(now: datetime) -> None:
    assert is_about(EndpointClock(), now)


@pytest.mark.parametrize("hours", [-20, -1, 1, 20])
def test_the_date_of_a_response_is_used(hours: int, now: datetime) -> None:
    clock = EndpointClock()
    clock.set(now + timedelta(hours=hours))
    assert is_about(clock, now + timedelta(hours=hours))


@pytest.mark.parametrize("days", [-3000, -2, 2, 3000])
def test_one_that_is_days_off_needs_another(days: int, now: datetime) -> None:
    clock = EndpointClock()
    clock.set(now)
    clock.set(now + timedelta(days=days))
    assert is_about(clock, now)
    clock.set(now)
    clock.set(now + timedelta(days=days))
    assert is_about(clock, now), "two wrong ones with a right one in between"
    clock.set(now + timedelta(days=days))
    assert is_about(clock, now + timedelta(days=days))


def test_the_maximum_time_is_not_accepted(now: datetime) -> None:
    clock = EndpointClock()
    for _ in range(3):
        clock.set(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
    assert is_about(clock, now)
