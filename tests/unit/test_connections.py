"""The limits of connections: how the limit of open files is divided, and who makes room."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forewarn.system.connections import ConnectionLimits, Connections, connection_places
from forewarn.system.logs import OncePerMinute
from forewarn.system.networks import Networks, read_networks

if TYPE_CHECKING:
    from collections.abc import Callable


class Connection:
    def __init__(self, idle: float | None = 0.0) -> None:
        self.idle = idle
        self.is_aborted = False

    def idle_time(self) -> float | None:
        return self.idle

    def position(self) -> None:
        return None

    def abort(self) -> None:
        self.is_aborted = True


def open_many(
    connections: Connections[Connection], address: str | Callable[[int], str], number: int, idle: float | None = None
) -> list[Connection]:
    """Open connections, and return those that were accepted."""
    found = [(Connection(idle), address if isinstance(address, str) else address(n)) for n in range(number)]
    return [connection for connection, source in found if connections.add(connection, source)]


@pytest.mark.parametrize("open_files", [0, 64, 100, 256, 1024, 4096, 20_000, 1_048_576, -1])
def test_the_planes_never_take_the_descriptors_of_files(open_files: int) -> None:
    places = connection_places(open_files)
    assert places.metadata >= 16
    assert places.control >= 16
    if open_files >= 256:
        assert places.metadata + places.control <= open_files - 64
        assert places.metadata >= open_files // 2
    if open_files >= 20_000:
        assert places.metadata > 10_000


async def test_an_address_has_a_share_of_the_total() -> None:
    limits = ConnectionLimits(places=100, max_connections_per_address=1000, address_share=4)
    connections = Connections[Connection]("test", limits)
    assert len(open_many(connections, "10.0.0.1", 100)) == 25
    assert len(open_many(connections, "10.0.0.2", 100)) == 25
    assert connections.refused == {"address": 150, "total": 0}


async def test_listeners_use_places_too() -> None:
    limits = ConnectionLimits(places=100)
    connections = Connections[Connection]("test", limits)
    connections.used_places = 60
    assert len(open_many(connections, lambda n: f"10.0.0.{n}", 100)) == connections.maximum == 40
    connections.used_places = 1000
    assert connections.maximum == 16


async def test_the_last_places_are_for_new_clients() -> None:
    connections = Connections[Connection]("test", ConnectionLimits(max_connections=80))
    greedy = [open_many(connections, f"10.0.0.{n}", 100) for n in range(3)]
    assert list(map(len, greedy)) == [70, 2, 2]
    assert len(open_many(connections, lambda n: f"10.1.0.{n}", 100)) == 6


async def test_the_connection_that_has_been_idle_the_longest_makes_room() -> None:
    connections = Connections[Connection]("test", ConnectionLimits(max_connections=4))
    times = [3.0, None, 9.0, 5.0]
    opened = [Connection(idle) for idle in times]
    for number, connection in enumerate(opened):
        assert connections.add(connection, f"10.0.0.{number}")
    assert [connections.add(Connection(None), f"10.1.0.{number}") for number in range(4)] == [True] * 3 + [False]
    assert [connection.is_aborted for connection in opened] == [True, False, True, True]
    assert connections.closed == {"address": 0, "total": 3}
    assert connections.refused == {"address": 0, "total": 1}
    assert len(connections) == 4


async def test_a_connection_that_was_used_since_the_search_stays() -> None:
    connections = Connections[Connection]("test", ConnectionLimits(max_connections=3))
    first, second, third = (Connection(idle) for idle in (9.0, 8.0, 7.0))
    for number, connection in enumerate((first, second, third)):
        connections.add(connection, f"10.0.0.{number}")
    assert connections.add(Connection(None), "10.1.0.0")
    second.idle = 0.0  # it had a request
    assert connections.add(Connection(None), "10.1.0.1")
    assert [connection.is_aborted for connection in (first, second, third)] == [True, False, True]


async def test_a_trusted_proxy_counts_for_the_total_only() -> None:
    limits = ConnectionLimits(
        max_connections=40, max_connections_per_address=5, trusted_proxies=read_networks("10.0.0.0/24")
    )
    connections = Connections[Connection]("test", limits)
    assert len(open_many(connections, "10.0.0.9", 100)) == 35  # not the places for new clients
    assert len(open_many(connections, "10.0.1.9", 100)) == 2


@pytest.mark.parametrize(
    ("address", "known"),
    [("192.0.2.7", True), ("::ffff:192.0.2.7", True), ("192.0.3.7", False), ("fe80::1%eth0", True), ("", False)],
)
def test_networks(address: str, known: bool) -> None:
    assert (address in read_networks("192.0.2.0/24, fe80::/64")) == known
    assert address not in Networks()


def test_a_line_is_logged_once_per_minute_and_key_and_for_a_limited_number_of_keys() -> None:
    lines = OncePerMinute(max_keys=2)
    assert [lines.allows(key, 0.0) for key in ("a", "a", "b", "c")] == [True, False, True, False]
    assert not lines.allows("a", 59.0)
    assert [lines.allows(key, 60.0) for key in ("c", "a", "b")] == [True, True, False]
