"""How long history is kept: what is older is removed, a part at a time, so that no commit waits long for it."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from forewarn.core.access import KEPT_FOR
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from forewarn.archive import Archive
    from forewarn.core.limits import Terms
    from forewarn.ports import Clock, Store
    from forewarn.writer import Writer

logger = logging.getLogger(__name__)

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
LOOK_EVERY = timedelta(hours=1)
MOST_AT_ONCE = 200
"""Of each kind. A commit that comes in between waits until so many are removed."""


class Retention:
    """Removes the oldest rows of history, and operations with their events and rollouts that ended before them.

    What is left of history has no gap, so the rows of an operation that has been live for longer go too.
    """

    def __init__(self, clock: Clock, writer: Writer, archive: Archive, store: Store, terms: Terms) -> None:
        self._clock = clock
        self._writer = writer
        self._archive = archive
        self._store = store
        self._length = terms.history_retention
        self._looked_at: datetime | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def begin(self) -> None:
        """Look for what is too old, if it is time to; in the background."""
        now = self._clock.now()
        # Also when the clock was put back.
        due = self._looked_at is None or abs(now - self._looked_at) >= LOOK_EVERY
        if due and (self._task is None or self._task.done()):
            self._looked_at = now
            self._task = asyncio.create_task(self._remove(now))

    async def settle(self) -> None:
        """The same, and wait until it is done."""
        if self._task is not None:
            await self._task
        self.begin()
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """At the next step: what is left is removed after the next start."""
        self._stopping = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _remove(self, now: datetime) -> None:
        ledger = self._writer.ledger
        ledger.answers = {key: kept for key, kept in ledger.answers.items() if now - kept.at < KEPT_FOR}
        before = now - self._length if self._length else BEGINNING
        try:
            expired = await self._archive.expired(before, now - KEPT_FOR)
            while not self._stopping and await self._writer.in_store(self._store.remove, expired, MOST_AT_ONCE):
                pass
            for name, count in ledger.told.forget_before(await self._archive.oldest()).items():
                logger.warning(
                    "Webhook %s: %s rows were not delivered while history kept them, and are lost.", name, count
                )
        except StoreFailed as error:
            logger.warning("What is too old to be kept is removed later: %s", error)
