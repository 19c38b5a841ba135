"""Hands started operations to the fabric and sees them through, again after a failure."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from forewarn.core.operations import CAUSES
from forewarn.errors import ForewarnError, Stopping
from forewarn.ports import Order

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.operations import Operation
    from forewarn.ports import Clock, Fabric

logger = logging.getLogger(__name__)

RETRY_AFTER = timedelta(seconds=30)
"""How long after a failed attempt the fabric is asked again, by the clock."""


class Carrier:
    """The operations that the fabric is working on. `write` puts on disk that some are carried out."""

    def __init__(
        self, clock: Clock, fabric: Fabric, write: Callable[[Callable[[], list[str]]], asyncio.Future[None]]
    ) -> None:
        self.changed = asyncio.Event()
        """Set when one is finished."""
        self._clock = clock
        self._write = write
        self._carried_out: list[str] = []
        self._written: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._verbs = {"Freeze": fabric.freeze, "Reboot": fabric.reboot, "Redeploy": fabric.redeploy}

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, operation: Operation) -> None:
        """Have this operation carried out."""
        task = asyncio.create_task(self._see_through(operation))
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    async def stop(self) -> None:
        """Leave the rest to the next start: it asks the fabric again, by the same ids."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.changed.set()

    async def _see_through(self, operation: Operation) -> None:
        cause = CAUSES[operation.cause]
        order = Order(operation.id, operation.vms, cause.duration)
        while True:
            try:
                await self._verbs[cause.event_type](order)
                await asyncio.shield(self._report(operation.id))
            except Stopping:
                return
            except Exception as error:  # whatever a driver raises, its work is still to be done
                said = (operation.id, operation.cause, error)
                expected = isinstance(error, ForewarnError)
                logger.warning("Operation %s (%s) was not carried out: %s", *said, exc_info=not expected)
                again_at = self._clock.now() + RETRY_AFTER
                while self._clock.now() < again_at:
                    await self._clock.sleep_until(again_at)
            else:
                return

    def _report(self, operation_id: str) -> asyncio.Future[None]:
        """Those that are carried out until the writer comes to it are written by one order."""
        if self._written is None:
            self._carried_out = []
            self._written = self._write(partial(self._close_report, self._carried_out))
        self._carried_out.append(operation_id)
        return self._written

    def _close_report(self, operation_ids: list[str]) -> list[str]:
        if operation_ids is self._carried_out:
            self._written = None
        return operation_ids
