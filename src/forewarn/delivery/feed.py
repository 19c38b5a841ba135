"""The feed: history rows in order, from any row on, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forewarn.delivery.history_rows import HistoryEntryShape, as_tenants_see
from forewarn.delivery.live_topics import LiveTopics
from forewarn.engine.history import SCAN_ROWS
from forewarn.errors import (
    HistoryExpired,
    NodeBehind,
    ServiceStopping,
    StoreFailed,
    TooManyFeedClients,
    TooManyFeedClientsOfToken,
    UnknownHistoryRow,
)
from forewarn.ports import HistoryFilter
from forewarn.system.memory import release_memory

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

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


TAIL_ROWS = 10_000
CACHED_BYTES = 4_194_304
"""Size of the encoded parts to cache. Many readers get the same parts: at the end of the feed, or from its start."""
CACHE_ENTRY_BYTES = 500
"""What a cached part costs besides its data."""
RELEASE_READERS = 100
RELEASE_SECONDS = 2.0
"""Memory is returned this long after so many readers have left. Then their connections are closed too."""
PAGE_ROWS = 200
PART_BYTES = 16_384
"""Approximate size of a write. A client that does not read costs about this much memory."""
KEEP_ALIVE_SECONDS = 15.0
"""Seconds without a row after which a comment is sent. Real time, also with a virtual clock."""


class FeedLimits(NamedTuple):
    """Maximum numbers of readers."""

    readers: int = 1000
    readers_of_token: int = 100


class FeedFilter(NamedTuple):
    """Which rows a reader gets, and in which form."""

    groups: frozenset[str]
    kinds: frozenset[str]
    event_type: str
    """Empty: all."""
    tenant: bool
    """Whether rows are as tenants see them."""

    def matches(self, entry: HistoryEntry) -> bool:
        return (
            (not self.groups or entry.group in self.groups)
            and (not self.kinds or entry.kind in self.kinds)
            and (not self.event_type or entry.type == self.event_type)
        )


class FeedPart(NamedTuple):
    """Encoded rows. All matching rows up to `end` are in this part or before it."""

    data: bytes
    end: int


class Feed:
    """The newest history rows, and the readers that wait for more."""

    def __init__(
        self,
        engine: Engine,
        limits: FeedLimits | None = None,
        *,
        tail_rows: int = TAIL_ROWS,
        keep_alive_seconds: float = KEEP_ALIVE_SECONDS,
    ) -> None:
        self.records = engine.records
        self._engine = engine
        self.keep_alive_seconds = keep_alive_seconds
        self.tail: deque[HistoryEntry] = deque(maxlen=tail_rows)
        self.readers: set[FeedSubscriber] = set()
        self._limits = limits or FeedLimits()
        self._parts: dict[tuple[FeedFilter, int], FeedPart] = {}
        """Encoded parts by filter and position. History only grows, so a part is valid forever."""
        self._cached_bytes = 0
        self._left = 0
        """Readers that have left since memory was last returned."""
        self._turn = asyncio.Lock()
        """Held while a part is encoded: only one in each turn of the loop, however many readers there are."""
        self._reading: dict[tuple[FeedFilter, int], asyncio.Task[FeedPart | None]] = {}
        """Reads from the store. Readers at the same position share one."""
        self.stopping = False
        self.topics = LiveTopics()
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
        generation: int = 0,
        owner: str = "",
        topics: tuple[str, ...] = (),
    ) -> FeedSubscriber:
        """Return a reader for rows of these groups and kinds and of this event type (empty: all), after a row.

        `after`: None for new rows only, 0 for all stored rows. An expired row is an error: rows would be missing. The
        reader ends when `is_authorized` returns False. Of a tenant, `generation` is the row after which its rows begin.
        `owner` is the name of the client's token. `topics`: live
        topics to follow too. The caller must close the reader.
        """
        if self.stopping:
            raise ServiceStopping
        position = max(await self._position(after), generation)
        if len(self.readers) >= self._limits.readers:
            raise TooManyFeedClients(maximum=self._limits.readers)
        if sum(reader.owner == owner for reader in self.readers) >= self._limits.readers_of_token:
            raise TooManyFeedClientsOfToken(token=owner, maximum=self._limits.readers_of_token)
        reader = FeedSubscriber(
            self, FeedFilter(groups, kinds, event_type, tenant), position, is_authorized, owner, topics
        )
        self.readers.add(reader)
        return reader

    def remove(self, reader: FeedSubscriber) -> None:
        """Remove a reader. Return memory when many have left, because each had a buffer."""
        if reader not in self.readers:
            return
        self.readers.discard(reader)
        self.topics.leave(reader)
        if not self.readers:
            self._parts.clear()
            self._cached_bytes = 0
        self._left += 1
        if self._left >= RELEASE_READERS:
            self._left = 0
            asyncio.get_running_loop().call_later(RELEASE_SECONDS, release_memory)

    async def _position(self, after: int | None) -> int:
        if after is None:
            return self.records.newest
        await self._catch_up(after)
        in_memory = self.tail[0].sequence if self.tail else self.records.newest + 1
        if after + 1 >= max(in_memory, self.records.known_oldest):
            return after  # it needs no store
        oldest = await self.records.oldest()
        if 0 < after < oldest - 1:
            raise HistoryExpired(after=after, oldest=oldest)
        return max(after, oldest - 1)

    async def _catch_up(self, after: int) -> None:
        """Wait until this node has a row that a client knows from another node. Raises an error if it does not get it.

        Only if it has every commit of that time, no node has ever sent this row.
        """
        forwarder = self._engine.forwarder
        has_every_commit = forwarder is None or await forwarder.catch_up(lambda: after > self.records.newest)
        if after > self.records.newest and not has_every_commit:
            raise NodeBehind(after=after, newest=self.records.newest)
        if after > self.records.newest:
            raise UnknownHistoryRow(after=after, newest=self.records.newest)

    def stop(self) -> None:
        """End all readers."""
        self.stopping = True
        self.topics.stop()
        for reader in self.readers:
            reader.end()

    async def part(self, wanted: FeedFilter, position: int) -> FeedPart | None:
        """Return the next rows after a position; None if the store cannot be read, or no longer has these rows."""
        key = (wanted, position)
        found = self._cached(key)
        if found is not None:
            await asyncio.sleep(0)  # a client with room for all parts must not get all of them in one turn of the loop
            return found
        async with self._turn:
            found = self._cached(key)
            if found is not None:
                return found
            begin = position + 1 - self.tail[0].sequence if self.tail else -1
            if begin >= 0:
                page = [self.tail[index] for index in range(begin, min(begin + PAGE_ROWS, len(self.tail)))]
                return await self._encode(key, list(filter(wanted.matches, page)), page[-1].sequence)
        reading = self._reading.get(key)
        if reading is None:
            reading = self._reading[key] = asyncio.create_task(self._read(key))
            reading.add_done_callback(lambda _: self._reading.pop(key, None))
        # A client that disconnects must not cancel the read for the others.
        return await asyncio.shield(reading)

    def _cached(self, key: tuple[FeedFilter, int]) -> FeedPart | None:
        found = self._parts.pop(key, None)
        if found is not None:
            self._parts[key] = found  # it is the last one to be removed now
        return found

    async def _read(self, key: tuple[FeedFilter, int]) -> FeedPart | None:
        wanted, begin = key
        # More numbers than rows, because a restore skips numbers.
        end = min(begin + SCAN_ROWS, self.records.newest)
        filters = HistoryFilter(
            groups=tuple(wanted.groups),
            kinds=tuple(wanted.kinds),
            type=wanted.event_type,
            after=begin,
            before=end + 1,
            limit=PAGE_ROWS,
        )
        try:
            page = await self.records.history(filters)
            # Checked afterwards: rows that exist now also existed during the read.
            if await self.records.oldest() > begin + 1:
                return None
        except StoreFailed:
            return None
        async with self._turn:
            return await self._encode(key, page, page[-1].sequence if len(page) == PAGE_ROWS else end)

    async def _encode(self, key: tuple[FeedFilter, int], page: list[HistoryEntry], end: int) -> FeedPart:
        """Encode a page in parts of limited size, one in each turn of the loop, and cache them. Return the first."""
        wanted, begin = key
        data = bytearray()
        parts = []
        for entry in page:
            data += render(as_tenants_see(entry) if wanted.tenant else entry)
            if len(data) >= PART_BYTES:
                parts.append(FeedPart(bytes(data), entry.sequence))
                data.clear()
                await asyncio.sleep(0)
        if not parts or parts[-1].end < end:
            parts.append(FeedPart(bytes(data), end))
        for part in parts:
            self._cache((wanted, begin), part)
            begin = part.end
        await asyncio.sleep(0)
        return parts[0]

    def _cache(self, key: tuple[FeedFilter, int], part: FeedPart) -> None:
        replaced = self._parts.pop(key, None)
        self._parts[key] = part
        self._cached_bytes += len(part.data) + CACHE_ENTRY_BYTES
        if replaced is not None:
            self._cached_bytes -= len(replaced.data) + CACHE_ENTRY_BYTES
        while self._cached_bytes > CACHED_BYTES and len(self._parts) > 1:
            oldest = self._parts.pop(next(iter(self._parts)))
            self._cached_bytes -= len(oldest.data) + CACHE_ENTRY_BYTES

    def _on_commit(self, changes: Changes) -> None:
        """Add committed rows, and wake the readers that want them."""
        newest = self.tail[-1].sequence if self.tail else 0
        first = changes.history[0].sequence if changes.history else self.records.newest + 1
        if newest + 1 != first:
            # A commit was missed, and readers get its rows from the store; or the database has lost rows.
            self.tail.clear()
            self._parts.clear()
            self._cached_bytes = 0
        if changes.history:
            self.tail.extend(changes.history)
            for reader in self.readers:
                # Wake all readers if a token has changed: theirs may be revoked.
                reader.notify(changes.history, wake=bool(changes.tokens))


class FeedSubscriber:
    """Reads the feed for one client."""

    def __init__(
        self,
        feed: Feed,
        wanted: FeedFilter,
        position: int,
        is_authorized: Callable[[], bool],
        owner: str,
        topics: tuple[str, ...] = (),
    ) -> None:
        self._feed = feed
        self._wanted = wanted
        self.owner = owner
        self._position = position
        """All matching rows up to this sequence were sent."""
        self._topics = topics
        self._live_position = 0
        """All messages of its topics up to this number were sent."""
        self._is_authorized = is_authorized
        self._wake = asyncio.Event()
        self._waiting = False
        """Whether it has sent all rows and waits for new ones."""
        self._ended = False

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """Yield the bytes to send, until the feed ends."""
        try:
            yield stream_start(self._position)
            if self._topics and not self._feed.stopping:
                states, self._live_position = self._feed.topics.join(self, self._topics)
                yield states
            # The feed may have stopped before this reader was registered.
            while not (self._ended or self._feed.stopping) and self._is_authorized():
                live = self._live_messages()
                if live:
                    yield live
                elif self._position < self._feed.records.newest:
                    part = await self._feed.part(self._wanted, self._position)
                    if part is None or not self._is_authorized():  # its token may have ended meanwhile
                        break  # a client that reconnects gets the error
                    self._position = part.end
                    if part.data:
                        yield part.data
                elif not await self._wait():
                    yield keep_alive(self._position)
        finally:
            self.close()

    def _live_messages(self) -> bytes:
        if not self._topics:
            return b""
        data, self._live_position = self._feed.topics.after(self._live_position, self._topics)
        return data

    def close(self) -> None:
        """Leave the feed."""
        self._feed.remove(self)

    def end(self) -> None:
        self._ended = True
        self._wake.set()

    def wake(self) -> None:
        """Send new messages of the topics. Only a reader that waits must be woken: others look for them anyway."""
        if self._waiting:
            self._waiting = False
            self._wake.set()

    def notify(self, entries: list[HistoryEntry], *, wake: bool) -> None:
        """Wake the reader if it wants one of the new rows; otherwise only move its position."""
        if not self._waiting:
            return
        is_next = entries[0].sequence <= self._position + 1  # otherwise there are rows in between, which it may want
        if wake or not is_next or any(map(self._wanted.matches, entries)):
            self._waiting = False
            self._wake.set()
        else:
            self._position = entries[-1].sequence

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
