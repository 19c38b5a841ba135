"""Events of a scope whose VMs are all deallocated are approved automatically, unless the policy says otherwise."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import MINUTE, make_engine, request_operation

from forewarn.core.events import EventStatus
from forewarn.core.fleet import VM, Fleet, FleetChange, Group, Host
from forewarn.core.fleet_commands import PolicyUpdate
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine

FLEET = Fleet(
    [
        VM("pool_0", "pool", "host-a", priority="spot"),
        VM("pool_1", "pool", "host-b", priority="spot"),
        VM("kept_0", "kept", "host-a", priority="spot"),
        VM("db", "db", "host-a", terminate_notice=timedelta(minutes=5)),
    ],
    [Group("pool", "availability-set"), Group("kept", "availability-set", approve_when_down=False)],
    [Host("host-a"), Host("host-b")],
)


@asynccontextmanager
async def service() -> AsyncIterator[Engine]:
    engine, _ = make_engine(limits=OperatorLimits())
    await engine.start()
    try:
        await engine.apply_fleet(FLEET, by="test")
        for scope in ("pool", "kept", "db"):
            await engine.enable(scope, by="test")
        yield engine
    finally:
        await engine.stop()


async def deallocate(engine: Engine, *vms: str) -> None:
    for vm in vms:
        await request_operation(engine, "eviction", vm)
    await engine.advance(2 * MINUTE)
    assert all(engine.fleet.vms[vm].deallocated for vm in vms)


async def update(engine: Engine, host: str = "host-a") -> Operation:
    (operation,) = await engine.execute(request, CauseRequest("host-update", host=host, type="Reboot"), "operator")
    return operation


def events_of(engine: Engine, scope: str) -> list[Event]:
    return [event for event in engine.live_events() if event.scope == scope]


async def test_event_of_a_scope_that_is_down_is_approved() -> None:
    async with service() as engine:
        await deallocate(engine, "pool_0", "pool_1")
        operation = await update(engine)
        (event,) = events_of(engine, "pool")
        assert event.resources == ("pool_0",)
        assert event.approved_at is not None
        rows = await engine.records.history(HistoryFilter(event=event.id))
        assert [(row.kind, row.reason) for row in rows if row.kind == "approved"] == [
            ("approved", "all VMs of pool are deallocated")
        ]
        (pending,) = [one for one in engine.live_operations() if one.id == operation.id]
        assert pending.status is OperationStatus.PENDING  # for db


async def test_work_starts_at_once_if_all_scopes_are_down() -> None:
    async with service() as engine:
        await deallocate(engine, "pool_0", "pool_1")
        operation = await update(engine, "host-b")
        assert operation.status is OperationStatus.STARTED
        (event,) = events_of(engine, "pool")
        assert event.status is EventStatus.STARTED


@pytest.mark.parametrize("vms", [["pool_0"], ["pool_1"]])
async def test_scope_with_a_running_vm_is_not_down(vms: list[str]) -> None:
    async with service() as engine:
        await deallocate(engine, *vms)
        await update(engine)
        assert all(event.approved_at is None for event in engine.live_events())


async def test_policy_keeps_the_notice() -> None:
    async with service() as engine:
        await deallocate(engine, "kept_0")
        await update(engine)
        (event,) = events_of(engine, "kept")
        assert event.approved_at is None
        await engine.set_policy("kept", PolicyUpdate(approve_when_down=True), by="operator")
        await engine.advance(timedelta(hours=1))
        await update(engine)
        (event,) = events_of(engine, "kept")
        assert event.approved_at is not None


@asynccontextmanager
async def deallocated_vm_with_terminate_notice() -> AsyncIterator[Engine]:
    """Run a service with one VM, which is deallocated."""
    fleet = Fleet([VM("solo", "solo", "host-a", priority="spot")], hosts=[Host("host-a")])
    engine, _ = make_engine()
    await engine.start()
    try:
        await engine.apply_fleet(fleet, by="test")
        await engine.enable("solo", by="test")
        await deallocate(engine, "solo")
        # A Spot VM cannot have a terminate notice, but a VM can lose its priority by a file.
        vm = VM("solo", "solo", "host-a", terminate_notice=timedelta(minutes=5))
        await engine.apply_fleet(Fleet([vm], hosts=[Host("host-a")]), by="test")
        yield engine
    finally:
        await engine.stop()


async def test_deletion_of_a_deallocated_vm_is_approved() -> None:
    async with deallocated_vm_with_terminate_notice() as engine:
        operation = await request_operation(engine, "delete", "solo")
        assert operation.status is OperationStatus.STARTED
        (event,) = engine.live_events()
        assert event.approved_at is not None


async def test_scope_is_not_down_while_one_of_its_vms_starts() -> None:
    def start_and_delete(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
        for cause in ("start", "delete"):
            request(draft, now, limits, CauseRequest(cause, ("solo",)), "user")

    async with deallocated_vm_with_terminate_notice() as engine:
        await engine.execute(start_and_delete)
        await engine.advance(4 * MINUTE)
        assert not engine.fleet.vms["solo"].deallocated
        (event,) = engine.live_events()
        assert (event.type, event.status, event.approved_at) == ("Terminate", EventStatus.SCHEDULED, None)


async def test_vm_that_starts_before_the_work_gets_an_event_of_its_own() -> None:
    async with service() as engine:
        await deallocate(engine, "pool_0", "pool_1")
        for host in ("host-b",):  # so that the VM starts on its own host
            await engine.execute(request, CauseRequest("hardware-failure", host=host), "operator")
        operation = await update(engine)
        (first,) = events_of(engine, "pool")
        await request_operation(engine, "start", "pool_0")
        await engine.advance(timedelta(0))
        assert engine.fleet.vms["pool_0"].host == "host-a"
        (second,) = events_of(engine, "pool")
        assert second.id != first.id
        assert second.resources == ("pool_0",)
        assert second.operation == operation.id
        assert second.approved_at is None
        assert second.not_before >= engine.clock.now() + timedelta(minutes=15)


async def test_scope_that_goes_down_later_is_approved() -> None:
    """Its last running VMs are deallocated while the deletion of one waits."""
    fleet = Fleet(
        [VM("set_0", "set", "host-a"), VM("set_1", "set", "host-a")],
        [Group("set", "scale-set", terminate_notice=timedelta(minutes=15))],
        [Host("host-a")],
    )
    engine, _ = make_engine(limits=OperatorLimits())
    await engine.start()
    try:
        await engine.apply_fleet(fleet, by="test")
        await engine.enable("set", by="test")
        await request_operation(engine, "delete", "set_0")
        (event,) = engine.live_events()
        assert event.approved_at is None
        vms = [vm._replace(deallocated=True) for vm in engine.fleet.vms.values()]

        def stop_all(draft: Draft, now: datetime, limits: OperatorLimits) -> None:
            draft.change_fleet(FleetChange(changed=tuple(vms), in_place=True))

        await engine.execute(stop_all)
        (event,) = engine.live_events()
        assert event.status is EventStatus.STARTED
    finally:
        await engine.stop()
