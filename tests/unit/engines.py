"""An engine in this process: virtual time, the simulated fabric, a real database."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from forewarn.clock import VirtualClock
from forewarn.core import approvals
from forewarn.core.fleet import VM, Fleet, Group, Host
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request
from forewarn.engine.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.ports import Store

# Far from today, so that a wrong use of the real clock is noticed.
START = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
MINUTE = timedelta(minutes=1)

FLEET = Fleet(
    [
        VM("web-0", "web", "host-a", update_domain=0),
        VM("web-1", "web", "host-b", update_domain=1),
        VM("web-2", "web", "host-a", update_domain=0),
        VM("db-0", "db-0", "host-a"),
        VM("auto-0", "auto", "host-b"),
    ],
    [
        Group("web", "availability-set", 5, 2),
        Group("auto", "availability-set", 5, 2, auto_approve=("reboot",)),
    ],
    [Host("host-a"), Host("host-b")],
)


def scope_members(fleet: Fleet, scope: str) -> list[str]:
    """Return the names of the VMs in a scope."""
    return [vm.name for vm in fleet.vms.values() if fleet.scope_of(vm) == scope]


def make_engine(
    folder: Path | None = None, *, limits: OperatorLimits | None = None, store: Store | None = None
) -> tuple[Engine, SimulatedFabric]:
    """Make an engine with this store; without one, with SQLite in this folder or in memory."""
    clock = VirtualClock(START)
    fabric = SimulatedFabric(clock)
    return Engine(clock, store or SqliteStore(folder), fabric, limits or OperatorLimits(makes_hosts=True)), fabric


@asynccontextmanager
async def running_engine(
    folder: Path | None = None,
    *,
    fleet: Fleet = FLEET,
    enable_groups: bool = True,
    limits: OperatorLimits | None = None,
) -> AsyncIterator[Engine]:
    """Run an engine. By default, events are enabled for every group."""
    engine, _ = make_engine(folder, limits=limits)
    await engine.start()
    try:
        await engine.apply_fleet(fleet, by="test")
        if enable_groups:
            for group in {vm.group for vm in fleet.vms.values()}:
                await engine.enable(group, by="test")
        yield engine
    finally:
        await engine.stop()


async def request_operation(engine: Engine, cause: str, *vms: str, by: str = "user", **options: Any) -> Operation:
    """Request an operation, and return it."""
    (operation,) = await engine.execute(request, CauseRequest(cause, vms, **options), by)
    return operation


async def approve(engine: Engine, *ids: str, by: str, group: str | None = None) -> None:
    await engine.execute(approvals.approve, ids, by, scope=group or "")


async def cancel(engine: Engine, event_id: str, by: str = "operator") -> Event:
    return await engine.execute(approvals.cancel, event_id, by)
