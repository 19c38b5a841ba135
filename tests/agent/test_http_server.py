"""The HTTP server that pages and peers share: its bounds on connections, time and size, and what it survives."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.agent.clock import real_seconds
from forewarn.agent.http_server import BoundedServer, LocalRequest, LocalResponse, listen_on
from forewarn.errors import CannotListen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Answer = Callable[[LocalRequest], LocalResponse | None]

ASK = b"GET / HTTP/1.1\r\n\r\n"
TIMEOUT_SECONDS = 60


class Door:
    """A server at a loopback port."""

    def __init__(self, answer: Answer, **choices: Any) -> None:
        listener = listen_on("127.0.0.1", 0, CannotListen)
        self.address: tuple[str, int] = listener.getsockname()
        self.server = BoundedServer(listener, answer, name="door", **choices)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, TIMEOUT_SECONDS)

    def ask(self, request: bytes = ASK) -> bytes:
        with self.connect() as line:
            line.sendall(request)
            return body_from(line)


@contextmanager
def serving(answer: Answer, **choices: Any) -> Iterator[Door]:
    door = Door(answer, **choices)
    door.server.start()
    try:
        yield door
    finally:
        door.server.stop()


def all_from(line: socket.socket) -> bytes:
    return b"".join(iter(lambda: line.recv(65536), b""))


def body_from(line: socket.socket) -> bytes:
    return all_from(line).partition(b"\r\n\r\n")[2]


def send_on(line: socket.socket) -> None:
    until = real_seconds() + TIMEOUT_SECONDS
    while real_seconds() < until:
        line.sendall(b"x")


def well(_: LocalRequest) -> LocalResponse:
    return LocalResponse(200, b"well")


def echo(request: LocalRequest) -> LocalResponse:
    said = " ".join((request.caller, request.method, request.target, request.headers.get("A", "")))
    return LocalResponse(request.error or 200, said.encode())


# Requests and responses.


@pytest.mark.parametrize(
    "head", [b"GET /x HTTP/1.1\r\nA: b\r\n\r\n", b"GET /x HTTP/1.1\nA: b\n\n", b"GET /x HTTP/1.0\na: b\r\n\n"]
)
def test_a_header_ends_at_its_empty_line(head: bytes) -> None:
    with serving(echo) as door:
        assert door.ask(head) == b"127.0.0.1 GET /x b"
        assert door.ask(head + b"body\r\n\r\n") == b"127.0.0.1 GET /x b"


def test_a_connection_gets_one_response_and_is_closed() -> None:
    with serving(lambda _: LocalResponse(405, b"no", (("Allow", "GET"),))) as door, door.connect() as line:
        line.sendall(ASK + ASK)
        expected = b"HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 2\r\nConnection: close\r\nAllow: GET\r\n\r\nno"
        assert all_from(line) == expected


@pytest.mark.parametrize("method", ["POST", "DELETE", "BREW"])
def test_every_method_reaches_the_application(method: str) -> None:
    with serving(echo) as door:
        assert (
            door.ask(f"{method} / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody".encode())
            == f"127.0.0.1 {method} / ".encode()
        )


@pytest.mark.parametrize(
    "garbage",
    [
        b"\r\n\r\n",
        b"GET /\r\n\r\n",
        b"GET / HTTP/2.0\r\n\r\n",
        b"GET / HTTP/1.1.1\r\n\r\n",
        b"GET / HTTP/1.x\r\n\r\n",
        b"GET / and more HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
        b"\x00\xff\r\n\r\n",
    ],
)
def test_an_invalid_request_is_recognized(garbage: bytes) -> None:
    errors = []

    def answer(request: LocalRequest) -> LocalResponse:
        errors.append(request.error)
        return LocalResponse(400, b"no")

    with serving(answer) as door:
        assert door.ask(garbage) == b"no"
    assert errors == [400]


def test_a_header_can_arrive_in_pieces() -> None:
    with serving(echo) as door, door.connect() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(ASK)):
            line.sendall(ASK[number : number + 1])
        assert body_from(line) == b"127.0.0.1 GET / "


@pytest.mark.parametrize(
    "head",
    [b"x" * 100_000, b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000, b"GET / HTTP/1.1\r\nA: " + b"x" * 100_000],
    ids=["first line", "many headers", "one header"],
)
def test_a_head_that_is_too_long(head: bytes) -> None:
    requests = []

    def answer(request: LocalRequest) -> LocalResponse:
        requests.append(request)
        return LocalResponse(431, b"too long")

    with serving(answer, max_head_size=100) as door:
        assert door.ask(head) == b"too long"
    assert [request.error for request in requests] == [431]  # one call, however many bytes arrived


def test_a_header_of_exactly_the_maximum_size_is_accepted() -> None:
    head = b"GET / HTTP/1.1\r\nA: " + b"x" * 77 + b"\r\n\r\n"
    with serving(echo, max_head_size=len(head)) as door:
        assert door.ask(head).endswith(b"x")
    with serving(echo, max_head_size=len(head) - 2) as door:
        assert door.ask(head + b"more") == b"127.0.0.1   "


def test_a_long_response_is_complete_and_does_not_block_others() -> None:
    long = b"0123456789" * 2_000_000  # more than fits between the two

    def answer(request: LocalRequest) -> LocalResponse:
        return LocalResponse(200, long if request.target == "/long" else b"well")

    with serving(answer) as door, door.connect() as slow:
        slow.sendall(b"GET /long HTTP/1.1\r\n\r\n")
        assert slow.recv(1) == b"H"
        assert door.ask() == b"well"
        assert body_from(slow) == long


def test_a_client_that_keeps_sending_gets_its_response() -> None:
    with serving(well) as door, door.connect() as line:
        line.sendall(ASK)
        assert line.recv(4) == b"HTTP"
        line.sendall(b"x" * 20_000_000)  # a connection that was closed would be reset by this
        assert all_from(line).endswith(b"well")


def test_a_client_without_a_response_is_disconnected() -> None:
    with (
        serving(lambda request: None if request.target == "/stranger" else well(request)) as door,
        door.connect() as line,
    ):
        line.sendall(b"GET /stranger HTTP/1.1\r\n\r\n")
        assert all_from(line) == b""
        assert door.ask() == b"well"


def test_an_error_in_the_application_does_not_end_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def answer(request: LocalRequest) -> LocalResponse:
        if request.target == "/bad":
            raise RuntimeError("beside itself")
        return well(request)

    with serving(answer) as door:
        for _ in range(3):
            assert door.ask(b"GET /bad HTTP/1.1\r\n\r\n") == b""
            assert door.ask() == b"well"
    (record,) = caplog.records  # not each time: a client retries
    assert record.getMessage() == "Cannot respond to a request."
    assert record.exc_info is not None


def test_listeners_of_several_kinds() -> None:
    local = socket.socket(socket.AF_UNIX)
    local.bind("")  # a name of the kernel's choice, in no folder
    local.listen()
    bodies = []
    for listener in (local, listen_on("::1", 0, CannotListen)):
        server = BoundedServer(listener, echo, name="door")
        server.start()
        try:
            with socket.socket(listener.family) as line:
                line.settimeout(TIMEOUT_SECONDS)
                line.connect(listener.getsockname())
                line.sendall(ASK)
                bodies.append(body_from(line))
        finally:
            server.stop()
    assert bodies == [b" GET / ", b"::1 GET / "]


# Who takes room, time or descriptors.


def test_the_oldest_idle_connection_is_closed_for_a_new_one() -> None:
    with serving(well, timeout_seconds=1000.0) as door, ExitStack() as stack:  # they would not go by themselves
        silent = [stack.enter_context(door.connect()) for _ in range(32)]
        for line in silent:
            line.sendall(b"GET /")
        assert door.ask() == b"well"
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b" HTTP/1.1\r\n\r\n")
        assert body_from(silent[-1]) == b"well"  # only as many go as must


def test_a_connection_with_a_pending_response_is_not_closed_for_a_new_one() -> None:
    arrived, go_on = threading.Semaphore(0), threading.Event()

    def answer(request: LocalRequest) -> LocalResponse:
        if request.target == "/slow":
            arrived.release()
            assert go_on.wait(TIMEOUT_SECONDS)
        return well(request)

    with (
        serving(answer, max_connections=2, timeout_seconds=1000.0) as door,
        door.connect() as oldest,
        door.connect() as silent,
    ):
        oldest.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
        assert arrived.acquire(timeout=TIMEOUT_SECONDS)
        with door.connect() as newcomer:
            assert silent.recv(1) == b""
            newcomer.sendall(b"GET /slow HTTP/1.1\r\n\r\n")
            assert arrived.acquire(timeout=TIMEOUT_SECONDS)
            with door.connect() as too_many:  # all are being answered: there are never more threads than that
                assert too_many.recv(1) == b""
            go_on.set()
            assert body_from(oldest) == body_from(newcomer) == b"well"
        assert door.ask() == b"well"


@pytest.mark.parametrize("said", [b"", b"GET /", ASK], ids=["nothing", "a part", "all, and stays"])
def test_a_slow_client_is_disconnected(said: bytes) -> None:
    door = Door(well, timeout_seconds=0.1)
    with door.connect() as line:
        line.sendall(said)
        door.server.start()
        try:
            assert body_from(line) == (b"well" if said == ASK else b"")
            with pytest.raises(ConnectionError):  # what comes after both ends are closed is answered with a reset
                send_on(line)
        finally:
            door.server.stop()


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nA: ", ASK], ids=["request", "header", "after the answer"])
def test_to_send_slowly_does_not_buy_time(begin: bytes) -> None:
    with serving(well, timeout_seconds=0.1, max_head_size=10**9) as door, door.connect() as line:
        line.sendall(begin)
        with pytest.raises(ConnectionError):
            send_on(line)


def test_without_file_descriptors_the_oldest_is_closed_and_new_clients_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with (
        serving(well, timeout_seconds=1000.0) as door,
        socket.socket() as newcomer,
        ExitStack() as stack,
    ):
        oldest, second, third, *_, youngest = [stack.enter_context(door.connect()) for _ in range(30)]
        assert door.ask() == b"well"  # so they have been taken in
        newcomer.settimeout(TIMEOUT_SECONDS)
        before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay so, and there is no other
        try:
            newcomer.connect(door.address)
            newcomer.sendall(ASK)
            for line in (oldest, second, third):  # it goes on trying
                assert line.recv(1) == b""
            youngest.sendall(ASK)
            assert youngest.recv(4) == b"HTTP"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
        assert body_from(newcomer) == b"well"
    (record,) = caplog.records
    assert record.getMessage() == "Cannot accept connections."
    assert record.__dict__["fields"] == {"server": "door", "error": "Too many open files"}


# Beginning and ending.


def test_a_client_that_connects_before_the_start_waits() -> None:
    door = Door(well)
    with door.connect() as line:
        line.sendall(ASK)
        door.server.start()
        try:
            assert body_from(line) == b"well"
        finally:
            door.server.stop()


def test_it_stops_at_once_and_leaves_nothing() -> None:
    with serving(well, timeout_seconds=1000.0) as door, door.connect() as line:
        line.sendall(b"GET /")
        assert door.ask() == b"well"
        door.server.stop()
        assert line.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            door.connect()
        assert not any(thread.name == "door" for thread in threading.enumerate())


def test_a_server_that_was_never_started_releases_its_address() -> None:
    door = Door(well)
    door.server.stop()
    door.server.stop()
    listen_on(*door.address, CannotListen).close()


@pytest.mark.parametrize(
    ("host", "port", "message"),
    [
        ("192.0.2.1", 0, "Cannot listen on 192.0.2.1:0: Cannot assign requested address."),
        ("2001:db8::1", 9, "Cannot listen on [2001:db8::1]:9: Cannot assign requested address."),
        ("a\0b", 0, "Cannot listen on a\0b:0: "),
    ],
)
def test_the_error_names_an_unavailable_address(host: str, port: int, message: str) -> None:
    with pytest.raises(CannotListen) as caught:
        listen_on(host, port, CannotListen)
    assert str(caught.value).startswith(message)
