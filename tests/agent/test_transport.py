"""Single requests to servers that misbehave in ways that the test kit cannot."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.raw_server import EMPTY_DOCUMENT, RawServer, answer, close, reset, silence, then, trickle
from agent.shifted_clock import Shifted
from depth import amount
from forewarn.agent import transport
from forewarn.agent.address import EndpointAddress
from forewarn.agent.transport import MAX_BODY_SIZE, EndpointConnection, EndpointResponse
from forewarn.errors import EndpointError
from tcp_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Deed = bytes | Callable[[socket.socket], object]

GOOD = answer(200, b"good")
SHORT, LONG = 0.3, 20.0
"""Seconds: for what is to run into its limit, and for what is not."""


@pytest.fixture
def ask() -> Iterator[Callable[..., EndpointResponse]]:
    connections: dict[int, EndpointConnection] = {}

    def exchange(
        server: RawServer, method: str = "GET", seconds: float = LONG, body: bytes | None = None
    ) -> EndpointResponse:
        connection = connections.setdefault(server.port, EndpointConnection(server.endpoint))
        return connection.exchange(method, "/x", {"Metadata": "true"}, body, seconds)

    yield exchange
    for connection in connections.values():
        connection.close()


def test_a_response_has_status_headers_body_and_date(ask: Callable[..., EndpointResponse]) -> None:
    raw = answer(404, b"none", {"Date": "Thu, 22 Jul 2021 04:50:17 GMT", "X-One": "1", "x-one": "2"})
    with RawServer(raw) as server:
        got = ask(server)
    assert (got.status, got.body, got.headers["x-one"]) == (404, b"none", "1, 2")
    assert got.date == datetime(2021, 7, 22, 4, 50, 17, tzinfo=UTC)


@pytest.mark.parametrize("date", ["", "yesterday", "0", "Thu, 99 Jul 2021 04:50:17 GMT", "2021-07-22T04:50:17Z"])
def test_an_unreadable_date_is_none(ask: Callable[..., EndpointResponse], date: str) -> None:
    with RawServer(answer(200, b"", {"Date": date})) as server:
        assert ask(server).date is None


def test_the_connection_is_kept(ask: Callable[..., EndpointResponse]) -> None:
    with RawServer(GOOD) as server:
        for _ in range(3):
            ask(server)
        assert [request.connection for request in server.received] == [0, 0, 0]


@pytest.mark.parametrize("raw", [answer(200, b"one", {"Connection": "close"}), b"HTTP/1.0 200 OK\r\n\r\none"])
def test_a_response_that_ends_with_the_connection_is_complete(ask: Callable[..., EndpointResponse], raw: bytes) -> None:
    with RawServer(then(raw, close), GOOD) as server:
        assert ask(server).body == b"one"
        assert ask(server).body == b"good"
        assert [request.connection for request in server.received] == [0, 1]


@pytest.mark.parametrize("end", [close, reset])
def test_a_closed_keep_alive_connection_is_no_error(
    ask: Callable[..., EndpointResponse], end: Callable[[socket.socket], object]
) -> None:
    """Closed when the second request is there already: the client could not have known."""
    with RawServer(GOOD, end, GOOD) as server:
        ask(server)
        assert ask(server).body == b"good"
        assert [request.connection for request in server.received] == [0, 0, 1]


@pytest.mark.parametrize("end", [close, reset])
def test_an_approval_has_a_connection_of_its_own_and_is_never_sent_twice(
    ask: Callable[..., EndpointResponse], end: Callable[[socket.socket], object]
) -> None:
    """What was right when it was decided need not be so when the connection has ended."""
    with RawServer(GOOD, GOOD, end, GOOD) as server:
        ask(server)
        assert ask(server, "POST", body=b"approved").body == b"good"
        with pytest.raises(EndpointError, match="without a response"):
            ask(server, "POST", body=b"approved")
        assert [(request.method, request.connection) for request in server.received] == [
            ("GET", 0),
            ("POST", 1),
            ("POST", 2),
        ]


def test_it_is_tried_again_only_once(ask: Callable[..., EndpointResponse]) -> None:
    with RawServer(GOOD, reset) as server:
        ask(server)
        with pytest.raises(EndpointError, match="without a response"):
            ask(server)
        assert len(server.received) == 3


def test_unrequested_bytes_are_not_the_next_response(ask: Callable[..., EndpointResponse]) -> None:
    with RawServer(GOOD + answer(200, b"not asked for" * 2000), GOOD) as server:
        assert ask(server).body == b"good"
        assert ask(server).body == b"good"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def flood_of(text: bytes) -> Callable[[socket.socket], object]:
    """More of it than there is room for, until the client goes: one that took it all would have it all."""

    def deed(connection: socket.socket) -> None:
        many = text * (65_536 // len(text))
        with suppress(OSError):
            for _ in range(4 * MAX_BODY_SIZE // len(many)):
                connection.sendall(many)
        close(connection)

    return deed


flood = flood_of(b"x: y\r\n")

TROUBLES: dict[str, tuple[str, Deed, float]] = {
    "reset": ("reset", reset, LONG),
    "closed without a word": ("reset", close, LONG),
    "no byte": ("timeout", silence, SHORT),
    "a part, and no more": ("stalled", then(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", silence), SHORT),
    "half a head": ("stalled", then(b"HTTP/1.1 200 OK\r\nContent-Le", silence), SHORT),
    "a trickling head": ("stalled", then(b"HTTP/1.1 200 OK\r\nX: ", trickle(b"x")), SHORT),
    "trickling headers": ("stalled", then(b"HTTP/1.1 200 OK\r\n", trickle(b"x: 1\r\n")), SHORT),
    "a trickling body": ("stalled", then(b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", trickle(b"x")), SHORT),
    "trickling chunks": (
        "stalled",
        then(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", trickle(b"1\r\nx\r\n")),
        SHORT,
    ),
    "continued for ever": ("stalled", trickle(b"HTTP/1.1 100 Continue\r\n\r\n"), SHORT),
    "cut off in the head": ("cut-off", then(b"HTTP/1.1 200 OK\r\nContent-Le", close), LONG),
    "cut off after a line": ("cut-off", then(b"HTTP/1.1 200 OK\r\nX: 1\r\n", close), LONG),
    "cut off": ("cut-off", then(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", close), LONG),
    "reset in the middle": ("cut-off", then(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", reset), LONG),
    "cut off in a chunk": (
        "cut-off",
        then(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nhalf", close),
        LONG,
    ),
    "not HTTP": ("unreadable", then(b"220 mail.example ESMTP\r\n", close), LONG),
    "a status that is none": ("unreadable", then(b"HTTP/1.1 OK\r\n\r\n", close), LONG),
    "a line without end": ("unreadable", then(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, close), LONG),
    "a thousand headers": ("unreadable", then(b"HTTP/1.1 200 OK\r\n" + b"X: 1\r\n" * 1000 + b"\r\n", close), LONG),
    "a negative chunk": ("unreadable", then(CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n"), LONG),
    "a hugely negative chunk": ("unreadable", then(CHUNKED + b"-ffffffffffffffffffff\r\nhello\r\n"), LONG),
    "a chunk without a size": ("unreadable", then(CHUNKED + b"zz\r\nhello\r\n0\r\n\r\n"), LONG),
    "a chunk that would take all": ("unreadable", then(CHUNKED + b"-1\r\n", flood), LONG),
    "trailers without end": ("unreadable", then(CHUNKED + b"0\r\n", flood), LONG),
    "continued without end": ("unreadable", flood_of(b"HTTP/1.1 100 Continue\r\n\r\n"), LONG),
    "a huge length": ("unreadable", b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", LONG),
    "a huge body": (
        "unreadable",
        then(b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (MAX_BODY_SIZE + 70_000), close),
        LONG,
    ),
}


@pytest.mark.parametrize("name", TROUBLES)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_failure_is_an_endpoint_error_and_the_next_request_works(
    ask: Callable[..., EndpointResponse], name: str, method: str
) -> None:
    kind, deed, seconds = TROUBLES[name]
    body = b"x" if method == "POST" else None
    with RawServer(deed, GOOD) as server:
        with pytest.raises(EndpointError) as trouble:
            ask(server, method, seconds, body)
        assert trouble.value.kind == kind
        assert ask(server, method, body=body).body == b"good"


def test_the_rest_of_a_response_has_its_own_timeout() -> None:
    with RawServer(then(b"HTTP/1.1 200 OK\r\n", silence)) as server:
        connection = EndpointConnection(server.endpoint)
        with pytest.raises(EndpointError, match="but not the rest within ") as trouble:
            connection.exchange("GET", "/", {}, None, 600, SHORT)
        assert trouble.value.kind == "stalled"
        connection.close()


def test_a_body_of_the_maximum_size_is_accepted(ask: Callable[..., EndpointResponse]) -> None:
    with RawServer(answer(200, b"x" * MAX_BODY_SIZE)) as server:
        assert len(ask(server).body) == MAX_BODY_SIZE


def test_a_body_is_limited_whatever_its_content_length(ask: Callable[..., EndpointResponse]) -> None:
    """http.client reads a chunk of -1 bytes until the connection ends."""
    taken = []

    def pour(connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"-1\r\n")
        with suppress(OSError):
            for _ in range(1000):
                connection.sendall(b"x" * MAX_BODY_SIZE)
                taken.append(MAX_BODY_SIZE)
                if len(taken) > 10:
                    break
        close(connection)

    with RawServer(pour) as server, pytest.raises(EndpointError, match="it is too large"):
        ask(server)
    # What the kernel holds for a reader that never came is in it too.
    assert sum(taken) < 6 * MAX_BODY_SIZE


def test_each_time_that_something_is_sent_it_is_admitted(ask: Callable[..., EndpointResponse]) -> None:
    """The second one over a connection that the server has closed is sent twice."""
    admitted = []
    with RawServer(GOOD, close, GOOD) as server:
        connection = EndpointConnection(server.endpoint)
        for _ in range(2):
            connection.exchange("GET", "/", {}, None, LONG, admit=lambda: admitted.append(len(server.received)))
        connection.close()
        assert admitted == [0, 1, 2]


def test_the_wait_for_the_rate_limit_does_not_shorten_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    shifted = Shifted(monkeypatch)
    with RawServer(GOOD) as server:
        connection = EndpointConnection(server.endpoint)
        assert connection.exchange("GET", "/", {}, None, LONG, admit=lambda: shifted.pause(2 * LONG)).body == b"good"
        connection.close()


def test_a_redirect_is_not_followed(ask: Callable[..., EndpointResponse]) -> None:
    with RawServer(GOOD) as other, RawServer(answer(302, b"", {"Location": other.url})) as server:
        assert ask(server).status == 302
        assert other.received == []


@pytest.mark.parametrize("variable", ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"])
def test_a_proxy_is_never_used(
    ask: Callable[..., EndpointResponse], monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    with RawServer(answer(502)) as proxy, RawServer(GOOD) as server:
        monkeypatch.setenv(variable, proxy.url)
        assert ask(server).body == b"good"
        assert proxy.connections == 0


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "x" * 70])
def test_a_closed_port_is_unreachable(host: str) -> None:
    connection = EndpointConnection(EndpointAddress("http", host, free_port(), "test"))
    with pytest.raises(EndpointError, match="Cannot connect") as trouble:
        connection.exchange("GET", "/", {}, None, LONG)
    assert trouble.value.kind == "unreachable"


def test_tls_to_a_server_without_tls_is_an_endpoint_error() -> None:
    with RawServer(GOOD) as server:
        connection = EndpointConnection(server.endpoint._replace(scheme="https"))
        with pytest.raises(EndpointError, match="Cannot connect"):
            connection.exchange("GET", "/", {}, None, SHORT)


@pytest.fixture
def full() -> Iterator[int]:
    """The port of a server with a full backlog: connections to it wait."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for caller in callers:
            caller.close()


