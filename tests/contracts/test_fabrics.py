"""One contract for all fabrics: orders are idempotent by their id, and each verb has its effect.

Every module in the folder of fabrics needs a row below that builds it.
"""

from __future__ import annotations

import asyncio
import pkgutil
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import forewarn.fabrics
from forewarn.clock import VirtualClock
from forewarn.core.event_types import Verb
from forewarn.core.limits import OperatorLimits
from forewarn.engine.engine import Engine
from forewarn.errors import IncompleteFabric, Unavailable, WorkFailed
from forewarn.fabrics import simulated
from forewarn.fabrics.command import CommandFabric
from forewarn.fabrics.manual import ManualFabric
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.ports import Fabric, MachineState, WorkOrder
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START = datetime(2041, 1, 1, tzinfo=UTC)
VERBS = [verb.value for verb in Verb]

# An operator's program as it should be: what it has done is kept by the operation's id, so it does nothing twice.
OPERATORS_PROGRAM = """\
import json, pathlib, sys
kept, verb, order = pathlib.Path(sys.argv[1]), sys.argv[-1], json.load(sys.stdin)
state = json.loads(kept.read_text()) if kept.exists() else {"done": [], "vms": {}}
if verb == "inspect":
    running, boots = state["vms"].get(order["vm"], (True, 1))
    print(json.dumps({"running": running, "boots": boots}))
elif order["operation"] not in state["done"]:
    for vm in order["vms"]:
        running, boots = state["vms"].get(vm, (True, 1))
        if verb in ("reboot", "redeploy", "reimage") or verb == "start" and not running:
            running, boots = True, boots + 1
        elif verb in ("deallocate", "delete"):
            running = False
        state["vms"][vm] = (running, boots)
    state["done"].append(order["operation"])
    kept.with_suffix(".new").write_text(json.dumps(state))
    kept.with_suffix(".new").replace(kept)
"""


class Row(NamedTuple):
    """A fabric: how it is built, and which parts of the contract are about it."""

    build: Callable[[Path, VirtualClock], Fabric]
    works_by_itself: bool
    """Whether an order gets done without anybody else saying so."""
    tells: bool
    """Whether it says by itself what happened."""


def build_command(folder: Path, clock: VirtualClock) -> Fabric:
    program = folder / "program.py"
    program.write_text(OPERATORS_PROGRAM)
    return CommandFabric([sys.executable, "-IS", str(program), str(folder / "state.json")], folder / "orders")


FABRICS = {
    "command": Row(build_command, works_by_itself=True, tells=False),
    "manual": Row(lambda _, clock: ManualFabric(clock), works_by_itself=False, tells=False),
    "simulated": Row(lambda _, clock: SimulatedFabric(clock), works_by_itself=True, tells=True),
}


def those_that(fits: Callable[[Row], bool]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("name", [name for name, row in FABRICS.items() if fits(row)])


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START)


@pytest.fixture
def fabric(name: str, tmp_path: Path, clock: VirtualClock) -> Fabric:
    return FABRICS[name].build(tmp_path, clock)


def test_every_fabric_in_the_folder_has_a_row_here() -> None:
    assert {module.name for module in pkgutil.iter_modules(forewarn.fabrics.__path__)} == set(FABRICS)


# --- All of them ----------------------------------------------------------------------------------


@those_that(lambda _: True)
async def test_a_machine_that_nothing_was_done_to_runs(fabric: Fabric) -> None:
    await fabric.recover([])
    assert await fabric.inspect("a") == MachineState("a", running=True, boots=1)
    assert fabric.makes_hosts in (True, False)


@those_that(lambda _: True)
async def test_watching_can_be_ended_and_is_no_sleep_by_the_clock(fabric: Fabric, clock: VirtualClock) -> None:
    events = fabric.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    assert not first.done()
    assert clock.sleeper_count == 0
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


# --- Those that work by themselves ----------------------------------------------------------------


@those_that(lambda row: row.works_by_itself)
@pytest.mark.parametrize(
    ("verb", "after"),
    [
        ("freeze", (True, 1)),
        ("migrate", (True, 1)),
        ("reboot", (True, 2)),
        ("redeploy", (True, 2)),
        ("reimage", (True, 2)),
        ("deallocate", (False, 1)),
        ("start", (True, 1)),
        ("delete", (False, 1)),
    ],
)
async def test_an_order_given_twice_is_executed_once(fabric: Fabric, verb: str, after: tuple[bool, int]) -> None:
    order = WorkOrder("op-1", ("a", "b"))
    await getattr(fabric, verb)(order)
    await fabric.recover(["op-1"])
    await getattr(fabric, verb)(order)
    assert await fabric.inspect("a") == MachineState("a", *after)
    assert await fabric.inspect("b") == MachineState("b", *after)
    assert await fabric.inspect("c") == MachineState("c", running=True, boots=1)


