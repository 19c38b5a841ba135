"""Read active items from memory and ended items from the store; remove items older than the retention time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.clock import real_seconds
from forewarn.core.access import RESPONSE_RETENTION
from forewarn.core.approvals import ENDED_EVENT_RETENTION
from forewarn.engine import live_items
from forewarn.engine.writer import StoreThread, committed_changes
from forewarn.errors import StoreFailed, StoreNotReadable
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from forewarn.core.access import StoredResponse
    from forewarn.core.events import Event
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import HistoryEntry
    from forewarn.engine.live_items import Conditions
    from forewarn.engine.writer import Writer
    from forewarn.ports import Clock, HistoryFilter, ListFilter, Records, RetentionCutoff, Store


T = TypeVar("T")
Item = TypeVar("Item", bound="Event | Operation | Rollout")

SCAN_ROWS = 20_000
"""Maximum number of history rows that one read scans."""
RECENT_SECONDS = 1.0
"""After a read, no other one is needed in this time to know that reads work."""
OPTIONAL_READ_SECONDS = 2.0
"""How long a read takes at most that a response does not need."""


async def optional(read: Awaitable[T], otherwise: T) -> T:
    """Return what a read returns. If the store cannot be read, or is too slow, return something else."""
    try:
        async with asyncio.timeout(OPTIONAL_READ_SECONDS):
            return await read
    except (StoreFailed, TimeoutError):
        return otherwise


class StoredRecords:
    """Reads active items from memory, and others from the store, in a thread of its own that does not delay commits.

    A read sees everything that was committed before the call.
    """

    def __init__(self, writer: Writer, store: Store) -> None:
        self._writer = writer
        reader = store.reader()
        self._records: Records = store if reader is None else reader
        self._thread = None if reader is None else StoreThread()
        self.known_oldest = 0
        """What `oldest` returned last, for a reader that must not need the store. Retention reads it after each run."""
        self._failed: Callable[[], object] | None = None
        """The last read that failed, until it succeeds."""
        self._succeeded_at = 0.0

    async def _read(self, call: Callable[..., T], *arguments: Any) -> T:
        try:
            if self._thread is None:
                found = await self._writer.run_in_store_thread(call, *arguments)
            else:
                found = await self._thread.call(partial(call, *arguments))
        except StoreFailed as error:
            self._failed = partial(call, *arguments)
            raise StoreNotReadable(problem=error.fields.get("problem", error)) from error
        self._succeeded_at = real_seconds()
        return found

    async def check(self) -> str:
        """Return why reads fail; empty: they work. Repeats the last read that failed: another one may work."""
        failed = self._failed
        if failed is None and (not self._writer.leads or real_seconds() - self._succeeded_at < RECENT_SECONDS):
            return ""
        try:
            await self._read(failed or self._records.check)
        except StoreNotReadable as error:
            return str(error)
        if self._failed is failed:
            self._failed = None
        return ""

    def stop(self) -> None:
        """Finish the reads that were submitted, and end the thread. The store closes the reader."""
        if self._thread is not None:
            self._thread.stop()

    # --- Items: active ones need no store -------------------------------------------------------------

    async def event(self, event_id: str) -> Event | None:
        """Return an event, active or ended."""
        state = self._writer.state
        if (known := state.event(event_id) or state.ended_of_active.get(event_id)) is not None:
            return known
        for changes in reversed(committed_changes() or ()):  # so that the response to a change needs no read
            if event_id in changes.events:
                return changes.events[event_id]
        return await self._read(self._records.event, event_id)

    async def events_by_prefix(self, start: str, group: str = "", generation: int = 0) -> list[Event]:
        """Return the events whose ids start with this prefix: at most two, to detect ambiguous prefixes.

        With a group, only its events, of this generation of it.
        """
        found = [
            event
            for event in _with_prefix(self._writer.state.events, start)
            if not group or (event.group == group and event.generation >= generation)
        ]
        return await self._with_ended(found, self._records.events_by_prefix, start, group, generation)

    async def events(self, filters: ListFilter) -> list[tuple[str | int, Event]]:
        """Return events, each with the key that is the cursor of a page."""
        return await self._page(self._writer.state.events, live_items.EVENTS, self._records.events, filters)

    async def count_events(self, filters: ListFilter) -> int:
        """Return the number of events that match."""
        state = self._writer.state
        return await self._count(state.events, live_items.EVENTS, self._records.count_events, filters)

    async def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, active or ended."""
        return self._writer.state.operation(operation_id) or await self._read(self._records.operation, operation_id)

    async def operations_by_prefix(self, start: str) -> list[Operation]:
        """Return the operations whose ids start with this prefix: at most two, to detect ambiguous prefixes."""
        found = _with_prefix(self._writer.state.operations, start)
        return await self._with_ended(found, self._records.operations_by_prefix, start)

    async def operations(self, filters: ListFilter) -> list[tuple[str | int, Operation]]:
        """Return operations, each with the key that is the cursor of a page."""
        state = self._writer.state
        return await self._page(state.operations, live_items.OPERATIONS, self._records.operations, filters)

    async def count_operations(self, filters: ListFilter) -> int:
        """Return the number of operations that match."""
        state = self._writer.state
        return await self._count(state.operations, live_items.OPERATIONS, self._records.count_operations, filters)

    async def rollouts_by_prefix(self, start: str) -> list[Rollout]:
        """Return the rollouts whose ids start with this prefix: at most two, to detect ambiguous prefixes."""
        found = _with_prefix(self._writer.state.rollouts, start)
        return await self._with_ended(found, self._records.rollouts_by_prefix, start)

    async def rollouts(self, filters: ListFilter) -> list[tuple[str | int, Rollout]]:
        """Return rollouts, each with the key that is the cursor of a page."""
        return await self._page(self._writer.state.rollouts, live_items.ROLLOUTS, self._records.rollouts, filters)

    async def _with_ended(
        self, active: list[Item], read: Callable[..., list[Item]], start: str, *arguments: str | int
    ) -> list[Item]:
        """Add ended items. If the store cannot be read, the active item with this prefix is the answer."""
        if len(active) > 1 or any(item.id == start for item in active):
            return active[:2]
        reading = self._read(read, start, *arguments)
        stored = await (optional(reading, active) if active else reading)
        ids = {item.id for item in active}
        return [*active, *(item for item in stored if item.id not in ids)][:2]

    async def _page(
        self,
        active: Mapping[str, Item],
        conditions: Conditions,
        read: Callable[[ListFilter], list[tuple[int, Item]]],
        filters: ListFilter,
    ) -> list[tuple[str | int, Item]]:
        """Return a page. The key of active items is their id: all nodes know it. Other keys are row numbers."""
        if filters.live and (not filters.after_id or filters.after_id in active):
            found: list[tuple[str | int, Item]] = []
            async for item in live_items.matching(self._writer.state, active, conditions, filters):
                found.append((item.id, item))
                if len(found) == filters.limit:
                    break
            return found
        # The last item of the previous page may have ended: only the store knows its place.
        rows = await self._read(read, filters)
        return [(item.id if filters.live else number, item) for number, item in rows]

    async def _count(
        self,
        active: Mapping[str, Item],
        conditions: Conditions,
        read: Callable[[ListFilter], int],
        filters: ListFilter,
    ) -> int:
        if filters.live:
            found = live_items.matching(self._writer.state, active, conditions, filters)
            return len([item async for item in found])
        return await self._read(read, filters)

    # --- What only the store has ------------------------------------------------------------------------

    async def stored_response(self, key: str) -> StoredResponse | None:
        """Return the stored response of an idempotency key, with its body."""
        return await self._read(self._records.stored_response, key)

    async def history(self, filters: HistoryFilter) -> list[HistoryEntry]:
        """Return history rows. Scans a part at a time, so that a search for rare rows does not block other reads."""
        if filters.operation:  # has an index
            return await self._read(self._records.history, filters)
        last = self.newest + 1
        first = max(filters.after + 1, await self.oldest())
        end = min(filters.before or last, last)
        found: list[HistoryEntry] = []
        for begin in _scan_starts(first, end, newest=filters.newest):
            part = filters._replace(after=begin - 1, before=min(begin + SCAN_ROWS, end))
            found += await self._read(self._records.history, part._replace(limit=filters.limit - len(found)))
            if len(found) >= filters.limit:
                break
        return found

    @property
    def newest(self) -> int:
        """Sequence of the newest history row."""
        return self._writer.state.sequence

    async def oldest(self) -> int:
        """Return the sequence of the oldest stored history row."""
        self.known_oldest = await self._read(self._records.oldest)
        return self.known_oldest

    async def retention_cutoff(self, before: datetime, responses_before: datetime) -> RetentionCutoff:
        """Return the cutoff for items before these times."""
        return await self._read(self._records.retention_cutoff, before, responses_before)


