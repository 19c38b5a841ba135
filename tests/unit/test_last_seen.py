"""When each group last polled, across restarts: the downtime of the service does not count as inactivity."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from engines import FLEET

from forewarn.core.limits import OperatorLimits
from forewarn.engine.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


class RunningClock:
    """A clock that the engine takes for a system clock. The test sets its time, and it wakes no timer."""

    virtual = False

    def __init__(self, now: datetime) -> None:
        self.moment = now

    def now(self) -> datetime:
        return self.moment

    async def sleep_until(self, moment: datetime) -> None:
        await asyncio.get_running_loop().create_future()


START = datetime(2041, 1, 1, tzinfo=UTC)


async def heard_after(folder: Path, clock: RunningClock) -> datetime | None:
    engine = await started(folder, clock)
    heard = engine.last_seen_at("web")
    await engine.stop()
    return heard


async def started(folder: Path, clock: RunningClock) -> Engine:
    engine = Engine(clock, SqliteStore(folder), SimulatedFabric(clock), OperatorLimits())
    await engine.start()
    return engine


@pytest.mark.parametrize("downtime", [timedelta(hours=2), timedelta(days=3)])
async def test_downtime_does_not_count_as_inactivity(tmp_path: Path, downtime: timedelta) -> None:
    clock = RunningClock(START)
    engine = await started(tmp_path, clock)
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="web-0")
    clock.moment += timedelta(hours=20)
    await engine.stop()
    clock.moment += downtime
    engine = await started(tmp_path, clock)
    assert engine.document("web").enabled
    assert engine.last_seen_at("web") == START + downtime
    clock.moment += timedelta(hours=4)
    await engine.tick()
    assert not engine.document("web").enabled, "20 hours before the downtime and 4 after are a day"
    await engine.stop()


async def test_a_kill_loses_at_most_the_minute_since_the_last_write(tmp_path: Path) -> None:
    clock = RunningClock(START)
    engine = await started(tmp_path, clock)
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="web-0")
    clock.moment += timedelta(minutes=5)
    engine.polled.add("web")
    await engine.last_seen.write()
    due = []
    for seconds in (59, 1):
        clock.moment += timedelta(seconds=seconds)
        due.append(engine.last_seen.is_write_due)
    assert due == [False, True]
    await engine.stop()
    assert await heard_after(tmp_path, clock) == START + timedelta(minutes=5)
