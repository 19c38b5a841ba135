"""One contract for all clocks, and what is special about the virtual one."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.clock import SystemClock, VirtualClock

if TYPE_CHECKING:
    from forewarn.ports import Clock

START = datetime(2041, 1, 1, tzinfo=UTC)


@pytest.fixture(params=[SystemClock, VirtualClock])
def clock(request: pytest.FixtureRequest) -> Clock:
    made: Clock = request.param()
    return made


async def test_now_is_in_utc_and_a_past_time_needs_no_wait(clock: Clock) -> None:
    assert clock.now().utcoffset() == timedelta(0)
    await clock.sleep_until(clock.now())
    await clock.sleep_until(clock.now() - timedelta(days=1))


async def test_virtual_time_only_moves_forward_and_wakes_in_order() -> None:
    clock = VirtualClock(START)
    woken: list[int] = []

    async def sleeper(minutes: int) -> None:
        await clock.sleep_until(START + timedelta(minutes=minutes))
        woken.append(minutes)

    tasks = [asyncio.ensure_future(sleeper(minutes)) for minutes in (3, 1, 2)]
    await asyncio.sleep(0)
    assert clock.next_wake_up() == START + timedelta(minutes=1)
    clock.set(START + timedelta(minutes=2))
    await asyncio.sleep(0)
    assert woken == [1, 2]
    clock.set(START)
    assert clock.now() == START + timedelta(minutes=2)
    tasks[0].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert clock.next_wake_up() is None
    assert clock.sleeper_count == 0


def test_virtual_time_starts_at_a_whole_second() -> None:
    assert VirtualClock().now().microsecond == 0
