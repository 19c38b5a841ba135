"""HTTP to the endpoint: one request and its response within one time limit, and every error of it.

The limit covers the whole exchange, even if the bytes arrive slowly.
"""

from __future__ import annotations

import errno
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
    ClientClosed,
    EndpointConnectionFailed,
    EndpointIncomplete,
    EndpointReset,
    EndpointStalled,
    EndpointTimedOut,
    EndpointUnreadable,
    NoEndpointKnown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from forewarn.agent.address import EndpointAddress
    from forewarn.errors import EndpointError


# --- One connection with a time limit -------------------------------------------------------------


MAX_BODY_SIZE = 4_000_000
_MAX_RESPONSE_SIZE = MAX_BODY_SIZE + 1_000_000
"""Includes the headers and the chunk sizes of the body."""


class ResponseTooLarge(HTTPException):
    """The response is larger than any real one."""


class Exchange:
    """The time limit and the progress of one request with its response."""

    def __init__(self, endpoint: EndpointAddress, seconds: float, transfer_seconds: float) -> None:
        self.endpoint = endpoint
        self.seconds = seconds
        self._transfer_seconds = transfer_seconds
        self.received = 0
        self.ended = False
        """The endpoint has closed the connection."""
        self.connected = False
        self._end = real_seconds() + seconds

    def receive(self, count: int) -> None:
        """Count received bytes; 0: the connection has ended. With the first byte, a shorter time limit begins."""
        if count and not self.received:
            self._end = min(self._end, real_seconds() + self._transfer_seconds)
            self.seconds = min(self.seconds, self._transfer_seconds)
        self.received += count
        self.ended = not count
        if self.received > _MAX_RESPONSE_SIZE:
            # Checked here, because http.client keeps reading for certain Content-Length values.
            raise ResponseTooLarge

    def prolong(self, seconds: float) -> None:
        """Extend the limit by time that was spent elsewhere."""
        self._end += seconds

    def left(self) -> float:
        """Return the seconds left; raise TimeoutError if there are none."""
        left = self._end - real_seconds()
        if left <= 0:
            raise TimeoutError
        return left


class TimedSocket:
    """A socket for http.client. Each call may use only the time that is left for the whole exchange."""

    def __init__(self, wrapped: socket.socket, exchange: Exchange) -> None:
        self.socket = wrapped
        self.exchange = exchange

    def sendall(self, data: Any) -> None:
        self.socket.settimeout(self.exchange.left())
        self.socket.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """Return the stream of a response. Closing it does not close the connection."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Do nothing: http.client would close the socket before the response is read. EndpointConnection closes it."""


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


class EndpointHTTPConnection(HTTPConnection):
    """A connection that is already open and never opens another one."""

    auto_open = 0

    def __init__(self, host: str, port: int, timed_socket: TimedSocket) -> None:
        super().__init__(host, port)
        self.timed_socket = timed_socket
        self.sock: Any = timed_socket


# --- The lock of systemd --------------------------------------------------------------------------


_LOCK_MARK = 0x7FFF0815
_LOCKED = (
    "Permission denied. systemd 261 locks this address if the kernel option systemd.imds.network=locked is in effect, "
    "which is the default. Give this program the capability CAP_NET_ADMIN, or boot with systemd.imds.network=unlocked"
)


def connect(connecting: socket.socket, address: Any) -> None:
    """Connect a socket.

    systemd 261 prohibits connections to the link-local address, except for sockets with its mark (SO_MARK). So if a
    link-local address is prohibited, try once more with the mark. That needs CAP_NET_ADMIN.
    """
    try:
        connecting.connect(address)
    except PermissionError as error:
        mark = getattr(socket, "SO_MARK", None)  # only on Linux
        if error.errno != errno.EACCES or mark is None or not is_link_local(address[0]):
            raise
        try:
            connecting.setsockopt(socket.SOL_SOCKET, mark, _LOCK_MARK)
            connecting.connect(address)
        except PermissionError as again:
            raise PermissionError(errno.EACCES, _LOCKED) from again


def is_link_local(host: str) -> bool:
    """Return whether an address is in 169.254.0.0/16 or fe80::/10."""
    return host.startswith("169.254.") or host[:3].lower() in ("fe8", "fe9", "fea", "feb")


