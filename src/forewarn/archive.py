"""What the store knows of what is over, and of what is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.core.event import Event
    from forewarn.core.ledger import Entry
    from forewarn.core.once import Kept
    from forewarn.core.operations import Operation
    from forewarn.core.rollout import Rollout
    from forewarn.ports import HistoryFilter, ListFilter, Store
    from forewarn.writer import Writer


class Archive:
    """Reads that go to the disk: they wait their turn, unlike those of the ledger."""

    def __init__(self, writer: Writer, store: Store) -> None:
        self._writer = writer
        self._store = store

    async def event(self, event_id: str) -> Event | None:
        """An event, live or long over."""
        return self._writer.ledger.event(event_id) or await self._writer.in_store(self._store.event, event_id)

    async def events_beginning(self, start: str, group: str = "") -> list[Event]:
        """The event of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._writer.in_store(self._store.events_beginning, start, group)

    async def events(self, wanted: ListFilter) -> list[tuple[int, Event]]:
        """Events, each with its place in the list."""
        return await self._writer.in_store(self._store.events, wanted)

    async def operation(self, operation_id: str) -> Operation | None:
        """An operation, live or long over."""
        return self._writer.ledger.operation(operation_id) or await self._writer.in_store(
            self._store.operation, operation_id
        )

    async def operations_beginning(self, start: str) -> list[Operation]:
        """The operation of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._writer.in_store(self._store.operations_beginning, start)

    async def operations(self, wanted: ListFilter) -> list[tuple[int, Operation]]:
        """Operations, each with its place in the list."""
        return await self._writer.in_store(self._store.operations, wanted)

    async def rollouts_beginning(self, start: str) -> list[Rollout]:
        """The rollout of that id, live or over; or two of those whose ids begin so, if it is not clear which."""
        return await self._writer.in_store(self._store.rollouts_beginning, start)

    async def rollouts(self, wanted: ListFilter) -> list[tuple[int, Rollout]]:
        """Rollouts, each with its place in the list."""
        return await self._writer.in_store(self._store.rollouts, wanted)

    async def kept_answer(self, key: str) -> Kept | None:
        """The answer kept for a key, whole."""
        return await self._writer.in_store(self._store.kept_answer, key)

    async def history(self, wanted: HistoryFilter) -> list[Entry]:
        return await self._writer.in_store(self._store.history, wanted)
