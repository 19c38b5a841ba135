"""The limits of a connection to the control API. They apply before the service looks at any token.

uvicorn limits neither the size of a head nor the time that a client takes for it. It reads on while earlier requests
wait, and it waits without end for a client that does not read. So a guard stands between each connection and uvicorn's
protocol. It is an asyncio protocol to the connection and an asyncio transport to uvicorn, and needs nothing else.

A guard gives uvicorn one request at a time. `track_answers` tells it when the application has answered.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from forewarn.clock import unix_seconds
from forewarn.control.input import MAX_FLEET_BYTES
from forewarn.control.problems import PROBLEM, problem
from forewarn.control.request_framing import MALFORMED, IncomingRequest, Rejected
from forewarn.errors import Invalid
from forewarn.system.connections import ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.system.connections import Connections


DISCARDED_BYTES = 1_048_576
"""How much of a body the service reads and drops after the application has rejected it, so that the answer arrives."""
AT_ONCE = 16_384
"""Of what was read, this much goes to uvicorn at a time. To cut it off costs the same, however much is left."""

_EMPTY_LINES = re.compile(rb"[\r\n]+")
"""A server should ignore them before a request (RFC 9112, 2.2)."""


@dataclass(frozen=True, slots=True)
class ControlLimits(ConnectionLimits):
    """The limits of a connection to the control API."""

    body_bytes: int = MAX_FLEET_BYTES + DISCARDED_BYTES
    """The connection closes when a body is larger."""
    handshake_seconds: float = 10.0
    """For TLS."""
    max_connections: int = 4096
    max_connections_per_address: int = 2048
    """Larger than the number of clients that may follow the feed: they may all be behind one proxy."""


class HttpProtocol(Protocol):
    """uvicorn's protocol for one connection: what `uvicorn.Config(http=...)` names."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def shutdown(self) -> None: ...


class Deadline:
    """Calls a function when the time is over. To set it again costs no timer, as long as it does not become earlier."""

    def __init__(self, on_over: Callable[[], None]) -> None:
        self._on_over: Callable[[], None] | None = on_over
        self._loop = asyncio.get_running_loop()
        self._at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        self._at = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._at, self._look)

    def clear(self) -> None:
        self._at = None

    def end(self) -> None:
        """It will not be set again."""
        self._at = self._on_over = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        if self._at is None or self._on_over is None:
            return
        if self._loop.time() < self._at:
            self._timer = self._loop.call_at(self._at, self._look)
        else:
            self._at = None
            self._on_over()


