"""Repeated bytes are a repeated poll only at the start of a request.

Before a write that the server must read separately, the test waits for a response: then the server has read all
earlier bytes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess
from golden.exchange import POLL, Line, request, stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
VERSIONS = request("GET", "/metadata/versions", TRUE)
CHUNKED = (*TRUE, ("Transfer-Encoding", "chunked"))
BAD_POST = request("POST", TARGET, TRUE, b'{"StartRequests":[]}')
BAD_CHUNKS = request("POST", TARGET, CHUNKED, b"2\r\n{}\r\n0\r\n\r\n")
CUT = [
    *((POLL, place, 200) for place in range(1, len(POLL))),
    *((BAD_POST, place, 400) for place in range(1, len(BAD_POST))),
    *((BAD_CHUNKS, place, 400) for place in range(1, len(BAD_CHUNKS))),
]
"""Requests that come in two parts, where each is cut, and its answer."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("repeated")).start("--clock", "virtual")
    running.document()
    yield running
    stop_cleanly(running)


def is_document(body: bytes) -> bool:
    return "DocumentIncarnation" in json.loads(body)


def test_the_end_of_a_request_followed_by_a_poll_is_not_taken_for_a_repeated_poll(service: ServiceProcess) -> None:
    malformed = 0
    for whole, place, status in CUT:
        end = whole[place:] + POLL
        with Line(service) as unused:
            expected = unused.exchange(end)  # the answer of a connection that has nothing to remember
        with Line(service) as line:
            assert line.exchange(POLL + whole[:place]).status == 200
            line.send(end)
            assert [line.read_response().status, line.read_response().status] == [status, 200], (whole, place)
            assert line.exchange(end).unmeasured == expected.unmeasured, end
        malformed += expected.status == 400
    # The others begin with an empty line, which may stand before a request.
    assert malformed > len(CUT) * 0.9


@pytest.mark.parametrize("headers", [TRUE, (*TRUE, ("Expect", "100-continue"))], ids=["at once", "after 100 Continue"])
def test_a_poll_as_the_body_of_another_request_is_a_body(
    service: ServiceProcess, headers: tuple[tuple[str, str], ...]
) -> None:
    head = request("POST", TARGET, (*headers, ("Content-Length", str(len(POLL)))))
    with Line(service) as line:
        for _ in range(3):
            assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
            assert line.exchange(VERSIONS + head).status == 200
            if headers != TRUE:
                assert line.read_response().status == 100
            reply = line.exchange(POLL)
            assert (reply.status, is_document(reply.body)) == (400, False)


def test_a_poll_as_the_body_of_a_request_for_the_document_is_a_body(service: ServiceProcess) -> None:
    head = request("GET", TARGET, (*TRUE, ("Content-Length", str(len(POLL)))))
    with Line(service) as line:
        for _ in range(3):
            assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
            line.send(VERSIONS + head)
            assert "apiVersions" in json.loads(line.read_response().body)
            line.send(POLL)
            assert is_document(line.read_response().body)
            # There is one answer to the head and its body: the next one is that to the next request.
            assert "apiVersions" in json.loads(line.exchange(VERSIONS).body)


def test_a_poll_as_a_chunk_of_another_request_is_a_chunk(service: ServiceProcess) -> None:
    head = request("POST", TARGET, CHUNKED)
    with Line(service) as line:
        assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
        assert line.exchange(VERSIONS + head + b"%x\r\n" % len(POLL)).status == 200
        line.send(POLL)
        # The answer may come before the body's end. Whatever it is, it is not the document.
        line.send(b"\r\n0\r\n\r\n")
        reply = line.read_response()
        assert (reply.status, is_document(reply.body)) == (400, False)
        assert "apiVersions" in json.loads(line.exchange(VERSIONS).body)


def test_a_poll_in_the_middle_of_a_header_belongs_to_that_head(service: ServiceProcess) -> None:
    half = b"GET /metadata/versions HTTP/1.1\r\nX-Half: "
    with Line(service) as line:
        for _ in range(3):
            assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
            assert line.exchange(VERSIONS + half).status == 200
            assert "apiVersions" in json.loads(line.exchange(POLL).body)
            assert "apiVersions" in json.loads(line.exchange(VERSIONS).body)


@pytest.mark.parametrize("half", [b"GET ", b"GET /metadata", b"GET /metadata/versions HTTP/1.1\r\n", POLL[:-2]])
def test_a_poll_after_half_a_request_is_parsed_as_on_a_new_connection(service: ServiceProcess, half: bytes) -> None:
    with Line(service) as unused:
        expected = unused.exchange(half + POLL)
    assert expected.status == 400
    with Line(service) as line:
        assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
        assert line.exchange(VERSIONS + half).status == 200
        assert line.exchange(POLL).unmeasured == expected.unmeasured


@pytest.mark.parametrize(
    ("several", "statuses"),
    [
        (POLL * 2, [200, 200]),
        (VERSIONS + POLL, [200, 200]),
        (BAD_POST + POLL, [400, 200]),
        (POLL + BAD_POST, [200, 400]),
        (b"\r\n" + POLL, [200]),
    ],
    ids=["two polls", "versions, poll", "approval, poll", "poll, approval", "empty line, poll"],
)
def test_several_requests_in_one_write_are_several_each_time(
    service: ServiceProcess, several: bytes, statuses: list[int]
) -> None:
    with Line(service) as line:
        for _ in range(3):
            line.send(several)
            assert [line.read_response().status for _ in statuses] == statuses
            assert "apiVersions" in json.loads(line.exchange(VERSIONS).body)
        for _ in range(3):
            line.send(several)
            assert [line.read_response().status for _ in statuses] == statuses
