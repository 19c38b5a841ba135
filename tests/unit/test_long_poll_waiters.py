"""Long polls inside a metadata service with real connections: cleanup and counters."""

from __future__ import annotations

import asyncio
import json
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest
from engines import request_operation, running_engine

from forewarn.core.fleet import VM, Fleet, Group
from forewarn.metadata.long_poll import WAKE_BATCH_SIZE
from forewarn.metadata.routes import MetadataOptions
from forewarn.metadata.server import MetadataServer
from forewarn.system.sockets import address_of, open_socket
from forewarn.wire.document import entity_tag
from golden.exchange import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forewarn.engine.engine import Engine

pytestmark = pytest.mark.anyio
FLEET = Fleet([VM("web-0", "web", "a", address="127.0.0.1")], [Group("web", "availability-set", 5, 2)])
TARGET = "/metadata/scheduledevents?api-version="
TRUE = (("Metadata", "true"),)
TIMEOUT_SECONDS = 20


async def until(is_so: Callable[[], bool]) -> None:
    """As many turns of the loop as it takes."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_so():
            await turn()


async def turn() -> None:
    await asyncio.sleep(0)


class Running(NamedTuple):
    """A metadata service in this process."""

    engine: Engine
    server: MetadataServer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = address_of(self.server.listener).rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def hold(self) -> asyncio.StreamWriter:
        """A connection whose poll is held when this returns."""
        held = self.server.long_polls.count
        tag = entity_tag(self.engine.document("web"))
        _, writer = await self.connect()
        headers = (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60"))
        writer.write(request("GET", f"{TARGET}2020-07-01", headers))
        await until(lambda: self.server.long_polls.count > held)
        return writer

    async def statuses(self, *requests: bytes) -> list[int]:
        """One after the other, each on a connection of its own."""
        found = []
        for data in requests:
            reader, writer = await self.connect()
            writer.write(data)
            found.append(int((await reader.readline()).split()[1]))
            writer.close()
        return found


@asynccontextmanager
async def running(*, rate: float = 0) -> AsyncIterator[Running]:
    async with running_engine(fleet=FLEET) as engine:
        server = MetadataServer(engine, open_socket("127.0.0.1:0"), MetadataOptions(rate_limit=rate))
        await server.start()
        try:
            yield Running(engine, server)
        finally:
            await server.stop()


async def test_a_client_that_hangs_up_leaves_nothing_behind() -> None:
    async with running() as service:
        waiters = service.server.long_polls
        writers = [await service.hold() for _ in range(3)]
        assert waiters.count == 3
        connections = [weakref.ref(connection) for connection in service.server.connections.all()]
        for writer in writers:
            writer.close()
        await until(lambda: not (waiters.count or service.server.connections))
        # Neither a timer nor an entry holds it: it is freed without the collector.
        await until(lambda: not any(connection() for connection in connections))
        assert service.server.counters.polls() == {}


async def test_long_polls_are_counted_until_their_response() -> None:
    async with running() as service:
        held = WAKE_BATCH_SIZE + 5
        writers = [await service.hold() for _ in range(held)]
        assert service.server.long_polls.count == held
        await request_operation(service.engine, "restart", "web-0")
        await until(lambda: service.server.counters.polls() == {("2020-07-01", 200): held})
        assert service.server.long_polls.count == 0
        for writer in writers:
            writer.close()


async def test_a_waiter_can_leave_or_fail_while_others_are_woken() -> None:
    async with running() as service:
        waiters = service.server.long_polls
        woken: list[str] = []

        class Other:
            def wake(self) -> None:
                woken.append("other")

        class Failing:
            def wake(self) -> None:
                waiters.leave("web", other)
                raise RuntimeError("its own affair")

        other, staying, failing = Other(), Other(), Failing()
        asyncio.get_running_loop().set_exception_handler(lambda *_: woken.append("failure"))
        for waiter in (staying, other, failing):
            waiters.join("web", waiter)
        await request_operation(service.engine, "restart", "web-0")
        await until(lambda: not waiters.count)
        assert woken == ["failure", "other"]
        waiters.leave("web", staying)  # has been woken: nothing happens
        assert waiters.count == 0


async def test_every_response_is_counted_once() -> None:
    async with running() as service:
        operation = await request_operation(service.engine, "restart", "web-0")
        (event,) = service.engine.live_events()
        assert event.operation == operation.id
        tag = entity_tag(service.engine.document("web"))

        def poll(version: str, *headers: tuple[str, str]) -> bytes:
            return request("GET", TARGET + version, (*TRUE, *headers))

        def approval(event_id: str, version: str = "2020-07-01") -> bytes:
            body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
            return request("POST", TARGET + version, TRUE, body)

        polls = [
            *[poll("2020-07-01")] * 3,
            poll("2020-07-01", ("If-None-Match", tag)),
            poll("2020-07-01", ("If-None-Match", tag), ("Prefer", "wait=0")),
            poll("2020-07-01", ("If-None-Match", '"old"'), ("Prefer", "wait=9")),
            poll("2017-08-01"),
            request("GET", f"{TARGET}2017-08-01"),
            poll("2018-01-01"),
            poll("2018-01-02"),
            poll("made-up"),
            request("GET", "/metadata/SCHEDULEDEVENTS", TRUE),
        ]
        elsewhere = [request("GET", "/metadata/versions", TRUE), request("DELETE", f"{TARGET}2020-07-01", TRUE)]
        approvals = [approval(event.id), approval(event.id), approval("unknown"), approval(event.id, "2018-01-01")]
        assert await service.statuses(*polls) == [200, 200, 200, 304, 304, 200, 200, 400, 404, 404, 400, 400]
        assert await service.statuses(*elsewhere) == [200, 405]
        assert await service.statuses(*approvals) == [200, 200, 400, 404]
        assert service.server.counters.polls() == {
            ("2020-07-01", 200): 4,
            ("2020-07-01", 304): 2,
            ("2017-08-01", 200): 1,
            ("2017-08-01", 400): 1,
            ("other", 404): 2,
            ("other", 400): 1,
            ("", 400): 1,
        }
        assert service.server.counters.approvals() == {200: 2, 400: 1, 404: 1}


async def test_throttled_requests_are_counted_too() -> None:
    async with running(rate=0.01) as service:
        poll = request("GET", f"{TARGET}2020-07-01", TRUE)
        post = request("POST", f"{TARGET}2020-07-01", TRUE, b"{}")
        assert await service.statuses(poll, poll, post) == [200, 429, 429]
        assert service.server.counters.polls() == {("2020-07-01", 200): 1, ("2020-07-01", 429): 1}
        assert service.server.counters.approvals() == {429: 1}


async def test_the_same_bytes_again_are_counted_again() -> None:
    async with running() as service:
        reader, writer = await service.connect()
        for _ in range(5):
            writer.write(request("GET", f"{TARGET}2020-07-01", TRUE))
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()
        assert service.server.counters.polls() == {("2020-07-01", 200): 5}