def wrap_tls(connecting: socket.socket, endpoint: EndpointAddress, ca_file: str) -> socket.socket:
    """Add TLS if the endpoint uses https. Without a CA file, trust the system's CAs."""
    if endpoint.scheme != "https":
        return connecting
    import ssl  # rarely needed

    context = ssl.create_default_context(cafile=ca_file or None)
    return context.wrap_socket(connecting, server_hostname=endpoint.host)


def has_unread_data(connection: EndpointHTTPConnection) -> bool:
    """Whether an idle connection has something to read: its end, or unexpected data."""
    opened = connection.timed_socket.socket
    if not hasattr(select, "poll"):  # on Windows
        return bool(select.select([opened], [], [], 0)[0])
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return bool(poll.poll(0))


def resolve_addresses(host: str, port: int) -> list[Any]:
    """Return the socket addresses of a host, in the order of trying."""
    try:
        # Bytes where possible: for text, Python would load its large Unicode tables.
        return socket.getaddrinfo(host.encode() if host.isascii() else host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} is not a valid host name") from None


# --- One request and its response -----------------------------------------------------------------


CONNECT_SECONDS = 5.0
"""The endpoint is on the same host: if it does not accept a connection in this time, it is not there."""
_CHUNK_SIZE = 65_536


class EndpointResponse(NamedTuple):
    """A response."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    date: datetime | None
    """The endpoint's time."""


