"""Random bytes, and requests with random damage: never an error of the server's, never a hang."""

from __future__ import annotations

import re
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as some

from depth import amount
from forewarn.testing import ServiceProcess
from golden.exchange import POLL, Line, request, stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
APPROVAL = request("POST", TARGET, TRUE, b'{"StartRequests":[{"EventId":"x"}]}')
IN_CHUNKS = request("POST", TARGET, (*TRUE, ("Transfer-Encoding", "chunked")), b"2\r\n{}\r\n0\r\n\r\n")
INSTANCE = request("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", TRUE)
GOOD = (POLL, APPROVAL, IN_CHUNKS, INSTANCE)
_STATUS = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("fuzz")).start()
    running.document()
    yield running
    stop_cleanly(running)


@some.composite
def damaged(draw: some.DrawFn) -> bytes:
    """A few good requests in a row, with some of their bytes replaced, doubled or left out."""
    data = bytearray(b"".join(draw(some.lists(some.sampled_from(GOOD), min_size=1, max_size=4))))
    for _ in range(draw(some.integers(1, 6))):
        place = draw(some.integers(0, len(data) - 1))
        end = min(len(data), place + draw(some.integers(0, 12)))
        data[place:end] = draw(some.binary(max_size=8) | some.just(bytes(data[place:end]) * 2))
        if not data:
            break
    return bytes(data)


@settings(max_examples=amount(200), database=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=some.binary(max_size=400) | damaged() | some.lists(damaged(), max_size=3).map(b"".join))
def test_no_bytes_bring_about_an_error_of_the_servers_or_a_hang(service: ServiceProcess, data: bytes) -> None:
    with Line(service) as line:
        line.send(data)
        line.socket.shutdown(socket.SHUT_WR)
        statuses = [int(status) for status in _STATUS.findall(line.rest())]
        assert all(status < 500 for status in statuses), statuses
    with Line(service) as line:
        assert line.exchange(POLL).status == 200
