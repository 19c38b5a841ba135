"""Limits of a connection to the control API. They apply before the service checks the token.

uvicorn has no limit for the size of the request header or for the time to receive it. It keeps reading while earlier
requests are pending, and it never gives up on a client that does not read its response. So each connection has a guard
in front of uvicorn's protocol. To the connection, the guard is an asyncio protocol; to uvicorn, an asyncio transport.

A guard forwards one request at a time, and its body only when the application reads it. `track_responses` notifies the
guard of that, and when the application has sent its response.
"""

from __future__ import annotations

import asyncio
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from forewarn.clock import unix_seconds
from forewarn.control.input import MAX_BODY_BYTES_WITHOUT_TOKEN
from forewarn.control.problems import PROBLEM, problem
from forewarn.control.request_framing import MALFORMED, TOO_SLOW, IncomingRequest, RequestRejected
from forewarn.errors import Invalid
from forewarn.files.fleet_file import MAX_FLEET_BYTES
from forewarn.system.connections import ConnectionLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from forewarn.system.connections import Connections


MAX_DISCARDED_BYTES = 1_048_576
"""How much of a rejected body the service reads and discards, so that the client can receive the response."""
MAX_RECEIVED_BYTES = 16_384
"""Maximum number of bytes that a connection receives at a time, and so of those that wait for the application."""
_received = bytearray(MAX_RECEIVED_BYTES)
"""The buffer of all connections: each copies its bytes at once."""

_EMPTY_LINES = re.compile(rb"[\r\n]+")
"""A server should ignore empty lines before a request (RFC 9112, 2.2)."""


@dataclass(frozen=True, slots=True)
class ControlLimits(ConnectionLimits):
    """Limits of a connection to the control API."""

    body_bytes: int = MAX_FLEET_BYTES + MAX_DISCARDED_BYTES
    """The service closes the connection if a body is larger."""
    body_part_bytes: int = 65_536
    """So much of a body, or the rest of it, must arrive every `body_seconds`."""
    handshake_seconds: float = 10.0
    """Timeout of the TLS handshake."""
    max_connections: int = 4096
    max_connections_per_address: int = 2048
    """More than the maximum number of feed readers: they may all use one proxy."""


class HttpProtocol(Protocol):
    """uvicorn's protocol for one connection; `uvicorn.Config(http=...)` selects its class."""

    def connection_made(self, transport: asyncio.Transport) -> None: ...
    def data_received(self, data: bytes) -> None: ...
    def eof_received(self) -> bool | None: ...
    def connection_lost(self, exc: Exception | None) -> None: ...
    def pause_writing(self) -> None: ...
    def resume_writing(self) -> None: ...
    def shutdown(self) -> None: ...


class Deadline:
    """Calls a function when it expires. Setting it to a later time creates no new timer."""

    def __init__(self, on_expired: Callable[[], None]) -> None:
        self._on_expired: Callable[[], None] | None = on_expired
        self._loop = asyncio.get_running_loop()
        self._expires_at: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        self._expires_at = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._expires_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._expires_at, self._check)

    def clear(self) -> None:
        self._expires_at = None

    def end(self) -> None:
        """Cancel it for good."""
        self._expires_at = self._on_expired = None
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = None
        if self._expires_at is None or self._on_expired is None:
            return
        if self._loop.time() < self._expires_at:
            self._timer = self._loop.call_at(self._expires_at, self._check)
        else:
            self._expires_at = None
            self._on_expired()


