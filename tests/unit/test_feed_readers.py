"""The feed over an engine: every reader gets every row once and in order, however slowly it reads."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from engines import START, cancel, request_operation, running_engine
from msgspec import to_builtins

from forewarn.core.access import Role, Token, create_token
from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.limits import OperatorLimits
from forewarn.core.state import Changes, HistoryEntry
from forewarn.delivery import feed as feed_module
from forewarn.delivery.feed import EventStreamParser, Feed, FeedLimits
from forewarn.delivery.history_rows import HistoryEntryShape
from forewarn.errors import (
    HistoryExpired,
    ServiceStopping,
    TooManyFeedClients,
    TooManyFeedClientsOfToken,
    UnknownHistoryRow,
)
from forewarn.ports import HistoryFilter, RetentionCutoff

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterable

    from forewarn.delivery.feed import FeedSubscriber
    from forewarn.engine.engine import Engine

EVERY: frozenset[str] = frozenset()


class Hearer:
    """A reader of a feed."""

    def __init__(self, parts: AsyncGenerator[bytes, None]) -> None:
        self._parts = parts
        self._listener = EventStreamParser()
        self.rows: list[dict[str, Any]] = []
        self.position = ""

    async def read(self) -> bool:
        """One part; False when the feed has ended."""
        part = await anext(self._parts, None)
        for line in (part or b"").decode().splitlines():
            message = self._listener.parse_line(line)
            if message is not None:
                self.position = message.id
                if message.data:
                    self.rows.append(json.loads(message.data))
                    assert self.rows[-1]["sequence"] == int(message.id)
        return part is not None

    async def until(self, sequence: int) -> list[dict[str, Any]]:
        while not self.position or int(self.position) < sequence:
            assert await self.read()
        return self.rows


async def stored(engine: Engine, after: int = 0, groups: Iterable[str] = (), kinds: Iterable[str] = ()) -> list[Any]:
    wanted = HistoryFilter(after=after, groups=tuple(groups), kinds=tuple(kinds))
    return [to_builtins(HistoryEntryShape.of(entry)) for entry in await engine.records.history(wanted)]


async def happen(engine: Engine, times: int = 1, vm: str = "web-0") -> None:
    for _ in range(times):
        await cancel(engine, (await request_operation(engine, "restart", vm)).events[0])


async def test_rows_that_were_read_while_the_token_ended_are_not_sent() -> None:
    async with running_engine() as engine:
        await happen(engine)
        answers = [True, False]  # before the rows are read, and afterwards
        reader = await Feed(engine).reader(EVERY, EVERY, 0, lambda: answers.pop(0))
        async with aclosing(reader.parts()) as parts:
            hearer = Hearer(parts)
            assert await hearer.read(), "the start of the stream"
            assert not await hearer.read()
        assert hearer.rows == []


@pytest.mark.parametrize("tail_rows", [1, 4, 1000])
@pytest.mark.parametrize("page_rows", [1, 3, 500])
@pytest.mark.parametrize("part_bytes", [1, 32_768])
async def test_every_row_arrives_once_and_in_order_from_any_start(
    monkeypatch: pytest.MonkeyPatch, tail_rows: int, page_rows: int, part_bytes: int
) -> None:
    monkeypatch.setattr(feed_module, "PAGE_ROWS", page_rows)
    monkeypatch.setattr(feed_module, "PART_BYTES", part_bytes)
    async with running_engine() as engine:
        feed = Feed(engine, tail_rows=tail_rows)
        await happen(engine, 3)
        newest = engine.records.newest
        for after in range(newest + 1):
            reader = await feed.reader(EVERY, EVERY, after)
            async with aclosing(reader.parts()) as parts:
                hearer = Hearer(parts)
                assert await hearer.until(engine.records.newest) == await stored(engine, after)
                await happen(engine)
                assert await hearer.until(engine.records.newest) == await stored(engine, after)
        assert not feed.readers


async def test_without_a_cursor_the_feed_starts_now() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        await happen(engine)
        newest = engine.records.newest
        async with aclosing((await feed.reader(EVERY, EVERY, None)).parts()) as parts:
            hearer = Hearer(parts)
            await hearer.read()
            # So that who is cut off before the first row knows where to go on.
            assert hearer.position == str(newest)
            await happen(engine)
            assert await hearer.until(newest + 1) == (await stored(engine, newest))[: len(hearer.rows)]


@pytest.mark.parametrize(
    ("groups", "kinds"),
    [({"web"}, ()), ({"web", "db-0"}, ()), ((), {"requested", "cancelled"}), ({"db-0"}, {"scheduled"})],
)
@pytest.mark.parametrize("tail_rows", [1, 1000])
async def test_only_rows_that_match_the_filter_are_sent(groups: set[str], kinds: set[str], tail_rows: int) -> None:
    async with running_engine() as engine:
        feed = Feed(engine, tail_rows=tail_rows, keep_alive_seconds=0.001)
        first_in_tail = engine.records.newest
        await happen(engine, 2)
        await happen(engine, 2, vm="db-0")
        for after in (0, first_in_tail):
            async with aclosing((await feed.reader(frozenset(groups), frozenset(kinds), after)).parts()) as parts:
                hearer = Hearer(parts)
                await happen(engine, vm="db-0")
                await request_operation(engine, "restart", "auto-0")
                expected = await stored(engine, after, groups, kinds)
                assert expected
                assert await hearer.until(engine.records.newest) == expected
            await engine.advance(timedelta(0))  # the restart is carried out


async def test_a_reader_without_matching_rows_still_gets_its_cursor() -> None:
    async with running_engine() as engine:
        feed = Feed(engine, keep_alive_seconds=0.001, tail_rows=2)
        async with aclosing((await feed.reader(frozenset({"db-0"}), EVERY, None)).parts()) as parts:
            hearer = Hearer(parts)
            await hearer.read()
            await hearer.read()
            await happen(engine, 5)
            assert await hearer.until(engine.records.newest) == []
        async with aclosing((await feed.reader(frozenset({"db-0"}), EVERY, int(hearer.position))).parts()) as parts:
            await happen(engine, vm="db-0")
            first = (await stored(engine, int(hearer.position), ["db-0"]))[0]
            assert (await Hearer(parts).until(first["sequence"]))[0] == first


@asynccontextmanager
async def waiting(reader: FeedSubscriber) -> AsyncIterator[asyncio.Task[bytes | None]]:
    """A reader that has read all rows and waits for more."""
    async with aclosing(reader.parts()) as parts:
        await anext(parts)
        task = asyncio.ensure_future(anext(parts, None))
        for _ in range(10):  # turns of the loop, until it has come to where it waits
            await asyncio.sleep(0)
        assert reader._waiting
        yield task
        reader.end()
        await task


async def test_rows_that_do_not_match_advance_a_reader_without_waking_it() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        reader = await feed.reader(frozenset({"db-0"}), EVERY, None)
        async with waiting(reader):
            await happen(engine)
            assert (reader._waiting, reader._position) == (True, engine.records.newest)


async def test_a_woken_reader_does_not_advance_before_it_has_read() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        reader = await feed.reader(frozenset({"db-0"}), EVERY, None)
        async with waiting(reader):
            before = reader._position
            for group in ("db-0", "web"):  # two commits, one right after the other
                feed._on_commit(Changes(history=[HistoryEntry(START, "enabled", "somebody", before + 1, group)]))
            assert reader._position == before


async def test_a_waiting_reader_looks_at_rows_that_were_not_announced() -> None:
    """A node that was too far behind announces only the newest rows after it has loaded the state."""
    async with running_engine() as engine:
        feed = Feed(engine)
        reader = await feed.reader(frozenset({"db-0"}), EVERY, None)
        engine._commit_subscribers.remove(feed._on_commit)
        async with waiting(reader) as task:
            await happen(engine, vm="db-0")
            missed = engine.records.newest
            engine._commit_subscribers.append(feed._on_commit)
            await happen(engine, vm="web-0")
            part = await task
            assert part is not None
            assert f"id: {missed}\n".encode() in part


async def test_a_waiting_reader_is_checked_again_when_tokens_change() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        good = [True]
        async with waiting(await feed.reader(frozenset({"db-0"}), EVERY, None, lambda: good[0])) as task:
            good[0] = False
            token = Token("somebody", Role.VIEWER, "hash", "test", START)
            await engine.execute(create_token, token, "test")
            for _ in range(10):
                await asyncio.sleep(0)
            assert task.done()


@pytest.mark.parametrize(("kept_from", "ends"), [(3, False), (4, True)])
async def test_one_row_that_is_missing_is_a_gap(kept_from: int, ends: bool) -> None:
    async with running_engine() as engine:
        feed = Feed(engine, tail_rows=1)
        await happen(engine)
        async with aclosing((await feed.reader(EVERY, EVERY, 2)).parts()) as parts:
            hearer = Hearer(parts)
            await hearer.read()
            expired = RetentionCutoff(START, kept_from, 0, 0, 0)
            await engine._writer.run_in_store_thread(engine._writer._store.remove_expired, expired, 100)
            assert await hearer.read() is not ends
            assert [row["sequence"] for row in hearer.rows[:1]] == ([] if ends else [3])


async def test_rows_removed_before_delivery_end_the_feed() -> None:
    async with running_engine(limits=OperatorLimits(history_retention=timedelta(days=7))) as engine:
        feed = Feed(engine, tail_rows=1)
        await happen(engine, 2)
        async with aclosing((await feed.reader(EVERY, EVERY, 2)).parts()) as parts:
            hearer = Hearer(parts)
            await hearer.read()
            await engine.advance(timedelta(days=30))
            assert not await hearer.read()
            assert hearer.rows == []
        oldest = await engine.records.oldest()
        with pytest.raises(HistoryExpired, match=f"the oldest stored row is {oldest}"):
            await feed.reader(EVERY, EVERY, 2)
        for after in (0, oldest - 1):
            async with aclosing((await feed.reader(EVERY, EVERY, after)).parts()) as parts:
                assert await Hearer(parts).until(engine.records.newest) == await stored(engine)


async def test_a_cursor_in_the_future_is_rejected() -> None:
    async with running_engine() as engine:
        newest = engine.records.newest
        await Feed(engine).reader(EVERY, EVERY, newest)
        with pytest.raises(UnknownHistoryRow, match=f"the newest is {newest}"):
            await Feed(engine).reader(EVERY, EVERY, newest + 1)


async def test_there_is_an_end_to_readers() -> None:
    async with running_engine() as engine:
        feed = Feed(engine, FeedLimits(readers=3, readers_of_token=2))
        first = await feed.reader(EVERY, EVERY, None, owner="a")
        await feed.reader(EVERY, EVERY, None, owner="a")
        with pytest.raises(TooManyFeedClientsOfToken, match="The token a has 2 clients"):
            await feed.reader(EVERY, EVERY, None, owner="a")
        await feed.reader(EVERY, EVERY, None, owner="b")
        with pytest.raises(TooManyFeedClients, match="The feed has 3 clients"):
            await feed.reader(EVERY, EVERY, None, owner="c")
        first.close()
        async with aclosing((await feed.reader(EVERY, EVERY, None, owner="a")).parts()) as parts:
            await anext(parts)
        await feed.reader(EVERY, EVERY, None, owner="a")


async def test_concurrent_requests_do_not_exceed_the_limit_of_readers() -> None:
    async with running_engine() as engine:
        feed = Feed(engine, FeedLimits(readers=10, readers_of_token=2))
        found = await asyncio.gather(
            *(feed.reader(EVERY, EVERY, 0, owner="a") for _ in range(5)), return_exceptions=True
        )
        assert len(feed.readers) == 2
        assert sum(isinstance(each, TooManyFeedClientsOfToken) for each in found) == 3


@pytest.mark.parametrize("tail_rows", [1, 1000])
async def test_readers_far_behind_share_what_they_send(tail_rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They read the store once, render once, and keep only a position while their client does not read."""
    monkeypatch.setattr(feed_module, "PART_BYTES", 1000)
    async with running_engine() as engine:
        feed = Feed(engine, tail_rows=tail_rows)
        await happen(engine, 20)
        readers = [await feed.reader(EVERY, EVERY, 0, owner=str(number)) for number in range(50)]
        async with AsyncExitStack() as stack:
            streams = [await stack.enter_async_context(aclosing(reader.parts())) for reader in readers]
            await asyncio.gather(*(anext(stream) for stream in streams))
            for _ in range(3):
                parts = await asyncio.gather(*(anext(stream) for stream in streams))
                assert len({id(part) for part in parts}) == 1
                assert 1000 <= len(parts[0]) < 5000
        assert not feed.readers