class Guard(asyncio.Protocol):
    """A connection to the control API."""

    def __init__(
        self,
        limits: ControlLimits,
        connections: Connections[Guard],
        make_server: Callable[[dict[str, Any]], HttpProtocol],
    ) -> None:
        """`make_server` makes uvicorn's protocol, with this state for each request."""
        self._limits = limits
        self._connections = connections
        self._make_server = make_server
        self._server: HttpProtocol | None = None
        self._transport: asyncio.Transport
        self._request: IncomingRequest | None = None
        """The latest, until it has arrived and is answered."""
        self._answering = False
        self._answer_begun = False
        self._held = memoryview(b"")
        """Read, but not given to uvicorn: the client must wait for an answer first."""
        self._rejected = False
        """What this client sends is dropped."""
        self._server_paused_reading = False
        self._reading = True
        self._writing_paused = False
        self._giving = False
        self._server_rejected = False
        self._bytes_received = 0
        self._to_receive = Deadline(self._on_silence)
        self._to_read = Deadline(self.abort)

    # --- Called by the connection -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        peer = transport.get_extra_info("peername")
        if not self._connections.add(self, peer[0] if peer else ""):
            transport.abort()
            return
        self._server = self._make_server({"guard": self})
        self._server.connection_made(_ServerTransport(self, transport))
        self._to_receive.set(self._limits.idle_seconds)

    def data_received(self, data: bytes) -> None:
        self._bytes_received += len(data)
        if not self._rejected:
            self._held = memoryview(b"".join((self._held, data)))
            self._give_on()

    def eof_received(self) -> bool | None:
        return None if self._server is None else self._server.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._to_receive.end()
        self._to_read.end()
        self._leave_server(exc)

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._to_read.set(self._limits.send_seconds)
        if self._server is not None:
            self._server.pause_writing()
        self._regulate_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if not self._transport.is_closing():
            self._to_read.clear()
        if self._server is not None:
            self._server.resume_writing()
        self._give_on()

    # --- Requests ---------------------------------------------------------------------------------

    def _give_on(self) -> None:
        """Give uvicorn what was read, up to the end of a request that is to be answered first."""
        try:
            while self._held and self._may_give():
                if self._request is not None:
                    self._give_part(self._request)
                elif empty := _EMPTY_LINES.match(self._held):
                    self._held = self._held[empty.end() :]
                else:
                    self._request = IncomingRequest(self._limits.max_header_bytes)
                    self._to_receive.set(self._limits.header_seconds)
        except Rejected as rejected:
            self._reject(rejected)
        self._regulate_reading()

    def _may_give(self) -> bool:
        waits = self._request is not None and self._request.complete  # for its answer
        return not (waits or self._writing_paused or self._rejected or self._transport.is_closing())

    def _give_part(self, request: IncomingRequest) -> None:
        is_head = not request.head_complete
        part, read = request.take(bytes(self._held[:AT_ONCE]))
        self._held = self._held[read:]
        if request.body_bytes > self._limits.body_bytes:
            self.abort()
            return
        if not part or self._server is None:
            return
        self._giving = True
        try:
            self._server.data_received(part)
        finally:
            self._giving = False
        if self._server_rejected:
            raise Rejected(MALFORMED, Invalid(problem="the request target is not a valid URL."))
        self._answering = self._answering or is_head
        if request.complete:
            self._to_receive.clear()
            self._next_request()
        elif self._answering and self._reading:  # what is dropped, since it was answered, may not take its time
            self._to_receive.set(self._limits.body_seconds)

    def on_answer_begun(self) -> None:
        self._answer_begun = True

    def on_answered(self) -> None:
        """The application has answered, or has failed to."""
        self._answering = self._answer_begun = False
        if self._server is None or self._transport.is_closing():
            return
        self._next_request()
        self._give_on()

    def _next_request(self) -> None:
        if self._request is not None and self._request.complete and not self._answering:
            self._request = None
            self._to_receive.set(self._limits.idle_seconds)

    def _reject(self, rejected: Rejected) -> None:
        """Answer in the place of the application, unless it has answered, and close."""
        self._rejected = True
        self._held = memoryview(b"")
        # A request goes to the application with its head.
        application_has_it = self._request is not None and self._request.head_complete and not self._server_rejected
        answered = application_has_it and (self._answer_begun or not self._answering)
        self._leave_server(None)  # to the application, the client is gone
        if not answered:
            self._transport.write(_answer(rejected))
        self.close()

    def _leave_server(self, exc: Exception | None) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.connection_lost(exc)

    # --- Called by uvicorn, through its transport -------------------------------------------------

    @property
    def is_closed_to_server(self) -> bool:
        return self._server is None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._giving:  # no request has reached the application yet: this is uvicorn's "400 Bad Request"
            self._server_rejected = True
        elif self._server is not None:
            self._transport.write(data)

    def close_by_server(self) -> None:
        if not self._giving and self._server is not None:
            self.close()

    def pause_reading(self) -> None:
        self._server_paused_reading = True
        self._regulate_reading()

    def resume_reading(self) -> None:
        self._server_paused_reading = False
        self._regulate_reading()

    # --- Deadlines --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close when the client has read its answers. Over TLS it has to agree, too."""
        if not self._transport.is_closing():
            self._transport.close()
            self._to_read.set(self._limits.send_seconds)

    def abort(self) -> None:
        self._transport.abort()

    def _on_silence(self) -> None:
        if self._request is None:
            self.close()
        else:
            self.abort()

    def _regulate_reading(self) -> None:
        """Read only if there is room. A deadline runs only while the client is read from."""
        if self._transport.is_closing():
            return
        reading = not (self._held or self._server_paused_reading or self._writing_paused or self._rejected)
        if reading == self._reading:
            return
        self._reading = reading
        (self._transport.resume_reading if reading else self._transport.pause_reading)()
        if self._request is not None and not self._request.complete:
            if not reading:
                self._to_receive.clear()
            else:
                limits = self._limits
                self._to_receive.set(limits.body_seconds if self._request.head_complete else limits.header_seconds)

    # --- Stop -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Take no more requests. What the application works on is answered."""
        if self._answering and self._server is not None:
            self._server.shutdown()
        else:
            self.close()

    def position(self) -> object | None:
        unread = self._transport.get_write_buffer_size()
        unsent = self._reading and self._request is not None and not self._request.complete
        if not (unread or unsent or self._transport.is_closing()):
            return None  # the application works on its answer
        return unread, self._bytes_received


class _ServerTransport(asyncio.Transport):
    """The transport that uvicorn has: the guard's."""

    def __init__(self, guard: Guard, transport: asyncio.Transport) -> None:
        super().__init__()
        self._guard = guard
        self._transport = transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._guard.is_closed_to_server

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._guard.write(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def close(self) -> None:
        self._guard.close_by_server()

    def abort(self) -> None:
        self._guard.abort()

    def pause_reading(self) -> None:
        self._guard.pause_reading()

    def resume_reading(self) -> None:
        self._guard.resume_reading()


def track_answers(app: ASGIApp) -> ASGIApp:
    """ASGI middleware: tells the guard of each request when it is answered."""

    async def tracked(scope: Scope, receive: Receive, send: Send) -> None:
        guard: Guard = scope["state"]["guard"]

        async def tracked_send(message: Message) -> None:
            guard.on_answer_begun()
            await send(message)

        try:
            await app(scope, receive, tracked_send)
        finally:
            guard.on_answered()

    return tracked


def _answer(rejected: Rejected) -> bytes:
    body = bytes(problem(rejected.error, rejected.status).body)
    lines = (
        f"HTTP/1.1 {rejected.status} {HTTPStatus(rejected.status).phrase}",
        f"date: {formatdate(unix_seconds(), usegmt=True)}",
        f"content-type: {PROBLEM}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
