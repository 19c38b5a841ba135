"""Open connections of a server: limits, counts and shutdown."""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from forewarn.system.logs import OncePerMinute, get_logger
from forewarn.system.networks import Networks

if TYPE_CHECKING:
    from collections.abc import Iterable

_log = get_logger(__name__)

MAX_PLACES = 1_000_000
"""Connections of a server if the limit of open files is higher, or if there is none."""
IDLE_BATCH = 100
"""Idle connections that one search through all connections finds. The next new connections close them in turn."""
SEARCH_SECONDS = 0.1
"""Minimum time between two searches that found too few: a search through many connections takes milliseconds."""
KEPT_PLACES = 16
"""The last places of a server (an eighth, and at most this many) are for new clients, so one address cannot take all.
"""
FEW = 2
"""An address with fewer connections than this is a new client."""
MIN_PLACES = 16
"""Connections of a server, however low the limit of open files is."""


class ConnectionPlaces(NamedTuple):
    """How many connections each server can have, so that the process always has file descriptors left."""

    metadata: int
    control: int


def connection_places(open_files: int | None = None) -> ConnectionPlaces:
    """Divide the limit of open files (default: of this process) between files, control API and metadata service.

    An eighth is for files: the store, programs of the fabric, webhooks. A quarter is for the control API. The rest is
    for the metadata service, whose VMs are many.
    """
    if open_files is None:
        open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if open_files == resource.RLIM_INFINITY:
        open_files = MAX_PLACES
    files = min(max(open_files // 8, 64), 512)
    control = min(max(open_files // 4, MIN_PLACES), 4096)
    return ConnectionPlaces(min(max(open_files - files - control, MIN_PLACES), MAX_PLACES), control)


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
    """Total of all clients. 0: no limit other than `places`."""
    max_connections_per_address: int = 0
    """0: no limit."""
    address_share: int = 1
    """An address can have this part of the total at most: 4 means a quarter."""
    places: int = 0
    """Number of connections that the limit of open files allows. 0: no limit."""
    trusted_proxies: Networks = field(default_factory=Networks)
    """Addresses without the limit per address: many clients may use one of them."""


class Stoppable(Protocol):
    """A connection that a stopping server waits for."""

    def position(self) -> object | None:
        """Progress of the client; None while the server is working on the request."""

    def idle_time(self) -> float | None:
        """How long the connection has had no request, in a unit of the server; None while it has one."""

    def abort(self) -> None:
        """Close the connection immediately."""


C = TypeVar("C", bound=Stoppable)

ADDRESS_LIMIT, TOTAL_LIMIT = LIMITS = ("address", "total")


class Connections(Generic[C]):
    """All open connections of one server."""

    def __init__(self, server: str, limits: ConnectionLimits) -> None:
        self._none_open = asyncio.Event()
        self._none_open.set()
        self._server = server
        self._limits = limits
        self._open: dict[C, str] = {}
        self._of_address: dict[str, dict[C, None]] = {}
        self.used_places = 0
        """Places that something other than a connection uses: the listeners of VMs."""
        self.closed = dict.fromkeys(LIMITS, 0)
        """Number of idle connections that were closed to make room, by the limit that was reached."""
        self.refused = dict.fromkeys(LIMITS, 0)
        """Number of new connections that were closed at once, by the limit that was reached."""
        self._idle: list[tuple[float, C]] = []
        """Idle connections that the last search found, the longest idle last."""
        self._next_search = 0.0
        self._warnings = OncePerMinute()
        self._closed = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def maximum(self) -> int:
        """Maximum number of connections; 0: no limit."""
        limits = self._limits
        allowed = max(limits.places - self.used_places, MIN_PLACES) if limits.places else limits.max_connections
        return min(limits.max_connections or allowed, allowed)

    @property
    def maximum_of_address(self) -> int:
        """Maximum number of connections from one address; 0: no limit."""
        limits, maximum = self._limits, self.maximum
        if not limits.max_connections_per_address or not maximum:
            return limits.max_connections_per_address
        return min(limits.max_connections_per_address, max(maximum // limits.address_share, 1))

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
        """Register a connection. Returns False if there is no room, or the server is stopping.

        If a limit is reached, the connection that has been idle the longest is closed to make room.
        """
        if self._closed:  # a TLS handshake can finish after the server has stopped listening
            return False
        of_address = self._of_address.get(address, {})
        maximum, maximum_of_address = self.maximum, self.maximum_of_address
        if maximum_of_address and len(of_address) >= maximum_of_address and address not in self._limits.trusted_proxies:
            if not self._make_room(ADDRESS_LIMIT, address, _longest_idle(of_address)):
                return False
        elif maximum:
            is_new = len(of_address) < FEW
            room = maximum if is_new else maximum - min(maximum // 8, KEPT_PLACES)
            if len(self._open) >= room:
                idle = None if is_new else _longest_idle(of_address)
                if not self._make_room(TOTAL_LIMIT, address, idle or self._find_idle()):
                    return False
        self._open[connection] = address
        self._of_address.setdefault(address, {})[connection] = None
        self._none_open.clear()
        return True

    def _make_room(self, limit: str, address: str, idle: C | None) -> bool:
        if idle is None:
            self.refused[limit] += 1
        else:
            self.closed[limit] += 1
            self.remove(idle)
            idle.abort()
        if self._warnings.allows(address, asyncio.get_running_loop().time()):
            _log.warning(
                "connection_limit_reached",
                "A limit of connections is reached. Closing idle connections first, then refusing new ones.",
                server=self._server,
                limit=limit,
                address=address,
                of_address=len(self._of_address.get(address, ())),
                connections=len(self._open),
            )
        return idle is not None

    def _find_idle(self) -> C | None:
        """Return the connection that has been idle the longest."""
        now = asyncio.get_running_loop().time()
        if not self._idle and now >= self._next_search:
            found = ((time, connection) for connection in self._open if (time := connection.idle_time()) is not None)
            self._idle = nlargest(IDLE_BATCH, found, key=lambda each: each[0])[::-1]
            # After a full batch, all its connections are closed first. Then the next search may follow at once.
            self._next_search = now + SEARCH_SECONDS if len(self._idle) < IDLE_BATCH else 0.0
        while self._idle:
            time, connection = self._idle.pop()
            idle_time = connection.idle_time() if connection in self._open else None
            if idle_time is not None and idle_time >= time:  # otherwise it had a request since the search
                return connection
        return None

    def remove(self, connection: C) -> None:
        address = self._open.pop(connection, None)
        if address is not None:
            of_address = self._of_address[address]
            del of_address[connection]
            if not of_address:
                del self._of_address[address]
        if not self._open:
            self._none_open.set()
            self._idle.clear()


def _longest_idle(connections: Iterable[C]) -> C | None:
    """Return the connection that has been idle the longest. The first of several was opened first."""
    found = ((time, connection) for connection in connections if (time := connection.idle_time()) is not None)
    return max(found, key=lambda each: each[0], default=(0.0, None))[1]