async def test_every_feed_ends_when_the_service_stops() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        await happen(engine)
        async with (
            aclosing((await feed.reader(EVERY, EVERY, None)).parts()) as waiting,
            aclosing((await feed.reader(EVERY, EVERY, 0)).parts()) as behind,
        ):
            await anext(waiting)
            await anext(behind)
            feed.stop()
            assert await anext(waiting, None) is None
            assert await anext(behind, None) is None
        with pytest.raises(ServiceStopping):
            await feed.reader(EVERY, EVERY, None)


async def test_a_stop_ends_a_reader_that_is_about_to_start() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        reader = await feed.reader(EVERY, EVERY, None)
        feed.stop()
        async with aclosing(reader.parts()) as parts:
            await anext(parts)
            assert await anext(parts, None) is None


async def test_missed_commits_are_read_from_the_archive() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        await happen(engine)
        begun = engine.records.newest
        subscribers, engine._commit_subscribers = engine._commit_subscribers, []
        await happen(engine)
        engine._commit_subscribers = subscribers
        await happen(engine)
        async with aclosing((await feed.reader(EVERY, EVERY, begun)).parts()) as parts:
            assert await Hearer(parts).until(engine.records.newest) == await stored(engine, begun)


async def test_a_store_that_cannot_be_read_ends_the_feed() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        async with aclosing((await feed.reader(EVERY, EVERY, 0)).parts()) as parts:
            await anext(parts)
            await engine._writer.run_in_store_thread(engine._writer._store._db.execute, "DROP TABLE history")  # type: ignore[attr-defined]
            assert await anext(parts, None) is None


