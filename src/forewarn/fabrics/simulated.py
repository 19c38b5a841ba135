"""The default fabric: machines that exist only here. It keeps the contract of a real one.

It can be told to be slow, to fail, to forget, and to leave machines sick, so that what Forewarn does
then can be rehearsed.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.errors import Unavailable, WorkFailed
from forewarn.ports import Clock, MachineState, WorkOrder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence


_FOREVER = timedelta(days=3650)
_REMEMBERED_ORDERS = 10_000
"""Of orders that were carried out and of machines that were deleted: the newest so many are remembered."""


class SimulatedFabric:
    """Machines as a count of boots."""

    makes_hosts = True

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, MachineState] = {}
        self._deleted: dict[str, None] = {}
        self._done: dict[str, None] = {}
        self._watchers: list[asyncio.Queue[str]] = []
        self.delay: timedelta | None = None
        """How long each order takes, by the clock."""
        self.failures = 0
        """How many of the next orders fail, and may be given again."""
        self.failures_for_good = 0
        """How many of the next orders fail so that it is of no use to give them again."""
        self.forgets = 0
        """How many of the next orders are forgotten: nothing happens, and nothing is said."""
        self.sick: set[str] = set()
        """VMs that do not come back: whatever was done to them, they are seen not to run."""

    async def inspect(self, vm: str) -> MachineState:
        machine = self._machine(vm)
        return machine._replace(running=False) if vm in self.sick else machine

    async def freeze(self, order: WorkOrder) -> None:
        await self._carry_out(order, _unchanged)

    async def migrate(self, order: WorkOrder) -> None:
        await self._carry_out(order, _unchanged)

    async def reboot(self, order: WorkOrder) -> None:
        await self._carry_out(order, _booted)

    async def redeploy(self, order: WorkOrder) -> None:
        await self._carry_out(order, _booted)

    async def deallocate(self, order: WorkOrder) -> None:
        await self._carry_out(order, _stopped)

    async def start(self, order: WorkOrder) -> None:
        await self._carry_out(order, _started)

    async def delete(self, order: WorkOrder) -> None:
        await self._carry_out(order, _stopped, for_good=True)

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Nothing of a simulated machine outlives the service, so nothing is left half done."""

    async def events(self) -> AsyncIterator[str]:
        happened: asyncio.Queue[str] = asyncio.Queue()
        self._watchers.append(happened)
        try:
            while True:
                yield await happened.get()
        finally:
            self._watchers.remove(happened)

    async def _carry_out(
        self, order: WorkOrder, change: Callable[[MachineState], MachineState], *, for_good: bool = False
    ) -> None:
        if order.operation in self._done:
            return
        if self.delay:
            await self._wait(self.delay)
        if self.failures:
            self.failures -= 1
            raise Unavailable(problem="the simulated fabric is set to fail")
        if self.failures_for_good:
            self.failures_for_good -= 1
            raise WorkFailed(problem="the simulated fabric is set to fail permanently")
        if self.forgets:
            self.forgets -= 1
            await self._wait(_FOREVER)
        for vm in order.vms:
            if vm in self._deleted and not for_good:  # only a VM of the fleet gets orders: it was made anew
                del self._deleted[vm], self._machines[vm]
            self._keep(change(self._machine(vm)), deleted=for_good)
            for watcher in self._watchers:
                watcher.put_nowait(vm)
        self._done[order.operation] = None
        if len(self._done) > _REMEMBERED_ORDERS:
            del self._done[next(iter(self._done))]

    def _machine(self, vm: str) -> MachineState:
        return self._machines.get(vm) or MachineState(vm, running=True, boots=1)

    def _keep(self, machine: MachineState, *, deleted: bool) -> None:
        """A deleted machine is kept to say that it is gone, until enough others have gone after it."""
        self._machines[machine.vm] = machine
        if deleted:
            self._deleted[machine.vm] = None
        if len(self._deleted) > _REMEMBERED_ORDERS:
            longest_gone = next(iter(self._deleted))
            del self._deleted[longest_gone]
            del self._machines[longest_gone]

    async def _wait(self, length: timedelta) -> None:
        wake_at = self._clock.now() + length
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
