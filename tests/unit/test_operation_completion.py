"""Operations complete in all circumstances, and affect no VM without notice."""

from __future__ import annotations

import asyncio
import gc
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engines import MINUTE, approve, make_engine, request_operation, running_engine

from forewarn.core import fleet_commands, rollout_commands
from forewarn.core.fleet import VM, Fleet, Group, Host
from forewarn.core.fleet_commands import PolicyUpdate
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.rollout_commands import plan
from forewarn.core.rollouts import RolloutSettings, RolloutStatus
from forewarn.core.steps import finish
from forewarn.core.windows import parse_window
from forewarn.errors import NotLeading, StoreFailed
from forewarn.ports import HistoryFilter, ListFilter

if TYPE_CHECKING:
    import pytest

    from forewarn.engine.engine import Engine

DAY = timedelta(days=1)
HOSTS = [Host("a"), Host("b"), Host("c")]
SHARED = Fleet(
    [VM("spot_0", "spot", "a", priority="spot"), VM("plain", "plain", "a")], [Group("spot", "scale-set", 5, 5)], HOSTS
)


def event_of(engine: Engine, group: str) -> str:
    (event,) = engine.document(group).events
    return event.id


async def test_a_failure_is_written_though_the_disk_failed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(SHARED, by="test")
    await engine.enable("plain", by="test")
    operation = await request_operation(engine, "restart", "plain")
    fabric.permanent_failures = 1
    store, commit, left = engine._writer._store, engine._writer._store.commit, [1]

    def failing(changes: Any) -> None:
        if any(one.status is OperationStatus.FAILED for one in changes.operations.values()) and left:
            left.pop()
            raise StoreFailed(problem="no room")
        commit(changes)

    monkeypatch.setattr(store, "commit", failing)
    await approve(engine, *operation.events, by="plain")
    await engine.advance(MINUTE)
    ended = await engine.records.operation(operation.id)
    assert ended is not None
    assert (ended.status, left) == (OperationStatus.FAILED, [])
    await engine.stop()


async def test_work_that_ends_while_another_node_takes_over_leaves_no_error_that_nobody_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine, _ = make_engine()
    await engine.start()
    await engine.apply_fleet(SHARED, by="test")
    await engine.enable("plain", by="test")
    operation = await request_operation(engine, "restart", "plain")
    store, commit = engine._writer._store, engine._writer._store.commit
    committing, deposed = threading.Event(), threading.Event()

    def rejected(changes: Any) -> int:
        if any(one.executed_at is not None for one in changes.operations.values()):
            committing.set()
            deposed.wait(30)
            raise NotLeading
        return commit(changes)

    monkeypatch.setattr(store, "commit", rejected)
    unread: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context["message"]))
    await approve(engine, *operation.events, by="plain")
    moving = asyncio.create_task(engine.advance(MINUTE))
    assert await asyncio.to_thread(committing.wait, 30)
    following = asyncio.create_task(engine.follow())
    while engine._executor._tasks:  # noqa: ASYNC110 - tasks have no event for it
        await asyncio.sleep(0)
    deposed.set()
    await following
    await engine.run_in_store_thread(gc.collect)  # the thread has forgotten the commit
    assert unread == []
    moving.cancel()
    monkeypatch.undo()
    await engine.stop()


async def test_a_vm_that_returns_is_not_affected_by_its_cancelled_operation() -> None:
    async with running_engine(fleet=SHARED) as engine:
        update = await request_operation(engine, "host-update", host="a", type="Reboot")
        await request_operation(engine, "eviction", "spot_0")
        await engine.advance(2 * MINUTE)
        assert engine.document("spot").events == ()
        await request_operation(engine, "start", "spot_0")
        await engine.advance(MINUTE)
        assert not engine.fleet.vms["spot_0"].deallocated
        await approve(engine, event_of(engine, "plain"), by="plain")
        (started,) = [one for one in engine.live_operations() if one.id == update.id]
        assert (started.status, started.vms) == (OperationStatus.STARTED, ("plain",))
        assert engine.document("spot").events == ()


