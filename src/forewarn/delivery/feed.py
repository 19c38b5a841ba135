"""The feed: every row of history in its order, from any row on, as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from forewarn.delivery.history_rows import HistoryEntryShape, as_tenants_see
from forewarn.errors import HistoryExpired, ServiceStopping, StoreFailed, TooManyReaders, UnknownHistoryRow
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterable, Iterator

    from forewarn.core.state import Changes, HistoryEntry
    from forewarn.engine.engine import Engine


EVENT_STREAM = "text/event-stream"
RETRY_MILLISECONDS = 1000
"""After how long a client that was cut off is to come back."""


def render(entry: HistoryEntry) -> bytes:
    """A row of history. JSON has no line breaks of its own."""
    data = msgspec.json.encode(HistoryEntryShape.of(entry)).decode()
    return f"id: {entry.sequence}\nevent: {entry.kind}\ndata: {data}\n\n".encode()


def opening(position: int) -> bytes:
    """How a feed begins: what to go on from, should it end before the first row."""
    return f"retry: {RETRY_MILLISECONDS}\nid: {position}\n\n".encode()


def sign_of_life(position: int) -> bytes:
    """That the feed goes on, while there is nothing to tell."""
    return f": nothing new\nid: {position}\n\n".encode()


class Message(NamedTuple):
    """What is said between two blank lines."""

    id: str
    data: str
    """Empty: only how far it has come."""


class Listener:
    """Puts messages together from lines."""

    def __init__(self) -> None:
        self._id = ""
        self._data: list[str] = []

    def hear(self, line: str) -> Message | None:
        """The message that the line ends, if it does."""
        line = line.rstrip("\r\n")
        if not line:
            message = Message(self._id, "\n".join(self._data))
            self._data = []
            return message
        name, _, value = line.partition(":")
        if name == "id":
            self._id = value.removeprefix(" ")
        elif name == "data":
            self._data.append(value.removeprefix(" "))
        return None


# --- Who follows it -------------------------------------------------------------------------------


MOST_READERS = 1000
TAIL_ROWS = 10_000
RENDERED_ROWS = 256
"""How many rows are kept as bytes: readers that follow closely are told the same ones."""
PAGE_ROWS = 200
PART_BYTES = 32_768
"""About as much is handed to a connection at a time: so much may lie there for a client that does not read."""
QUIET_SECONDS = 15.0
"""After how long without a row a sign of life is sent. Real time: it is for the connection."""


class Feed:
    """The newest rows, and who follows them."""

    def __init__(self, engine: Engine, *, tail_rows: int = TAIL_ROWS, quiet_seconds: float = QUIET_SECONDS) -> None:
        self.records = engine.records
        self.quiet_seconds = quiet_seconds
        self.tail: deque[HistoryEntry] = deque(maxlen=tail_rows)
        self.readers: set[Reader] = set()
        self._rendered: dict[int, bytes] = {}
        self.stopping = False
        engine.follow(self._take)

    async def reader(
        self,
        groups: frozenset[str],
        kinds: frozenset[str],
        after: int | None,
        let_in: Callable[[], bool] = lambda: True,
        *,
        tenant: bool = False,
    ) -> Reader:
        """Somebody who follows: only these groups and kinds, or all; after that row, or None: from now on.

        0 is before all that is kept. A row that was removed since is an error: there would be a gap. It ends when
        who follows is not let in any more.
        """
        if self.stopping:
            raise ServiceStopping
        if len(self.readers) >= MOST_READERS:
            raise TooManyReaders(most=MOST_READERS)
        position = await self._position(after)
        return Reader(self, groups, kinds, position, let_in, tenant=tenant)

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
        """Every feed ends now."""
        self.stopping = True
        for reader in self.readers:
            reader.end()

    def parts(self, entries: Iterable[HistoryEntry], *, tenant: bool) -> Iterator[bytes]:
        """Rows as bytes, a bounded number of them at a time."""
        part = bytearray()
        for entry in entries:
            part += render(as_tenants_see(entry)) if tenant else self._bytes_of(entry)
            if len(part) >= PART_BYTES:
                yield bytes(part)
                part.clear()
        if part:
            yield bytes(part)

    def _bytes_of(self, entry: HistoryEntry) -> bytes:
        known = self._rendered.get(entry.sequence)
        if known is None:
            known = self._rendered[entry.sequence] = render(entry)
            if len(self._rendered) > RENDERED_ROWS:
                del self._rendered[next(iter(self._rendered))]
        return known

    def _take(self, changes: Changes) -> None:
        """Rows that are on disk now."""
        if changes.history:
            if self.tail and self.tail[-1].sequence + 1 != changes.history[0].sequence:
                self.tail.clear()  # one was missed, whoever was at fault: the store has them all
            self.tail.extend(changes.history)
            for reader in self.readers:
                # A token that was revoked may be somebody's here.
                reader.tell(changes.history, wake=bool(changes.tokens))


class Reader:
    """How far somebody has been told."""

    def __init__(
        self,
        feed: Feed,
        groups: frozenset[str],
        kinds: frozenset[str],
        position: int,
        let_in: Callable[[], bool],
        *,
        tenant: bool,
    ) -> None:
        self._feed = feed
        self._tenant = tenant
        self._groups = groups
        self._kinds = kinds
        self._position = position
        """All that is wanted up to this row was handed over."""
        self._let_in = let_in
        self._news = asyncio.Event()
        self._waiting = False
        """Whether it has been told all there is."""
        self._ended = False

    async def parts(self) -> AsyncGenerator[bytes, None]:
        """What is to be sent, until the feed ends."""
        self._feed.readers.add(self)
        try:
            yield opening(self._position)
            # The stop may have come before this was one of the readers.
            while not (self._ended or self._feed.stopping) and self._let_in():
                if self._position < self._feed.records.newest:
                    for part in self._feed.parts(await self._next_page(), tenant=self._tenant):
                        yield part
                elif not await self._wait():
                    yield sign_of_life(self._position)
        finally:
            self._feed.readers.discard(self)

    def end(self) -> None:
        self._ended = True
        self._news.set()

    def tell(self, entries: list[HistoryEntry], *, wake: bool) -> None:
        """There is more. Whoever wants none of it need not be woken for it."""
        if not self._waiting:
            return
        if wake or any(map(self._wants, entries)):
            self._waiting = False
            self._news.set()
        else:
            self._position = entries[-1].sequence

    def _wants(self, entry: HistoryEntry) -> bool:
        return (not self._groups or entry.group in self._groups) and (not self._kinds or entry.kind in self._kinds)

    async def _wait(self) -> bool:
        """For news; False: for long enough without."""
        if self._ended:
            return True
        self._news.clear()
        self._waiting = True
        try:
            async with asyncio.timeout(self._feed.quiet_seconds):
                return await self._news.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting = False

    async def _next_page(self) -> list[HistoryEntry]:
        """The wanted ones of the next rows, and it has come so far then."""
        tail = self._feed.tail
        begin = self._position + 1 - tail[0].sequence if tail else -1
        if begin < 0:
            return await self._page_of_records()
        page = [tail[index] for index in range(begin, min(begin + PAGE_ROWS, len(tail)))]
        self._position = page[-1].sequence
        return list(filter(self._wants, page))

    async def _page_of_records(self) -> list[HistoryEntry]:
        begin, end = self._position, min(self._position + PAGE_ROWS, self._feed.records.newest)
        wanted = HistoryFilter(
            groups=tuple(self._groups), kinds=tuple(self._kinds), after=begin, before=end + 1, limit=PAGE_ROWS
        )
        try:
            page = await self._feed.records.history(wanted)
            # Asked afterwards: what is there now was there while it was read.
            complete = await self._feed.records.oldest() <= begin + 1
        except StoreFailed:
            complete = False
        if not complete:
            self._ended = True  # who comes back for the rest is told what is wrong
            return []
        self._position = end
        return page
