"""When each group last polled, across restarts: the downtime of the service does not count as inactivity."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import TYPE_CHECKING

import pytest
from engines import FLEET, request_operation

from forewarn.core.durations import from_text
from forewarn.core.fleet import VM, Fleet
from forewarn.core.limits import OperatorLimits
from forewarn.core.state import UP_AT
from forewarn.engine import last_seen as last_seen_module
from forewarn.engine.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.core.state import Changes


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


async def test_downtime_counts_once(tmp_path: Path) -> None:
    """The commit that moves events says that the service is up. A kill after it, or before, changes nothing."""
    clock = RunningClock(START)
    engine = await started(tmp_path, clock)
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="web-0")
    await request_operation(engine, "restart", "web-0")
    await engine.stop()
    clock.moment += timedelta(minutes=20)
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits())
    commits: list[Changes] = []
    engine.subscribe_to_commits(commits.append)
    await engine.start()
    await engine.last_seen.write()
    first = next(changes for changes in commits if changes.facts)
    assert [row.kind for row in first.history] == ["postponed"]
    assert from_text(first.facts[UP_AT]) == clock.moment
    await engine.stop()


async def test_the_service_stores_that_it_is_up_only_while_an_event_waits(tmp_path: Path) -> None:
    clock = RunningClock(START)
    engine = await started(tmp_path, clock)
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="web-0")

    def is_due_after(seconds: int) -> bool:
        clock.moment += timedelta(seconds=seconds)
        return engine.last_seen.is_up_due

    assert [is_due_after(seconds) for seconds in (1, 5, 5)] == [False, False, False]
    await request_operation(engine, "restart", "web-0")
    assert [is_due_after(seconds) for seconds in (5, 1, 4)] == [True, False, True]
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


# --- Many scopes ----------------------------------------------------------------------------------

DAY = timedelta(days=1)


class ManyScopes:
    """A service with many scopes, all enabled, that the test can kill and start again."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.clock = RunningClock(START)
        self.names = [f"v{number}" for number in range(count)]
        self.written: list[list[str]] = []
        """The scopes that each commit has written without any other change."""

    async def start(self) -> Engine:
        self.engine = await started(self.folder, self.clock)
        self.engine.subscribe_to_commits(self._keep)
        if not self.engine.fleet.vms:
            await self.engine.apply_fleet(Fleet(VM(name, name, "a") for name in self.names), by="test")
            await asyncio.gather(*(self.engine.enable(name, by=name) for name in self.names))
        return self.engine

    def _keep(self, changes: Changes) -> None:
        if changes.last_seen and not changes.deliveries:
            self.written.append([*changes.last_seen])

    async def restart(self, downtime: timedelta, *, kill: bool = False) -> Engine:
        """Start it again, after this time."""
        await self.engine.last_seen.write_up() if kill else await self.engine.stop()
        if kill:
            self.engine.last_seen.write_all_shifted = self.engine.last_seen.write_up  # type: ignore[method-assign]
            await self.engine.stop()
        self.written.clear()
        self.clock.moment += downtime
        return await self.start()

    @property
    def enabled(self) -> int:
        return sum(self.engine.document(name).enabled for name in self.names)


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the fleet were much larger."""
    monkeypatch.setattr(last_seen_module, "MIN_WRITTEN", 2)
    monkeypatch.setattr(last_seen_module, "MAX_SHIFTED", 10)
    monkeypatch.setattr(last_seen_module, "WATCHED_AT_ONCE", 10)


@pytest.mark.usefixtures("few_at_once")
async def test_a_start_writes_only_a_few_scopes(tmp_path: Path) -> None:
    """A failover takes as long as a short downtime."""
    many = ManyScopes(tmp_path, 50)
    await many.start()
    engine = await many.restart(timedelta(minutes=1))
    engine.polled.update(many.names)
    await engine.last_seen.write()
    assert 1 <= len(many.written) <= 2, "the scheduler may have written some, too"
    assert sum(map(len, many.written)) <= 4
    assert not engine.last_seen.is_write_due
    await engine.stop()


@pytest.mark.usefixtures("few_at_once")
async def test_a_scope_that_polls_is_written_four_times_a_day(tmp_path: Path) -> None:
    many = ManyScopes(tmp_path, 720)
    engine = await many.start()
    many.written.clear()
    for _ in range(360):
        many.clock.moment += timedelta(minutes=1)
        engine.polled.update(many.names)
        await engine.last_seen.write()
    counts = Counter(chain.from_iterable(many.written))
    assert counts.keys() == set(many.names)
    assert counts.total() < 1.1 * len(many.names), "the scheduler may have written some, too"
    await engine.stop()


@pytest.mark.usefixtures("few_at_once")
async def test_a_scope_is_not_disabled_early_because_its_last_poll_was_not_written(tmp_path: Path) -> None:
    many = ManyScopes(tmp_path, 50)
    engine = await many.start()
    many.clock.moment += timedelta(hours=5)
    engine.polled.update(many.names)
    await engine.last_seen.write()
    engine = await many.restart(timedelta(seconds=5))
    for hours, expected in ((19, 50), (5, 50), (7, 0)):
        many.clock.moment += timedelta(hours=hours)
        for _ in range(5):
            await engine.tick()
        assert many.enabled == expected, many.clock.moment - START
    await engine.stop()


@pytest.mark.usefixtures("few_at_once")
async def test_a_scope_that_polls_after_a_start_is_disabled_a_day_later(tmp_path: Path) -> None:
    many = ManyScopes(tmp_path, 50)
    await many.start()
    many.clock.moment += timedelta(hours=5)
    engine = await many.restart(timedelta(seconds=5))
    engine.polled.update(many.names)
    await engine.tick()
    many.clock.moment += DAY - timedelta(seconds=1)
    for _ in range(5):
        await engine.tick()
    assert many.enabled == 50
    many.clock.moment += timedelta(seconds=1)
    await engine.tick()
    assert many.enabled == 0
    await engine.stop()


@pytest.mark.usefixtures("few_at_once")
async def test_a_long_downtime_is_written_soon_in_small_parts(tmp_path: Path) -> None:
    many = ManyScopes(tmp_path, 35)
    await many.start()
    engine = await many.restart(timedelta(hours=2))
    while engine.last_seen.is_write_due:
        await engine.last_seen.write()
    assert sorted(chain.from_iterable(many.written)) == sorted(many.names)
    assert max(map(len, many.written)) <= 20, "a part, and one of the scheduler in the same commit"
    engine = await many.restart(timedelta(seconds=5), kill=True)
    assert {engine.last_seen_at(name) for name in many.names} == {START + timedelta(hours=2)}
    await engine.stop()


@pytest.mark.usefixtures("few_at_once")
async def test_inactive_scopes_of_a_large_fleet_are_found_in_small_parts_after_a_start(tmp_path: Path) -> None:
    many = ManyScopes(tmp_path, 35)
    await many.start()
    many.clock.moment += 2 * DAY
    engine = await many.restart(timedelta(seconds=5))
    assert many.enabled >= 15, "the scheduler may have found some, too"
    for _ in range(4):
        await engine.tick()
    await engine._writer.wait_until_idle()  # the scheduler may have found the last ones
    assert many.enabled == 0
    await engine.stop()
