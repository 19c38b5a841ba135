"""Faults: valid requests, the requests that they match, and their end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from engines import MINUTE, request_operation, running_engine

from forewarn.core.faults import FAULTS, MAX_DELAY, MAX_FAULTS, Fault, FaultSpec, describe, fill_in
from forewarn.core.fleet import VM, Fleet
from forewarn.engine.faults import Faults
from forewarn.errors import BadOption, FaultsNotAllowed, ForewarnError, LimitExceeded, UnknownResource, UnknownVM
from forewarn.metadata.routes import MetadataOptions
from forewarn.metadata.server import MetadataServer
from forewarn.ports import HistoryFilter
from forewarn.system.sockets import address_of, open_socket
from golden.exchange import POLL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from forewarn.engine.engine import Engine

pytestmark = pytest.mark.anyio
HOUR = timedelta(hours=1)
TIMEOUT_SECONDS = 20


# --- Valid requests ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FAULTS.values(), ids=lambda kind: kind.name)
def test_defaults_of_a_fault(kind: Any) -> None:
    assert fill_in(FaultSpec(kind.name)) == FaultSpec(
        kind.name, method="GET", count=1 if kind.methods else None, delay=kind.delay
    )


@pytest.mark.parametrize(
    ("given", "count", "length"),
    [
        (FaultSpec("500", count=7), 7, None),
        (FaultSpec("500", duration=HOUR), None, HOUR),
        (FaultSpec("500", count=7, duration=HOUR), 7, HOUR),
    ],
)
def test_a_given_limit_replaces_the_default_limit(
    given: FaultSpec, count: int | None, length: timedelta | None
) -> None:
    assert fill_in(given)[3:5] == (count, length)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (FaultSpec("slwo"), "Unknown fault 'slwo'. Faults: slow, empty,"),
        (FaultSpec("slwo"), "Did you mean 'slow'?"),
        (FaultSpec("500", method="PUT"), "Invalid method 'PUT': choose one of GET, POST, any."),
        (
            FaultSpec("empty", method="POST"),
            "empty affects only GET. Faults for POST: slow, 410, 429, 500, reset.",
        ),
        (FaultSpec("500", count=0), "Invalid count '0': write a whole number from 1 to 1,000,000."),
        (FaultSpec("500", count=1.5), "Invalid count '1.5': write a whole number"),  # type: ignore[arg-type]
        (FaultSpec("500", count=True), "Invalid count 'True': write a whole number"),
        (FaultSpec("500", count="3"), "Invalid count '3': write a whole number"),  # type: ignore[arg-type]
        (FaultSpec("500", count=1_000_001), "write a whole number from 1 to 1,000,000."),
        (FaultSpec("500", duration=timedelta(0)), "Invalid duration '0s': write more than 0s and at most 366d."),
        (FaultSpec("500", duration=timedelta(days=367)), "Invalid duration '367d'"),
        (FaultSpec("500", delay=MINUTE), "500 has no delay. Faults with a delay: slow, stall."),
        (FaultSpec("slow", delay=timedelta(0)), "Invalid delay '0s': write more than 0s and at most 10m."),
        (FaultSpec("slow", delay=MAX_DELAY + timedelta(seconds=0.5)), "Invalid delay '600.5s'"),
        (FaultSpec("disabled", count=2), "Invalid count '2': disabled takes effect immediately"),
        (FaultSpec("disabled", duration=HOUR), "Invalid duration '1h': disabled takes effect immediately"),
        (FaultSpec("disabled", delay=HOUR), "Invalid delay '1h': disabled takes effect immediately"),
        (FaultSpec("disabled", method="POST"), "Invalid method 'POST': disabled takes effect immediately"),
    ],
)
def test_an_invalid_fault_is_rejected_with_the_allowed_values(given: FaultSpec, said: str) -> None:
    with pytest.raises(ForewarnError) as refused:
        fill_in(given)
    assert said in str(refused.value)


def test_the_bounds_themselves_are_allowed() -> None:
    fill_in(FaultSpec("slow", count=1_000_000, duration=timedelta(days=366), delay=MAX_DELAY))


@pytest.mark.parametrize(
    ("order", "said"),
    [
        (FaultSpec("500", count=1), "500 once"),
        (FaultSpec("429", method="any", count=1500, duration=HOUR), "429 on any 1,500 times for 1h"),
        (FaultSpec("slow", count=2, delay=timedelta(seconds=0.05)), "slow 2 times with a delay of 0.05s"),
    ],
)
def test_the_text_of_a_fault(order: FaultSpec, said: str) -> None:
    assert describe(order) == said


@pytest.mark.parametrize(
    ("order", "strikes"),
    [
        (FaultSpec("500"), {"a GET", "b GET"}),
        (FaultSpec("500", method="POST"), {"a POST", "b POST"}),
        (FaultSpec("500", method="any", vm="a"), {"a GET", "a POST"}),
        (FaultSpec("empty", method="any"), {"a GET", "b GET"}),
    ],
)
def test_the_requests_that_a_fault_matches(order: FaultSpec, strikes: set[str]) -> None:
    fault = Fault("f1", order, "me", None)  # type: ignore[arg-type]  # when does not matter
    assert {f"{vm} {method}" for vm in "ab" for method in ("GET", "POST", "PUT") if fault.fits(vm, method)} == strikes


@pytest.mark.parametrize(("left", "over"), [(None, False), (1, False), (0, True), (-0.5, True)])
def test_a_fault_expires_when_no_hits_remain(left: Any, over: bool) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    fault = Fault("f1", FaultSpec("500"), "me", now, remaining=left)
    assert (fault.is_spent, fault.is_over(now)) == (over, over)


# --- Over an engine ---------------------------------------------------------------------------------


async def said(engine: Engine) -> list[tuple[str, str, str, tuple[str, ...], str]]:
    """What history says of faults."""
    rows = await engine.records.history(HistoryFilter())
    return [(row.kind, row.by, row.group, row.vms, row.reason) for row in rows if "fault" in row.kind]


async def test_the_oldest_matching_fault_applies_until_it_expires() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        first = await faults.add(FaultSpec("500", count=2), "me")
        second = await faults.add(FaultSpec("429", vm="web-0"), "me")
        struck = []
        while (fault := faults.find("web-0", "web", "GET")) is not None:
            assert faults.count_hit(fault.id)
            struck.append(fault.id)
        assert struck == [first.id, first.id, second.id] == ["f1", "f1", "f2"]
        assert not faults.count_hit("f1")
        assert (faults.hits["500"], faults.hits["429"]) == (2, 1)
        await faults.wait_until_recorded()
        assert await said(engine) == [
            ("fault-added", "me", "", (), "f1: 500 2 times"),
            ("fault-added", "me", "web", ("web-0",), "f2: 429 once"),
            ("fault-expired", "forewarn", "", (), "f1: 500 2 times; hits: 2"),
            ("fault-expired", "forewarn", "web", ("web-0",), "f2: 429 once; hits: 1"),
        ]


async def test_looking_spends_nothing() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        await faults.add(FaultSpec("500"), "me")
        assert faults.find("db-0", "db-0", "GET") == faults.find("db-0", "db-0", "GET") == faults.list()[0]
        assert faults.find("db-0", "db-0", "POST") is None


async def test_a_fault_expires_exactly_at_its_time() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        added = await faults.add(FaultSpec("500", duration=10 * MINUTE), "me")
        assert added.expires_at == engine.clock.now() + 10 * MINUTE
        await engine.advance(10 * MINUTE - timedelta(seconds=1))
        assert faults.find("db-0", "db-0", "GET") is not None
        await engine.advance(timedelta(seconds=1))
        assert not faults.count_hit(added.id)
        assert faults.find("db-0", "db-0", "GET") is None
        assert faults.list() == []
        await faults.wait_until_recorded()
        assert [row[0] for row in await said(engine)] == ["fault-added", "fault-expired"]


async def test_clearing_one_or_all() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        for _ in range(3):
            await faults.add(FaultSpec("500"), "me")
        assert [fault.id for fault in await faults.clear("f2", "you")] == ["f2"]
        with pytest.raises(UnknownResource, match="Unknown fault 'f2'"):
            await faults.clear("f2", "you")
        assert [fault.id for fault in await faults.clear(None, "you")] == ["f1", "f3"]
        assert await faults.clear(None, "you") == []
        assert [row[:2] for row in await said(engine)][3:] == [("fault-cleared", "you")] * 3


async def test_nothing_without_leave() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=False)
        with pytest.raises(FaultsNotAllowed, match="forewarn up --allow-faults"):
            await faults.add(FaultSpec("500"), "me")
        assert faults.list() == []
        assert await faults.clear(None, "me") == []
        assert await said(engine) == []


async def test_a_rejected_fault_uses_no_id_and_the_number_is_limited() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        with pytest.raises(UnknownVM, match="Did you mean 'web-0'"):
            await faults.add(FaultSpec("500", vm="wbe-0"), "me")
        with pytest.raises(BadOption):
            await faults.add(FaultSpec("500", count=0), "me")
        for number in range(1, MAX_FAULTS + 1):
            assert (await faults.add(FaultSpec("500"), "me")).id == f"f{number}"
        with pytest.raises(LimitExceeded, match="maximum is 100"):
            await faults.add(FaultSpec("500"), "me")


async def test_the_older_document_is_of_the_same_enabling() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        await faults.add(FaultSpec("stale"), "me")
        assert faults.find("web-0", "web", "GET") is None, "it has the current document, and no older one"
        await request_operation(engine, "restart", "web-0")
        older = faults.previous_document("web")
        assert older is not None
        assert (older.incarnation, older.events) == (0, ())
        assert faults.find("web-0", "web", "GET") is not None
        assert faults.find("db-0", "db-0", "GET") is None, "of its own group"
        disabling = await faults.add(FaultSpec("disabled", vm="web-1"), "me")
        assert (disabling.remaining, disabling.hits) == (0, 1)
        assert faults.previous_document("web") is None
        await engine.enable("web", by="web-0")
        assert faults.find("web-0", "web", "GET") is None
        assert not engine.document("db-0").events
        assert engine.document("db-0").enabled


async def test_a_group_enabled_again_in_the_same_commit_has_no_older_document() -> None:
    async with running_engine() as engine:
        faults = Faults(engine, allowed=True)
        await request_operation(engine, "restart", "web-0")
        assert faults.find("web-0", "web", "GET") is None
        before = engine.document("web")
        commits: list[object] = []
        engine.subscribe_to_commits(commits.append)
        await asyncio.gather(faults.add(FaultSpec("disabled"), "me"), engine.enable("web", by="web-0"))
        assert len(commits) == 1
        await request_operation(engine, "restart", "web-1")
        older = faults.previous_document("web")
        assert older is not None
        assert older.enabling == engine.document("web").enabling != before.enabling


async def test_disabled_affects_only_groups_with_events_enabled() -> None:
    async with running_engine(enable_groups=False) as engine:
        faults = Faults(engine, allowed=True)
        assert (await faults.add(FaultSpec("disabled"), "me")).hits == 0
        await engine.enable("web", by="web-0")
        assert (await faults.add(FaultSpec("disabled"), "me")).hits == 1
        assert not engine.document("web").enabled
        assert faults.hits["disabled"] == 1


# --- What a client that goes away leaves behind -------------------------------------------------------


class Running(NamedTuple):
    """A metadata service in this process that may fail."""

    faults: Faults
    server: MetadataServer

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        host, _, port = address_of(self.server.listener).rpartition(":")
        return await asyncio.open_connection(host, int(port))


@asynccontextmanager
async def running() -> AsyncIterator[Running]:
    fleet = Fleet([VM("web-0", "web-0", "a", address="127.0.0.1")])
    async with running_engine(fleet=fleet) as engine:
        faults = Faults(engine, allowed=True)
        server = MetadataServer(engine, open_socket("127.0.0.1:0"), MetadataOptions(rate_limit=0), faults=faults)
        await server.start()
        try:
            yield Running(faults, server)
        finally:
            await server.stop()


async def until(is_so: Callable[[], bool]) -> None:
    """As many turns of the loop as it takes."""
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not is_so():
            await turn()


async def turn() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("kind", ["slow", "stall"])
async def test_a_client_that_disconnects_during_a_delay_leaves_nothing_behind(kind: str) -> None:
    async with running() as service:
        before = asyncio.all_tasks()
        await service.faults.add(FaultSpec(kind, delay=MAX_DELAY), "me")
        _, writer = await service.connect()
        writer.write(POLL)
        await until(lambda: service.faults.hits[kind] == 1 and len(service.server.connections) == 1)
        writer.close()
        await until(lambda: not service.server.connections)
        await until(lambda: asyncio.all_tasks() <= before)


@pytest.mark.parametrize("kind", ["reset", "length", "stall"])
async def test_a_closed_connection_leaves_nothing_behind(kind: str) -> None:
    async with running() as service:
        delay = timedelta(seconds=0.01) if kind == "stall" else None
        await service.faults.add(FaultSpec(kind, delay=delay), "me")
        reader, writer = await service.connect()
        writer.write(POLL)
        if kind == "reset":
            with pytest.raises(ConnectionResetError):
                await reader.read()
        else:
            assert (await reader.read()).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not service.server.connections)
        writer.close()
