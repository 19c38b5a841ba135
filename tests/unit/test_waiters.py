"""What held polls leave behind, and what is counted: seen from within a metadata service with real connections."""

from __future__ import annotations

import asyncio
import json
import weakref
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest
from engines import ask, running_engine

from forewarn.core.fleet import VM, Fleet, Group
from forewarn.server.callers import Callers
from forewarn.server.lane import Lane
from forewarn.server.listeners import MetadataServer, address_of, open_socket
from forewarn.server.metadata import Metadata, Rules
from forewarn.server.pages import Pages
from forewarn.server.stamp import Stamp
from forewarn.server.tally import Tallies
from forewarn.server.waiters import WOKEN_AT_ONCE, Waiters
from forewarn.server.witness import Witness
from forewarn.wire.document import entity_tag
from forewarn.wire.versions import available_versions
from golden.exchange import request

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forewarn.engine import Engine

pytestmark = pytest.mark.anyio
LANES = pytest.mark.parametrize("fast", [True, False], ids=["fast", "slow"])
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
    lane: Lane
    server: MetadataServer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = address_of(self.server.listener).rpartition(":")
        return await asyncio.open_connection(host, int(port))

    async def hold(self) -> asyncio.StreamWriter:
        """A connection whose poll is held when this returns."""
        held = self.lane.waiters.count
        tag = entity_tag(self.engine.document("web"))
        _, writer = await self.connect()
        headers = (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60"))
        writer.write(request("GET", f"{TARGET}2020-07-01", headers))
        await until(lambda: self.lane.waiters.count > held)
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
async def running(*, fast: bool, rate: float = 0) -> AsyncIterator[Running]:
    async with running_engine(fleet=FLEET) as engine:
        versions = available_versions(preview=False)
        lane = Lane(
            engine,
            Callers(engine, rate),
            Pages(engine),
            Stamp(engine.clock),
            Waiters(engine),
            Tallies(versions),
            versions,
            limited=rate > 0,
            fast=fast,
        )
        server = MetadataServer(Witness(Metadata(lane, Rules(rate_limit=rate)), lane), open_socket("127.0.0.1:0"), lane)
        await server.start()
        try:
            yield Running(engine, lane, server)
        finally:
            await server.stop()


@LANES
async def test_a_client_that_hangs_up_leaves_nothing_behind(*, fast: bool) -> None:
    async with running(fast=fast) as service:
        waiters = service.lane.waiters
        writers = [await service.hold() for _ in range(3)]
        assert waiters.count == 3
        connections = [weakref.ref(connection) for connection in service.server.server_state.connections]
        for writer in writers:
            writer.close()
        state = service.server.server_state
        await until(lambda: not (waiters.count or state.connections or state.tasks))
        if fast:  # neither a timer nor an entry holds it: it is freed without the collector
            await until(lambda: not any(connection() for connection in connections))
        assert service.lane.tallies.polls() == {}


@LANES
async def test_the_held_are_counted_until_they_are_answered(*, fast: bool) -> None:
    async with running(fast=fast) as service:
        held = WOKEN_AT_ONCE + 5
        writers = [await service.hold() for _ in range(held)]
        assert service.lane.waiters.count == held
        await ask(service.engine, "restart", "web-0")
        await until(lambda: service.lane.tallies.polls() == {("2020-07-01", 200): held})
        assert service.lane.waiters.count == 0
        for writer in writers:
            writer.close()


async def test_one_may_leave_while_its_turn_comes_and_one_may_fail() -> None:
    async with running(fast=True) as service:
        waiters = service.lane.waiters
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
        await ask(service.engine, "restart", "web-0")
        await until(lambda: not waiters.count)
        assert woken == ["failure", "other"]
        waiters.leave("web", staying)  # has been woken: nothing happens
        assert waiters.count == 0


@LANES
async def test_every_answer_is_counted_once(*, fast: bool) -> None:
    async with running(fast=fast) as service:
        operation = await ask(service.engine, "restart", "web-0")
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
        assert service.lane.tallies.polls() == {
            ("2020-07-01", 200): 4,
            ("2020-07-01", 304): 2,
            ("2017-08-01", 200): 1,
            ("2017-08-01", 400): 1,
            ("other", 404): 2,
            ("other", 400): 1,
            ("", 400): 1,
        }
        assert service.lane.tallies.approvals() == {200: 2, 400: 1, 404: 1}


@LANES
async def test_what_is_too_much_is_counted_as_well(*, fast: bool) -> None:
    async with running(fast=fast, rate=0.01) as service:
        poll = request("GET", f"{TARGET}2020-07-01", TRUE)
        post = request("POST", f"{TARGET}2020-07-01", TRUE, b"{}")
        assert await service.statuses(poll, poll, post) == [200, 429, 429]
        assert service.lane.tallies.polls() == {("2020-07-01", 200): 1, ("2020-07-01", 429): 1}
        assert service.lane.tallies.approvals() == {429: 1}


@LANES
async def test_the_same_bytes_again_are_counted_again(*, fast: bool) -> None:
    async with running(fast=fast) as service:
        reader, writer = await service.connect()
        for _ in range(5):
            writer.write(request("GET", f"{TARGET}2020-07-01", TRUE))
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()
        assert service.lane.tallies.polls() == {("2020-07-01", 200): 5}
