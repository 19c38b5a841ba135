"""A real receiver of webhooks, on a real socket: it answers as it is told to, and remembers everything."""

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
    """What to answer. `hang` and `reset` answer nothing; `endless` never comes to the end of the body, and says
    nothing more; `flood` says more and more."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    hang: bool = False
    reset: bool = False
    endless: bool = False
    flood: bool = False


@dataclass
class ReceivedRequest:
    """A request, and what it was answered."""

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
    """What to trust, to speak TLS with a receiver."""
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
        if len(body) < length:  # whoever sent it has gone away
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
            # To linger for no time is to send a reset instead of an end.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        # Before it is sent: who has the answer may rely on its being noted here.
        receiver.record_response(got, reply.status)
        self.send_response(reply.status)
        size = 1 << 40 if reply.endless or reply.flood else len(reply.body)
        for name, value in {"Content-Length": str(size), **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(reply.body)
        if reply.flood:
            self._flood()
        if reply.endless:
            self.close_connection = True
            receiver.closed.wait()

    def _flood(self) -> None:
        self.close_connection = True
        receiver = self.server.receiver
        with suppress(OSError):
            while True:
                receiver.flooded += self.connection.send(b"x" * 65_536)
        receiver.flood_over.set()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in the standard library
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    receiver: Receiver

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.connections: set[socket.socket] = set()

    def handle_error(self, *_: Any) -> None:
        """Whoever called has gone away: a service that was killed."""


class Receiver:
    """Listens until it is closed; can be opened again on the same port."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0, *, tls: bool = False) -> None:
        self.respond: Responder = lambda _: Reply()
        self.got: list[ReceivedRequest] = []
        """All requests, in the order in which they came."""
        self._news = threading.Condition()
        self._tls = tls
        self.closed = threading.Event()
        self.flooded = 0
        """How many bytes of a flood have gone out until the other side had enough."""
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
        """From now on connections are refused, and those that there are end."""
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
        """Wait for as many requests as it takes."""
        with self._news:
            assert self._news.wait_for(enough, TIMEOUT_SECONDS), f"in vain; came: {self.got}"

    @property
    def taken(self) -> list[ReceivedRequest]:
        """What was answered with success."""
        return [got for got in self.got if got.taken]

    def wait_until_accepted(self, ids: set[str]) -> None:
        self.until(lambda: ids <= {got.id for got in self.taken})
