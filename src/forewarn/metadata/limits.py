"""What a client may send, and how slowly."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Of one connection, if nothing else is said. 0 connections: no limit."""

    head_bytes: int = 16384
    """Of the request line and the headers together."""
    head_seconds: float = 10.0
    """From the first byte of a request to the end of its head."""
    body_seconds: float = 10.0
    """From there to the end of the body."""
    idle_seconds: float = 75.0
    """Without a request."""
    unread_seconds: float = 30.0
    """While the client does not read its answers."""
    pipelined_requests: int = 1
    """Read ahead while an earlier request is in progress. A few more can come in one packet."""
    connections: int = 0
    """Of all clients together."""
    connections_per_address: int = 0

    @property
    def sweep_seconds(self) -> float:
        """How often the connections are looked at."""
        return min(1.0, self.head_seconds / 4, self.body_seconds / 4, self.idle_seconds / 4, self.unread_seconds / 4)
