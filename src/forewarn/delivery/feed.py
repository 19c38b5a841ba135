"""The feed: history rows in order, from any row on, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forewarn.delivery.history_rows import HistoryEntryShape, as_tenants_see
from forewarn.engine.history import SCAN_ROWS
from forewarn.errors import HistoryExpired, ServiceStopping, StoreFailed, TooManyFeedClients, UnknownHistoryRow
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from forewarn.core.state import Changes, HistoryEntry
    from forewarn.engine.engine import Engine


EVENT_STREAM = "text/event-stream"
RETRY_MILLISECONDS = 1000
"""Delay after which a client should reconnect."""


def render(entry: HistoryEntry) -> bytes:
    """Encode a history row as one event. JSON contains no line breaks."""
    data = msgspec.json.encode(HistoryEntryShape.of(entry)).decode()
    return f"id: {entry.sequence}\nevent: {entry.kind}\ndata: {data}\n\n".encode()


def stream_start(position: int) -> bytes:
    """Return the start of a stream. Its id lets a client resume even if no row was sent."""
    return f"retry: {RETRY_MILLISECONDS}\nid: {position}\n\n".encode()


def keep_alive(position: int) -> bytes:
    """Return a comment that keeps an idle connection open."""
    return f": nothing new\nid: {position}\n\n".encode()


class ServerSentEvent(NamedTuple):
    """One event of a stream."""

    id: str
    data: str
    """Empty: the event only sets the id."""


class EventStreamParser:
    """Parses an event stream line by line."""

    def __init__(self) -> None:
        self._id = ""
        self._data: list[str] = []

    def parse_line(self, line: str) -> ServerSentEvent | None:
        """Return the event that this line completes, or None."""
        line = line.rstrip("\r\n")
        if not line:
            event = ServerSentEvent(self._id, "\n".join(self._data))
            self._data = []
            return event
        name, _, value = line.partition(":")
        if name == "id":
            self._id = value.removeprefix(" ")
        elif name == "data":
            self._data.append(value.removeprefix(" "))
        return None


# --- Readers --------------------------------------------------------------------------------------


MAX_READERS = 1000
TAIL_ROWS = 10_000
RENDERED_ROWS = 256
"""Number of encoded rows to cache. Readers at the end of the feed get the same rows."""
PAGE_ROWS = 200
PART_BYTES = 32_768
"""Approximate size of a write. Limits the memory for a client that does not read."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds without a row after which a comment is sent. Real time, also with a virtual clock."""


class Feed:
    """The newest history rows, and the readers that wait for more."""

    def __init__(
        self, engine: Engine, *, tail_rows: int = TAIL_ROWS, keep_alive_seconds: float = KEEP_ALIVE_SECONDS
    ) -> None:
        self.records = engine.records
        self.keep_alive_seconds = keep_alive_seconds
        self.tail: deque[HistoryEntry] = deque(maxlen=tail_rows)
        self.readers: set[FeedSubscriber] = set()
        self._rendered: dict[int, bytes] = {}
        self.stopping = False
        engine.subscribe_to_commits(self._on_commit)

    async def reader(
        self,
        groups: frozenset[str],
        kinds: frozenset[str],
        after: int | None,
        is_authorized: Callable[[], bool] = lambda: True,
        *,
        event_type: str = "",
        tenant: bool = False,
    ) -> FeedSubscriber:
        """Return a reader for rows of these groups and kinds and of this event type (empty: all), after a row.

        `after`: None for new rows only, 0 for all stored rows. An expired row is an error: rows would be missing. The
        reader ends when `is_authorized` returns False.
        """
        if self.stopping:
            raise ServiceStopping
        if len(self.readers) >= MAX_READERS:
            raise TooManyFeedClients(maximum=MAX_READERS)
        position = await self._position(after)
        return FeedSubscriber(self, groups, kinds, event_type, position, is_authorized, tenant=tenant)

    async def _position(self, after: int | None) -> int:
        newest = self.records.newest
        if after is None:
            return newest
        if after > newest:
            raise UnknownHistoryRow(after=after, newest=newest)
        oldest = await self.records.oldest()
        if 0 < after < oldest - 1:
            raise HistoryExpired(after=after, oldest=oldest)
        return max(after, oldest - 1)

    def stop(self) -> None:
        """End all readers."""
        self.stopping = True
        for reader in self.readers:
            reader.end()

    def parts(self, entries: Iterable[HistoryEntry], *, tenant: bool) -> Iterator[bytes]:
        """Yield the encoded rows, in parts of limited size."""
        part = bytearray()
        for entry in entries:
            part += render(as_tenants_see(entry)) if tenant else self._bytes_of(entry)
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
        if part:
            yield bytes(part)

    def _bytes_of(self, entry: HistoryEntry) -> bytes:
        cached = self._rendered.get(entry.sequence)
        if cached is None:
            cached = self._rendered[entry.sequence] = render(entry)
            if len(self._rendered) > RENDERED_ROWS:
                del self._rendered[next(iter(self._rendered))]
        return cached

    def _on_commit(self, changes: Changes) -> None:
        """Add committed rows, and wake the readers that want them."""
        if changes.history:
            if self.tail and self.tail[-1].sequence + 1 != changes.history[0].sequence:
                self.tail.clear()  # a commit was missed; readers get its rows from the store
            self.tail.extend(changes.history)
            for reader in self.readers:
                # Wake all readers if a token has changed: theirs may be revoked.
                reader.notify(changes.history, wake=bool(changes.tokens))


