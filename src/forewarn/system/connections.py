"""The open connections of a server: their limits, how many there may be, and how they end when the server stops."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

WARN_EVERY_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client of any server may send, and how long it may take."""

    head_bytes: int = 16_384
    """Of the request line and the headers together."""
    head_seconds: float = 10.0
    """From the first byte of a request to the end of its head."""
    body_seconds: float = 10.0
    idle_seconds: float = 75.0
    """Without a request."""
    unread_seconds: float = 30.0
    """While the client does not read its answers."""
    stalled_seconds: float = 0.5
    """Without a byte in either direction, while the server stops."""
    stop_seconds: float = 10.0
    """For requests in progress, while the server stops."""
    connections: int = 0
    """Of all clients together. 0: no limit."""
    connections_per_address: int = 0


class Stoppable(Protocol):
    """A connection that a server waits for when it stops."""

    def position(self) -> object | None:
        """How far the client has read and sent; None while the server waits for itself and not for the client."""

    def abort(self) -> None:
        """Close it at once."""


C = TypeVar("C", bound=Stoppable)


class Connections(Generic[C]):
    """All open connections of one server."""

    def __init__(self, server: str, limits: Limits) -> None:
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
        """Take no more of them. Those that are open."""
        self._closed = True
        return self.all()

    async def drain(self) -> None:
        """Wait until all are closed. A client that stands still from one look to the next is cut off."""
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
        """Count this connection. False: there are too many already, or the server stops."""
        if self._closed:  # a TLS handshake can end after the server has stopped to listen
            return False
        most, most_per_address = self._limits.connections, self._limits.connections_per_address
        if most and len(self._open) >= most:
            self._warn(f"The {self._server} has {len(self._open):,} connections and closes new ones.")
            return False
        if most_per_address and self._of_address[address] >= most_per_address:
            count = self._of_address[address]
            self._warn(f"{address} has {count:,} connections to the {self._server}, which closes new ones.")
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

    def _warn(self, message: str) -> None:
        """A client must not be able to fill the log."""
        now = asyncio.get_running_loop().time()
        if now >= self._next_warning:
            self._next_warning = now + WARN_EVERY_SECONDS
            logger.warning(message)
