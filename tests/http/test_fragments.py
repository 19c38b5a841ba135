"""Requests in fragments and pipelines: each gets the same response as alone, and in order.

Between two fragments another client gets a response. So the service has read the first fragment before the second is
sent, and nothing depends on timing.
"""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.testing import ServiceProcess
from golden.exchange import POLL, Line, Reply, request, stop_cleanly

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
CLOSE = b"connection: close\r\n"
BROKEN = {
    "no HTTP": b"Hello, is anybody there?\r\n\r\n",
    "bad header": POLL.replace(b"Metadata:", b"Metadata :"),
    "bad chunk": request("POST", TARGET, (*TRUE, ("Transfer-Encoding", "chunked")), b"zz\r\n{}\r\n0\r\n\r\n"),
}


class World:
    """A service in which nothing happens during the tests, and the requests that are sent to it."""

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        tag = service.request().headers["etag"]
        name = service.get_json("/v1/vms")["vms"][0]["name"]
        # On hardware that another group has to approve too: an approval changes nothing that is shown.
        event = service.request_operation("restart", name)["events"][0]["id"]
        assert service.approve(event).status == 200
        tag = service.request().headers["etag"]

        def approval(event_id: str) -> bytes:
            body = json.dumps({"StartRequests": [{"EventId": event_id}]}).encode()
            return request("POST", TARGET, TRUE, body)

        chunks = b'5\r\n{"Sta\r\n9\r\nrtReques"\r\n0\r\n\r\n'
        self.kinds = {
            "poll": POLL,
            "older version": request("GET", TARGET.replace("2020-07-01", "2017-08-01"), TRUE),
            "unchanged": request("GET", TARGET, (*TRUE, ("If-None-Match", tag))),
            "changed": request("GET", TARGET, (*TRUE, ("If-None-Match", '"old"'), ("Prefer", "wait=60"))),
            "held": request("GET", TARGET, (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=1"))),
            "approval": approval(event),
            "unknown event": approval("nobody-knows-it"),
            "chunks that are no JSON": request("POST", TARGET, (*TRUE, ("Transfer-Encoding", "chunked")), chunks),
            "no header": request("GET", TARGET),
            "no header, with a body": request("POST", TARGET, (), b"x" * 300),
            "poll with a body": request("GET", TARGET, TRUE, b"{}"),
            "upgrade": request("GET", TARGET, (*TRUE, ("Connection", "Upgrade"), ("Upgrade", "h2c"))),
            "upgrade with a body": request(
                "POST", TARGET, (*TRUE, ("Connection", "Upgrade"), ("Upgrade", "h2c")), b'{"StartRequests":[]}'
            ),
            "no version": request("GET", TARGET.partition("?")[0], TRUE),
            "versions": request("GET", "/metadata/versions", TRUE),
            "other verb": request("DELETE", TARGET, TRUE),
            "head": request("HEAD", TARGET, TRUE),
        }
        self.alone = {kind: self._ask_alone(data) for kind, data in self.kinds.items()}

    def _ask_alone(self, data: bytes) -> bytes:
        with Line(self.service) as line:
            return line.exchange(data).masked

    def pass_in_fragments(self, line: Line, data: bytes, cuts: list[int]) -> None:
        line.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with Line(self.service) as other:
            for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
                line.send(data[start:end])
                other.exchange(POLL)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    service = ServiceProcess(tmp_path_factory.mktemp("fragments")).start("--clock", "virtual")
    yield World(service)
    stop_cleanly(service)


def answer_of(line: Line, kind: str) -> Reply:
    return line.read_response(bodiless=kind == "head")


PAIRS = [
    ("poll", "poll"),
    ("poll", "unknown event"),
    ("approval", "poll"),
    ("upgrade with a body", "poll"),
    ("chunks that are no JSON", "unchanged"),
    ("no header, with a body", "poll"),
]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_two_requests_split_at_every_byte(world: World, first: str, second: str) -> None:
    data = world.kinds[first] + world.kinds[second]
    with Line(world.service) as line:
        for place in range(1, len(data), amount(1, 7)):
            world.pass_in_fragments(line, data, [place])
            got = [answer_of(line, kind).masked for kind in (first, second)]
            assert got == [world.alone[first], world.alone[second]], place


kinds = st.sampled_from(
    [
        *("poll", "older version", "unchanged", "changed", "approval", "unknown event", "chunks that are no JSON"),
        *("no header", "no header, with a body", "poll with a body", "upgrade", "upgrade with a body", "no version"),
        *("versions", "other verb", "head"),
    ]
)
pipelines = st.tuples(
    st.lists(kinds, max_size=8),
    st.sampled_from([[], [], [], ["held"]]),
    st.lists(kinds, max_size=8),
).map(lambda parts: [*parts[0], *parts[1], *parts[2]])


@settings(max_examples=amount(300, 40), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_pipelines_in_random_fragments(world: World, data: st.DataObject) -> None:
    pipeline = data.draw(pipelines)
    broken = data.draw(st.sampled_from(["", "", *BROKEN]))
    good = b"".join(world.kinds[kind] for kind in pipeline)
    # What is broken comes in one piece: a client that goes on sending to a closed connection may lose the last answer.
    cuts = sorted(data.draw(st.sets(st.integers(1, len(good)), max_size=12))) if good else []
    with Line(world.service) as line:
        world.pass_in_fragments(line, good + BROKEN.get(broken, b""), cuts)
        replies = [answer_of(line, kind) for kind in pipeline]
        assert [reply.masked.replace(CLOSE, b"") for reply in replies] == [world.alone[kind] for kind in pipeline]
        closes = [CLOSE in reply.head for reply in replies]
        assert not any(closes[:-1])
        if not broken:
            assert not any(closes)
            assert line.exchange(POLL).masked == world.alone["poll"]
        elif closes and closes[-1]:  # it was in progress when the broken one came, and is the last answer
            assert line.rest() == b""
        else:
            last = line.read_response()
            assert (last.status, last.header("connection")) == (400, "close")
            assert line.rest() == b""
