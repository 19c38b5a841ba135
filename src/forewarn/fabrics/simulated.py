"""The default fabric: simulated machines. It follows the same contract as a real fabric.

For tests it can be slow, fail, lose orders and leave machines unhealthy.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.errors import Unavailable, WorkFailed
from forewarn.ports import Clock, MachineState, PlacedVMs, WorkOrder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


_FOREVER = timedelta(days=3650)
_REMEMBERED_ORDERS = 10_000
"""Number of finished orders, and of deleted machines, to remember."""


class SimulatedFabric:
    """Simulates machines by counting their boots."""

    makes_hosts = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, MachineState] = {}
        self._deleted: dict[str, None] = {}
        self._done: dict[str, None] = {}
        self._watchers: list[asyncio.Queue[str]] = []
        self.delay: timedelta | None = None
        """Duration of each order, by the service's clock."""
        self.failures = 0
        """How many of the next orders fail temporarily."""
        self.permanent_failures = 0
        """How many of the next orders fail permanently."""
        self.lost_orders = 0
        """How many of the next orders are lost: they never return."""
        self.chosen_hosts: dict[str, str] = {}
        """Hosts to which it brings VMs by its own choice, as real fabrics can."""
        self.unhealthy: set[str] = set()
        """VMs that are reported as not running."""

    async def inspect(self, vm: str) -> MachineState:
        machine = self._machine(vm)
        return machine._replace(running=False) if vm in self.unhealthy else machine

    async def freeze(self, order: WorkOrder) -> None:
        await self._execute(order, _unchanged)

    async def migrate(self, order: WorkOrder) -> PlacedVMs:
        await self._execute(order, _unchanged)
        return self._placed(order)

    async def reboot(self, order: WorkOrder) -> None:
        await self._execute(order, _booted)

    async def redeploy(self, order: WorkOrder) -> PlacedVMs:
        await self._execute(order, _booted)
        return self._placed(order)

    async def reimage(self, order: WorkOrder) -> None:
        await self._execute(order, _booted)

    async def deallocate(self, order: WorkOrder) -> None:
        await self._execute(order, _stopped)

    async def start(self, order: WorkOrder) -> PlacedVMs:
        await self._execute(order, _started)
        return self._placed(order)

    async def delete(self, order: WorkOrder) -> None:
        await self._execute(order, _stopped, permanent=True)

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Do nothing: simulated machines end with the service."""

    async def events(self) -> AsyncIterator[str]:
        happened: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.append(happened)
        try:
            while True:
                yield await happened.get()
        finally:
            self._watchers.remove(happened)

    async def _execute(
        self, order: WorkOrder, change: Callable[[MachineState], MachineState], *, permanent: bool = False
    ) -> None:
        if order.operation in self._done:
            return
        if self.delay:
            await self._wait(self.delay)
        if self.failures:
            self.failures -= 1
            raise Unavailable(problem="the simulated fabric is set to fail")
        if self.permanent_failures:
            self.permanent_failures -= 1
            raise WorkFailed(problem="the simulated fabric is set to fail permanently")
        if self.lost_orders:
            self.lost_orders -= 1
            await self._wait(_FOREVER)
        for vm in order.vms:
            if vm in self._deleted and not permanent:  # a new VM with the name of a deleted one
                del self._deleted[vm], self._machines[vm]
            self._keep(change(self._machine(vm)), deleted=permanent)
            for watcher in self._watchers:
                watcher.put_nowait(vm)
        self._done[order.operation] = None
        if len(self._done) > _REMEMBERED_ORDERS:
            del self._done[next(iter(self._done))]

    def _placed(self, order: WorkOrder) -> PlacedVMs:
        return {vm: host for vm, host in self.chosen_hosts.items() if vm in order.vms}

    def _machine(self, vm: str) -> MachineState:
        return self._machines.get(vm) or MachineState(vm, running=True, boots=1)

    def _keep(self, machine: MachineState, *, deleted: bool) -> None:
        """Store a machine. Deleted machines are remembered up to a limit."""
        self._machines[machine.vm] = machine
        if deleted:
            self._deleted[machine.vm] = None
        if len(self._deleted) > _REMEMBERED_ORDERS:
            oldest = next(iter(self._deleted))
            del self._deleted[oldest]
            del self._machines[oldest]

    async def _wait(self, duration: timedelta) -> None:
        wake_at = self._clock.now() + duration
        while self._clock.now() < wake_at:
            await self._clock.sleep_until(wake_at)


def _unchanged(machine: MachineState) -> MachineState:
    return machine


def _booted(machine: MachineState) -> MachineState:
    return machine._replace(running=True, boots=machine.boots + 1)


def _stopped(machine: MachineState) -> MachineState:
    return machine._replace(running=False)


def _started(machine: MachineState) -> MachineState:
    return machine if machine.running else _booted(machine)
