"""HTTP to the endpoint: one request and its answer, within one time limit, and every way in which that can fail.

The limit covers the whole exchange, however slowly the bytes arrive.
"""

from __future__ import annotations

import io
import math
import select
import socket
import threading
from contextlib import suppress
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException, HTTPResponse, IncompleteRead, LineTooLong
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.clock import real_seconds
from forewarn.errors import (
    EndpointAway,
    EndpointCutOff,
    EndpointLeft,
    EndpointReset,
    EndpointSilent,
    EndpointStalled,
    EndpointUnknown,
    EndpointUnreadable,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from forewarn.agent.address import Endpoint
    from forewarn.errors import EndpointTrouble


# --- One connection with a time limit -------------------------------------------------------------


LARGEST_BODY = 4_000_000
_LARGEST_ANSWER = LARGEST_BODY + 1_000_000
"""With its heads, and with what is around each chunk of its body."""


class TooLarge(HTTPException):
    """The answer has more bytes than anybody would send in earnest."""


class Exchange:
    """One exchange: until when it may take, and how far it has come."""

    def __init__(self, endpoint: Endpoint, seconds: float, rest_seconds: float) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        self._rest_seconds = rest_seconds
        self.received = 0
        self.ended = False
        """The endpoint has ended the connection."""
        self.connected = False
        self._end = real_seconds() + seconds

    def receive(self, count: int) -> None:
        """So many bytes have come; none: the connection has ended. Who has begun to answer has not long to finish."""
        if count and not self.received:
            self._end = min(self._end, real_seconds() + self._rest_seconds)
            self.seconds = min(self.seconds, self._rest_seconds)
        self.received += count
        self.ended = not count
        if self.received > _LARGEST_ANSWER:
            # Here, since http.client reads on without end where a length says so, and some lengths can be made to.
            raise TooLarge

    def prolong(self, seconds: float) -> None:
        """So long was waited for something else."""
        self._end += seconds

    def left(self) -> float:
        """Seconds; a TimeoutError, if there are none."""
        left = self._end - real_seconds()
        if left <= 0:
            raise TimeoutError
        return left


class TimedSocket:
    """A socket for http.client that looks at the limit of the whole exchange before it waits for anything."""

    def __init__(self, carried: socket.socket, exchange: Exchange) -> None:
        self.socket = carried
        self.exchange = exchange

    def sendall(self, data: Any) -> None:
        self.socket.settimeout(self.exchange.left())
        self.socket.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """What an answer is read from; it is closed when it has been read, and the connection goes on."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Nothing: http.client would close it before the last answer was read. `EndpointConnection` does it."""


class _Reader(io.RawIOBase):
    def __init__(self, timed_socket: TimedSocket) -> None:
        self._timed_socket = timed_socket

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        timed_socket = self._timed_socket
        timed_socket.socket.settimeout(timed_socket.exchange.left())
        count = timed_socket.socket.recv_into(buffer)
        timed_socket.exchange.receive(count)
        return count


class Connection(HTTPConnection):
    """A connection that is made already, and never makes one itself."""

    auto_open = 0

    def __init__(self, host: str, port: int, timed_socket: TimedSocket) -> None:
        super().__init__(host, port)
        self.timed_socket = timed_socket
        self.sock: Any = timed_socket


def secured(caller: socket.socket, endpoint: Endpoint, ca_file: str) -> socket.socket:
    """With TLS, if the endpoint wants it. Without a CA file, the system's authorities are trusted."""
    if endpoint.scheme != "https":
        return caller
    import ssl  # rarely needed

    context = ssl.create_default_context(cafile=ca_file or None)
    return context.wrap_socket(caller, server_hostname=endpoint.host)


def has_ended(connection: Connection) -> bool:
    """Whether a connection at rest has something to read: its end, or what nobody has asked for."""
    poll = select.poll()
    poll.register(connection.timed_socket.socket, select.POLLIN)
    return bool(poll.poll(0))


def addresses(host: str, port: int) -> list[Any]:
    """What a connection can be made to, in the order in which that is tried."""
    try:
        # As bytes where that is possible: for text Python would load the tables of all scripts of the world.
        return socket.getaddrinfo(host.encode() if host.isascii() else host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} can be nobody's name") from None


# --- One request and its answer -------------------------------------------------------------------


CONNECT_SECONDS = 5.0
"""The endpoint is on the same host: who has not taken the call by then is not there, however long it may then think."""
_PIECE = 65_536


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    """By their names in lower case."""
    body: bytes
    date: datetime | None
    """What time it is there."""


class EndpointConnection:
    """The connection to an endpoint. One exchange at a time; others wait for it."""

    def __init__(self, endpoint: Endpoint | None = None, ca_file: str = "") -> None:
        self.endpoint = endpoint
        self._ca_file = ca_file
        self._turn = threading.Lock()
        self._guard = threading.Lock()
        """For what `cut` and an exchange under way both touch."""
        self._connection: Connection | None = None
        self._socket: socket.socket | None = None
        self._cut = threading.Event()
        self._closed = False

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_seconds: float,
        rest_seconds: float = math.inf,
        admit: Callable[[], object] = lambda: None,
    ) -> Answer:
        """Send a request and give its answer, whatever its status; else an EndpointTrouble.

        The time limit is for all of it, however slowly the bytes come; `rest_seconds` are for what follows the first
        byte, since an answer may be held for long, but not in the middle. A kept connection that the endpoint has
        closed in the meantime is no trouble: a GET is sent once more on a new one. All else has a new one from the
        start and is sent once: whether an approval is still right a moment later, others must decide. `admit` is
        called before each time that something is sent, and may wait.
        """
        try:
            with self._turn:
                if self.endpoint is None:
                    raise EndpointUnknown(problem="It is not known yet where the endpoint is.")
                exchange = Exchange(self.endpoint, timeout_seconds, rest_seconds)
                if self._connection is not None and (method != "GET" or has_ended(self._connection)):
                    self._drop()
                was_kept = self._connection is not None
                try:
                    return self._try(exchange, admit, method, path, headers, body)
                except EndpointReset:
                    if not was_kept or exchange.received or self._cut.is_set():
                        raise
                return self._try(exchange, admit, method, path, headers, body)
        finally:
            if self._closed:  # which did not wait for this
                self._drop()

    def turn_to(self, endpoint: Endpoint) -> None:
        """Exchanges go to this one from now on."""
        with self._turn:
            if endpoint[:3] != (self.endpoint or ())[:3]:
                self._drop()
            self.endpoint = endpoint

    def cut(self) -> None:
        """From another thread: end what is under way, and all that is begun before `mend`."""
        with self._guard:
            self._cut.set()
            if self._socket is not None:
                _shut(self._socket)

    def mend(self) -> None:
        """Exchanges are possible again, unless it is closed."""
        if not self._closed:
            self._cut.clear()

    def rest(self, seconds: float) -> bool:
        """Wait, at most until it is cut: then True."""
        return self._cut.wait(seconds)

    def close(self) -> None:
        """For good, from any thread. What is under way ends by itself, and nobody waits for it: the search for an
        address can take long, and cannot be cut."""
        self._closed = True
        self.cut()
        if self._turn.acquire(blocking=False):
            self._drop()
            self._turn.release()

    def __del__(self) -> None:
        # Who leaves a client without closing it shall not be told of a socket that he has never seen.
        self._drop()

    def _try(
        self,
        exchange: Exchange,
        admit: Callable[[], object],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Answer:
        whole = False
        try:
            connection = self._connection or self._connect(exchange)
            connection.timed_socket.exchange = exchange
            asked = real_seconds()
            admit()
            exchange.prolong(real_seconds() - asked)
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            if exchange.ended:
                # http.client takes a head that breaks off for a whole one.
                raise IncompleteRead(b"")
            answer = Answer(response.status, _headers(response), _body(response, exchange), _date(response))
            if self._cut.is_set():
                raise ConnectionAbortedError  # what was cut may look like an answer that ends with the connection
            whole = not response.will_close
        except (OSError, HTTPException, ValueError, ArithmeticError, LookupError) as error:
            # The last three are how http.client fails at numbers and letters that it did not expect.
            raise self._trouble(error, exchange) from error
        finally:
            if not whole:
                self._drop()
        return answer

    def _connect(self, exchange: Exchange) -> Connection:
        """Try each address of the host in turn, so that `cut` can always reach the socket."""
        host, port = exchange.endpoint.host, exchange.endpoint.port
        problem: OSError = OSError("it has no address")
        for family, kind, protocol, _, address in addresses(host, port):
            caller = socket.socket(family, kind, protocol)
            try:
                self._hold(caller)
                caller.settimeout(min(CONNECT_SECONDS, exchange.left()))
                caller.connect(address)
                caller.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                caller = secured(caller, exchange.endpoint, self._ca_file)
                self._hold(caller)  # it may have been cut just before it was connected
            except OSError as error:
                self._drop()
                caller.close()
                problem = error
            else:
                exchange.connected = True
                self._connection = Connection(host, port, TimedSocket(caller, exchange))
                return self._connection
        raise problem

    def _hold(self, caller: socket.socket) -> None:
        with self._guard:
            if self._cut.is_set():
                raise ConnectionAbortedError
            self._socket = caller

    def _trouble(self, error: Exception, exchange: Exchange) -> EndpointTrouble:
        url, seconds = exchange.endpoint.url, exchange.seconds
        if self._cut.is_set():
            return EndpointLeft()
        if not exchange.connected and self._connection is None:
            problem = "no connection was made in time" if isinstance(error, TimeoutError) else _words(error)
            return EndpointAway(url=url, problem=problem)
        if isinstance(error, TimeoutError):
            return (
                EndpointStalled(url=url, seconds=seconds)
                if exchange.received
                else EndpointSilent(url=url, seconds=seconds)
            )
        if isinstance(error, (TooLarge, LineTooLong)):
            return EndpointUnreadable(problem="it is too large")
        # Something is also incomplete to http.client when its length is no number; then nobody has ended anything.
        if isinstance(error, OSError) or (isinstance(error, IncompleteRead) and exchange.ended):
            if exchange.received:
                return EndpointCutOff(url=url)
            return EndpointReset(url=url, problem=_words(error))
        return EndpointUnreadable(problem="it is not HTTP")

    def _drop(self) -> None:
        with self._guard:
            connection, self._connection = self._connection, None
            held, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if held is not None:
            held.close()


def _shut(held: socket.socket) -> None:
    """Whoever waits for it is woken. The plain socket's way, since that of TLS is not for two threads."""
    with suppress(OSError):
        socket.socket.shutdown(held, socket.SHUT_RDWR)


def _body(response: HTTPResponse, exchange: Exchange) -> bytes:
    if (response.length or 0) > LARGEST_BODY:
        raise TooLarge
    pieces, size = [], 0
    while piece := response.read(_PIECE):
        pieces.append(piece)
        size += len(piece)
        if size > LARGEST_BODY:
            raise TooLarge
        exchange.left()
    if response.length:
        raise IncompleteRead(b"", response.length)
    return b"".join(pieces)


def _headers(response: HTTPResponse) -> dict[str, str]:
    headers: dict[str, str] = {}
    for name, value in response.getheaders():
        before = headers.get(name.lower())
        headers[name.lower()] = value if before is None else f"{before}, {value}"
    return headers


def _date(response: HTTPResponse) -> datetime | None:
    try:
        date = parsedate_to_datetime(response.getheader("Date") or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else None


def _words(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) else ""
    return (words or str(error) or type(error).__name__).rstrip(".")