class ConnectionGuard(asyncio.BufferedProtocol):
    """A connection to the control API, with its limits."""

    def __init__(
        self,
        limits: ControlLimits,
        connections: Connections[ConnectionGuard],
        make_server: Callable[[dict[str, Any]], HttpProtocol],
    ) -> None:
        """`make_server` creates uvicorn's protocol; each request gets the given state."""
        self._limits = limits
        self._connections = connections
        self._make_server = make_server
        self._server: HttpProtocol | None = None
        self._transport: asyncio.Transport
        self.connecting: socket.socket | None = None
        """The accepted socket, while there is no transport yet: before the end of a TLS handshake."""
        self._is_aborted = False
        self._idle_since = 0.0
        self._request: IncomingRequest | None = None
        """The current request, until it is complete and has its response."""
        self._response_pending = False
        self._response_started = False
        self._unprocessed = memoryview(b"")
        """Received, but not forwarded to uvicorn: an earlier request waits for its response."""
        self._is_rejected = False
        """Everything else that this client sends is discarded."""
        self._is_paused_by_server = False
        self._is_reading = True
        self._is_writing_paused = False
        self._is_forwarding = False
        self._is_rejected_by_server = False
        self._bytes_received = 0
        self._receive_deadline = Deadline(self._on_receive_timeout)
        self._send_deadline = Deadline(self.abort)

    # --- Called by the connection -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self.connecting = None
        if self._is_aborted:
            transport.abort()
            return
        self._server = self._make_server({"guard": self})
        self._server.connection_made(_ServerTransport(self, transport))
        self._start_idle_time()

    def get_buffer(self, _: int) -> bytearray:
        return _received

    def buffer_updated(self, size: int) -> None:
        self._bytes_received += size
        if not self._is_rejected:
            self._unprocessed = memoryview(self._unprocessed.tobytes() + _received[:size])
            self._forward()

    def eof_received(self) -> bool | None:
        return None if self._server is None else self._server.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.remove(self)
        self._receive_deadline.end()
        self._send_deadline.end()
        self._disconnect_server(exc)

    def pause_writing(self) -> None:
        self._is_writing_paused = True
        self._send_deadline.set(self._limits.send_seconds)
        if self._server is not None:
            self._server.pause_writing()
        self._update_reading()

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if not self._transport.is_closing():
            self._send_deadline.clear()
        if self._server is not None:
            self._server.resume_writing()
        self._forward()

    # --- Requests ---------------------------------------------------------------------------------

    def _forward(self) -> None:
        """Forward received bytes to uvicorn, up to the end of the current request."""
        try:
            while self._unprocessed and self._can_forward():
                if self._request is not None:
                    self._forward_part(self._request)
                elif empty := _EMPTY_LINES.match(self._unprocessed):
                    self._unprocessed = self._unprocessed[empty.end() :]
                else:
                    self._request = IncomingRequest(self._limits.max_header_bytes)
                    self._receive_deadline.set(self._limits.header_seconds)
        except RequestRejected as rejected:
            self._reject(rejected)
        self._update_reading()

    def _can_forward(self) -> bool:
        waits_for_response = self._request is not None and (self._request.complete or self._request.is_held)
        return not (waits_for_response or self._is_writing_paused or self._is_rejected or self._transport.is_closing())

    def _forward_part(self, request: IncomingRequest) -> None:
        is_header, parts = not request.header_complete, request.body_bytes // self._limits.body_part_bytes
        part, consumed = request.feed(bytes(self._unprocessed[:MAX_RECEIVED_BYTES]))
        self._unprocessed = self._unprocessed[consumed:]
        if request.body_bytes > self._limits.body_bytes:
            self.abort()
            return
        if not part or self._server is None:
            return
        self._is_forwarding = True
        try:
            self._server.data_received(part)
        finally:
            self._is_forwarding = False
        if self._is_rejected_by_server:
            raise RequestRejected(MALFORMED, Invalid(problem="the request target is not a valid URL."))
        self._response_pending = self._response_pending or is_header
        is_next_part = is_header or request.body_bytes // self._limits.body_part_bytes > parts
        if request.complete:
            self._receive_deadline.clear()
            self._next_request()
        elif (
            is_next_part and self._response_pending and self._is_reading
        ):  # a discarded body does not extend the deadline
            self._receive_deadline.set(self._limits.body_seconds)

    def on_body_read(self, *, has_token: bool) -> None:
        """The application reads the body. Without a token, it gets a little more than it accepts, and rejects it."""
        if self._request is not None:
            self._request.max_body_bytes = self._limits.body_bytes if has_token else MAX_BODY_BYTES_WITHOUT_TOKEN
            self._forward()

    def on_response_started(self) -> None:
        self._response_started = True

    def on_response_complete(self) -> None:
        """The application has sent its response, or failed to."""
        self._response_pending = self._response_started = False
        if self._request is not None:
            self._request.max_body_bytes = self._limits.body_bytes  # the rest is discarded
        if self._server is None or self._transport.is_closing():
            return
        self._next_request()
        self._forward()

    def _next_request(self) -> None:
        if self._request is not None and self._request.complete and not self._response_pending:
            self._request = None
            self._start_idle_time()

    def _start_idle_time(self) -> None:
        self._idle_since = asyncio.get_running_loop().time()
        self._receive_deadline.set(self._limits.idle_seconds)

    def _reject(self, rejected: RequestRejected) -> None:
        """Send an error response, unless the application has started its own, and close the connection."""
        self._is_rejected = True
        self._unprocessed = memoryview(b"")
        # The application gets a request as soon as its header is complete.
        application_has_it = (
            self._request is not None and self._request.header_complete and not self._is_rejected_by_server
        )
        has_response = application_has_it and (self._response_started or not self._response_pending)
        self._disconnect_server(None)  # for the application, the client has disconnected
        if not has_response:
            self._transport.write(_response_bytes(rejected))
        self.close()

    def _disconnect_server(self, exc: Exception | None) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.connection_lost(exc)

    # --- Called by uvicorn, through its transport -------------------------------------------------

    @property
    def is_closed_to_server(self) -> bool:
        return self._server is None or self._transport.is_closing()

    def write(self, data: bytes) -> None:
        if self._is_forwarding:  # the application has no request yet, so this is uvicorn's "400 Bad Request"
            self._is_rejected_by_server = True
        elif self._server is not None:
            self._transport.write(data)

    def close_from_server(self) -> None:
        if not self._is_forwarding and self._server is not None:
            self.close()

    def pause_reading(self) -> None:
        self._is_paused_by_server = True
        self._update_reading()

    def resume_reading(self) -> None:
        self._is_paused_by_server = False
        self._update_reading()

    def limit_write_buffer(self, size: int) -> None:
        """Let the kernel buffer about this many bytes that the client has not read, and this process a quarter of it.

        The application waits when there are more. By default, the kernel buffers megabytes for each client.
        """
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(size // 4)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    # --- Close and deadlines --------------------------------------------------------------------------------

    def close(self) -> None:
        """Close after the client has read its responses. With TLS, the client must also confirm the close."""
        if not self._transport.is_closing():
            self._transport.close()
            self._send_deadline.set(self._limits.send_seconds)

    def abort(self) -> None:
        if self.connecting is not None:
            # The end of the data ends the handshake. uvloop cannot cancel it safely.
            self._is_aborted = True
            with suppress(OSError):
                self.connecting.shutdown(socket.SHUT_RDWR)
        else:
            self._transport.abort()

    def idle_time(self) -> float | None:
        """See Connections: in seconds."""
        is_busy = self.connecting or self._request or self._unprocessed or self._response_pending or self._is_rejected
        if is_busy or self._transport.get_write_buffer_size():
            return None
        return asyncio.get_running_loop().time() - self._idle_since

    def _on_receive_timeout(self) -> None:
        if self._request is None:
            self.close()
        elif self._response_pending:
            size, seconds = self._limits.body_part_bytes, self._limits.body_seconds
            needed = f"Send {size:,} bytes of it, or the rest, every {seconds:.0f} seconds."
            self._reject(RequestRejected(TOO_SLOW, Invalid(problem=f"the body is too slow. {needed}")))
        else:
            self.abort()

    def _update_reading(self) -> None:
        """Pause or resume reading. A receive deadline runs only while the guard reads."""
        if self._transport.is_closing():
            return
        is_held = self._is_paused_by_server or (self._request is not None and self._request.is_held)
        can_read = not (self._unprocessed or is_held or self._is_writing_paused or self._is_rejected)
        is_receiving = self._request is not None and not self._request.complete
        if is_receiving and not can_read:
            self._receive_deadline.clear()
        if can_read == self._is_reading:
            return
        self._is_reading = can_read
        (self._transport.resume_reading if can_read else self._transport.pause_reading)()
        if is_receiving and can_read:
            has_header = self._request is not None and self._request.header_complete
            self._receive_deadline.set(self._limits.body_seconds if has_header else self._limits.header_seconds)

    # --- Stop -------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Accept no further request. The application still finishes the current one."""
        if self.connecting is not None:
            self.abort()
        elif self._response_pending and self._server is not None:
            self._server.shutdown()
        else:
            self.close()

    def position(self) -> object | None:
        if self.connecting is not None:
            return ()
        unread = self._transport.get_write_buffer_size()
        unsent = self._is_reading and self._request is not None and not self._request.complete
        if not (unread or unsent or self._transport.is_closing()):
            return None  # the server waits for the application, not for the client
        return unread, self._bytes_received


class _ServerTransport(asyncio.Transport):
    """The transport that uvicorn writes to. It passes everything to the guard."""

    def __init__(self, guard: ConnectionGuard, transport: asyncio.Transport) -> None:
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
        self._guard.close_from_server()

    def abort(self) -> None:
        self._guard.abort()

    def pause_reading(self) -> None:
        self._guard.pause_reading()

    def resume_reading(self) -> None:
        self._guard.resume_reading()


def track_responses(app: ASGIApp) -> ASGIApp:
    """ASGI middleware that notifies the guard when a body is read, and when a response starts and ends."""

    async def tracked(scope: Scope, receive: Receive, send: Send) -> None:
        guard: ConnectionGuard = scope["state"]["guard"]

        async def tracked_receive() -> Message:
            guard.on_body_read(has_token="token" in scope["state"])
            return await receive()

        async def tracked_send(message: Message) -> None:
            guard.on_response_started()
            await send(message)

        try:
            await app(scope, tracked_receive, tracked_send)
        finally:
            guard.on_response_complete()

    return tracked


def _response_bytes(rejected: RequestRejected) -> bytes:
    body = bytes(problem(rejected.error, rejected.status).body)
    lines = (
        f"HTTP/1.1 {rejected.status} {HTTPStatus(rejected.status).phrase}",
        f"date: {formatdate(unix_seconds(), usegmt=True)}",
        f"content-type: {PROBLEM}",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join((*lines, "", "")).encode() + body
