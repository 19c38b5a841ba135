"""Split requests, pipelined requests, and clients that do not read: responses are complete and in order."""

from __future__ import annotations

import json
import select
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess
from golden.exchange import POLL, Line, request, stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
VERSIONS = request("GET", "/metadata/versions", TRUE)
BAD_POST = request("POST", TARGET, TRUE, b'{"StartRequests":[]}')
NOWHERE = b"GET / HTTP/1.1\r\n\r\n"
GROWTH_KB = 30 * 1024
PUSHED_AT_MOST = 64 * 1024 * 1024


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("pipelines")).start("--clock", "virtual")
    running.document()
    yield running
    stop_cleanly(running)


def approval(event_id: str) -> bytes:
    return request("POST", TARGET, TRUE, json.dumps({"StartRequests": [{"EventId": event_id}]}).encode())


def resident_kb(service: ServiceProcess) -> int:
    assert service.process is not None
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))


def in_pieces(line: Line, *pieces: bytes) -> None:
    """Each piece in a packet of its own."""
    line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        line.send(piece)


# --- Pieces ---------------------------------------------------------------------------------------


def test_a_request_can_arrive_byte_by_byte(service: ServiceProcess) -> None:
    with Line(service) as line:
        for whole, status in ((POLL, 200), (BAD_POST, 400), (POLL, 200), (VERSIONS, 200)):
            in_pieces(line, *(whole[place : place + 1] for place in range(len(whole))))
            assert line.read_response().status == status


@pytest.mark.parametrize(
    ("whole", "status"), [(POLL, 200), (BAD_POST, 400), (VERSIONS, 200)], ids=["poll", "approval", "versions"]
)
def test_a_request_may_be_cut_anywhere(service: ServiceProcess, whole: bytes, status: int) -> None:
    with Line(service) as line:
        for place in range(1, len(whole)):
            in_pieces(line, whole[:place], whole[place:])
            assert line.read_response().status == status
        assert line.exchange(POLL).status == 200


def test_two_requests_may_be_cut_anywhere(service: ServiceProcess) -> None:
    both = POLL + BAD_POST
    with Line(service) as line:
        for place in range(1, len(both)):
            in_pieces(line, both[:place], both[place:])
            assert [line.read_response().status, line.read_response().status] == [200, 400]


def test_empty_lines_between_requests_are_skipped(service: ServiceProcess) -> None:
    with Line(service) as line:
        line.send(b"\r\n\r\n" + POLL + b"\r\n" + VERSIONS + b"\r\n\r\n" + POLL)
        assert [line.read_response().status for _ in range(3)] == [200] * 3


# --- Many in one write ----------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 50, 500])
def test_many_polls_in_one_write(service: ServiceProcess, count: int) -> None:
    with Line(service) as line:
        line.send(POLL * count)
        replies = [line.read_response() for _ in range(count)]
        assert {reply.masked for reply in replies} == {line.exchange(POLL).masked}


def test_responses_keep_the_order_of_the_requests(service: ServiceProcess) -> None:
    name = service.control("GET", "/v1/vms").json()["vms"][0]["name"]
    before = service.document()
    event = service.request_operation("restart", name)["events"][0]["id"]
    with Line(service) as line:
        line.send(POLL + approval(event) + POLL + VERSIONS + POLL)
        replies = [line.read_response() for _ in range(5)]
    assert [reply.status for reply in replies] == [200] * 5
    scheduled, started, again = (json.loads(replies[place].body) for place in (0, 2, 4))
    assert [scheduled["Events"][0]["EventStatus"], started["Events"][0]["EventStatus"]] == ["Scheduled", "Started"]
    assert scheduled["DocumentIncarnation"] == before["DocumentIncarnation"] + 1
    assert started == again
    assert replies[1].body == b""
    assert "apiVersions" in json.loads(replies[3].body)
    service.advance("30m")


@pytest.mark.parametrize("rubbish", [b"\x00\xff rubbish\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"X" * 40_000])
def test_a_pending_approval_gets_its_response_before_invalid_bytes_are_rejected(
    service: ServiceProcess, rubbish: bytes
) -> None:
    name = service.control("GET", "/v1/vms").json()["vms"][0]["name"]
    event = service.request_operation("restart", name)["events"][0]["id"]
    with Line(service) as line:
        line.send(approval(event) + rubbish)
        reply = line.read_response()
        assert (reply.status, reply.body, reply.header("connection")) == (200, b"", "close")
        assert line.rest() == b""
    assert service.control("GET", f"/v1/events/{event}").json()["approved_at"] is not None
    service.advance("30m")


def test_requests_behind_one_that_closes_are_dropped(service: ServiceProcess) -> None:
    with Line(service) as line:
        line.send(request("GET", TARGET, (*TRUE, ("Connection", "close"))) + POLL * 3)
        assert line.read_response().header("connection") == "close"
        assert line.rest() == b""


def test_thousands_of_requests_of_all_kinds_all_get_responses(service: ServiceProcess) -> None:
    kinds = ((POLL, 200), (VERSIONS, 200), (POLL, 200), (BAD_POST, 400), (NOWHERE, 404))
    rounds = 2000
    with Line(service) as line:
        sender = threading.Thread(target=line.send, args=(b"".join(one for one, _ in kinds) * rounds,))
        sender.start()
        for _ in range(rounds):
            assert [line.read_response().status for _ in kinds] == [status for _, status in kinds]
        sender.join()


# --- Clients that do not read ---------------------------------------------------------------------


@pytest.mark.parametrize("unit", [POLL, VERSIONS, BAD_POST, NOWHERE], ids=["poll", "versions", "approval", "nowhere"])
def test_a_client_that_never_reads_does_not_grow_the_service(service: ServiceProcess, unit: bytes) -> None:
    before = resident_kb(service)
    block = unit * (1_000_000 // len(unit))
    with Line(service) as deaf:
        deaf.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.socket.setblocking(False)
        pushed = 0
        # It has stopped taking more when nothing can be written for a second.
        while pushed < PUSHED_AT_MOST and select.select([], [deaf.socket], [], 1)[1]:
            pushed += deaf.socket.send(block[pushed % len(block) :])
        assert pushed < PUSHED_AT_MOST
        assert service.request().status == 200
        assert resident_kb(service) - before < GROWTH_KB


def test_large_documents_left_unread_do_not_grow_the_service(make_service: Callable[..., ServiceProcess]) -> None:
    fleet = '[[group]]\nname = "vm"\nkind = "scale-set"\n[[vm]]\ngroup = "vm"\ncount = 100\naddresses = "127.0.0.1"\n'
    service = make_service("--clock", "virtual", fleet=fleet)
    service.document()
    for number in range(100):
        service.request_operation("restart", f"vm_{number}")
    short = b"GET /metadata/scheduledevents?api-version=2017-03-01 HTTP/1.1\r\n\r\n"
    test_a_client_that_never_reads_does_not_grow_the_service(service, short)