def _with_prefix(items: Mapping[str, Item], start: str) -> list[Item]:
    """Return the items whose ids start with this prefix. A complete id is found at once."""
    if start in items:
        return [items[start]]
    return [item for item_id, item in items.items() if item_id.startswith(start)]


def _scan_starts(first: int, end: int, *, newest: bool) -> range:
    """Return the first sequence of each scan."""
    parts = range(first, end, SCAN_ROWS)
    return parts[::-1] if newest else parts


# --- Retention ------------------------------------------------------------------------------------


_log = get_logger(__name__)

BEGINNING = datetime(1, 1, 1, tzinfo=UTC)
CHECK_INTERVAL = timedelta(hours=1)
MAX_REMOVED_AT_ONCE = 200
"""Maximum number of items of each kind to remove in one transaction, because commits wait for it."""


class Retention:
    """Removes history rows that are older than the retention time, and operations, events and rollouts that ended
    before it.

    The remaining history has no gap: rows of an operation that is still active are removed too.
    """

    def __init__(self, clock: Clock, writer: Writer, records: StoredRecords, limits: OperatorLimits) -> None:
        self._clock = clock
        self._writer = writer
        self._records = records
        self._retention_time = limits.history_retention
        self._checked_at: datetime | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    def start_if_due(self) -> None:
        """Remove expired items in the background, if the last check is long enough ago."""
        now = self._clock.now()
        # The absolute difference, because the system clock may have been set back.
        due = self._checked_at is None or abs(now - self._checked_at) >= CHECK_INTERVAL
        if due and (self._task is None or self._task.done()):
            self._checked_at = now
            self._task = asyncio.create_task(self._remove(now))

    async def finish(self) -> None:
        """Remove expired items if that is due, and wait until it is done."""
        if self._task is not None:
            await self._task
        self.start_if_due()
        if self._task is not None:
            await self._task

    async def stop(self) -> None:
        """Stop after the current transaction. The next start removes the remaining items."""
        self._stopping = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        self._stopping, self._task, self._checked_at = False, None, None

    def forget_expired(self) -> None:
        """Forget in memory what has expired. The leader removes it from the store."""
        now = self._clock.now()
        self._writer.forget_responses(now - RESPONSE_RETENTION)
        self._writer.forget_ended_events(now - ENDED_EVENT_RETENTION)

    async def _remove(self, now: datetime) -> None:
        self.forget_expired()
        before = now - self._retention_time if self._retention_time else BEGINNING
        try:
            cutoff = await self._records.retention_cutoff(before, now - RESPONSE_RETENTION)
            while not self._stopping and await self._writer.remove_expired(cutoff, MAX_REMOVED_AT_ONCE):
                pass
            oldest = await self._records.oldest()
        except StoreFailed as error:
            _log.warning("retention_failed", "Cannot remove expired history; retrying later.", error=str(error))
            return
        for name, count in self._writer.forget_history(oldest).items():
            _log.warning(
                "webhook_rows_expired",
                "Rows expired before they were delivered, and were dropped.",
                webhook=name,
                rows=count,
            )
