"""Read active and ended items from the store, and remove those that are older than the retention time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.access import RESPONSE_RETENTION
from forewarn.core.approvals import ENDED_EVENT_RETENTION
from forewarn.engine.writer import StoreThread
from forewarn.errors import StoreFailed
from forewarn.system.logs import get_logger

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

SCAN_ROWS = 20_000
"""Maximum number of history rows that one read scans."""


class StoredRecords:
    """Reads from the store, in a thread of its own, so that they do not delay commits.

    A read sees everything that was committed before the call.
    """

    def __init__(self, writer: Writer, store: Store) -> None:
        self._writer = writer
        reader = store.reader()
        self._records: Records = store if reader is None else reader
        self._thread = None if reader is None else StoreThread()

    async def _read(self, call: Callable[..., T], *arguments: Any) -> T:
        if self._thread is None:
            return await self._writer.run_in_store_thread(call, *arguments)
        return await self._thread.call(partial(call, *arguments))

    def stop(self) -> None:
        """Finish the reads that were submitted, and end the thread. The store closes the reader."""
        if self._thread is not None:
            self._thread.stop()

    async def event(self, event_id: str) -> Event | None:
        """Return an event, active or ended."""
        return self._writer.state.event(event_id) or await self._read(self._records.event, event_id)

    async def events_by_prefix(self, start: str, group: str = "") -> list[Event]:
        """Return the events whose ids start with this prefix: at most two, to detect ambiguous prefixes."""
        return await self._read(self._records.events_by_prefix, start, group)

    async def events(self, filters: ListFilter) -> list[tuple[int, Event]]:
        """Return events, each with its row number in the store, which is the cursor of a page."""
        return await self._read(self._records.events, filters)

    async def count_events(self, filters: ListFilter) -> int:
        """Return the number of events that match."""
        return await self._read(self._records.count_events, filters)

    async def operation(self, operation_id: str) -> Operation | None:
        """Return an operation, active or ended."""
        return self._writer.state.operation(operation_id) or await self._read(self._records.operation, operation_id)

    async def operations_by_prefix(self, start: str) -> list[Operation]:
        """Return the operations whose ids start with this prefix: at most two, to detect ambiguous prefixes."""
        return await self._read(self._records.operations_by_prefix, start)

    async def operations(self, filters: ListFilter) -> list[tuple[int, Operation]]:
        """Return operations, each with its row number in the store, which is the cursor of a page."""
        return await self._read(self._records.operations, filters)

    async def count_operations(self, filters: ListFilter) -> int:
        """Return the number of operations that match."""
        return await self._read(self._records.count_operations, filters)

    async def rollouts_by_prefix(self, start: str) -> list[Rollout]:
        """Return the rollouts whose ids start with this prefix: at most two, to detect ambiguous prefixes."""
        return await self._read(self._records.rollouts_by_prefix, start)

    async def rollouts(self, filters: ListFilter) -> list[tuple[int, Rollout]]:
        """Return rollouts, each with its row number in the store, which is the cursor of a page."""
        return await self._read(self._records.rollouts, filters)

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
        return await self._read(self._records.oldest)

    async def retention_cutoff(self, before: datetime, responses_before: datetime) -> RetentionCutoff:
        """Return the cutoff for items before these times."""
        return await self._read(self._records.retention_cutoff, before, responses_before)


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