async def test_the_buffer_for_readers_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "CACHED_BYTES", 3000)
    monkeypatch.setattr(feed_module, "PART_BYTES", 1000)
    async with running_engine() as engine:
        feed = Feed(engine, tail_rows=5)
        await happen(engine, 5)
        for kinds in (EVERY, frozenset({"requested"}), frozenset({"cancelled"})):
            async with aclosing((await feed.reader(EVERY, kinds, 0)).parts()) as parts:
                for _ in range(3):
                    await anext(parts)
        assert len(feed.tail) == 5
        assert sum(len(part.data) for part in feed._parts.values()) < 3000


async def test_a_reader_with_a_revoked_token_gets_no_more_rows() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        good = [True]
        async with aclosing((await feed.reader(EVERY, EVERY, None, lambda: good[0])).parts()) as parts:
            hearer = Hearer(parts)
            await hearer.read()
            await happen(engine)
            await hearer.read()
            rows_before = len(hearer.rows)
            good[0] = False
            await happen(engine)
            while await hearer.read():
                pass
            assert len(hearer.rows) == rows_before


async def test_a_reader_crosses_the_rows_that_a_restore_skipped_in_a_few_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine() as engine:
        await happen(engine)
        before = engine.records.newest
        engine._writer.state.sequence += SKIPPED_NUMBERS
        await happen(engine)
        feed = Feed(engine)
        reads: list[HistoryFilter] = []
        read = engine.records.history

        async def count(filters: HistoryFilter) -> list[HistoryEntry]:
            reads.append(filters)
            return await read(filters)

        monkeypatch.setattr(engine.records, "history", count)
        async with aclosing((await feed.reader(EVERY, EVERY, before)).parts()) as parts:
            rows = await Hearer(parts).until(engine.records.newest)
        assert [row["sequence"] for row in rows] == [*range(before + SKIPPED_NUMBERS + 1, engine.records.newest + 1)]
        assert len(reads) < 100


