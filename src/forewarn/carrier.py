"""Hands started operations to the fabric and sees them through, again after a failure.

In a rollout it then asks whether the VMs are well, until they are or their time is over.
"""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from forewarn.core.operations import Health
from forewarn.errors import ForewarnError, Stopping, StoreFailed, WorkFailed
from forewarn.ports import Order

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.operations import Operation
    from forewarn.ports import Clock, Fabric
    from forewarn.reports import Reports

logger = logging.getLogger(__name__)

RETRY_AFTER = timedelta(seconds=30)
"""How long after a failed attempt the fabric is asked again, by the clock."""
LOOK_AGAIN = timedelta(seconds=10)
"""How long after a look at VMs that are not well the next one comes, by the clock."""


class Carrier:
    """The operations that the fabric is working on."""

    def __init__(self, clock: Clock, fabric: Fabric, reports: Reports) -> None:
        self.changed = asyncio.Event()
        """Set when one is finished."""
        self._clock = clock
        self._fabric = fabric
        self._reports = reports
        self._carried_out: list[str] = []
        self._written: asyncio.Future[None] | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, operation: Operation, vms: tuple[str, ...]) -> None:
        """Have this operation carried out on these of its VMs: others have gone since it was asked for."""
        task = asyncio.create_task(self._see_through(operation, vms))
        self._tasks[operation.id] = task
        task.add_done_callback(partial(self._finished, operation.id))

    def let_go(self, operation_id: str) -> None:
        """Nobody need wait for the fabric any more: it is said to be over."""
        if operation_id in self._tasks:
            self._tasks[operation_id].cancel()

    async def stop(self) -> None:
        """Leave the rest to the next start: it asks the fabric again, by the same ids."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _finished(self, operation_id: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(operation_id) is task:
            del self._tasks[operation_id]
        self.changed.set()

    async def _see_through(self, operation: Operation, vms: tuple[str, ...]) -> None:
        try:
            if operation.carried_out_at is None and not await self._work(operation, vms):
                return
            if operation.request.rollout and operation.health is Health.UNKNOWN:
                await self._look_after(operation)
        except Stopping:
            return

    async def _work(self, operation: Operation, vms: tuple[str, ...]) -> bool:
        """Have it done; False when it cannot be."""
        moves = tuple((name, host) for name, host in operation.moves if name in vms)
        order = Order(operation.id, vms, operation.request.duration, operation.cause, operation.host, moves)
        while True:
            try:
                await getattr(self._fabric, operation.verb)(order)
                await asyncio.shield(self._report(operation.id))
            except Stopping:
                raise
            except WorkFailed as error:
                logger.warning("Operation %s (%s) has failed: %s", operation.id, operation.cause, error)
                await self._until_written(partial(self._reports.failed, operation.id, str(error)))
                return False
            except Exception as error:  # whatever a driver raises, its work is still to be done
                said = (operation.id, operation.cause, error)
                expected = isinstance(error, ForewarnError)
                logger.warning("Operation %s (%s) was not carried out: %s", *said, exc_info=not expected)
                await self._wait_until(self._clock.now() + RETRY_AFTER)
            else:
                return True

    async def _look_after(self, operation: Operation) -> None:
        """Ask until all VMs are well, or the gate has closed."""
        while (gate := self._reports.gate(operation.id)) is not None:
            well = await asyncio.gather(*map(self._is_well, gate.vms))
            bad = [name for name, is_well in zip(gate.vms, well, strict=True) if not is_well]
            if not bad or self._clock.now() >= gate.closes_at:
                await self._until_written(partial(self._reports.checked, operation.id, bad))
                return
            await self._wait_until(min(self._clock.now() + LOOK_AGAIN, gate.closes_at))

    async def _until_written(self, write: Callable[[], asyncio.Future[None]]) -> None:
        """What the fabric has said is not asked again: it must get on disk."""
        while True:
            try:
                await asyncio.shield(write())
            except StoreFailed as error:
                logger.warning("What the fabric said is written again: %s", error)
                await self._wait_until(self._clock.now() + RETRY_AFTER)
            else:
                return

    async def _is_well(self, vm: str) -> bool:
        try:
            return (await self._fabric.inspect(vm)).running
        except Exception as error:  # noqa: BLE001 - whatever a driver raises, the VM cannot be said to be well
            logger.warning("%s could not be looked at: %s", vm, error)
            return False

    async def _wait_until(self, moment: datetime) -> None:
        while self._clock.now() < moment:
            await self._clock.sleep_until(moment)

    def _report(self, operation_id: str) -> asyncio.Future[None]:
        """Those that are carried out until the writer comes to it are written by one order."""
        if self._written is None:
            self._carried_out = []
            self._written = self._reports.carried_out(partial(self._close_report, self._carried_out))
        self._carried_out.append(operation_id)
        return self._written

    def _close_report(self, operation_ids: list[str]) -> list[str]:
        if operation_ids is self._carried_out:
            self._written = None
        return operation_ids