class EndpointConnection:
    """The connection to an endpoint. One exchange at a time; others wait."""

    def __init__(self, endpoint: EndpointAddress | None = None, ca_file: str = "") -> None:
        self.endpoint = endpoint
        self._ca_file = ca_file
        self._exchange_lock = threading.Lock()
        self._socket_lock = threading.Lock()
        """Guards what `abort` and a running exchange both use."""
        self._connection: EndpointHTTPConnection | None = None
        self._socket: socket.socket | None = None
        self._aborted = threading.Event()
        self._closed = False

    def exchange(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_seconds: float,
        transfer_seconds: float = math.inf,
        admit: Callable[[], object] = lambda: None,
    ) -> EndpointResponse:
        """Send a request and return the response with any status, or raise an EndpointError.

        The timeout covers the whole exchange; `transfer_seconds` begins with the first byte, because a long poll may
        wait long for its start, but not in the middle.

        If the endpoint has closed a kept connection, a GET is sent once more on a new one. Other methods always use a
        new connection and are sent once: the caller decides whether an approval is still right. `admit` is called
        before each send and may wait.
        """
        try:
            with self._exchange_lock:
                if self.endpoint is None:
                    raise NoEndpointKnown(problem="No endpoint is known yet.")
                exchange = Exchange(self.endpoint, timeout_seconds, transfer_seconds)
                if self._connection is not None and (method != "GET" or has_unread_data(self._connection)):
                    self._drop()
                was_kept = self._connection is not None
                try:
                    return self._try(exchange, admit, method, path, headers, body)
                except EndpointReset:
                    if not was_kept or exchange.received or self._aborted.is_set():
                        raise
                return self._try(exchange, admit, method, path, headers, body)
        finally:
            if self._closed:  # `close` did not wait for this exchange
                self._drop()

    def set_endpoint(self, endpoint: EndpointAddress) -> None:
        """Use this endpoint from now on."""
        with self._exchange_lock:
            if endpoint[:3] != (self.endpoint or ())[:3]:
                self._drop()
            self.endpoint = endpoint

    def abort(self) -> None:
        """End the running exchange, and all later ones before `reset`. Called from another thread."""
        with self._socket_lock:
            self._aborted.set()
            if self._socket is not None:
                _shut(self._socket)

    def reset(self) -> None:
        """Allow exchanges again, unless the connection is closed."""
        if not self._closed:
            self._aborted.clear()

    def wait(self, seconds: float) -> bool:
        """Wait; return True at once when the connection is aborted."""
        return self._aborted.wait(seconds)

    def close(self) -> None:
        """Close for good, from any thread. Does not wait for a running exchange: a DNS lookup can take long and cannot
        be aborted."""
        self._closed = True
        self.abort()
        if self._exchange_lock.acquire(blocking=False):
            self._drop()
            self._exchange_lock.release()

    def __del__(self) -> None:
        # Close silently: the user of an unclosed client should not get a ResourceWarning.
        self._drop()

    def _try(
        self,
        exchange: Exchange,
        admit: Callable[[], object],
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> EndpointResponse:
        whole = False
        try:
            connection = self._connection or self._connect(exchange)
            connection.timed_socket.exchange = exchange
            began = real_seconds()
            admit()
            exchange.prolong(real_seconds() - began)
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            if exchange.ended:
                # http.client accepts an incomplete head as a complete one.
                raise IncompleteRead(b"")
            result = EndpointResponse(response.status, _headers(response), _body(response, exchange), _date(response))
            if self._aborted.is_set():
                raise ConnectionAbortedError  # an aborted response may look like one that ends with the connection
            whole = not response.will_close
        except (OSError, HTTPException, ValueError, ArithmeticError, LookupError) as error:
            # http.client raises the last three for invalid numbers and characters.
            raise self._error(error, exchange) from error
        finally:
            if not whole:
                self._drop()
        return result

    def _connect(self, exchange: Exchange) -> EndpointHTTPConnection:
        """Try each address of the host in turn. Create the sockets here, so that `abort` can reach them."""
        host, port = exchange.endpoint.host, exchange.endpoint.port
        problem: OSError = OSError("the host has no address")
        for family, kind, protocol, _, address in resolve_addresses(host, port):
            connecting = socket.socket(family, kind, protocol)
            try:
                self._hold(connecting)
                connecting.settimeout(min(CONNECT_SECONDS, exchange.left()))
                connect(connecting, address)
                connecting.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connecting = wrap_tls(connecting, exchange.endpoint, self._ca_file)
                self._hold(connecting)  # `abort` may have been called just before the connection was made
            except OSError as error:
                self._drop()
                connecting.close()
                problem = error
            else:
                exchange.connected = True
                self._connection = EndpointHTTPConnection(host, port, TimedSocket(connecting, exchange))
                return self._connection
        raise problem

    def _hold(self, connecting: socket.socket) -> None:
        with self._socket_lock:
            if self._aborted.is_set():
                raise ConnectionAbortedError
            self._socket = connecting

    def _error(self, error: Exception, exchange: Exchange) -> EndpointError:
        url, seconds = exchange.endpoint.url, exchange.seconds
        if self._aborted.is_set():
            return ClientClosed()
        if not exchange.connected and self._connection is None:
            problem = "the connection timed out" if isinstance(error, TimeoutError) else _error_text(error)
            return EndpointConnectionFailed(url=url, problem=problem)
        if isinstance(error, TimeoutError):
            return (
                EndpointStalled(url=url, seconds=seconds)
                if exchange.received
                else EndpointTimedOut(url=url, seconds=seconds)
            )
        if isinstance(error, (ResponseTooLarge, LineTooLong)):
            return EndpointUnreadable(problem="it is too large")
        # http.client also reports an invalid length as an incomplete read, without an end of the connection.
        if isinstance(error, OSError) or (isinstance(error, IncompleteRead) and exchange.ended):
            if exchange.received:
                return EndpointIncomplete(url=url)
            return EndpointReset(url=url, problem=_error_text(error))
        return EndpointUnreadable(problem="it is not HTTP")

    def _drop(self) -> None:
        with self._socket_lock:
            connection, self._connection = self._connection, None
            held, self._socket = self._socket, None
        if connection is not None:
            connection.close()
        if held is not None:
            held.close()


def _shut(held: socket.socket) -> None:
    """Wake the waiting thread. Shut down the plain socket: TLS sockets are not safe for two threads."""
    with suppress(OSError):
        socket.socket.shutdown(held, socket.SHUT_RDWR)


def _body(response: HTTPResponse, exchange: Exchange) -> bytes:
    if (response.length or 0) > MAX_BODY_SIZE:
        raise ResponseTooLarge
    pieces, size = [], 0
    while piece := response.read(_CHUNK_SIZE):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_BODY_SIZE:
            raise ResponseTooLarge
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


def _error_text(error: Exception) -> str:
    words = error.strerror if isinstance(error, OSError) else ""
    return (words or str(error) or type(error).__name__).rstrip(".")
