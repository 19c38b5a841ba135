"""Malformed, oversized and slow requests: a response or a clean close, and the next connection works."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from forewarn.assembly import FixedLimits
from forewarn.metadata.limits import MetadataLimits
from forewarn.testing import Service, ServiceProcess
from golden.exchange import POLL, Line, request, stop_cleanly
from golden.responses_limits import HEAD_TOO_LARGE, MALFORMED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'
TRUE = (("Metadata", "true"),)
CHUNKED = (*TRUE, ("Transfer-Encoding", "chunked"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    running = ServiceProcess(tmp_path_factory.mktemp("hostile")).start()
    running.document()
    yield running
    stop_cleanly(running)


def post(body: bytes | None, *headers: tuple[str, str]) -> bytes:
    return request("POST", TARGET, (*TRUE, *headers), body)


# --- Malformed ------------------------------------------------------------------------------------

STRANGE = {
    "rubbish": b"\x00\x01\x02\x03 rubbish\r\n\r\n",
    "text": b"Hello, is anybody there?\r\n\r\n",
    "unknown verb": b"FETCH / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 190,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    "HTTP/9.9": POLL.replace(b"HTTP/1.1", b"HTTP/9.9"),
    "NUL in a header": POLL.replace(b"true", b"tr\x00ue"),
    "NUL in the target": POLL.replace(b"scheduled", b"sched\x00uled"),
    "bytes beyond ASCII in the target": POLL.replace(b"scheduled", b"\xff\xe9"),
    "lone LF": POLL.replace(b"\r\n", b"\n"),
    "lone CR": POLL.replace(b"\r\n", b"\r"),
    "folded header": POLL.replace(b"Metadata: true", b"Metadata:\r\n true"),
    "blank before the colon": POLL.replace(b"Metadata:", b"Metadata :"),
    "header without colon": POLL.replace(b"Metadata: true", b"Metadata"),
    "CONNECT": b"CONNECT 169.254.169.254:80 HTTP/1.1\r\n\r\n",
    "length no number": post(b"{}", ("Content-Length", "two")),
    "length negative": post(b"{}", ("Content-Length", "-2")),
    "length beyond all": post(b"{}", ("Content-Length", "9" * 30)),
    "length twice": post(b"{}", ("Content-Length", "2"), ("Content-Length", "3")),
    "length and chunks": post(b"2\r\n{}\r\n0\r\n\r\n", ("Transfer-Encoding", "chunked"), ("Content-Length", "2")),
    "chunk size no number": request("POST", TARGET, CHUNKED, b"zz\r\n{}\r\n0\r\n\r\n"),
    "chunk size negative": request("POST", TARGET, CHUNKED, b"-2\r\n{}\r\n0\r\n\r\n"),
    "chunk size beyond all": request("POST", TARGET, CHUNKED, b"f" * 40 + b"\r\n{}\r\n0\r\n\r\n"),
    "chunk longer than said": request("POST", TARGET, CHUNKED, b"1\r\n{}\r\n0\r\n\r\n"),
    "second chunk broken": request("POST", TARGET, CHUNKED, b"2\r\n{}\r\nzz\r\n"),
    "body in an unknown coding": request("POST", TARGET, (*TRUE, ("Transfer-Encoding", "gzip")), b"{}"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_an_invalid_request_is_rejected_and_the_next_connection_works(service: ServiceProcess, name: str) -> None:
    with Line(service) as line:
        assert line.exchange(STRANGE[name]).unmeasured == MALFORMED.expected
        assert line.rest() == b""
    assert service.request().status == 200


@pytest.mark.parametrize("name", STRANGE)
def test_an_invalid_request_after_valid_ones_is_rejected(service: ServiceProcess, name: str) -> None:
    with Line(service) as line:
        assert [line.exchange(POLL).status for _ in range(2)] == [200] * 2
        assert line.exchange(STRANGE[name]).unmeasured == MALFORMED.expected
        assert line.rest() == b""


def test_a_request_that_ends_in_the_middle_leaves_no_trace(service: ServiceProcess) -> None:
    for whole in (POLL, post(b'{"StartRequests":[]}')):
        for place in range(0, len(whole), 7):
            with Line(service) as line:
                line.send(whole[:place])
    assert service.request().status == 200


# --- Oversized ------------------------------------------------------------------------------------

OVERSIZED = {
    "one header": request("GET", TARGET, (*TRUE, ("X-Large", "a" * 2_000_000))),
    "one header just too large": request("GET", TARGET, (*TRUE, ("X-Large", "a" * 16_384))),
    "many headers": request("GET", TARGET, (*TRUE, *((f"X-{number}", "a") for number in range(20_000)))),
    "header name": request("GET", TARGET, (*TRUE, ("X" * 100_000, "a"))),
    "target": request("GET", f"{TARGET}&{'a' * 100_000}", TRUE),
    "header that never ends": POLL[:-2] + b"X-Large: " + b"a" * 400_000,
    "target that never ends": b"GET /" + b"a" * 400_000,
}


@pytest.mark.parametrize("name", OVERSIZED)
def test_a_header_that_is_too_large_is_rejected(service: ServiceProcess, name: str) -> None:
    with Line(service) as line:
        try:
            line.send(OVERSIZED[name])
        except ConnectionError:
            pass  # it closed while more was on its way; the answer may be lost then
        else:
            assert line.read_response().unmeasured == HEAD_TOO_LARGE.expected
    assert service.request().status == 200


def test_a_head_that_is_large_enough_is_served(service: ServiceProcess) -> None:
    with Line(service) as line:
        assert line.exchange(request("GET", TARGET, (*TRUE, ("X-Large", "a" * 16_000)))).status == 200


@pytest.mark.parametrize("size", [65_537, 70_000, 900_000])
def test_a_body_that_is_too_large_is_rejected_and_the_connection_continues(service: ServiceProcess, size: int) -> None:
    with Line(service) as line:
        for large in (
            post(b" " * size),
            request("POST", TARGET, CHUNKED, b"%x\r\n%b\r\n0\r\n\r\n" % (size, b" " * size)),
        ):
            reply = line.exchange(large)
            assert (reply.status, list(json.loads(reply.body))) == (413, ["error"])
            assert line.exchange(POLL).status == 200


@pytest.mark.parametrize("verb", ["POST", "GET"])
def test_a_body_without_end_is_cut_off(service: ServiceProcess, verb: str) -> None:
    with Line(service) as line:
        line.send(request(verb, TARGET, CHUNKED))
        with pytest.raises(ConnectionError):
            line.send((b"2000\r\n" + b" " * 0x2000 + b"\r\n") * 10_000)
    assert service.request().status == 200


# --- Bodies ---------------------------------------------------------------------------------------

BODIES = {
    "deep arrays": b"[" * 60_000,
    "deep objects": b'{"a":' * 12_000,
    "long number": b'{"DocumentIncarnation":' + b"9" * 60_000 + b"}",
    "large exponent": b'{"DocumentIncarnation":1e999999999}',
    "broken UTF-8": b'{"StartRequests":[{"EventId":"\xc3\x28\xff"}]}',
    "UTF-16": '{"StartRequests":[{"EventId":"x"}]}'.encode("utf-16"),
    "UTF-16 without mark": '{"StartRequests":[{"EventId":"x"}]}'.encode("utf-16-le"),
    "UTF-32": '{"StartRequests":[{"EventId":"x"}]}'.encode("utf-32"),
    "half a surrogate": b'{"StartRequests":[{"EventId":"\\ud800"}]}',
    "NUL in an id": b'{"StartRequests":[{"EventId":"\\u0000"}]}',
    "lines in an id": b'{"StartRequests":[{"EventId":"\\r\\nX-Injected: 1\\r\\n\\r\\n"}]}',
    "braces in an id": b'{"StartRequests":[{"EventId":"{0} {event_id} %s"}]}',
    "very long id": b'{"StartRequests":[{"EventId":"' + b"x" * 60_000 + b'"}]}',
    "many ids": b'{"StartRequests":[' + b",".join([b'{"EventId":"x"}'] * 4000) + b"]}",
    "NaN": b'{"StartRequests":NaN}',
}


@pytest.mark.parametrize("name", BODIES)
def test_an_invalid_body_is_rejected_and_the_connection_continues(service: ServiceProcess, name: str) -> None:
    with Line(service) as line:
        reply = line.exchange(post(BODIES[name]))
        assert (reply.status, list(json.loads(reply.body))) == (400, ["error"])
        assert reply.header("x-injected") is None
        assert line.exchange(POLL).status == 200


def test_expect_100_continue_gets_100(service: ServiceProcess) -> None:
    body = b'{"StartRequests":[]}'
    with Line(service) as line:
        head, _, _ = post(body, ("Expect", "100-continue")).partition(body)
        assert line.exchange(head).head == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert line.exchange(body).status == 400
        assert line.exchange(POLL).status == 200


def test_expect_100_continue_with_too_large_a_body_is_rejected(service: ServiceProcess) -> None:
    with Line(service) as line:
        head = request("POST", TARGET, (*TRUE, ("Expect", "100-continue"), ("Content-Length", "70000")))
        assert line.exchange(head).status == 413


# --- Slow -----------------------------------------------------------------------------------------


@pytest.fixture
def with_limits() -> Iterator[Callable[..., Service]]:
    """Start a service with these limits instead of the fixed ones."""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(Service(FLEET, limits=FixedLimits(MetadataLimits(**limits))))


def test_requests_that_never_finish_are_closed(with_limits: Callable[..., Service]) -> None:
    """Waits for the server's own deadlines; all of them at once."""
    service = with_limits(header_seconds=1, body_seconds=1)
    service.document()
    unfinished = (POLL[:1], POLL[:-2], POLL + POLL[:-1], post(b"{}")[:-1], request("POST", TARGET, CHUNKED, b"5\r\n{"))
    lines = [Line(service) for _ in unfinished]
    for line, data in zip(lines, unfinished, strict=True):
        line.send(data)
    ends = [line.rest() for line in lines]
    assert [end[:12] for end in ends] == [b"", b"", b"HTTP/1.1 200", b"", b""]
    for line in lines:
        line.socket.close()
    assert service.request().status == 200


