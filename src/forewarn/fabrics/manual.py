"""Fabric for manual work: an operator does the work and reports it with `forewarn operation done` or `failed`.

The report goes to the engine, which then cancels the order. So an order only waits here.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.ports import Clock, MachineState, WorkOrder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


_FAR_AWAY = timedelta(days=3650)


class ManualFabric:
    """Waits until an operator reports the result."""

    makes_hosts = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def inspect(self, vm: str) -> MachineState:
        """Report every VM as running. "done" from the operator means healthy."""
        return MachineState(vm, running=True, boots=1)

    async def freeze(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def migrate(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def reboot(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def redeploy(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def reimage(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def deallocate(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def start(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def delete(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Do nothing: manual work is not affected by a restart."""

    async def events(self) -> AsyncIterator[str]:
        # Not on the clock: a virtual clock treats each sleeping task as a waiting order.
        await asyncio.Event().wait()
        yield ""  # never reached; makes this an async generator

    async def _until_cancelled(self) -> None:
        """Wait on the clock, because a virtual clock counts sleeping tasks to detect idleness."""
        while True:
            await self._clock.sleep_until(self._clock.now() + _FAR_AWAY)
