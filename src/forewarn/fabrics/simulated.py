"""The default fabric: machines that exist only here. It keeps the contract of a real one.

It can be told to be slow, to fail, and to forget, so that what Forewarn does then can be rehearsed.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.errors import Unavailable
from forewarn.ports import Clock, Machine, Order

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


_FOREVER = timedelta(days=3650)
_REMEMBERED_ORDERS = 10_000


class SimulatedFabric:
    """Machines as a count of boots."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._machines: dict[str, Machine] = {}
        self._done: dict[str, None] = {}
        self._watchers: list[asyncio.Queue[str]] = []
        self.delay: timedelta | None = None
        """How long each order takes, by the clock."""
        self.failures = 0
        """How many of the next orders fail."""
        self.forgets = 0
        """How many of the next orders are forgotten: nothing happens, and nothing is said."""

    async def inspect(self, vm: str) -> Machine:
        return self._machines.get(vm) or Machine(vm, running=True, boots=1)

    async def freeze(self, order: Order) -> None:
        await self._carry_out(order, boots=0)

    async def reboot(self, order: Order) -> None:
        await self._carry_out(order, boots=1)

    async def redeploy(self, order: Order) -> None:
        await self._carry_out(order, boots=1)

    async def delete(self, order: Order) -> None:
        await self._carry_out(order, boots=0, running=False)

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

    async def _carry_out(self, order: Order, *, boots: int, running: bool = True) -> None:
        if order.operation in self._done:
            return
        if self.delay:
            await self._wait(self.delay)
        if self.failures:
            self.failures -= 1
            raise Unavailable(problem="the simulated fabric was told to fail")
        if self.forgets:
            self.forgets -= 1
            await self._wait(_FOREVER)
        for vm in order.vms:
            before = await self.inspect(vm)
            self._machines[vm] = Machine(vm, running=running, boots=before.boots + boots)
            for watcher in self._watchers:
                watcher.put_nowait(vm)
        self._done[order.operation] = None
        if len(self._done) > _REMEMBERED_ORDERS:
            del self._done[next(iter(self._done))]

    async def _wait(self, length: timedelta) -> None:
        wake_at = self._clock.now() + length
        while self._clock.now() < wake_at:
            await self._clock.sleep_until(wake_at)
