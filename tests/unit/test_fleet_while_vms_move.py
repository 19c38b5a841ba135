"""A fleet file is applied while other commands change the fleet: it arrives after a bounded number of attempts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from engines import MINUTE, make_engine, running_engine

from forewarn.core import placement
from forewarn.core.fleet import VM, Fleet, FleetChange, Host, difference
from forewarn.core.fleet_commands import apply_fleet
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request
from forewarn.core.steps import SLICE_COST

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.state import Draft
    from forewarn.engine.engine import AppliedFleet, Engine

HOSTS = [Host("host-a"), Host("host-b")]
VMS = [VM(f"vm-{number}", f"vm-{number}", "host-a") for number in range(500)]
MOST_MOVES = 300


def move(draft: Draft, now: datetime, limits: OperatorLimits, name: str, host: str) -> None:
    vm = placement.moved(draft.fleet.vm(name), host)
    draft.change_fleet(FleetChange(changed=(vm,), in_place=True))


async def keep_moving(engine: Engine, applied: asyncio.Task[AppliedFleet]) -> int:
    """Move a VM to and fro until the fleet is applied. Returns how often."""
    for count in range(MOST_MOVES):
        if applied.done():
            return count
        await engine.execute(move, "vm-0", ("host-b", "host-a")[count % 2])
    return MOST_MOVES


@pytest.mark.parametrize("dry_run", [False, True])
async def test_it_arrives_although_a_vm_moves_all_the_time(dry_run: bool) -> None:
    async with running_engine(fleet=Fleet(VMS, hosts=HOSTS), enable_groups=False) as engine:
        more = Fleet([*VMS, VM("new", "new", "host-b")], hosts=HOSTS)
        applying = asyncio.create_task(engine.apply_fleet(more, by="operator", dry_run=dry_run))
        assert await keep_moving(engine, applying) < MOST_MOVES
        assert [vm.name for vm in applying.result().change.added] == ["new"]
        assert ("new" in engine.fleet.vms) is not dry_run


async def test_it_is_decided_on_the_fleet_that_the_writer_has_then() -> None:
    async with running_engine(fleet=Fleet(VMS, hosts=HOSTS), enable_groups=False) as engine:
        more = Fleet([*VMS, VM("new", "new", "host-b")], hosts=HOSTS)
        applying = asyncio.create_task(engine.apply_fleet(more, by="operator"))
        await asyncio.sleep(0)  # the difference is being computed
        await engine.execute(move, "vm-3", "host-b")
        change = (await applying).change
        moved = engine.fleet.vm("vm-3")
        assert (moved.host, moved.configured_host) == ("host-b", "host-a"), "it stays where it was moved"
        assert not change.changed


async def test_it_does_not_wait_for_a_vm_that_starts_on_its_own_host() -> None:
    engine, fabric = make_engine()
    await engine.start()
    try:
        fleet = Fleet([VM("alone", "alone", "alone-host", deallocated=True)])
        await engine.apply_fleet(fleet, by="test")
        fabric.delay = MINUTE
        await engine.execute(request, CauseRequest("start", ("alone",)), "user")
        applying = engine.apply_fleet(Fleet([*fleet.vms.values(), VM("new", "new", "new-host")]), by="operator")
        change = (await applying).change
        assert [vm.name for vm in change.added] == ["new"]
    finally:
        await engine.stop()


async def test_the_check_of_hosts_of_a_large_file_is_work_in_steps() -> None:
    async with running_engine(fleet=Fleet(VMS[:1], hosts=HOSTS), enable_groups=False) as engine:
        draft, more = engine.draft(), Fleet(VMS, hosts=HOSTS)
        change = difference(draft.fleet, more)
        arguments = (draft, engine.clock.now(), OperatorLimits(), more, change, "operator")
        costs = list(apply_fleet(*arguments, force=False, reason="a file"))
    assert max(costs) <= SLICE_COST
    assert sum(costs) >= len(change.added), "a step costs as much as it has looked at"
