"""The agent's HTTP server: the standard library's, with limits on connections, time and request size."""

from __future__ import annotations

import io
import socket
import threading
from contextlib import suppress
from http.client import LineTooLong
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.system.addresses import show_host_port
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from forewarn.errors import ForewarnError

_log = get_logger(__name__)


# --- Listening ------------------------------------------------------------------------------------


_BACKLOG = 32
"""Connections that the kernel queues until they are accepted."""


def listen_on(host: str, port: int, failure: type[ForewarnError]) -> socket.socket:
    """Return a socket that listens on a TCP address, or raise `failure`, whose message names the setting.

    A client that connects before the server starts waits.
    """
    listener = None
    try:
        family, kind, number, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        # A restarted agent must be able to listen at once, despite connections in TIME_WAIT.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError, ValueError) as error:
        if listener is not None:
            listener.close()
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise failure(address=show_host_port(host, port), problem=f"{problem}.") from error
    return listener


# --- Requests and responses -----------------------------------------------------------------------


class LocalRequest(NamedTuple):
    """The head of a request. The body is not read."""

    method: str
    target: str
    headers: Mapping[str, str]
    """Names are case-insensitive."""
    caller: str
    """The client's address; empty for a unix socket."""
    error: int = 0
    """400: not HTTP. 431: the head is too large. The other fields are empty then."""


class LocalResponse(NamedTuple):
    """A response. The server closes the connection after it."""

    status: int
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


# --- The server -----------------------------------------------------------------------------------


_PAUSE_SECONDS = 0.2
"""Pause after accepting a connection has failed: an immediate retry would not free file descriptors."""
_POLL_SECONDS = 3600.0
"""How often the server checks whether to stop. `stop` wakes it, so this causes no delay."""


class BoundedServer(ThreadingHTTPServer):
    """Serves from `start` to `stop`, each connection in a thread. It owns the listener.

    If there are too many connections, it closes the oldest idle one, so clients that send nothing cannot block others.
    If `respond` returns None, it closes the connection without a response.
    """

    daemon_threads = True

    def __init__(
        self,
        listener: socket.socket,
        respond: Callable[[LocalRequest], LocalResponse | None],
        *,
        name: str,
        max_connections: int = 32,
        timeout_seconds: float = 5.0,
        max_head_size: int = 8192,
    ) -> None:
        super().__init__(("", 0), _RequestHandler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self._respond = respond
        self.timeout_seconds = timeout_seconds
        self.max_head_size = max_head_size
        self._max_connections = max_connections
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, bool] = {}
        """The oldest first; the value says whether its response is being made."""
        self._stopping = threading.Event()
        self._accept_failed = self._response_failed = False
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_SECONDS,), name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close everything, including connections with a response in progress."""
        self._stopping.set()
        if self._thread.ident is not None:
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
            self.shutdown()
        self.server_close()
        with self._lock:
            while self._connections:
                self._close(next(iter(self._connections)))

    def respond(self, request: LocalRequest) -> LocalResponse | None:
        """Return the response. If making it fails, log the error and return None."""
        try:
            return self._respond(request)
        except Exception:  # noqa: BLE001 - the server must continue
            self.handle_error(None, None)
            return None

    def mark(self, connection: socket.socket, *, is_busy: bool) -> bool:
        """Mark a connection as busy or idle; only idle ones are closed for others. False: it was already closed."""
        with self._lock:
            if connection in self._connections:
                self._connections[connection] = is_busy
            return connection in self._connections

    # Called by socketserver:

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            accepted = super().get_request()
        except OSError as error:
            if not self._stopping.is_set() and not isinstance(error, (ConnectionError, BlockingIOError)):
                if not self._accept_failed:
                    _log.warning(
                        "connection_accept_failed",
                        "Cannot accept connections.",
                        server=self._thread.name,
                        error=error.strerror,
                    )
                self._accept_failed = True
                with self._lock:
                    self._make_room()
                self._stopping.wait(_PAUSE_SECONDS)
            raise
        self._accept_failed = False
        return accepted

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._connections) < self._max_connections or self._make_room()
            if has_room:
                self._connections[request] = False
        if has_room:
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:  # connections in the table are open, so `_close` never gets a closed one
            self._connections.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, _: Any, __: Any) -> None:
        with self._lock:
            has_failed, self._response_failed = self._response_failed, True
        if not has_failed:  # clients poll every few seconds: log it once
            _log.exception("local_request_failed", "Cannot respond to a request.", server=self._thread.name)

    def _make_room(self) -> bool:
        oldest = next((each for each, is_busy in self._connections.items() if not is_busy), None)
        if oldest is None:
            return False
        self._close(oldest)
        return True

    def _close(self, connection: socket.socket) -> None:
        """Shut the connection down. Its thread notices that and closes it."""
        del self._connections[connection]
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


class _HeadReader(io.RawIOBase):
    """Reads the head of a request from a socket, with a time limit and a size limit."""

    def __init__(self, connection: socket.socket, deadline: float, max_size: int) -> None:
        self._connection = connection
        self._deadline = deadline
        self._left = max_size + 1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise LineTooLong("head")
        set_deadline(self._connection, self._deadline)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count


def set_deadline(connection: socket.socket, deadline: float) -> None:
    """Set the timeout of the next call on the socket; raise TimeoutError if no time is left."""
    left = deadline - real_seconds()
    if left <= 0:
        raise TimeoutError
    connection.settimeout(left)


class _RequestHandler(BaseHTTPRequestHandler):
    """One connection: one request, one response, one time limit for both."""

    server: BoundedServer
    raw_requestline: bytes
    protocol_version = request_version = default_request_version = "HTTP/1.1"

    def setup(self) -> None:
        self.connection: socket.socket = self.request
        self._deadline = real_seconds() + self.server.timeout_seconds
        reader = _HeadReader(self.connection, self._deadline, self.server.max_head_size)
        self.rfile = io.BufferedReader(reader)
        self._buffer = io.BytesIO()  # sends head and body in one packet
        self.wfile = self._buffer

    def finish(self) -> None:
        with suppress(OSError):
            set_deadline(self.connection, self._deadline)
            self.connection.sendall(self._buffer.getvalue())
            self.connection.shutdown(socket.SHUT_WR)
            # Closing a connection with unread data would reset it, and the client could lose the response.
            while self._buffer.getvalue() and self.connection.recv(4096):
                set_deadline(self.connection, self._deadline)

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
        self._send_response(LocalRequest(self.command, self.path, self.headers, self._caller))  # type: ignore[arg-type]

    def send_error(self, code: int, _: str | None = None, __: str | None = None) -> None:
        if code == 501:  # any method other than GET
            self.do_GET()
        else:
            self._send_response(LocalRequest("", "", {}, self._caller, 431 if code in (414, 431) else 400))

    def log_message(self, *_: Any) -> None:
        """Log nothing: clients poll every few seconds."""

    @property
    def _caller(self) -> str:
        return self.client_address[0] if isinstance(self.client_address, tuple) else ""

    def _send_response(self, request: LocalRequest) -> None:
        self.close_connection = True
        if not self.server.mark(self.connection, is_busy=True):
            return
        response = self.server.respond(request)
        self.server.mark(self.connection, is_busy=False)
        if response is None:
            return
        self.send_response_only(response.status)
        self.send_header("Content-Length", str(len(response.body)))
        self.send_header("Connection", "close")
        for name, value in response.headers:
            self.send_header(name, value)
        self.end_headers()
        if request.method != "HEAD":
            self.wfile.write(response.body)