def test_idle_connections_are_closed_and_those_that_poll_or_wait_are_not(with_limits: Callable[..., Service]) -> None:
    service = with_limits(idle_seconds=1)
    tag = service.request().headers["etag"]
    held = request("GET", TARGET, (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60")))
    with Line(service) as waiting, Line(service) as idle, Line(service) as polling:
        waiting.send(held)
        assert idle.exchange(POLL).status == 200
        polling.socket.settimeout(0.2)
        while True:  # until the idle one is closed
            assert polling.exchange(POLL).status == 200
            idle.socket.settimeout(0.2)
            try:
                assert idle.socket.recv(1) == b""
            except TimeoutError:
                continue
            break
        service.request_operation("restart", "web-0")
        assert waiting.read_response().status == 200


def test_a_client_that_does_not_read_is_disconnected(with_limits: Callable[..., Service]) -> None:
    service = with_limits(send_seconds=1)
    service.document()
    with Line(service) as deaf, pytest.raises(ConnectionError):
        deaf.send(POLL * 1_000_000)  # more than any buffer takes
    assert service.request().status == 200


def test_connections_are_limited_by_address(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--max-connections", "40", "--max-connections-per-address", "3")

    def connect(address: str = "127.0.0.8") -> Line:
        line = stack.enter_context(Line(service, address))
        assert line.exchange(POLL).status == 404  # this address is no VM's
        return line

    with ExitStack() as stack:
        first, *others = [connect() for _ in range(4)]
        assert first.rest() == b""  # it was idle the longest
        for line in others:
            line.exchange(POLL)
            line.send(POLL[:-2])
        connect("127.0.0.9")  # the service has read what the others sent before
        assert 'closed_total{limit="address",plane="metadata"} 1.0\n' in metrics(service)
        with pytest.raises(ConnectionError):
            connect()  # none of the others is idle
        assert 'refused_total{limit="address",plane="metadata"} 1.0\n' in metrics(service)
        for line in others:
            assert line.exchange(POLL[-2:]).status == 404
        connect()


def metrics(service: ServiceProcess) -> str:
    return service.control("GET", "/metrics").body.decode()


@pytest.mark.parametrize("size", [2000, 40_000])
def test_a_head_beyond_the_limit_is_rejected(with_limits: Callable[..., Service], size: int) -> None:
    service = with_limits(max_header_bytes=size)
    service.document()
    with Line(service) as line:
        assert line.exchange(request("GET", TARGET, (*TRUE, ("X-Large", "a" * (size - 500))))).status == 200
        reply = line.exchange(request("GET", TARGET, (*TRUE, ("X-Large", "a" * size))))
        assert reply.status == 431
        assert str(size).encode() in reply.body
