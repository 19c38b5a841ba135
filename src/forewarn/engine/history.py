"""History and everything else that has ended, read from the store; and how long it is kept."""

from __future__ import annotations

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.access import RESPONSE_RETENTION
from forewarn.engine.writer import StoreThread
from forewarn.errors import StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.access import StoredResponse
    from forewarn.core.events import Event
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import HistoryEntry
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, HistoryFilter, ListFilter, Records, RetentionCutoff, Store


T = TypeVar("T")

LOOKED_AT_ONCE = 20_000
"""Rows of history."""


class StoredRecords:
    """Reads that go to the disk: they wait their turn, unlike those of the state in memory, but hold up no commit.

    What was on disk before a call is seen by it.
    """

    def __init__(self, writer: Writer, store: Store) -> None:
        self._writer = writer
        reader = store.reader()
        self._records: Records = store if reader is None else reader
        self._thread = None if reader is None else StoreThread()

    async def _read(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            return await self._writer.in_store(call, *arguments)
        return await self._thread.call(partial(call, *arguments))

    def stop(self) -> None:
        """When all that was asked before is answered. The store closes what was read from."""
        if self._thread is not None:
            self._thread.stop()

    async def event(self, event_id: str) -> Event | None:
        """An event, live or long over."""
        return self._writer.state.event(event_id) or await self._read(self._records.event, event_id)

    async def events_beginning(self, start: str, group: str = "") -> list[Event]:
        """The event of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._read(self._records.events_beginning, start, group)

    async def events(self, wanted: ListFilter) -> list[tuple[int, Event]]:
        """Events, each with its place in the list."""
        return await self._read(self._records.events, wanted)

    async def operation(self, operation_id: str) -> Operation | None:
        """An operation, live or long over."""
        return self._writer.state.operation(operation_id) or await self._read(self._records.operation, operation_id)

    async def operations_beginning(self, start: str) -> list[Operation]:
        """The operation of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._read(self._records.operations_beginning, start)

    async def operations(self, wanted: ListFilter) -> list[tuple[int, Operation]]:
        """Operations, each with its place in the list."""
        return await self._read(self._records.operations, wanted)

    async def rollouts_beginning(self, start: str) -> list[Rollout]:
        """The rollout of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._read(self._records.rollouts_beginning, start)

    async def rollouts(self, wanted: ListFilter) -> list[tuple[int, Rollout]]:
        """Rollouts, each with its place in the list."""
        return await self._read(self._records.rollouts, wanted)

    async def kept_answer(self, key: str) -> StoredResponse | None:
        """The answer kept for a key, whole."""
        return await self._read(self._records.kept_answer, key)

    async def history(self, wanted: HistoryFilter) -> list[HistoryEntry]:
        """Looked through a part at a time: who asks for something rare does not hold up the others for long."""
        if wanted.operation:  # there is an index of that
            return await self._read(self._records.history, wanted)
        last = self.newest + 1
        first = max(wanted.after + 1, await self.oldest())
        end = min(wanted.before or last, last)
        found: list[HistoryEntry] = []
        for begin in _beginnings(first, end, newest=wanted.newest):
            part = wanted._replace(after=begin - 1, before=min(begin + LOOKED_AT_ONCE, end))
            found += await self._read(self._records.history, part._replace(limit=wanted.limit - len(found)))
            if len(found) >= wanted.limit:
                break
        return found

    @property
    def newest(self) -> int:
        """The sequence of the newest row of history."""
        return self._writer.state.sequence

    async def oldest(self) -> int:
        """The sequence of the oldest row of history that is kept."""
        return await self._read(self._records.oldest)

    async def expired(self, before: datetime, answers_before: datetime) -> RetentionCutoff:
        """Up to where things are older than they are to be kept."""
        return await self._read(self._records.expired, before, answers_before)


def _beginnings(first: int, end: int, *, newest: bool) -> range:
    """Where the parts of history begin that are looked through one after the other."""
    parts = range(first, end, LOOKED_AT_ONCE)
    return parts[::-1] if newest else parts


# --- Retention ------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
LOOK_EVERY = timedelta(hours=1)
MOST_AT_ONCE = 200
"""Of each kind. A commit that comes in between waits until so many are removed."""


class Retention:
    """Removes the oldest rows of history, and operations with their events and rollouts that ended before them.

    What is left of history has no gap, so the rows of an operation that has been live for longer go too.
    """

    def __init__(self, clock: Clock, writer: Writer, records: StoredRecords, limits: OperatorLimits) -> None:
        self._clock = clock
        self._writer = writer
        self._records = records
        self._length = limits.history_retention
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
        self._writer.forget_answers(now - RESPONSE_RETENTION)
        before = now - self._length if self._length else BEGINNING
        try:
            expired = await self._records.expired(before, now - RESPONSE_RETENTION)
            while not self._stopping and await self._writer.remove(expired, MOST_AT_ONCE):
                pass
            oldest = await self._records.oldest()
        except StoreFailed as error:
            logger.warning("What is too old to be kept is removed later: %s", error)
            return
        for name, count in self._writer.forget_history(oldest).items():
            logger.warning("Webhook %s: %s rows were not delivered while history kept them, and are lost.", name, count)
