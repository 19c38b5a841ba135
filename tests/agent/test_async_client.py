"""The client for asyncio. Threads are counted: none may be left behind."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from agent.raw_server import RawServer, answer, document, event, silence, then
from forewarn.agent import AsyncClient, EndpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.testing import AsyncService

LONG = 20.0


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("FOREWARN_ENDPOINT", "FOREWARN_VM_NAME"):
        monkeypatch.delenv(name, raising=False)
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("forewarn-")] == []


async def has_come(server: RawServer) -> None:
    """Until the next request is there."""
    assert await asyncio.to_thread(server.came.acquire, timeout=LONG)


async def is_cancelled(task: asyncio.Future[Any]) -> bool:
    """Whether it comes to that, by itself: nothing else would end it."""
    await asyncio.wait([task], timeout=LONG)
    return task.cancelled()


async def test_a_life_from_the_notice_to_the_end(forewarn_async: AsyncService) -> None:
    vm = forewarn_async.vm("web-0")
    made = vm.restart()
    results = []
    async with AsyncClient(vm.endpoint) as client:
        async for change in client.changes():
            results.append((change.kind, await change.approve()))
            if change.kind == "started":
                await forewarn_async.advance(minutes=10)
            if change.over:
                break
        assert (await client.endpoint()).url == vm.endpoint
        assert (await client.me()).name == "web-0"
        assert (await client.document()).events == ()
        assert client.offers_long_poll
    assert results == [("scheduled", True), ("started", False), ("gone", False)]
    assert made.was_approved_by(vm)


async def test_an_approval_does_not_wait_for_a_long_poll(forewarn_async: AsyncService) -> None:
    vm = forewarn_async.vm("web-0")
    made = vm.restart()
    async with AsyncClient(vm.endpoint) as client:
        await client.poll(60)
        held = asyncio.create_task(client.poll(60))
        await forewarn_async.advance(seen_by=vm)
        await client.approve(made.id)
        async with asyncio.timeout(LONG):
            polled = await held
        assert polled.changed
    assert made.was_approved_by(vm)


async def test_errors_are_raised_and_polls_report_them(forewarn_async: AsyncService) -> None:
    vm = forewarn_async.vm("web-0")
    async with AsyncClient(vm.endpoint) as client:
        vm.fault(500, method="any", count=3)
        for work in (client.document, lambda: client.approve("one")):
            with pytest.raises(EndpointError) as trouble:
                await work()
            assert trouble.value.kind == "failing"
        polled = await client.poll()
        assert polled.error is not None
        assert polled.error.kind == "failing"


@pytest.mark.parametrize("deed", [silence, then(b"HTTP/1.1 200 OK\r\n", silence)])
@pytest.mark.parametrize("way", ["poll", "document", "approve", "changes"])
async def test_a_cancelled_task_ends_at_once_and_the_client_continues(deed: object, way: str) -> None:
    """The server would never respond."""
    with RawServer(deed, document(1, event(1))) as server:  # type: ignore[arg-type]
        async with AsyncClient(server.url, "web-0") as client:
            ways = {
                "poll": client.poll,
                "document": client.document,
                "approve": lambda: client.approve("one"),
                "changes": lambda: anext(client.changes()),
            }

            async def wait() -> None:
                await ways[way]()  # type: ignore[operator]

            task = asyncio.create_task(wait())
            await has_come(server)
            task.cancel()
            assert await is_cancelled(task)
            assert (await client.document()).incarnation == 1
            assert (await anext(client.changes())).kind == "scheduled"


async def test_a_waiting_request_can_be_cancelled_without_effect_on_others() -> None:
    go_on = threading.Event()

    def late(connection: object) -> None:
        go_on.wait(2 * LONG)
        connection.sendall(document(1))  # type: ignore[attr-defined]

    with RawServer(late, document(2)) as server:
        async with AsyncClient(server.url, "web-0") as client:
            first = asyncio.create_task(client.document())
            await has_come(server)
            second, third = asyncio.create_task(client.document()), asyncio.create_task(client.document())
            await asyncio.sleep(0)
            second.cancel()
            assert await is_cancelled(second)
            go_on.set()
            assert [(await first).incarnation, (await third).incarnation] == [1, 2]
        assert len(server.received) == 2


async def test_a_request_after_a_cancelled_one_gets_its_response() -> None:
    with RawServer(silence, document(2)) as server:
        async with AsyncClient(server.url, "web-0") as client:
            first = asyncio.create_task(client.document())
            await has_come(server)
            second = asyncio.create_task(client.document())
            await asyncio.sleep(0)
            first.cancel()
            async with asyncio.timeout(LONG):
                assert (await second).incarnation == 2
            assert first.cancelled()


async def test_closing_ends_all_waits() -> None:
    with RawServer(silence) as server:
        client = AsyncClient(server.url, "web-0")
        poll, ask = asyncio.create_task(client.poll()), asyncio.create_task(client.document())
        await has_come(server)
        await has_come(server)
        await client.close()
        async with asyncio.timeout(LONG):
            polled = await poll
            with pytest.raises(EndpointError):
                await ask
        assert polled.error is not None
        assert polled.error.kind == "closed"
        assert [change async for change in client.changes()] == []
        assert (await client.poll()).error is not None
        await client.close()


async def test_a_search_for_an_address_keeps_neither_a_task_nor_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name resolution cannot be interrupted. The caller is released at once."""
    searching, found = threading.Semaphore(0), threading.Event()

    def search(*_: object) -> list[object]:
        searching.release()
        found.wait(2 * LONG)
        return []

    monkeypatch.setattr("forewarn.agent.transport.resolve_addresses", search)
    client = AsyncClient("http://127.0.0.1:9", "web-0")
    try:
        task, other = asyncio.create_task(client.document()), asyncio.create_task(client.poll())
        for _ in range(2):
            assert await asyncio.to_thread(searching.acquire, timeout=LONG)
        task.cancel()
        assert await is_cancelled(task)
        await client.close()
        assert not found.is_set()
        assert not other.done()
    finally:
        found.set()
    async with asyncio.timeout(LONG):
        polled = await other
    assert polled.error is not None
    assert polled.error.kind == "closed"
    for thread in threading.enumerate():
        if thread.name.startswith("forewarn-"):
            await asyncio.to_thread(thread.join, LONG)


async def test_a_pause_is_a_pause_of_the_task_alone() -> None:
    """While one waits for its next poll, the loop and the other thread are free."""
    with RawServer(answer(500)) as server:
        async with AsyncClient(server.url, "web-0") as client:
            following = asyncio.ensure_future(anext(client.changes()))
            await has_come(server)
            server.do(document(1))
            assert (await client.document()).incarnation == 1
            following.cancel()
            assert await is_cancelled(following)


def test_the_loop_can_end_during_an_iteration(forewarn_async: AsyncService) -> None:
    vm = forewarn_async.vm("web-0")

    async def follow(client: AsyncClient) -> None:
        async with client:
            async for _ in client.changes():
                pass

    async def main() -> None:
        task = asyncio.create_task(follow(AsyncClient(vm.endpoint)))
        await forewarn_async.advance(seen_by=vm)
        assert not task.done()

    asyncio.run(main())
