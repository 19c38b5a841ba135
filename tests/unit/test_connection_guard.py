"""The limits of a connection to the control API, on a server of its own. The loop's time is moved by the test."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import trustme
from moved_loop import MovedLoop, move_on

from forewarn.control.connection_guard import ControlLimits
from forewarn.control.server import Certificate, ControlServer
from forewarn.files.fleet_file import MAX_FLEET_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

# So long that none of them passes in real time.
LIMITS = ControlLimits(
    header_seconds=10_000,
    body_seconds=20_000,
    idle_seconds=75_000,
    send_seconds=30_000,
    stalled_seconds=500,
    stop_seconds=10_000,
)
A_BIT = 100
GET = b"GET /%b HTTP/1.1\r\n\r\n"
POST = b"POST /%b HTTP/1.1\r\nContent-Length: 9\r\n\r\n"
CHUNKED = b"POST /%b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": MovedLoop}


class Application:
    """Reads the whole body and sends it back. Some paths do something else."""

    def __init__(self) -> None:
        self.received = asyncio.Queue[bytes]()
        self.scopes: list[Any] = []
        self.may_end = asyncio.Event()
        self.client_gone = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.sent = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        scope["state"]["token"] = object()
        body, more = bytearray(), scope["path"] != "/refused"
        if scope["path"] == "/waits":
            await self.may_end.wait()
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.client_gone.set()
                return
            more = message["more_body"]
            body += message["body"]
            self.received.put_nowait(message["body"])
        if scope["path"] == "/fails":
            raise RuntimeError
        headers = [(b"connection", b"close")] if scope["path"] == "/last" else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if scope["path"] == "/feed":
            await self._follow(send)
        if scope["path"] in ("/large", "/last"):
            body = bytearray(b"#" * LARGE)
        await send({"type": "http.response.body", "body": bytes(body), "more_body": scope["path"] == "/large"})
        self.sent.set()
        if scope["path"] == "/large":
            await receive()
            self.client_gone.set()

    async def _follow(self, send: Any) -> None:
        await send({"type": "http.response.body", "body": b"row", "more_body": True})
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Return status and body of the next response."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
        status = int(head.split(b" ")[1])
        if b"content-length: " in head:
            return status, await self.reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
        body = b""
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)
        return status, body

    async def ask(self, data: bytes) -> tuple[int, bytes]:
        self.send(data)
        return await self.answer()

    async def is_answered(self) -> bool:
        return await self.ask(GET % b"") == (200, b"")

    async def rest(self) -> bytes:
        """What comes until the server closes, in either way."""
        data = bytearray()
        try:
            while part := await self.reader.read(65536):
                data += part
        except ConnectionError:
            pass
        return bytes(data)


class Service:
    """An application behind a ControlServer, and clients of it."""

    def __init__(self, limits: ControlLimits, certificate: Certificate | None) -> None:
        self.application = Application()
        # With the protocol said, asyncio sets TCP_NODELAY.
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.bind(("127.0.0.1", 0))
        self._address = listener.getsockname()
        self.server = ControlServer(self.application, listener, certificate, limits)
        self.clients: list[Client] = []

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection(*self._address))
        self.clients.append(client)
        return client


@asynccontextmanager
async def running(limits: ControlLimits = LIMITS, certificate: Certificate | None = None) -> AsyncIterator[Service]:
    service = Service(limits, certificate)
    await service.server.start()
    try:
        yield service
    finally:
        service.application.may_end.set()
        for client in service.clients:
            client.writer.transport.abort()
        await service.server.stop()


# --- Deadlines ------------------------------------------------------------------------------------


async def test_an_idle_connection_is_closed() -> None:
    async with running() as service:
        silent, client = await service.client(), await service.client()
        for _ in range(3):
            assert await client.is_answered()
            move_on(LIMITS.idle_seconds - A_BIT)
        assert await client.is_answered()
        assert await silent.rest() == b""
        move_on(LIMITS.idle_seconds)
        assert await client.rest() == b""


async def test_empty_lines_are_no_request() -> None:
    async with running() as service:
        client = await service.client()
        assert await client.ask(b"\r\n" + GET % b"") == (200, b"")
        client.send(b"\r\n\r\n")
        move_on(LIMITS.idle_seconds)
        assert await client.rest() == b""


async def test_a_connection_with_a_slow_response_is_not_idle() -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"feed")
        await client.reader.readuntil(b"row\r\n")
        move_on(10 * LIMITS.idle_seconds)
        service.application.may_end.set()
        assert await client.reader.readuntil(b"0\r\n\r\n")
        assert await client.is_answered()


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_head_has_a_deadline_although_its_bytes_keep_coming(in_time: bool) -> None:
    async with running() as service:
        slow, other = await service.client(), await service.client()
        head = GET % b"slow"
        for byte in head[: 9 if in_time else 10]:
            slow.send(bytes([byte]))
            assert await other.is_answered()  # after this byte was read
            move_on(LIMITS.header_seconds / 10)
        assert await other.is_answered()
        slow.send(head[9 if in_time else 10 :])
        if in_time:
            assert await slow.answer() == (200, b"")
        else:
            assert await slow.rest() == b""
            assert {scope["path"] for scope in service.application.scopes} == {"/"}


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
async def test_a_slow_body_is_accepted_while_parts_arrive(chunked: bool) -> None:
    part = b"#" * LIMITS.body_part_bytes
    async with running() as service:
        client, received = await service.client(), service.application.received
        client.send((CHUNKED if chunked else POST.replace(b"9", b"%d" % (10 * len(part)))) % b"")
        for _ in range(8):
            client.send(b"%x\r\n%b\r\n" % (len(part), part) if chunked else part)
            size = 0
            while size < len(part):
                size += len(await received.get())
            move_on(LIMITS.body_seconds - A_BIT)
        for _ in range(2):
            assert await (await service.client()).is_answered()
            client.send(b"1\r\n#\r\n" if chunked else b"#")
            await received.get()
            move_on(A_BIT)
        assert (await client.answer())[0] == 408
        assert await client.rest() == b""
        await service.application.client_gone.wait()


async def test_a_body_that_the_application_does_not_read_is_not_late() -> None:
    async with running() as service:
        client, body = await service.client(), b"#" * MAX_FLEET_BYTES
        client.send(POST.replace(b"9", b"%d" % len(body)) % b"waits" + body)
        await answer_another(service)
        assert client.writer.transport.get_write_buffer_size() > 0
        move_on(10 * LIMITS.body_seconds)
        await answer_another(service)
        stop = asyncio.create_task(service.server.stop())
        for _ in range(10):
            await turn()
            move_on(LIMITS.stalled_seconds)
        service.application.may_end.set()
        assert await client.answer() == (200, body)
        await stop


async def test_a_body_that_is_only_dropped_may_not_take_its_time() -> None:
    async with running() as service:
        client = await service.client()
        client.send(POST % b"refused")
        assert (await client.answer())[0] == 200
        for _ in range(4):
            client.send(b"#")
            assert await (await service.client()).is_answered()
            move_on(LIMITS.body_seconds / 4)
        assert await client.rest() == b""


async def test_the_connection_continues_after_a_dropped_body() -> None:
    async with running() as service:
        client = await service.client()
        assert await client.ask(POST % b"refused" + b"#" * 4) == (200, b"")
        client.send(b"#" * 5)
        assert await client.is_answered()


@pytest.mark.parametrize("path", [b"large", b"last"], ids=["open", "closing"])
async def test_a_client_that_does_not_read_its_response_is_closed(path: bytes) -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % path)
        await service.application.sent.wait()
        move_on(LIMITS.send_seconds)
        assert await (await service.client()).is_answered()
        assert len(await client.rest()) < LARGE


async def test_a_client_that_reads_gets_the_whole_response() -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"last")
        assert (await client.rest()).count(b"#") == LARGE


# --- Sizes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("framed", [POST, CHUNKED], ids=["length", "chunks"])
async def test_a_body_that_is_larger_than_any_may_be_ends_the_connection(framed: bytes) -> None:
    body = b"9\r\n#########\r\n0\r\n\r\n" if framed is CHUNKED else b"#########"
    async with running(replace(LIMITS, body_bytes=9)) as service:
        assert await (await service.client()).ask(framed % b"" + body) == (200, b"#########")
    async with running(replace(LIMITS, body_bytes=8)) as service:
        client = await service.client()
        client.send(framed % b"" + body)
        assert await client.rest() == b""


async def test_pipelined_requests_wait_for_the_response_before_them() -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"feed" + GET % b"" + GET % b"" * 500_000)
        await client.reader.readuntil(b"row\r\n")
        await answer_another(service)
        assert client.writer.transport.get_write_buffer_size() > 0
        assert {scope["path"] for scope in service.application.scopes[1:]} == {"/other"}
        service.application.may_end.set()
        await client.reader.readuntil(b"0\r\n\r\n")
        for _ in range(1000):
            assert await client.answer() == (200, b"")


@pytest.mark.parametrize(
    "few", [{"max_connections": 2}, {"max_connections_per_address": 2}], ids=["in all", "from one address"]
)
async def test_a_new_connection_replaces_the_one_that_has_been_idle_the_longest(few: dict[str, Any]) -> None:
    async with running(replace(LIMITS, **few)) as service:
        first, second = await service.client(), await service.client()
        assert await second.is_answered()
        move_on(A_BIT)
        assert await first.is_answered()
        assert await (await service.client()).is_answered()
        assert await second.rest() == b""
        assert await first.is_answered()
        assert len(service.server.connections) == 2
        assert sum(service.server.connections.closed.values()) == 1


@pytest.mark.parametrize(
    "few", [{"max_connections": 4}, {"max_connections_per_address": 4}], ids=["in all", "from one address"]
)
async def test_a_new_connection_is_refused_while_none_is_idle(few: dict[str, Any]) -> None:
    async with running(replace(LIMITS, **few)) as service:
        busy = [await service.client() for _ in range(4)]
        busy[0].send(GET % b"feed")
        await busy[0].reader.readuntil(b"row\r\n")
        busy[1].send(POST % b"" + b"#")
        busy[2].send(GET % b"large")  # not read
        busy[3].send(GET % b"waits" + GET % b"")
        while len(service.application.scopes) < 4:
            await turn()
        assert await (await service.client()).rest() == b""
        assert sum(service.server.connections.refused.values()) == 1
        service.application.may_end.set()
        assert await busy[3].answer() == (200, b"")
        assert await busy[3].answer() == (200, b"")
        assert await accepted(service)


async def test_a_tls_handshake_counts_as_a_connection(tmp_path: Path) -> None:
    pem = tmp_path / "both.pem"
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    limits = replace(LIMITS, max_connections=3, handshake_seconds=10_000)
    async with running(limits, Certificate(str(pem), "")) as service:
        silent = [await service.client() for _ in range(3)]
        assert await (await service.client()).rest() == b""
        silent[0].writer.close()
        while len(service.server.connections) == 3:
            await turn()
        move_on(limits.handshake_seconds)
        for client in silent[1:]:
            assert await client.rest() == b""


async def accepted(service: Service) -> bool:
    try:
        return await (await service.client()).is_answered()
    except (ConnectionError, asyncio.IncompleteReadError):
        return False


# --- What is rejected -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "status", "says"),
    [
        (b"\x16\x03\x01\x00", 400, "RFC 9112"),
        (b"GET a b HTTP/1.1\r\n\r\n", 400, "RFC 9112"),
        (b"GET http:// HTTP/1.1\r\n\r\n", 400, "URL"),  # uvicorn rejects it
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000, 431, "16,384"),
        (CHUNKED % b"" + b"3\r\nabc\r\nzz\r\n", 400, "chunked"),
        (CHUNKED % b"" + b"3;" + b"a" * 20_000, 431, "16,384"),
    ],
    ids=["not HTTP", "no request line", "no URL", "large head", "broken chunks", "large framing"],
)
async def test_a_rejection_follows_the_earlier_responses(wrong: bytes, status: int, says: str) -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"" + POST % b"" + b"#########" + wrong + GET % b"behind")
        assert await client.answer() == (200, b"")
        assert await client.answer() == (200, b"#########")
        got, body = await client.answer()
        assert (got, json.loads(body)["status"]) == (status, status)
        assert says in json.loads(body)["detail"]
        assert await client.rest() == b""
        assert not [scope for scope in service.application.scopes if scope["path"] == "/behind"]


async def test_an_application_does_not_get_half_a_body_for_a_whole_one() -> None:
    async with running() as service:
        client = await service.client()
        client.send(CHUNKED % b"" + b"1\r\n#\r\n")
        assert await service.application.received.get() == b"#"
        assert (await client.ask(b"zz\r\n"))[0] == 400
        await service.application.client_gone.wait()
        assert service.application.received.empty()


async def test_a_request_gets_only_one_response() -> None:
    async with running() as service:
        client = await service.client()
        assert await client.ask(CHUNKED % b"refused") == (200, b"")
        client.send(b"zz\r\n")
        assert await client.rest() == b""


async def test_a_failing_application_does_not_block_the_connection() -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"fails" + GET % b"")
        assert (await client.answer())[0] == 500
        assert await client.rest() == b""


async def test_upgrade_is_ignored() -> None:
    upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nContent-Length"
    async with running() as service:
        client = await service.client()
        for _ in range(2):
            assert await client.ask(POST.replace(b"Content-Length", upgrade) % b"" + b"#########") == (
                200,
                b"#########",
            )


# --- Stop -----------------------------------------------------------------------------------------


async def test_a_stop_does_not_wait_for_idle_clients() -> None:
    async with running() as service:
        client, half, dropped = [await service.client() for _ in range(3)]
        assert await client.is_answered()
        half.send(b"GET /half")
        assert await dropped.ask(POST % b"refused" + b"#") == (200, b"")
        await service.server.stop()
        assert [await one.rest() for one in (client, half, dropped)] == [b"", b"", b""]


async def test_a_stop_ends_tls_handshakes(tmp_path: Path) -> None:
    authority, pem, trusting = trustme.CA(), tmp_path / "both.pem", ssl.create_default_context()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.configure_trust(trusting)
    async with running(certificate=Certificate(str(pem), "")) as service:
        feed, late = await service.client(), await service.client()
        await feed.writer.start_tls(trusting, server_hostname="127.0.0.1")
        feed.send(GET % b"feed")
        await feed.reader.readuntil(b"row\r\n")
        stop = asyncio.create_task(service.server.stop())
        await turn()
        with pytest.raises(ConnectionError):
            await late.writer.start_tls(trusting, server_hostname="127.0.0.1")
        service.application.may_end.set()
        await stop


async def test_a_stop_waits_for_running_requests() -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"feed" + b"GET /half")
        await client.reader.readuntil(b"row\r\n")
        stop = asyncio.create_task(service.server.stop())
        for _ in range(10):
            move_on(LIMITS.stop_seconds / 11)
            await turn()
        service.application.may_end.set()
        assert await client.rest() == b"0\r\n\r\n"
        await stop


async def test_a_stop_cancels_requests_that_take_too_long(caplog: pytest.LogCaptureFixture) -> None:
    async with running() as service:
        client = await service.client()
        client.send(GET % b"feed")
        await client.reader.readuntil(b"row\r\n")
        stop = asyncio.create_task(service.server.stop())
        await turn()
        move_on(LIMITS.stop_seconds)
        await stop
        await service.application.cancelled.wait()
        assert await client.rest() == b""
        (record,) = (record for record in caplog.records if record.name == "forewarn.control.server")
        assert (record.__dict__["event_name"], record.__dict__["fields"]) == ("requests_cancelled", {"count": 1})


async def test_a_stop_waits_for_a_body_while_bytes_arrive() -> None:
    async with running() as service:
        client, received = await service.client(), service.application.received
        client.send(POST % b"" + b"#")
        assert await received.get() == b"#"
        stop = asyncio.create_task(service.server.stop())
        for _ in range(7):
            await turn()
            client.send(b"#")
            assert await received.get() == b"#"
            move_on(LIMITS.stalled_seconds)
        assert not stop.done()
        for _ in range(2):
            await turn()
            move_on(LIMITS.stalled_seconds)
        assert await client.rest() == b""
        await stop


async def test_a_stop_waits_for_a_response_while_the_client_reads() -> None:
    async with running() as service:
        reading, silent = await service.client(), await service.client()
        for client in (reading, silent):
            # So that most of the answer stays in the service.
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
            client.send(GET % b"last")
            await service.application.sent.wait()
            service.application.sent.clear()
        stop = asyncio.create_task(service.server.stop())
        read = 0
        for _ in range(6):
            await turn()
            for _ in range(9 * 16):
                read += (await reading.reader.readexactly(65536)).count(b"#")
            move_on(LIMITS.stalled_seconds)
        assert read + (await reading.rest()).count(b"#") == LARGE
        await stop
        assert len(await silent.rest()) < LARGE


async def answer_another(service: Service) -> None:
    """Send requests of another client until the service could have read all bytes of the first."""
    client = await service.client()
    for _ in range(300):
        assert await client.ask(GET % b"other") == (200, b"")


async def turn() -> None:
    """Let the loop do all that is due, by a call that goes through it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    loop.call_later(0, done.set_result, None)
    await done
