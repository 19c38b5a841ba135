"""The one writer: orders that arrive together are decided, committed and answered together.

A batch is decided on a draft, committed in the store's thread, and only then taken over by the
ledger, published and answered. So whoever is answered can rely on the disk, and nothing that was
published can be taken back by a crash.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.durations import to_text
from forewarn.core.ledger import Draft, Ledger
from forewarn.errors import Stopping, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.ledger import Changes
    from forewarn.ports import Clock, Store

T = TypeVar("T")


class Writer:
    """Carries out orders one batch at a time. `committed` takes over each one into the ledger, before the answers."""

    def __init__(self, clock: Clock, store: Store, committed: Callable[[Changes, Ledger], None]) -> None:
        self.ledger = Ledger()
        self.idle = asyncio.Event()
        """Set while no order waits or is being written."""
        self._clock = clock
        self._store = store
        self._committed = committed
        self._queue: list[tuple[Callable[[Draft, datetime], Any], asyncio.Future[Any]]] = []
        self._stirred = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.idle.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_forever())

    async def stop(self) -> None:
        """Write what was ordered, refuse what comes now, and let go of the store."""
        self._stopping = True
        await self.idle.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.in_store(self._store.close)
        self._thread.shutdown()

    async def order(self, order: Callable[[Draft, datetime], T]) -> T:
        """What the order returned, once it is on disk; or what it raised, and then nothing has changed."""
        if self._stopping:
            raise Stopping
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._queue.append((order, future))
        self.idle.clear()
        self._stirred.set()
        return await future

    async def in_store(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in its own thread: it blocks, and one thread at a time may use it."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *arguments)

    async def _write_forever(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            batch, self._queue = self._queue, []
            if batch:
                await self._write(batch)
            if not self._queue:
                self.idle.set()

    async def _write(self, batch: list[tuple[Callable[[Draft, datetime], Any], asyncio.Future[Any]]]) -> None:
        now = self._clock.now()
        whole = Draft(self.ledger)
        outcomes: list[tuple[asyncio.Future[Any], Any, Exception | None]] = []
        for order, future in batch:
            draft = Draft(whole)
            try:
                result = order(draft, now)
            except Exception as error:  # noqa: BLE001 - it belongs to whoever gave the order, not to the writer
                outcomes.append((future, None, error))
            else:
                whole.changes.absorb(draft.changes)
                outcomes.append((future, result, None))
        if whole.changes:
            try:
                await self._commit(whole.changes)
            except StoreFailed as error:
                if len(batch) > 1:
                    # One order may be what the disk has no room for: the others get their own chance.
                    for single in batch:
                        await self._write([single])
                    return
                outcomes = [(future, None, error) for future, _, _ in outcomes]
        for future, result, failure in outcomes:
            if future.done():  # whoever gave the order has gone away
                continue
            if failure is not None:
                future.set_exception(failure)
            else:
                future.set_result(result)

    async def _commit(self, changes: Changes) -> None:
        first = self.ledger.sequence + 1
        changes.history = [replace(entry, sequence=first + i) for i, entry in enumerate(changes.history)]
        if self._clock.virtual:
            changes.facts["virtual_now"] = to_text(self._clock.now())
        await self.in_store(self._store.commit, changes)
        self._committed(changes, self.ledger)
