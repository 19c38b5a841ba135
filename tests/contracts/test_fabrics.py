"""One contract for all fabrics: orders are idempotent by their id, and do what their name says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from forewarn.clock import VirtualClock
from forewarn.errors import Unavailable
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.ports import Fabric, Machine, Order

START = datetime(2041, 1, 1, tzinfo=UTC)


@pytest.fixture(params=["simulated"])
def fabric() -> Fabric:
    return SimulatedFabric(VirtualClock(START))


@pytest.mark.parametrize(("verb", "boots"), [("freeze", 1), ("reboot", 2), ("redeploy", 2)])
async def test_an_order_given_twice_is_carried_out_once(fabric: Fabric, verb: str, boots: int) -> None:
    order = Order("op-1", ("a", "b"))
    await getattr(fabric, verb)(order)
    await getattr(fabric, verb)(order)
    assert await fabric.inspect("a") == Machine("a", running=True, boots=boots)
    assert await fabric.inspect("b") == Machine("b", running=True, boots=boots)
    assert await fabric.inspect("c") == Machine("c", running=True, boots=1)


async def test_what_is_deleted_runs_no_more(fabric: Fabric) -> None:
    await fabric.delete(Order("op-1", ("a",)))
    assert not (await fabric.inspect("a")).running


async def test_whoever_watches_is_told_which_machines_changed(fabric: Fabric) -> None:
    events = fabric.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await fabric.reboot(Order("op-1", ("a",)))
    assert await first == "a"


async def test_the_simulated_one_can_be_told_to_fail_and_to_be_slow() -> None:
    clock = VirtualClock(START)
    fabric = SimulatedFabric(clock)
    fabric.failures = 1
    with pytest.raises(Unavailable):
        await fabric.reboot(Order("op-1", ("a",)))
    assert (await fabric.inspect("a")).boots == 1
    fabric.delay = timedelta(minutes=5)
    slow = asyncio.ensure_future(fabric.reboot(Order("op-1", ("a",))))
    await asyncio.sleep(0)
    assert clock.sleeping == 1
    clock.set(START + timedelta(minutes=4))
    await asyncio.sleep(0)
    assert not slow.done()
    clock.set(START + timedelta(minutes=5))
    await slow
    assert (await fabric.inspect("a")).boots == 2
