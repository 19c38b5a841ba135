"""VMs that arrive at a host with work ahead of it: none is touched without a notice of its own."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from engines import MINUTE, make_engine, request_operation

from forewarn.core import approvals, arrivals
from forewarn.core.events import EventStatus
from forewarn.core.explain import explain
from forewarn.core.fleet import VM, Fleet, FleetChange, Group, Host, HostState
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.core.rollout_commands import start as start_rollout
from forewarn.core.rollouts import RolloutSettings
from forewarn.core.steps import SLICE_COST
from forewarn.errors import BadOption, HostOutOfService, HostWorkStarted
from forewarn.files.fleet_file import parse_fleet
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.engine.engine import Engine
    from forewarn.fabrics.simulated import SimulatedFabric

NOTICE = timedelta(minutes=15)
FLEET = Fleet(
    [
        VM("x", "x", "host-b"),
        VM("y", "y", "host-a"),
        VM("spot", "spot", "host-a", priority="spot"),
    ],
    hosts=[Host("host-a"), Host("host-b")],
)
ONE_HOST = Fleet([VM("x", "x", "host-b"), VM("y", "y", "host-a")], hosts=[Host("host-a"), Host("host-b")])


@asynccontextmanager
async def service(
    *, spares: bool = False, enabled: bool = True, fleet: Fleet = FLEET
) -> AsyncIterator[tuple[Engine, SimulatedFabric]]:
    engine, fabric = make_engine(limits=OperatorLimits(makes_hosts=spares))
    await engine.start()
    try:
        await engine.apply_fleet(fleet, by="test")
        for scope in {fleet.scope_of(vm) for vm in fleet.vms.values()} if enabled else ():
            await engine.enable(scope, by="test")
        yield engine, fabric
    finally:
        await engine.stop()


async def host_operation(engine: Engine, cause: str, host: str, **options: Any) -> Operation | None:
    operations = await engine.execute(request, CauseRequest(cause, host=host, **options), "operator")
    return operations[0] if operations else None


async def update(engine: Engine, host: str = "host-a", **options: Any) -> Operation:
    operation = await host_operation(engine, "host-update", host, type="Reboot", **options)
    assert operation is not None
    return operation


async def deallocate(engine: Engine, vm: str = "spot") -> None:
    await request_operation(engine, "eviction", vm)
    await engine.advance(2 * MINUTE)
    assert engine.fleet.vms[vm].deallocated


def live(engine: Engine, operation: Operation) -> Operation:
    return next(one for one in engine.live_operations() if one.id == operation.id)


def events_for(engine: Engine, vm: str, cause: str = "") -> list[Event]:
    causes = {operation.id: operation.cause for operation in engine.live_operations()}
    events = [event for event in engine.live_events() if vm in event.resources]
    return [event for event in events if cause in ("", causes[event.operation])]


async def kinds(engine: Engine, operation: Operation) -> list[str]:
    rows = await engine.records.history(HistoryFilter(operation=operation.id))
    return [row.kind for row in rows]


async def approve(engine: Engine, *events: Event) -> None:
    await engine.execute(approvals.approve, [event.id for event in events], "operator")


def changed(fleet: Fleet, *vms: VM) -> Fleet:
    return Fleet({**fleet.vms, **{vm.name: vm for vm in vms}}.values(), fleet.groups.values(), fleet.hosts.values())


async def starts_after_notice(engine: Engine, operation: Operation, vm: str, arrived: datetime) -> None:
    """Check that the VM has an event of its own, and that the work waits for its notice."""
    (event,) = events_for(engine, vm, operation.cause)
    assert event.operation == operation.id
    assert event.resources == (vm,)
    assert event.status is EventStatus.SCHEDULED
    assert event.not_before >= arrived + NOTICE
    await engine.advance(event.not_before - engine.clock.now() - timedelta(seconds=1))
    assert live(engine, operation).status is OperationStatus.PENDING
    await engine.advance(timedelta(seconds=1))
    assert live(engine, operation).status is OperationStatus.STARTED
    assert vm in live(engine, operation).vms


# --- Ways to a host ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["host-update", "emergency-repair"])
async def test_move_in_progress_lands_before_the_work(cause: str) -> None:
    async with service() as (engine, fabric):
        fabric.delay = 20 * MINUTE
        move = await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        assert live(engine, move).moves == (("x", "host-a"),)
        operation = await host_operation(engine, cause, "host-a", type="Reboot")
        assert operation is not None
        await engine.advance(NOTICE)
        assert live(engine, operation).status is OperationStatus.PENDING
        await engine.advance(5 * MINUTE)
        assert engine.fleet.vms["x"].host == "host-a"
        fabric.delay = None
        await starts_after_notice(engine, operation, "x", engine.clock.now())


async def test_start_in_progress_lands_before_the_work() -> None:
    async with service() as (engine, fabric):
        await deallocate(engine)
        fabric.delay = 20 * MINUTE
        await request_operation(engine, "start", "spot")
        operation = await update(engine)
        await engine.advance(19 * MINUTE)
        assert live(engine, operation).status is OperationStatus.PENDING
        found = explain(engine.draft(), engine.limits, live(engine, operation), None)
        (wait,) = [wait for wait in found.waits if wait.kind == "arrival"]
        assert wait.text.startswith("spot, on the way to host-a (operation ")
        assert found.latest is None, "the start can take longer than the notice"
        await engine.advance(MINUTE)
        assert not engine.fleet.vms["spot"].deallocated
        fabric.delay = None
        await starts_after_notice(engine, operation, "spot", engine.clock.now())


async def test_start_avoids_a_host_with_pending_work() -> None:
    async with service() as (engine, _):
        await deallocate(engine)
        await update(engine)
        await request_operation(engine, "start", "spot")
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["spot"].host == "host-b"


async def test_start_on_a_host_with_pending_work_is_notified() -> None:
    fleet = Fleet([FLEET.vms["y"], FLEET.vms["spot"]], hosts=[Host("host-a")])
    async with service(fleet=fleet) as (engine, _):
        await deallocate(engine)
        operation = await update(engine)
        await engine.advance(5 * MINUTE)
        await request_operation(engine, "start", "spot")
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["spot"].host == "host-a"
        await starts_after_notice(engine, operation, "spot", engine.clock.now())


async def test_start_on_a_host_of_a_rollout_is_notified() -> None:
    fleet = Fleet([FLEET.vms["y"], FLEET.vms["spot"]], hosts=[Host("host-a")])
    async with service(fleet=fleet) as (engine, _):
        await deallocate(engine)
        rollout = await engine.execute(start_rollout, ["host-a"], RolloutSettings(type="Reboot"), "operator")
        await request_operation(engine, "start", "spot")
        await engine.advance(timedelta(0))
        ((_, operation_id),) = next(one for one in engine.live_rollouts() if one.id == rollout.id).in_progress
        operation = next(one for one in engine.live_operations() if one.id == operation_id)
        await starts_after_notice(engine, operation, "spot", engine.clock.now())


async def test_start_is_rejected_while_its_host_is_being_updated() -> None:
    fleet = Fleet([FLEET.vms["y"], FLEET.vms["spot"]], hosts=[Host("host-a")])
    async with service(fleet=fleet) as (engine, fabric):
        await deallocate(engine)
        operation = await update(engine)
        fabric.delay = 20 * MINUTE
        await engine.advance(NOTICE)
        with pytest.raises(HostWorkStarted, match=operation.id):
            await request_operation(engine, "start", "spot")
        await engine.advance(20 * MINUTE)
        fabric.delay = None
        await request_operation(engine, "start", "spot")  # the work is done
        await engine.advance(timedelta(0))
        assert not engine.fleet.vms["spot"].deallocated


@pytest.mark.parametrize(("cause", "state"), [("degraded-hardware", "degraded"), ("hardware-failure", "failed")])
async def test_start_is_rejected_on_a_host_out_of_service(cause: str, state: str) -> None:
    fleet = Fleet([FLEET.vms["spot"]], hosts=[Host("host-a")])
    async with service(fleet=fleet) as (engine, _):
        await deallocate(engine)
        await host_operation(engine, cause, "host-a")
        with pytest.raises(HostOutOfService, match=state):
            await request_operation(engine, "start", "spot")


async def test_start_leaves_a_host_out_of_service() -> None:
    async with service(spares=True, fleet=Fleet([FLEET.vms["spot"]], hosts=[Host("host-a")])) as (engine, _):
        await deallocate(engine)
        await host_operation(engine, "hardware-failure", "host-a")
        await request_operation(engine, "start", "spot")
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["spot"].host == "spare-1"


@pytest.mark.parametrize("way", ["added", "moved"])
async def test_fleet_file_brings_a_vm(way: str) -> None:
    async with service() as (engine, _):
        operation = await update(engine)
        await engine.advance(5 * MINUTE)
        vm = VM("z", "z", "host-a") if way == "added" else VM("x", "x", "host-a")
        await engine.apply_fleet(changed(FLEET, vm), by="operator")
        if way == "added":  # it has never polled
            assert "not-notified" in await kinds(engine, operation)
            assert live(engine, operation).not_notified == (("z", "z has never polled"),)
        else:
            await starts_after_notice(engine, operation, "x", engine.clock.now())


async def test_vm_moves_into_an_enabled_group_by_fleet_file() -> None:
    group = Group("db", "availability-set")
    vms = [VM("db-0", "db", "host-b"), VM("y", "y", "host-a"), VM("new", "new", "host-a")]
    fleet = Fleet(vms, [group], [Host("host-a"), Host("host-b")])
    async with service(fleet=fleet, enabled=False) as (engine, _):
        for scope in ("db", "y"):
            await engine.enable(scope, by="test")
        operation = await update(engine)
        await engine.advance(5 * MINUTE)
        await engine.apply_fleet(changed(fleet, VM("new", "db", "host-a")), by="operator")
        (event,) = events_for(engine, "new")
        assert event.scope == "db"
        await starts_after_notice(engine, operation, "new", engine.clock.now())


# --- Hosts that fail or degrade while a VM is on its way -----------------------------------------------


async def test_vm_lands_on_a_failed_host() -> None:
    async with service(spares=True) as (engine, fabric):
        fabric.delay = 20 * MINUTE
        await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        await host_operation(engine, "hardware-failure", "host-a")
        await engine.advance(20 * MINUTE)
        (event,) = events_for(engine, "x", "hardware-failure")
        assert event.status is EventStatus.STARTED
        assert event.resources == ("x",)
        await engine.advance(20 * MINUTE)
        assert engine.fleet.host(engine.fleet.vms["x"].host).state is HostState.IN_SERVICE


async def test_vm_lands_on_a_degraded_host() -> None:
    async with service() as (engine, fabric):
        fabric.delay = 20 * MINUTE
        await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        await host_operation(engine, "degraded-hardware", "host-a")
        await engine.advance(20 * MINUTE)
        (event,) = events_for(engine, "x", "degraded-hardware")
        assert event.not_before >= engine.clock.now() + timedelta(days=7)


async def test_vm_lands_on_a_failed_host_while_it_is_to_leave_another_one() -> None:
    """The host that it is on has failed, too. It gets there by an order that was given before."""
    fleet = Fleet([VM("x", "x", "host-b")], hosts=[Host("host-a"), Host("host-b")])
    async with service(fleet=fleet) as (engine, fabric):
        fabric.delay = 20 * MINUTE
        await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        await engine.advance(5 * MINUTE)
        await host_operation(engine, "hardware-failure", "host-a")
        await host_operation(engine, "hardware-failure", "host-b")
        await engine.advance(15 * MINUTE)
        assert engine.fleet.vms["x"].host == "host-a"
        hosts = {live.host for live in engine.live_operations() if live.cause == "hardware-failure"}
        assert hosts == {"host-a", "host-b"}


# --- The event of a newcomer ------------------------------------------------------------------------------


async def test_newcomers_of_one_scope_have_their_own_events() -> None:
    """An event never grows: the scope approves each of them."""
    fleet = Fleet(
        [VM("db-0", "db", "host-a"), VM("db-1", "db", "host-b"), VM("db-2", "db", "host-b")],
        [Group("db", "availability-set")],
        [Host("host-a"), Host("host-b")],
    )
    async with service(fleet=fleet) as (engine, _):
        operation = await update(engine)
        (first,) = engine.live_events()
        await engine.apply_fleet(changed(fleet, VM("db-1", "db", "host-a")), by="operator")
        assert {event.resources for event in engine.live_events()} == {("db-0",), ("db-1",)}
        await approve(engine, first)
        assert live(engine, operation).status is OperationStatus.PENDING
        await approve(engine, *events_for(engine, "db-1"))
        assert live(engine, operation).status is OperationStatus.STARTED


async def test_newcomers_of_one_scope_that_come_together_share_an_event() -> None:
    vms = [VM(f"db-{number}", "db", "host-b") for number in range(3)]
    fleet = Fleet([VM("y", "y", "host-a"), *vms], [Group("db", "availability-set")], [Host("host-a"), Host("host-b")])
    async with service(fleet=fleet) as (engine, _):
        operation = await update(engine)
        await engine.apply_fleet(changed(fleet, *(vm._replace(host="host-a") for vm in vms)), by="operator")
        assert {event.resources for event in engine.live_events()} == {("y",), ("db-0", "db-1", "db-2")}
        assert live(engine, operation).vms == ("y", "db-0", "db-1", "db-2")


async def test_vm_moves_into_a_group_that_was_enabled_after_the_request() -> None:
    """The group was not notified of the work. The VM was not in it then."""
    group = Group("db", "availability-set")
    vms = [VM("db-0", "db", "host-a"), VM("y", "y", "host-a"), VM("new", "new", "host-a")]
    fleet = Fleet(vms, [group], [Host("host-a"), Host("host-b")])
    async with service(fleet=fleet, enabled=False) as (engine, _):
        await engine.enable("y", by="test")
        operation = await update(engine)
        assert dict(live(engine, operation).not_notified).keys() == {"db", "new"}
        await engine.enable("db", by="test")
        await engine.apply_fleet(changed(fleet, VM("new", "db", "host-a")), by="operator")
        await starts_after_notice(engine, operation, "new", engine.clock.now())


async def test_vm_that_returns_to_the_host_is_notified_again() -> None:
    async with service() as (engine, _):
        operation = await update(engine)
        (first,) = events_for(engine, "y")
        await engine.apply_fleet(changed(FLEET, VM("y", "y", "host-b")), by="operator")
        await engine.advance(5 * MINUTE)
        await engine.apply_fleet(FLEET, by="operator")
        (second,) = events_for(engine, "y")
        assert second.id != first.id
        await starts_after_notice(engine, operation, "y", engine.clock.now())


async def test_newcomer_without_notice_cancels_work_that_requires_notice() -> None:
    async with service() as (engine, _):
        operation = await update(engine, require_notice=True)
        await engine.apply_fleet(changed(FLEET, VM("z", "z", "host-a")), by="operator")
        assert operation.id not in {one.id for one in engine.live_operations()}
        found = await engine.records.operation(operation.id)
        assert found is not None
        assert found.status is OperationStatus.CANCELLED
        assert "z has never polled" in found.reason


async def test_newcomer_of_work_with_a_short_notice_gets_a_short_notice() -> None:
    async with service() as (engine, _):
        await update(engine, notice=10 * MINUTE, overrides=("notice",))
        await engine.advance(5 * MINUTE)
        await engine.apply_fleet(changed(FLEET, VM("x", "x", "host-a")), by="operator")
        (event,) = events_for(engine, "x")
        assert event.not_before - engine.clock.now() == 10 * MINUTE


async def test_newcomer_starts_with_the_others_of_a_long_notice() -> None:
    async with service() as (engine, _):
        await update(engine, notice=timedelta(hours=2))
        (other,) = events_for(engine, "y")
        await engine.apply_fleet(changed(FLEET, VM("x", "x", "host-a")), by="operator")
        (event,) = events_for(engine, "x")
        assert event.not_before == other.not_before


# --- Several changes in one command ---------------------------------------------------------------------


async def test_work_waits_until_all_that_arrive_together_are_named() -> None:
    """A VM without notice, and one that gets a notice, land in one command."""
    fleet = changed(FLEET, VM("z", "z", "host-b"))
    async with service(fleet=fleet, enabled=False) as (engine, fabric):
        for scope in ("x", "y", "spot"):
            await engine.enable(scope, by="test")
        fabric.delay = 5 * MINUTE
        await engine.execute(request, CauseRequest("live-migration", vms=("z", "x")), "operator")
        await approve(engine, *events_for(engine, "x"))
        operation = await update(engine)
        await approve(engine, *events_for(engine, "y"), *events_for(engine, "spot"))
        await engine.advance(5 * MINUTE)
        fabric.delay = None
        assert engine.fleet.vms["x"].host == engine.fleet.vms["z"].host == "host-a"
        await starts_after_notice(engine, operation, "x", engine.clock.now())


async def test_work_waits_if_a_fleet_file_replaces_the_only_vm_of_its_host() -> None:
    async with service(fleet=ONE_HOST) as (engine, _):
        operation = await update(engine)
        swapped = changed(ONE_HOST, VM("x", "x", "host-a"), VM("y", "y", "host-b"))
        await engine.apply_fleet(swapped, by="operator")
        await starts_after_notice(engine, operation, "x", engine.clock.now())


async def test_work_that_waits_for_a_vm_starts_when_a_fabric_puts_it_elsewhere() -> None:
    fleet = Fleet([VM("x", "x", "host-b"), VM("y", "y", "host-a")], hosts=[Host(f"host-{name}") for name in "abc"])
    async with service(fleet=fleet) as (engine, fabric):
        fabric.delay, fabric.chosen_hosts = 5 * MINUTE, {"x": "host-b"}
        move = await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        ((_, bound_for),) = live(engine, move).moves
        operation = await update(engine, bound_for)
        await engine.advance(MINUTE)
        assert live(engine, operation).status is OperationStatus.PENDING
        await engine.advance(4 * MINUTE)
        assert live(engine, operation).status is OperationStatus.STARTED


# --- Hosts that a fleet file names ---------------------------------------------------------------------


@pytest.mark.parametrize("way", ["added", "moved"])
@pytest.mark.parametrize("cause", ["degraded-hardware", "hardware-failure"])
async def test_fleet_file_cannot_use_a_host_out_of_service(cause: str, way: str) -> None:
    async with service() as (engine, _):
        await host_operation(engine, cause, "host-a")
        name = "z" if way == "added" else "x"
        with pytest.raises(HostOutOfService, match=f"{name} cannot be placed on host-a"):
            await engine.apply_fleet(changed(FLEET, VM(name, name, "host-a")), by="operator")
        assert engine.fleet.vms["x"].host == "host-b"
        assert "z" not in engine.fleet.vms


async def test_fleet_file_cannot_use_a_host_with_started_work() -> None:
    async with service() as (engine, fabric):
        operation = await update(engine)
        fabric.delay = 20 * MINUTE
        await engine.advance(NOTICE)
        with pytest.raises(HostWorkStarted, match=operation.id):
            await engine.apply_fleet(changed(FLEET, VM("z", "z", "host-a")), by="operator")
        await engine.advance(20 * MINUTE)
        await engine.apply_fleet(changed(FLEET, VM("z", "z", "host-a")), by="operator")  # the work is done
        assert engine.fleet.vms["z"].host == "host-a"


async def test_host_is_at_work_although_a_fleet_file_removes_one_of_its_vms() -> None:
    async with service() as (engine, fabric):
        operation = await update(engine)
        fabric.delay = 20 * MINUTE
        await engine.advance(NOTICE)
        without = Fleet([vm for vm in FLEET.vms.values() if vm.name != "y"], hosts=FLEET.hosts.values())
        await engine.apply_fleet(without, by="operator", force=True)
        assert [event.resources for event in engine.live_events()] == [("spot",)]
        with pytest.raises(HostWorkStarted, match=operation.id):
            await engine.apply_fleet(changed(without, VM("z", "z", "host-a")), by="operator")
        await engine.advance(30 * MINUTE)
        found = await engine.records.operation(operation.id)
        assert found is not None
        assert (found.status, found.vms) == (OperationStatus.DONE, ("spot",))


async def test_vm_on_its_way_arrives_although_a_fleet_file_changes_its_group() -> None:
    fleet = Fleet([VM("x", "x", "host-b")], [Group("db", "availability-set")], [Host("host-a"), Host("host-b")])
    async with service(fleet=fleet) as (engine, fabric):
        fabric.delay = 20 * MINUTE
        await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        await engine.apply_fleet(changed(fleet, VM("x", "db", "host-b")), by="operator", force=True)
        assert not engine.live_events()
        operation = await update(engine)
        await engine.advance(20 * MINUTE)
        assert engine.fleet.vms["x"].host == "host-a"
        assert live(engine, operation).not_notified == (("db", "db has never polled"),)


async def test_work_does_not_wait_for_a_vm_that_a_fleet_file_has_removed() -> None:
    fleet = Fleet([VM(name, name, "host-b") for name in "xz"], hosts=[Host("host-a"), Host("host-b")])
    async with service(fleet=fleet) as (engine, fabric):
        fabric.delay, fabric.chosen_hosts = 20 * MINUTE, {"z": "host-b"}
        await engine.execute(request, CauseRequest("live-migration", vms=("x", "z")), "operator")
        await approve(engine, *events_for(engine, "x"), *events_for(engine, "z"))
        operation = await update(engine)
        await engine.apply_fleet(Fleet([fleet.vms["z"]], hosts=fleet.hosts.values()), by="operator", force=True)
        assert live(engine, operation).status is OperationStatus.PENDING, "z is on its way"
        await engine.advance(20 * MINUTE)
        assert live(engine, operation).status is OperationStatus.STARTED


@pytest.mark.parametrize(("cause", "host"), [("delete", "host-b"), ("redeploy", "host-b"), ("host-update", "host-a")])
async def test_vm_that_a_fleet_file_adds_again_is_another_vm(cause: str, host: str) -> None:
    vm = VM("x", "x", host)
    async with service(fleet=changed(FLEET, vm), enabled=False) as (engine, fabric):
        fabric.delay = None if cause == "host-update" else 20 * MINUTE
        operation = await (update(engine) if cause == "host-update" else request_operation(engine, cause, "x"))
        await engine.advance(MINUTE)
        assert live(engine, operation).status is OperationStatus.STARTED
        without = Fleet([one for one in FLEET.vms.values() if one.name != "x"], hosts=FLEET.hosts.values())
        await engine.apply_fleet(without, by="operator")
        await engine.apply_fleet(changed(without, vm), by="operator")
        assert not engine.preview(lambda draft, now, limits: draft.operations_on("x"))[0]
        assert [one.vms for one in engine.live_operations()] == ([("y", "spot")] if cause == "host-update" else [])
        await engine.advance(30 * MINUTE)
        assert engine.fleet.vms["x"].host == host


async def test_fleet_file_with_the_same_hosts_is_applied() -> None:
    async with service() as (engine, _):
        await host_operation(engine, "degraded-hardware", "host-a")
        await engine.apply_fleet(changed(FLEET, VM("y", "y", "host-a", size="large")), by="operator")
        assert engine.fleet.vms["y"].size == "large"


def set_of_vms(count: int) -> Fleet:
    return parse_fleet(
        f"""
        [[host]]
        name = "host-a"
        [[host]]
        name = "host-b"
        [[vm]]
        name = "one"
        host = "host-a"
        [[vm]]
        name = "set-{{n}}"
        count = {count}
        hosts = ["host-a", "host-b"]
        """,
        "test",
    )


async def test_new_vm_of_a_set_avoids_a_host_with_work() -> None:
    async with service(fleet=set_of_vms(2)) as (engine, _):
        await host_operation(engine, "degraded-hardware", "host-a")
        await engine.apply_fleet(set_of_vms(3), by="operator")
        assert engine.fleet.vms["set-2"].host == "host-b"
        await engine.apply_fleet(set_of_vms(4), by="operator")
        hosts = [engine.fleet.vms[f"set-{number}"].host for number in range(4)]
        assert hosts == ["host-a", "host-b", "host-b", "host-b"]


async def test_new_vms_of_a_set_are_spread_over_the_hosts_without_work() -> None:
    def declared(count: int) -> Fleet:
        hosts = [f"host-{number}" for number in range(6)]
        tables = [f'[[host]]\nname = "{host}"\n' for host in hosts]
        tables += [f'[[vm]]\nname = "set-{{n}}"\ncount = {count}\nhosts = {json.dumps(hosts)}\n']
        return parse_fleet("".join(tables), "test")

    async with service(fleet=declared(1), spares=True) as (engine, _):
        for number in range(3):
            await update(engine, f"host-{number}")
        await engine.apply_fleet(declared(19), by="operator")
        found = Counter(vm.host for vm in engine.fleet.vms.values())
        assert found == {"host-0": 1, **{f"host-{number}": 6 for number in range(3, 6)}}


def test_vms_of_a_set_share_the_list_of_their_hosts() -> None:
    choices = set_of_vms(3).host_choices
    assert len({id(hosts) for hosts in choices.values()}) == 1


# --- Hosts that a fabric chooses ------------------------------------------------------------------------


async def test_fabric_reports_the_host_that_it_has_chosen() -> None:
    async with service(fleet=ONE_HOST) as (engine, fabric):
        operation = await update(engine)
        fabric.chosen_hosts = {"x": "host-a"}
        move = await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        assert live(engine, move).moves == ()  # Forewarn sends nobody to a host with pending work
        await engine.advance(timedelta(0))
        assert live(engine, move).moves == (("x", "host-a"),)
        assert engine.fleet.vms["x"].host == "host-a"
        await starts_after_notice(engine, operation, "x", engine.clock.now())


async def test_reported_hosts_that_cannot_be_are_ignored() -> None:
    async with service() as (engine, fabric):
        fabric.chosen_hosts = {"x": "host-c", "y": "host-b"}
        move = await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["x"].host == "host-a"
        assert engine.fleet.vms["y"].host == "host-a"
        rows = await engine.records.history(HistoryFilter(operation=move.id))
        (reason,) = [row.reason for row in rows if row.kind == "executed"]
        assert reason == "redeploy: x to host-a; ignored, because they are not in the fleet: x to host-c"


async def test_operator_says_where_the_vms_are() -> None:
    async with service(fleet=ONE_HOST) as (engine, fabric):
        await host_operation(engine, "degraded-hardware", "host-a")
        fabric.lost_orders = 1
        move = await request_operation(engine, "redeploy", "x")
        await approve(engine, *events_for(engine, "x"))
        for placed in ({"x": "host-c"}, {"y": "host-b"}):
            with pytest.raises(BadOption, match="Invalid host"):
                await engine.mark_done(move.id, "operator", placed)
        await engine.mark_done(move.id, "operator", {"x": "host-a"})
        assert engine.fleet.vms["x"].host == "host-a"
        assert [event.status for event in events_for(engine, "x", "degraded-hardware")] == [EventStatus.SCHEDULED]


async def test_fabric_that_chooses_a_host_during_its_work_is_recorded() -> None:
    async with service(fleet=ONE_HOST) as (engine, fabric):
        operation = await update(engine)
        move = await request_operation(engine, "redeploy", "x")
        fabric.delay, fabric.chosen_hosts = 5 * MINUTE, {"x": "host-a"}
        await approve(engine, *events_for(engine, "y"))
        await engine.advance(timedelta(0))
        fabric.delay = MINUTE
        await approve(engine, *events_for(engine, "x"))
        assert live(engine, move).moves == ()
        await engine.advance(MINUTE)
        rows = await engine.records.history(HistoryFilter(operation=operation.id))
        assert [row.reason for row in rows if row.kind == "not-notified"] == [
            "x arrived while the work was in progress"
        ]


async def test_fleet_file_does_not_move_a_vm_back_that_a_fabric_has_put_beside_another_domain() -> None:
    fleet = Fleet(
        [VM("web-0", "web", "host-a", update_domain=0), VM("web-1", "web", "host-b", update_domain=1)],
        [Group("web", "availability-set", 2)],
        [Host("host-a"), Host("host-b")],
    )
    async with service(fleet=fleet) as (engine, fabric):
        fabric.chosen_hosts = {"web-0": "host-b"}
        await request_operation(engine, "redeploy", "web-0")
        await approve(engine, *events_for(engine, "web-0"))
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["web-0"].host == "host-b"
        await engine.apply_fleet(changed(fleet, VM("new", "new", "host-a")), by="operator")
        assert engine.fleet.vms["web-0"].host == "host-b"


async def test_the_search_for_arrivals_in_a_large_fleet_is_work_in_steps() -> None:
    """Otherwise no poll is answered meanwhile, and a leader with a million VMs loses its lease."""
    vms = [VM(f"v{number}", f"v{number}", "host-a", size="large") for number in range(1000)]
    async with service(fleet=Fleet(vms, hosts=FLEET.hosts.values()), enabled=False) as (engine, _):
        changes = FleetChange(changed=tuple(vm._replace(size="small") for vm in vms))
        draft = engine.draft()
        draft.change_fleet(changes)
        costs = list(arrivals.follow_up(draft, engine.clock.now(), OperatorLimits()))
    assert max(costs) <= SLICE_COST
    assert sum(costs) >= len(vms), "a step costs as much as it has looked at"
