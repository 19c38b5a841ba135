"""The scheduler on the system clock: it can be stopped at any time, and work due at the same time has a fixed order."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from engines import MINUTE, START, make_engine, request_operation, running_engine

from forewarn.clock import LAST_VIRTUAL_TIME, SystemClock, VirtualClock
from forewarn.core.durations import MAX_DURATION
from forewarn.core.fleet import VM, Fleet, Host
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import OperationStatus
from forewarn.engine.engine import Engine
from forewarn.errors import BadOption
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_at_the_same_time_as_a_new_deadline_is_not_lost(tmp_path: Path, turns: int) -> None:
    clock = SystemClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits())
    await engine.start()
    await engine.last_seen.write()
    for _ in range(20):  # by then it waits for the next deadline
        await asyncio.sleep(0)
    engine._timers.new_earliest.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await engine._scheduler.stop()
        await engine.stop()


async def test_with_the_system_clock_due_events_start_and_end(tmp_path: Path) -> None:
    clock = SystemClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits(speed=1e6))
    over = asyncio.Event()
    engine.subscribe_to_commits(
        lambda changes: over.set() if changes.operations and not engine.live_operations() else None
    )
    await engine.start()
    await engine.apply_fleet(Fleet([VM("vm-0", "vm-0", "a")], hosts=[Host("a")]), by="test")
    await engine.enable("vm-0", by="test")
    assert (await request_operation(engine, "restart", "vm-0")).started_at is None  # NotBefore is the next whole second
    async with asyncio.timeout(20):
        await over.wait()
    await engine.stop()


@pytest.mark.parametrize(("virtual_before", "warnings"), [(True, 1), (False, 0)])
async def test_data_from_the_future_are_warned_of(
    tmp_path: Path, virtual_before: bool, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    for clock in (VirtualClock(START) if virtual_before else SystemClock(), SystemClock()):
        engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits())
        await engine.start()
        await engine.apply_fleet(Fleet([VM("vm-0", "vm-0", "a")]), by="test")
        await engine.stop()
    assert sum("The system clock is behind" in record.message for record in caplog.records) == warnings


@pytest.mark.parametrize("restarted", [False, True])
async def test_work_due_at_the_same_time_is_done_in_the_order_of_the_requests(tmp_path: Path, restarted: bool) -> None:
    names = [f"vm-{number}" for number in range(8)]
    async with running_engine(
        tmp_path, fleet=Fleet([VM(name, name, "a") for name in names], hosts=[Host("a")])
    ) as engine:
        requested = [(await request_operation(engine, "restart", name)).id for name in reversed(names)]
        if not restarted:
            await engine.advance(30 * MINUTE)
    engine, _ = make_engine(tmp_path)
    await engine.start()
    await engine.advance(30 * MINUTE)
    history = await engine.records.history(HistoryFilter(limit=1000))
    await engine.stop()
    for what in ("started", "executed", "completed"):
        assert [entry.operation for entry in history if entry.kind == what] == requested


@pytest.mark.parametrize("speed", [1, 0.001, 1e-6])
async def test_no_time_is_after_the_last_date(speed: float) -> None:
    clock = VirtualClock(LAST_VIRTUAL_TIME - MINUTE)
    limits = OperatorLimits(speed, MAX_DURATION, {"host-update": MAX_DURATION}, max_postponement=MAX_DURATION)
    engine = Engine(clock, SqliteStore(None), SimulatedFabric(clock), limits)
    await engine.start()
    await engine.apply_fleet(Fleet([VM("vm-0", "vm-0", "a")], hosts=[Host("a")]), by="test")
    await engine.enable("vm-0", by="test")
    with pytest.raises(BadOption, match="is at 8999-12-31 23:59:00 UTC and cannot pass 9000"):
        await engine.advance(2 * MINUTE)
    assert await engine.advance(MINUTE) == LAST_VIRTUAL_TIME
    operation = await request_operation(engine, "host-update", host="a", notice=MAX_DURATION)
    assert operation.started_at is None
    await engine.approve(operation.events, "vm-0")
    await engine.last_seen.write()
    assert [live.status for live in engine.live_operations()] == [OperationStatus.STARTED]
    await engine.stop()
