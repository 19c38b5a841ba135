"""What the store knows of what is over, and of what is not."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.store_thread import StoreThread

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.access import Kept
    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Entry
    from forewarn.ports import Expired, HistoryFilter, ListFilter, Records, Store
    from forewarn.writer import Writer

T = TypeVar("T")

LOOKED_AT_ONCE = 20_000
"""Rows of history."""


class Archive:
    """Reads that go to the disk: they wait their turn, unlike those of the ledger, but hold up no commit.

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
        return self._writer.ledger.event(event_id) or await self._read(self._records.event, event_id)

    async def events_beginning(self, start: str, group: str = "") -> list[Event]:
        """The event of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._read(self._records.events_beginning, start, group)

    async def events(self, wanted: ListFilter) -> list[tuple[int, Event]]:
        """Events, each with its place in the list."""
        return await self._read(self._records.events, wanted)

    async def operation(self, operation_id: str) -> Operation | None:
        """An operation, live or long over."""
        return self._writer.ledger.operation(operation_id) or await self._read(self._records.operation, operation_id)

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

    async def kept_answer(self, key: str) -> Kept | None:
        """The answer kept for a key, whole."""
        return await self._read(self._records.kept_answer, key)

    async def history(self, wanted: HistoryFilter) -> list[Entry]:
        """Looked through a part at a time: who asks for something rare does not hold up the others for long."""
        if wanted.operation:  # there is an index of that
            return await self._read(self._records.history, wanted)
        last = self.newest + 1
        first = max(wanted.after + 1, await self.oldest())
        end = min(wanted.before or last, last)
        found: list[Entry] = []
        for begin in _beginnings(first, end, newest=wanted.newest):
            part = wanted._replace(after=begin - 1, before=min(begin + LOOKED_AT_ONCE, end))
            found += await self._read(self._records.history, part._replace(limit=wanted.limit - len(found)))
            if len(found) >= wanted.limit:
                break
        return found

    @property
    def newest(self) -> int:
        """The sequence of the newest row of history."""
        return self._writer.ledger.sequence

    async def oldest(self) -> int:
        """The sequence of the oldest row of history that is kept."""
        return await self._read(self._records.oldest)

    async def expired(self, before: datetime, answers_before: datetime) -> Expired:
        """Up to where things are older than they are to be kept."""
        return await self._read(self._records.expired, before, answers_before)


def _beginnings(first: int, end: int, *, newest: bool) -> range:
    """Where the parts of history begin that are looked through one after the other."""
    parts = range(first, end, LOOKED_AT_ONCE)
    return parts[::-1] if newest else parts