# --- Work in each turn of the loop ----------------------------------------------------------------------


async def test_many_readers_from_the_first_row_share_the_turns_of_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own filter, so no encoded part fits two of them. All clients have room for everything."""
    rendered = sent = 0
    most_rendered = most_sent = 0

    def render(entry: HistoryEntry) -> bytes:
        nonlocal rendered
        rendered += 1
        return original(entry)

    async def watch_turns() -> None:
        nonlocal rendered, sent, most_rendered, most_sent
        while True:
            most_rendered, most_sent = max(most_rendered, rendered), max(most_sent, sent)
            rendered = sent = 0
            await asyncio.sleep(0)

    async def follow(reader: FeedSubscriber) -> None:
        nonlocal sent
        async with aclosing(reader.parts()) as parts:
            hearer = Hearer(parts)
            while not hearer.position or int(hearer.position) < newest:
                assert await hearer.read()
                sent += 1

    original = feed_module.render
    monkeypatch.setattr(feed_module, "render", render)
    async with running_engine() as engine:
        for tail_rows in (1000, 1):
            feed = Feed(engine, tail_rows=tail_rows)
            await happen(engine, 40)
            newest = engine.records.newest
            kinds = [frozenset({"requested", "scheduled", "cancelled", str(number)}) for number in range(50)]
            readers = [await feed.reader(EVERY, each, 0) for each in kinds for _ in range(2)]
            watch = asyncio.create_task(watch_turns())
            await asyncio.gather(*map(follow, readers))
            watch.cancel()
            assert most_rendered * 200 < 2 * feed_module.PART_BYTES, "at most one part in a turn"
            assert most_sent <= len(readers) + 1


async def test_a_feed_whose_rows_are_in_memory_opens_and_continues_without_the_store() -> None:
    async with running_engine() as engine:
        feed = Feed(engine)
        before = engine.records.newest
        await happen(engine, 3)
        reads: list[object] = []
        read = engine.records._read

        async def counted(*arguments: Any) -> Any:
            reads.append(arguments)
            return await read(*arguments)

        engine.records._read = counted  # type: ignore[assignment]
        for after in (None, engine.records.newest, engine.records.newest - 1, before):
            async with aclosing((await feed.reader(EVERY, EVERY, after)).parts()) as parts:
                await Hearer(parts).until(engine.records.newest)
        assert not reads
        await feed.reader(EVERY, EVERY, before - 1)
        assert reads
