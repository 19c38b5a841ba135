"""A connection for http.client that keeps to one limit of time for a whole exchange, however slowly the bytes come."""

from __future__ import annotations

import io
import select
import socket
from http.client import HTTPConnection, HTTPException
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from forewarn.agent.endpoint.address import Endpoint


LARGEST_BODY = 4_000_000
_LARGEST_ANSWER = LARGEST_BODY + 1_000_000
"""With its heads, and with what is around each chunk of its body."""


class TooLarge(HTTPException):
    """The answer has more bytes than anybody would send in earnest."""


class Effort:
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


class Carrier:
    """A socket for http.client that looks at the limit of the whole exchange before it waits for anything."""

    def __init__(self, carried: socket.socket, effort: Effort) -> None:
        self.socket = carried
        self.effort = effort

    def sendall(self, data: Any) -> None:
        self.socket.settimeout(self.effort.left())
        self.socket.sendall(data)

    def makefile(self, _: str) -> io.BufferedReader:
        """What an answer is read from; it is closed when it has been read, and the connection goes on."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Nothing: http.client would close it before the last answer was read. `Line` does it."""


class _Reader(io.RawIOBase):
    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        carrier = self._carrier
        carrier.socket.settimeout(carrier.effort.left())
        count = carrier.socket.recv_into(buffer)
        carrier.effort.receive(count)
        return count


class Connection(HTTPConnection):
    """A connection that is made already, and never makes one itself."""

    auto_open = 0

    def __init__(self, host: str, port: int, carrier: Carrier) -> None:
        super().__init__(host, port)
        self.carrier = carrier
        self.sock: Any = carrier


def secured(caller: socket.socket, endpoint: Endpoint) -> socket.socket:
    """With TLS, if the endpoint wants it."""
    if endpoint.scheme != "https":
        return caller
    import ssl  # rarely needed

    return ssl.create_default_context().wrap_socket(caller, server_hostname=endpoint.host)


def has_ended(connection: Connection) -> bool:
    """Whether a connection at rest has something to read: its end, or what nobody has asked for."""
    poll = select.poll()
    poll.register(connection.carrier.socket, select.POLLIN)
    return bool(poll.poll(0))


def addresses(host: str, port: int) -> list[Any]:
    """What a connection can be made to, in the order in which that is tried."""
    try:
        # As bytes where that is possible: for text Python would load the tables of all scripts of the world.
        return socket.getaddrinfo(host.encode() if host.isascii() else host, port, type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host!r} can be nobody's name") from None
