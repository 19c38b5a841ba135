"""The speed of a scenario run on the system clock: its operations and rollouts are faster than others."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import START, make_engine, request_operation, running_engine

from forewarn.core import rollout_commands
from forewarn.core.fleet import VM, Fleet, Group
from forewarn.core.limits import OperatorLimits
from forewarn.core.rollout_commands import plan
from forewarn.core.rollouts import RolloutSettings, RolloutStatus
from forewarn.core.steps import finish
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
SECOND = timedelta(seconds=1)


async def test_notice_and_settle_time_are_shorter_only_for_the_run() -> None:
    async with running_engine() as engine:
        await request_operation(engine, "restart", "db-0", speed=60.0)
        await request_operation(engine, "restart", "web-0")
        quick, plain = engine.live_events()
        assert (quick.not_before, plain.not_before) == (START + 15 * SECOND, START + timedelta(minutes=15))
        await engine.advance(15 * SECOND)
        (started,) = [operation for operation in engine.live_operations() if operation.started_at]
        assert started.settles_at == START + 25 * SECOND
        await engine.advance(10 * SECOND)
        assert [event.group for event in engine.live_events()] == ["web"]


async def test_history_records_the_speed() -> None:
    """A notice below the minimum must be recorded."""
    async with running_engine() as engine:
        operation = await request_operation(engine, "restart", "db-0", speed=60.0, notice=timedelta(minutes=20))
        (requested,) = [
            entry
            for entry in await engine.records.history(HistoryFilter(operation=operation.id))
            if entry.kind == "requested"
        ]
        assert requested.reason == "restart, notice 20s, 60 times faster"


@pytest.mark.parametrize("speed", [0.5, 1.0, 2.0])
async def test_any_speed_is_applied(speed: float) -> None:
    async with running_engine() as engine:
        await request_operation(engine, "restart", "db-0", speed=speed)
        assert engine.live_events()[0].not_before == START + timedelta(minutes=15) / speed


async def test_it_multiplies_the_speed_of_the_service() -> None:
    async with running_engine(limits=OperatorLimits(speed=10, makes_hosts=True)) as engine:
        await request_operation(engine, "restart", "db-0", speed=6.0)
        assert engine.live_events()[0].not_before == START + 15 * SECOND


async def test_a_deletion_has_the_notice_of_its_scale_set_in_proportion() -> None:
    fleet = Fleet(
        [VM("pool_0", "pool", "h")], [Group("pool", "scale-set", 5, 5, terminate_notice=timedelta(minutes=10))]
    )
    async with running_engine(fleet=fleet) as engine:
        await request_operation(engine, "scale-in", "pool_0", speed=60.0)
        assert engine.live_events()[0].not_before == START + 10 * SECOND


async def test_it_outlives_a_restart(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        await request_operation(engine, "live-migration", "db-0", speed=60.0)
        settings = RolloutSettings(speed=60.0)
        await engine.execute(rollout_commands.start, ["host-b"], settings, "tester")
    engine, _ = make_engine(tmp_path)
    await engine.start()
    try:
        assert {operation.request.speed for operation in engine.live_operations()} == {60.0}
        assert [rollout.settings.speed for rollout in engine.live_rollouts()] == [60.0]
        await engine.advance(15 * SECOND)
        settles = {operation.cause: operation.settles_at for operation in engine.live_operations()}
        assert settles == {"live-migration": START + 20 * SECOND, "host-update": START + 25 * SECOND}
    finally:
        await engine.stop()


async def test_a_rollout_runs_as_fast_as_its_plan_says() -> None:
    async with running_engine() as engine:
        settings = RolloutSettings(speed=60.0, pause=timedelta(minutes=5))
        rollout = await engine.execute(rollout_commands.start, ["host-*"], settings, "tester")
        waiting = rollout._replace(pending=("host-a", "host-b"))
        expected = finish(plan(engine.fleet, engine.limits, waiting, START, lambda _: True))
        assert [wave.starts_at for wave in expected.waves] == [START + 15 * SECOND, START + 45 * SECOND]
        assert expected.expected_end == START + 55 * SECOND
        await engine.advance(54 * SECOND)
        assert [found.status for found in engine.live_rollouts()] == [RolloutStatus.RUNNING]
        await engine.advance(SECOND)
        assert engine.live_rollouts() == []
