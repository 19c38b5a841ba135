"""The open connections of a server: how many there may be, and when there are none left."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Generic, TypeVar

from forewarn.clock import real_seconds

C = TypeVar("C")

logger = logging.getLogger(__name__)

WARN_EVERY_SECONDS = 60.0


class Connections(Generic[C]):
    """All open connections of one server. 0: no limit."""

    def __init__(self, server: str, most: int, most_per_address: int) -> None:
        self.none_open = asyncio.Event()
        self.none_open.set()
        self._server = server
        self._most = most
        self._most_per_address = most_per_address
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

    def add(self, connection: C, address: str) -> bool:
        """Count this connection. False: there are too many already, or the server stops."""
        if self._closed:  # a TLS handshake can end after the server has stopped to listen
            return False
        if self._most and len(self._open) >= self._most:
            self._warn(f"The {self._server} has {len(self._open):,} connections and closes new ones.")
            return False
        if self._most_per_address and self._of_address[address] >= self._most_per_address:
            count = self._of_address[address]
            self._warn(f"{address} has {count:,} connections to the {self._server}, which closes new ones.")
            return False
        self._open[connection] = address
        self._of_address[address] += 1
        self.none_open.clear()
        return True

    def remove(self, connection: C) -> None:
        address = self._open.pop(connection, None)
        if address is not None:
            self._of_address[address] -= 1
            if not self._of_address[address]:
                del self._of_address[address]
        if not self._open:
            self.none_open.set()

    def _warn(self, message: str) -> None:
        """A client must not be able to fill the log."""
        if real_seconds() >= self._next_warning:
            self._next_warning = real_seconds() + WARN_EVERY_SECONDS
            logger.warning(message)
