"""A receiver of webhooks on a real socket. A test sets its responses, and it records all requests."""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import trustme

if TYPE_CHECKING:
    from pathlib import Path

AUTHORITY = trustme.CA()
TIMEOUT_SECONDS = 60


@dataclass
class Reply:
    """A response. `hang` and `reset` send none. `endless` never completes the body and sends nothing more.
    `flood` is sent again and again after the headers."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    reset: bool = False
    endless: bool = False
    flood: bytes = b""


@dataclass
class ReceivedRequest:
    """A request, and the status of its response."""

    path: str
    headers: dict[str, str]
    body: bytes
    status: int | None

    @property
    def event(self) -> Any:
        return json.loads(self.body)

    @property
    def id(self) -> str:
        return str(self.event["id"])

    @property
    def group(self) -> str:
        return str(self.event.get("partitionkey", ""))

    @property
    def taken(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


Responder = Callable[[ReceivedRequest], Reply]


def authority_file(folder: Path) -> str:
    """Write the certificate authority of TLS receivers to a file, and return its path."""
    path = folder / "authority.pem"
    AUTHORITY.cert_pem.write_to_path(str(path))
    return str(path)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def do_POST(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        if len(body) < length:  # the sender has disconnected
            self.close_connection = True
            return
        receiver = self.server.receiver
        got = ReceivedRequest(self.path, {name.lower(): value for name, value in self.headers.items()}, body, None)
        receiver.record_request(got)
        reply = receiver.respond(got)
        if reply.hang:
            self.close_connection = True
            receiver.closed.wait()
            return
        if reply.reset:
            self.close_connection = True
            # A linger time of 0 sends a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        # Recorded before it is sent, so that a client with the response can rely on the record.
        receiver.record_response(got, reply.status)
        self.send_response(reply.status)
        size = 1 << 40 if reply.endless or reply.flood else len(reply.body)
        for name, value in {"Content-Length": str(size), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        if reply.flood:
            self._flood(reply.flood)
        if reply.endless:
            self.close_connection = True
            receiver.closed.wait()

    def _flood(self, part: bytes) -> None:
        self.close_connection = True
        receiver = self.server.receiver
        parts = part * (65_536 // len(part))
        with suppress(OSError):
            while True:
                self.connection.sendall(parts)
                receiver.flooded += len(parts)
        receiver.flood_over.set()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Log nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    receiver: Receiver

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[socket.socket] = set()

    def handle_error(self, *_: Any) -> None:
        """Ignore errors: the client was killed."""


class Receiver:
    """Listens until it is closed. It can be opened again on the same port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, tls: bool = False) -> None:
        self.respond: Responder = lambda _: Reply()
        self.got: list[ReceivedRequest] = []
        """All requests, in the order of arrival."""
        self._news = threading.Condition()
        self._tls = tls
        self.closed = threading.Event()
        self.flooded = 0
        """The bytes of a flood that were sent until the client closed."""
        self.flood_over = threading.Event()
        self._server: _Server | None = None
        self.host, self.port = host, port
        self.open()

    def open(self) -> None:
        self.closed.clear()
        self._server = _Server((self.host, self.port), _Handler)
        self._server.receiver = self
        self.port = self._server.server_address[1]
        if self._tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            AUTHORITY.issue_cert("localhost", "127.0.0.1").configure_cert(context)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Reject new connections, and close the open ones."""
        assert self._server is not None
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self._server.connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"{'https' if self._tls else 'http'}://{host}:{self.port}{path}"

    def record_request(self, got: ReceivedRequest) -> None:
        with self._news:
            self.got.append(got)
            self._news.notify_all()

    def record_response(self, got: ReceivedRequest, status: int) -> None:
        with self._news:
            got.status = status
            self._news.notify_all()

    def until(self, enough: Callable[[], bool]) -> None:
        """Wait until the condition is true. It is checked after each request."""
        with self._news:
            assert self._news.wait_for(enough, TIMEOUT_SECONDS), f"timeout; received: {self.got}"

    @property
    def taken(self) -> list[ReceivedRequest]:
        """The requests that got a 2xx response."""
        return [got for got in self.got if got.taken]

    def wait_until_accepted(self, ids: set[str]) -> None:
        self.until(lambda: ids <= {got.id for got in self.taken})
