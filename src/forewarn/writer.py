"""The one writer: orders that arrive together are decided, committed and answered together.

A batch is decided on a draft, committed in the store's thread, and only then taken over by the
ledger, published and answered. So whoever is answered can rely on the disk, and nothing that was
published can be taken back by a crash.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from forewarn.core.durations import to_text
from forewarn.core.ledger import Draft, Ledger
from forewarn.errors import Stopping, StoreFailed
from forewarn.store_thread import StoreThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.ledger import Changes
    from forewarn.ports import Clock, Store

T = TypeVar("T")
Waiting: TypeAlias = "tuple[Callable[[Draft, datetime], Any], asyncio.Future[Any]]"
"""An order, and who waits for its outcome."""

LONGEST_WAIT_SECONDS = 0.05
"""How long an order that can wait does."""


class Writer:
    """Carries out orders one batch at a time. `committed` takes over each one into the ledger, before the answers."""

    def __init__(self, clock: Clock, store: Store, committed: Callable[[Changes, Ledger], None]) -> None:
        self.ledger = Ledger()
        self.idle = asyncio.Event()
        """Set while no order waits or is being written."""
        self._clock = clock
        self._store = store
        self._committed = committed
        self._queue: list[Waiting] = []
        self._patient: list[Waiting] = []
        self._stirred = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None
        self._thread = StoreThread()
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self.idle.set()

    def start(self) -> None:
        self._task = asyncio.create_task(self._write_forever())

    async def stop(self) -> None:
        """Write what was ordered, refuse what comes now, and let go of the store."""
        self._stopping = True
        await self.until_idle()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self.in_store(self._store.close)
        self._thread.stop()

    async def order(self, order: Callable[[Draft, datetime], T], *, can_wait: bool = False) -> T:
        """What the order returned, once it is on disk; or what it raised, and then nothing has changed.

        Orders that can wait are written together, a moment later: what nobody waits for should not
        make a commit that somebody waits for any larger.
        """
        if self._stopping:
            raise Stopping
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.idle.clear()
        if can_wait:
            self._patient.append((order, future))
            if self._later is None:
                self._later = asyncio.get_running_loop().call_later(LONGEST_WAIT_SECONDS, self._take_patient)
        else:
            self._queue.append((order, future))
            self._stirred.set()
        return await future

    async def until_idle(self) -> None:
        """Until nothing is left to write."""
        while not self.idle.is_set():
            self._take_patient()
            await self.idle.wait()

    def _take_patient(self) -> None:
        """What could wait has waited long enough."""
        if self._later is not None:
            self._later.cancel()
            self._later = None
        self._queue += self._patient
        self._patient = []
        self._stirred.set()

    async def in_store(self, call: Callable[..., T], *arguments: Any) -> T:
        """Call the store in its own thread."""
        return await self._thread.call(partial(call, *arguments))

    async def _write_forever(self) -> None:
        while True:
            await self._stirred.wait()
            self._stirred.clear()
            batch, self._queue = self._queue, []
            if batch:
                await self._write(batch)
            if not self._queue and not self._patient:
                self.idle.set()

    async def _write(self, batch: list[Waiting]) -> None:
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
                whole.changes = whole.changes.absorb(draft.changes)
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
        changes.history = [entry._replace(sequence=first + i) for i, entry in enumerate(changes.history)]
        if self._clock.virtual:
            changes.facts["virtual_now"] = to_text(self._clock.now())
        await self.in_store(self._store.commit, changes)
        self._committed(changes, self.ledger)
