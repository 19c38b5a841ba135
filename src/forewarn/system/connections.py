"""Open connections of a server: limits, counts and shutdown."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from forewarn.system.logs import get_logger

_log = get_logger(__name__)

WARN_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits for the connections of a server."""

    max_header_bytes: int = 16_384
    """Request line and headers together."""
    header_seconds: float = 10.0
    """From the first byte of a request to the end of its headers."""
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    """Without a request."""
    send_seconds: float = 30.0
    """While the client does not read its responses."""
    stalled_seconds: float = 0.5
    """Without a byte in either direction while the server stops."""
    stop_seconds: float = 10.0
    """For requests in progress, while the server stops."""
    max_connections: int = 0
    """Total of all clients. 0: no limit."""
    max_connections_per_address: int = 0


class Stoppable(Protocol):
    """A connection that a stopping server waits for."""

    def position(self) -> object | None:
        """Progress of the client; None while the server is working on the request."""

    def abort(self) -> None:
        """Close the connection immediately."""


C = TypeVar("C", bound=Stoppable)


class Connections(Generic[C]):
    """All open connections of one server."""

    def __init__(self, server: str, limits: ConnectionLimits) -> None:
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._server = server
        self._limits = limits
        self._open: dict[C, str] = {}
        self._of_address = Counter[str]()
        self._next_warning = 0.0
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[C]:
        return list(self._open)

    def close(self) -> list[C]:
        """Accept no new connections, and return the open ones."""
        self._closed = True
        return self.all()

    async def drain(self) -> None:
        """Wait until all are closed. Clients without progress are disconnected."""
        before: dict[C, object | None] = {}
        while self._open:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.stalled_seconds):
                    await self._none_open.wait()
            now = {connection: connection.position() for connection in self._open}
            for connection, position in now.items():
                if position is not None and position == before.get(connection):
                    connection.abort()
            before = now

    def add(self, connection: C, address: str) -> bool:
        """Register a connection. Returns False if there are too many, or the server is stopping."""
        if self._closed:  # a TLS handshake can finish after the server has stopped listening
            return False
        maximum, maximum_per_address = self._limits.max_connections, self._limits.max_connections_per_address
        if maximum and len(self._open) >= maximum:
            if self._may_warn():
                _log.warning(
                    "connection_limit_reached",
                    "The server has the maximum number of connections; closing new ones.",
                    server=self._server,
                    connections=len(self._open),
                )
            return False
        if maximum_per_address and self._of_address[address] >= maximum_per_address:
            if self._may_warn():
                _log.warning(
                    "address_connection_limit_reached",
                    "A client address has the maximum number of connections; closing new ones.",
                    server=self._server,
                    address=address,
                    connections=self._of_address[address],
                )
            return False
        self._open[connection] = address
        self._of_address[address] += 1
        self._none_open.clear()
        return True

    def remove(self, connection: C) -> None:
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
        if not self._open:
            self._none_open.set()

    def _may_warn(self) -> bool:
        """Return whether to log a warning. Limits their rate, so that clients cannot fill the log."""
        now = asyncio.get_running_loop().time()
        if now < self._next_warning:
            return False
        self._next_warning = now + WARN_EVERY_SECONDS
        return True
