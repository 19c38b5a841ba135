"""The agent's HTTP server: the standard library's, with bounds on connections, on time and on the size of a request."""

from __future__ import annotations

import io
import logging
import socket
import threading
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.system.addresses import show_host_port

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forewarn.errors import ForewarnError

_log = logging.getLogger(__name__)


# --- Listening ------------------------------------------------------------------------------------


_BACKLOG = 32
"""Connections that the kernel keeps until they are accepted."""


def listen_on(host: str, port: int, failure: type[ForewarnError]) -> socket.socket:
    """A socket at a TCP address, or the failure, whose message names the setting that the address came from.

    A client that connects before the server starts waits, as with a slow machine.
    """
    listener = None
    try:
        family, kind, number, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        # The agent may start again at once: connections in TIME_WAIT are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError, ValueError) as error:
        if listener is not None:
            listener.close()
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise failure(address=show_host_port(host, port), problem=f"{problem}.") from error
    return listener


# --- Requests and replies -------------------------------------------------------------------------


class Request(NamedTuple):
    """The head of a request. A body is not read."""

    method: str
    target: str
    headers: Mapping[str, str]
    """Found by name in any letter case."""
    caller: str
    """The client's address; empty for a unix socket."""
    error: int = 0
    """400: it is not HTTP, 431: its head is too large. The other fields are empty then."""


class Reply(NamedTuple):
    """The answer. Every answer ends its connection."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


# --- The server -----------------------------------------------------------------------------------


_PAUSE_SECONDS = 0.2
"""After a connection could not be accepted: an attempt at once would not bring descriptors."""
_POLL_SECONDS = 3600.0
"""How often the server looks whether it should stop. `stop` wakes it, so this is no delay."""


class BoundedServer(ThreadingHTTPServer):
    """Answers from `start` to `stop`, each connection in a thread. It owns the listener from now on.

    When there are too many connections, the oldest one that is not being answered makes room. So clients that send
    nothing keep nobody out. Where `answer` returns None, the connection is closed without a reply. `callers` is the
    log's name for the clients.
    """

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        answer: Callable[[Request], Reply | None],
        *,
        name: str,
        callers: str = "a caller",
        most_connections: int = 32,
        seconds_each: float = 5.0,
        largest_head: int = 8192,
    ) -> None:
        super().__init__(("", 0), _RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._answer = answer
        self.seconds_each = seconds_each
        self.largest_head = largest_head
        self._callers = callers
        self._most_connections = most_connections
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, bool] = {}
        """The oldest first, and whether it is being answered at this moment."""
        self._stopping = threading.Event()
        self._accept_failed = self._answer_failed = False
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close everything. A client that is being answered is cut off."""
        self._stopping.set()
        if self._thread.ident is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
            self.shutdown()
        self.server_close()
        with self._lock:
            while self._connections:
                self._cut(next(iter(self._connections)))

    def answer(self, request: Request) -> Reply | None:
        """A request that cannot be answered is logged, and its connection is closed."""
        try:
            return self._answer(request)
        except Exception:  # noqa: BLE001 - whatever it is, the next request is answered
            self.handle_error(None, None)
            return None

    def mark(self, connection: socket.socket, *, is_busy: bool) -> bool:
        """A busy connection does not make room for another. False: it has done so already."""
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = is_busy
            return connection in self._connections

    # What socketserver calls.

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().get_request()
        except OSError as error:
            if not self._stopping.is_set() and not isinstance(error, (ConnectionError, BlockingIOError)):
                if not self._accept_failed:
                    _log.warning("No connection of %s can be taken: %s.", self._callers, error.strerror)
                self._accept_failed = True
                with self._lock:
                    self._make_room()
                self._stopping.wait(_PAUSE_SECONDS)
            raise
        self._accept_failed = False
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._connections) < self._most_connections or self._make_room()
            if has_room:
                self._connections[request] = False
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:  # a connection that is in the table is open, so `_cut` never meets a closed one
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _: Any, __: Any) -> None:
        with self._lock:
            has_failed, self._answer_failed = self._answer_failed, True
        if not has_failed:  # clients ask every few seconds: once is enough
            _log.exception("A request of %s cannot be answered.", self._callers)

    def _make_room(self) -> bool:
        oldest = next((each for each, is_busy in self._connections.items() if not is_busy), None)
        if oldest is None:
            return False
        self._cut(oldest)
        return True

    def _cut(self, connection: socket.socket) -> None:
        """The connection's thread notices it and closes the connection."""
        del self._connections[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _HeadReader(io.RawIOBase):
    """Reads the head of a request from a socket, within a time limit for all of it and up to a size."""

    def __init__(self, connection: socket.socket, until: float, largest: int) -> None:
        self._connection = connection
        self._until = until
        self._left = largest + 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise LineTooLong("head")
        limit_time(self._connection, self._until)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def limit_time(connection: socket.socket, until: float) -> None:
    """For the next call on the socket; TimeoutError when there is no time left."""
    left = until - real_seconds()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


class _RequestHandler(BaseHTTPRequestHandler):
    """One connection: one request, one answer, one time limit for both."""

    server: BoundedServer
    raw_requestline: bytes
    protocol_version = request_version = default_request_version = "HTTP/1.1"

    def setup(self) -> None:
        self.connection: socket.socket = self.request
        self._until = real_seconds() + self.server.seconds_each
        reader = _HeadReader(self.connection, self._until, self.server.largest_head)
        self.rfile = io.BufferedReader(reader)
        self._answer = io.BytesIO()  # so that head and body are sent at once
        self.wfile = self._answer

    def finish(self) -> None:
        with suppress(OSError):
            limit_time(self.connection, self._until)
            self.connection.sendall(self._answer.getvalue())
            self.connection.shutdown(socket.SHUT_WR)
            # To close a connection with unread data would reset it, and the client could lose the answer.
            while self._answer.getvalue() and self.connection.recv(4096):
                limit_time(self.connection, self._until)

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except LineTooLong:
            self.send_error(431)
        except OSError:
            self.close_connection = True

    def parse_request(self) -> bool:
        words = self.raw_requestline.split()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self.send_error(400)
            return False
        return super().parse_request()

    def do_GET(self) -> None:
        self._reply(Request(self.command, self.path, self.headers, self._caller))  # type: ignore[arg-type]

    def send_error(self, code: int, _: str | None = None, __: str | None = None) -> None:
        if code == 501:  # a method other than GET
            self.do_GET()
        else:
            self._reply(Request("", "", {}, self._caller, 431 if code in (414, 431) else 400))

    def log_message(self, *_: Any) -> None:
        """Nothing: clients ask every few seconds."""

    @property
    def _caller(self) -> str:
        return self.client_address[0] if isinstance(self.client_address, tuple) else ""

    def _reply(self, request: Request) -> None:
        self.close_connection = True
        if not self.server.mark(self.connection, is_busy=True):
            return
        reply = self.server.answer(request)
        self.server.mark(self.connection, is_busy=False)
        if reply is None:
            return
        self.send_response_only(reply.status)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        for name, value in reply.headers:
            self.send_header(name, value)
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(reply.body)