async def test_a_changed_window_does_not_block_an_operation_forever() -> None:
    groups = [Group("spot", "scale-set", 5, 5, windows=(parse_window("daily 22:00 1h"),))]
    async with running_engine(fleet=Fleet(SHARED.vms.values(), groups, HOSTS)) as engine:
        await request_operation(engine, "host-update", host="a")
        await approve(engine, event_of(engine, "plain"), by="plain")
        await engine.execute(
            fleet_commands.set_policy, "spot", PolicyUpdate(windows=(parse_window("daily 03:00 1h"),)), "operator"
        )
        await engine.advance(2 * DAY)
        assert not engine.live_operations()


async def test_vms_that_move_together_consider_each_others_targets() -> None:
    vms = [VM(f"v{number}", f"v{number}", "a", zone=str(number % 2)) for number in range(4)]
    async with running_engine(fleet=Fleet(vms, hosts=HOSTS)) as engine:
        await request_operation(engine, "hardware-failure", host="a")
        await engine.advance(MINUTE)
        zones: dict[str, set[str]] = {}
        for vm in engine.fleet.vms.values():
            zones.setdefault(vm.host, set()).add(vm.zone)
        assert all(len(found) == 1 for found in zones.values()), "two zones share a host"
        assert set(zones) == {"b", "c"}


async def test_a_host_that_fails_while_its_update_is_announced_is_left_out_of_the_rollout() -> None:
    async with running_engine(fleet=SHARED) as engine:
        rollout = await engine.execute(rollout_commands.start, ["*"], RolloutSettings(), "operator")
        await request_operation(engine, "hardware-failure", host="a")
        await engine.advance(DAY)
        ((_, ended),) = await engine.records.rollouts(ListFilter(live=False))
        assert (ended.id, ended.status) == (rollout.id, RolloutStatus.DONE)
        assert ended.skipped == (("a", "the host is failed"),)
        assert "a" not in ended.done


async def test_a_rollout_ends_when_a_new_policy_leaves_no_window_in_common() -> None:
    groups = [Group("spot", "scale-set", 5, 5), Group("plain", "standalone")]
    async with running_engine(fleet=Fleet(SHARED.vms.values(), groups, HOSTS)) as engine:
        await engine.execute(rollout_commands.start, ["a"], RolloutSettings(), "operator")
        for group, text in (("spot", "daily 02:00 1h"), ("plain", "daily 14:00 1h")):
            await engine.execute(
                fleet_commands.set_policy, group, PolicyUpdate(windows=(parse_window(text),)), "operator"
            )
        await engine.advance(20 * DAY)
        assert not engine.live_rollouts()
        assert not engine.live_events()


async def test_a_plan_leaves_out_hosts_that_have_left_the_fleet() -> None:
    async with running_engine(fleet=SHARED) as engine:
        rollout = await engine.execute(rollout_commands.start, ["*"], RolloutSettings(max_unavailable=1), "operator")
        assert "c" in rollout.pending
        await engine.apply_fleet(Fleet(SHARED.vms.values(), SHARED.groups.values(), HOSTS[:2]), by="operator")
        made = finish(plan(engine.fleet, engine.limits, rollout, engine.clock.now(), lambda _: True))
        assert ("c", "the host left the fleet") in made.skipped


async def test_an_operation_that_a_forced_file_ended_is_not_executed() -> None:
    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(SHARED, by="test")
    await engine.enable("plain", by="test")
    fabric.lost_orders = 1
    operation = await request_operation(engine, "restart", "plain")
    await approve(engine, *operation.events, by="plain")
    fewer = [vm for vm in SHARED.vms.values() if vm.name != "plain"]
    await engine.apply_fleet(Fleet(fewer, SHARED.groups.values(), HOSTS), by="operator", force=True)
    await engine.advance(MINUTE)
    assert len(engine._executor) == 0
    await engine.stop()


async def test_a_migration_made_obsolete_by_two_redeploys_is_cancelled_once() -> None:
    async with running_engine(fleet=SHARED) as engine:
        moving = await request_operation(engine, "live-migration", "plain")
        await request_operation(engine, "redeploy", "plain")
        await engine.request(CauseRequest("degraded-hardware", host="a", type="Redeploy"), "user")
        redeploys = [event.id for event in engine.document("plain").events if event.operation != moving.id]
        await approve(engine, *redeploys, by="plain")
        await engine.advance(MINUTE)
        history = await engine.records.history(HistoryFilter(operation=moving.id))
        assert [entry.event for entry in history if entry.kind == "cancelled"] == [*moving.events, ""]