@those_that(lambda row: row.works_by_itself)
async def test_a_deallocated_machine_can_be_started_once(fabric: Fabric) -> None:
    await fabric.deallocate(WorkOrder("op-1", ("a",)))
    await fabric.start(WorkOrder("op-2", ("a",)))
    assert await fabric.inspect("a") == MachineState("a", running=True, boots=2)
    await fabric.start(WorkOrder("op-3", ("a",)))
    assert await fabric.inspect("a") == MachineState("a", running=True, boots=2)


@those_that(lambda row: row.works_by_itself)
async def test_a_cancelled_order_is_executed_once_when_it_is_given_again(fabric: Fabric) -> None:
    cancelled = asyncio.ensure_future(fabric.reboot(WorkOrder("op-1", ("a",))))
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    await fabric.reboot(WorkOrder("op-1", ("a",)))
    assert await fabric.inspect("a") == MachineState("a", running=True, boots=2)


@those_that(lambda row: row.tells)
async def test_a_watcher_gets_the_changed_machines(fabric: Fabric) -> None:
    events = fabric.events()
    first = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    await fabric.reboot(WorkOrder("op-1", ("a",)))
    assert await first == "a"


# --- Fabrics whose work an operator does ----------------------------------------------------------


@those_that(lambda row: not row.works_by_itself)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_delayed_order_waits_for_the_virtual_clock(fabric: Fabric, clock: VirtualClock, verb: str) -> None:
    order = asyncio.ensure_future(getattr(fabric, verb)(WorkOrder("op-1", ("a",))))
    await asyncio.sleep(0)
    assert clock.sleeper_count == 1
    clock.set(START + timedelta(days=7300))
    await asyncio.sleep(0)
    assert not order.done()
    assert clock.sleeper_count == 1
    order.cancel()
    with pytest.raises(asyncio.CancelledError):
        await order
    assert clock.sleeper_count == 0


# --- What is special about the simulated one ------------------------------------------------------


async def test_the_simulated_fabric_can_fail_and_be_slow(clock: VirtualClock) -> None:
    fabric = SimulatedFabric(clock)
    fabric.failures = 1
    with pytest.raises(Unavailable):
        await fabric.reboot(WorkOrder("op-1", ("a",)))
    fabric.permanent_failures = 1
    with pytest.raises(WorkFailed):
        await fabric.reboot(WorkOrder("op-1", ("a",)))
    assert (await fabric.inspect("a")).boots == 1
    fabric.delay = timedelta(minutes=5)
    slow = asyncio.ensure_future(fabric.reboot(WorkOrder("op-1", ("a",))))
    await asyncio.sleep(0)
    assert clock.sleeper_count == 1
    clock.set(START + timedelta(minutes=4))
    await asyncio.sleep(0)
    assert not slow.done()
    clock.set(START + timedelta(minutes=5))
    await slow
    assert (await fabric.inspect("a")).boots == 2


async def test_an_unhealthy_machine_is_not_running_until_it_recovers(clock: VirtualClock) -> None:
    fabric = SimulatedFabric(clock)
    fabric.unhealthy.add("a")
    await fabric.reboot(WorkOrder("op-1", ("a", "b")))
    assert await fabric.inspect("a") == MachineState("a", running=False, boots=2)
    assert await fabric.inspect("b") == MachineState("b", running=True, boots=2)
    fabric.unhealthy.clear()
    assert await fabric.inspect("a") == MachineState("a", running=True, boots=2)


async def test_deleted_machines_are_not_remembered_without_end(
    clock: VirtualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated, "_REMEMBERED_ORDERS", 3)
    fabric = SimulatedFabric(clock)
    await fabric.reboot(WorkOrder("op-kept", ("kept",)))
    for number in range(10):
        await fabric.delete(WorkOrder(f"op-{number}", (f"vm-{number}",)))
        assert not (await fabric.inspect(f"vm-{number}")).running
    assert not (await fabric.inspect("vm-7")).running
    assert set(fabric._machines) == {"kept", "vm-7", "vm-8", "vm-9"}
    await fabric.redeploy(WorkOrder("op-back", ("vm-7",)))
    for number in range(10, 20):
        await fabric.delete(WorkOrder(f"op-{number}", (f"vm-{number}",)))
    assert set(fabric._machines) == {"kept", "vm-7", "vm-17", "vm-18", "vm-19"}


def test_a_fabric_without_a_verb_is_rejected_at_the_start() -> None:
    class OnlyReboots:
        async def reboot(self, order: WorkOrder) -> None:
            """Reboot."""

    incomplete: Any = OnlyReboots()
    with pytest.raises(
        IncompleteFabric, match=r"OnlyReboots has no method for: freeze, migrate, redeploy, reimage, deallocate"
    ):
        Engine(VirtualClock(), SqliteStore(), incomplete, OperatorLimits())