def test_a_connection_that_is_not_accepted_in_time_is_unreachable(full: int) -> None:
    connection = EndpointConnection(EndpointAddress("http", "127.0.0.1", full, "test"))
    with pytest.raises(EndpointError, match="the connection timed out") as trouble:
        connection.exchange("GET", "/", {}, None, SHORT)
    assert trouble.value.kind == "unreachable"


def test_cutting_ends_a_connection_that_is_being_made(full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = EndpointConnection(EndpointAddress("http", "127.0.0.1", full, "test"))
    connecting = threading.Event()
    resolve = transport.resolve_addresses

    def noted(host: str, port: int) -> list[object]:
        connecting.set()
        return resolve(host, port)

    monkeypatch.setattr("forewarn.agent.transport.resolve_addresses", noted)
    with ThreadPoolExecutor(1) as thread:
        under_way = thread.submit(connection.exchange, "GET", "/", {}, None, 600.0)
        assert connecting.wait(LONG)
        connection.abort()
        with pytest.raises(EndpointError) as trouble:
            under_way.result(LONG)
    assert trouble.value.kind == "closed"


@pytest.mark.parametrize("deed", [silence, then(b"HTTP/1.1 200 OK\r\n", silence)])
def test_abort_ends_a_request_in_another_thread_and_the_next_one_works(
    deed: Callable[[socket.socket], object],
) -> None:
    with RawServer(GOOD, deed, GOOD) as server, ThreadPoolExecutor(1) as thread:
        connection = EndpointConnection(server.endpoint)
        connection.exchange("GET", "/", {}, None, LONG)
        assert server.came.acquire(timeout=LONG)
        under_way = thread.submit(connection.exchange, "GET", "/", {}, None, 600.0)
        assert server.came.acquire(timeout=LONG)
        connection.abort()
        with pytest.raises(EndpointError) as trouble:
            under_way.result(LONG)
        assert trouble.value.kind == "closed"
        with pytest.raises(EndpointError):
            connection.exchange("GET", "/", {}, None, LONG)
        connection.reset()
        assert connection.exchange("GET", "/", {}, None, LONG).body == b"good"
        connection.close()


def test_the_timeout_applies_to_sending_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        connection = EndpointConnection(EndpointAddress("http", "127.0.0.1", deaf.getsockname()[1], "test"))
        with pytest.raises(EndpointError) as trouble:
            connection.exchange("POST", "/", {}, b"x" * 50_000_000, SHORT)
    assert trouble.value.kind == "timeout"


PIECES = st.sampled_from(
    [
        *(b"HTTP/1.1 200 OK\r\n", b"HTTP/1.0 304 \r\n", b"HTTP/1.1 99999 x\r\n", b"HTTP/9.9 200\r\n", b"\r\n", b" "),
        *(b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"Content-Length: x\r\n", b"ETag: \xff\x00\r\n"),
        *(b"Transfer-Encoding: chunked\r\n", b"5\r\nabcde\r\n0\r\n\r\n", b"-5\r\n", b"ffffffffffffffffff\r\n", b"\n"),
        *(
            b"Date: x\r\n",
            b": no name\r\n",
            b"no colon\r\n",
            b" folded\r\n",
            EMPTY_DOCUMENT,
            b"Connection: keep-alive\r\n",
        ),
    ]
)


@settings(max_examples=amount(150), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(raw=st.lists(PIECES | st.binary(max_size=20), max_size=8).map(b"".join))
def test_any_bytes_are_a_response_or_an_endpoint_error(raw: bytes) -> None:
    with RawServer(then(raw, close)) as server:
        connection = EndpointConnection(server.endpoint)
        kind = "none"
        try:
            connection.exchange("GET", "/", {}, None, LONG)
        except EndpointError as trouble:
            kind = trouble.kind
        connection.close()
        assert kind in {"none", "reset", "cut-off", "unreadable"}
