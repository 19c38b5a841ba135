"""The limits of a connection to the control API that take longer than a test should: its rounds are made by hand."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from forewarn.server.bounded import IDLE_SECONDS, REQUEST_SECONDS
from forewarn.server.control_intake import ControlIntake

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

POST = b"POST /%b HTTP/1.1\r\nContent-Length: 9\r\n\r\n"


class Application:
    """Reads the whole body before it answers; at /feed it answers and goes on, at /refused it reads nothing."""

    def __init__(self) -> None:
        self.read = asyncio.Queue[bytes]()
        self.ended = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        more = scope["path"] != "/refused"
        while more:
            message = await receive()
            more = message.get("more_body", False)
            self.read.put_nowait(message.get("body", b""))
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/feed":
            await send({"type": "http.response.body", "body": b"row", "more_body": True})
            await self.ended.wait()
        await send({"type": "http.response.body"})


class Connection:
    """Both ends of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: ControlIntake) -> None:
        self.reader = reader
        self.writer = writer
        self.server = server

    def rounds(self, number: int) -> None:
        for _ in range(number):
            self.server.sweep()

    def is_cut(self) -> bool:
        return self.server.transport.is_closing()


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
async def connection(application: Application) -> AsyncIterator[Connection]:
    config = uvicorn.Config(application, http=ControlIntake, ws="none", lifespan="off", log_config=None)
    config.load()
    state, made = ServerState(), asyncio.Queue[ControlIntake]()

    class Told(ControlIntake):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            made.put_nowait(self)

    make = partial(Told, config=config, server_state=state, app_state={})
    listening = await asyncio.get_running_loop().create_server(make, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
    yield Connection(reader, writer, await made.get())
    application.ended.set()
    writer.close()
    listening.close()
    await listening.wait_closed()


async def test_who_sends_nothing_is_closed(connection: Connection) -> None:
    connection.rounds(IDLE_SECONDS)
    assert not connection.is_cut()
    connection.rounds(1)
    assert await connection.reader.read() == b""


async def test_a_feed_is_not_idle(application: Application, connection: Connection) -> None:
    connection.writer.write(b"GET /feed HTTP/1.1\r\n\r\n")
    await connection.reader.readuntil(b"row\r\n")
    connection.rounds(10 * IDLE_SECONDS)
    assert not connection.is_cut()
    application.ended.set()
    assert await connection.reader.readuntil(b"0\r\n\r\n")


async def test_a_body_may_take_its_time_as_long_as_it_comes(application: Application, connection: Connection) -> None:
    connection.writer.write(POST % b"whole")
    for _ in range(8):
        connection.writer.write(b"#")
        assert await application.read.get() == b"#"
        connection.rounds(REQUEST_SECONDS)
    assert not connection.is_cut()
    connection.rounds(1)
    assert connection.is_cut()
    assert await connection.reader.read() == b""


async def test_what_is_only_dropped_may_not_take_its_time(connection: Connection) -> None:
    connection.writer.write(POST % b"refused")
    await connection.reader.readuntil(b"0\r\n\r\n")
    connection.rounds(REQUEST_SECONDS)
    assert not connection.is_cut()
    connection.server.data_received(b"#")
    connection.rounds(1)
    assert connection.is_cut()


async def test_a_head_may_not_take_its_time(connection: Connection) -> None:
    for byte in b"GET /healt":
        connection.server.data_received(bytes([byte]))
        connection.rounds(1)
    assert not connection.is_cut()
    connection.server.data_received(b"h")
    connection.rounds(1)
    assert connection.is_cut()


# --- While the service stops ----------------------------------------------------------------------


async def test_a_stop_waits_for_what_is_worked_on(application: Application, connection: Connection) -> None:
    # Half a request behind it changes nothing.
    connection.writer.write(b"GET /feed HTTP/1.1\r\n\r\n")
    await connection.reader.readuntil(b"row\r\n")
    connection.server.data_received(b"GET /half")
    connection.server.shutdown()
    for _ in range(100):
        connection.server.sweep_at_stop()
    assert not connection.is_cut()
    application.ended.set()
    assert await connection.reader.read() == b"0\r\n\r\n"


async def test_a_stop_waits_for_a_body_as_long_as_it_comes(application: Application, connection: Connection) -> None:
    connection.writer.write(POST % b"whole" + b"#")
    assert await application.read.get() == b"#"
    connection.server.shutdown()
    connection.server.sweep_at_stop()
    for _ in range(7):
        connection.writer.write(b"#")
        assert await application.read.get() == b"#"
        connection.server.sweep_at_stop()
    assert not connection.is_cut()
    connection.server.sweep_at_stop()
    assert connection.is_cut()
    assert await connection.reader.read() == b""