class FeedSubscriber:
    """Reads the feed for one client."""

    def __init__(
        self,
        feed: Feed,
        groups: frozenset[str],
        kinds: frozenset[str],
        event_type: str,
        position: int,
        is_authorized: Callable[[], bool],
        *,
        tenant: bool,
    ) -> None:
        self._feed = feed
        self._tenant = tenant
        self._groups = groups
        self._kinds = kinds
        self._event_type = event_type
        self._position = position
        """All matching rows up to this sequence were sent."""
        self._is_authorized = is_authorized
        self._wake = asyncio.Event()
        self._waiting = False
        """Whether it has sent all rows and waits for new ones."""
        self._ended = False

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes to send, until the feed ends."""
        self._feed.readers.add(self)
        try:
            yield stream_start(self._position)
            # The feed may have stopped before this reader was registered.
            while not (self._ended or self._feed.stopping) and self._is_authorized():
                if self._position < self._feed.records.newest:
                    for part in self._feed.parts(await self._next_page(), tenant=self._tenant):
                        yield part
                elif not await self._wait():
                    yield keep_alive(self._position)
        finally:
            self._feed.readers.discard(self)

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    def notify(self, entries: list[HistoryEntry], *, wake: bool) -> None:
        """Wake the reader if it wants one of the new rows; otherwise only move its position."""
        if not self._waiting:
            return
        if wake or any(map(self._matches, entries)):
            self._waiting = False
            self._wake.set()
        else:
            self._position = entries[-1].sequence

    def _matches(self, entry: HistoryEntry) -> bool:
        return (
            (not self._groups or entry.group in self._groups)
            and (not self._kinds or entry.kind in self._kinds)
            and (not self._event_type or entry.type == self._event_type)
        )

    async def _wait(self) -> bool:
        """Wait for new rows. Returns False after `keep_alive_seconds`."""
        if self._ended:
            return True
        self._wake.clear()
        self._waiting = True
        try:
            async with asyncio.timeout(self._feed.keep_alive_seconds):
                return await self._wake.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting = False

    async def _next_page(self) -> list[HistoryEntry]:
        """Return the matching rows of the next page, and move the position."""
        tail = self._feed.tail
        begin = self._position + 1 - tail[0].sequence if tail else -1
        if begin < 0:
            return await self._read_page()
        page = [tail[index] for index in range(begin, min(begin + PAGE_ROWS, len(tail)))]
        self._position = page[-1].sequence
        return list(filter(self._matches, page))

    async def _read_page(self) -> list[HistoryEntry]:
        # More numbers than rows, because a restore skips numbers.
        begin, end = self._position, min(self._position + SCAN_ROWS, self._feed.records.newest)
        filters = HistoryFilter(
            groups=tuple(self._groups),
            kinds=tuple(self._kinds),
            type=self._event_type,
            after=begin,
            before=end + 1,
            limit=PAGE_ROWS,
        )
        try:
            page = await self._feed.records.history(filters)
            # Checked afterwards: rows that exist now also existed during the read.
            complete = await self._feed.records.oldest() <= begin + 1
        except StoreFailed:
            complete = False
        if not complete:
            self._ended = True  # a client that reconnects gets the error
            return []
        self._position = page[-1].sequence if len(page) == PAGE_ROWS else end
        return page
