"""A person does the work, or a program that nobody here knows of.

They tell Forewarn with `forewarn operation done` or `failed`. That goes to the engine, which then lets go
of the order: so an order given to this fabric only waits.
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
    """Waits for somebody else."""

    makes_hosts = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def inspect(self, vm: str) -> MachineState:
        """Nobody can be asked. Whoever says "done" has looked, and that is the word on health."""
        return MachineState(vm, running=True, boots=1)

    async def freeze(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def migrate(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def reboot(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def redeploy(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def deallocate(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def start(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def delete(self, order: WorkOrder) -> None:
        await self._until_cancelled()

    async def recover(self, unfinished: Sequence[str]) -> None:
        """Whoever was at work when the service died still is: there is nothing to put right."""

    async def events(self) -> AsyncIterator[str]:
        # Not by the clock: whoever moves a virtual one takes each of its sleepers for an order that waits.
        await asyncio.Event().wait()
        yield ""  # is never reached; it makes this an iterator

    async def _until_cancelled(self) -> None:
        """By the clock, because a virtual one counts who sleeps to know that nothing else is going on."""
        while True:
            await self._clock.sleep_until(self._clock.now() + _FAR_AWAY)
