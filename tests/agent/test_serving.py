"""The small server that pages and peers share: who is answered, who is sent away, and what it lives through."""

from __future__ import annotations

import logging
import resource
import socket
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.agent.clock import real_seconds
from forewarn.agent.http_server import SmallServer, listen_on
from forewarn.errors import CannotListen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Respond = Callable[[bytes, str], bytes]

ASK = b"GET / HTTP/1.1\r\n\r\n"
PATIENCE_SECONDS = 60


class Door:
    """A server at a loopback port."""

    def __init__(self, respond: Respond, **choices: Any) -> None:
        listener = listen_on("127.0.0.1", 0, CannotListen)
        self.address: tuple[str, int] = listener.getsockname()
        self.server = SmallServer([listener], respond, name="door", **choices)

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, PATIENCE_SECONDS)

    def ask(self, request: bytes = ASK) -> bytes:
        with self.connect() as line:
            line.sendall(request)
            return all_from(line)


@contextmanager
def serving(respond: Respond, **choices: Any) -> Iterator[Door]:
    door = Door(respond, **choices)
    door.server.start()
    try:
        yield door
    finally:
        door.server.stop()


def all_from(line: socket.socket) -> bytes:
    return b"".join(iter(lambda: line.recv(65536), b""))


def send_on(line: socket.socket) -> None:
    until = real_seconds() + PATIENCE_SECONDS
    while real_seconds() < until:
        line.sendall(b"x")


def well(_: bytes, __: str) -> bytes:
    return b"well"


def echo(head: bytes, caller: str) -> bytes:
    return caller.encode() + b" " + head


# What is asked and answered.


@pytest.mark.parametrize("head", [ASK, b"GET / HTTP/1.1\nA: b\n\n", b"A\n\r\n", b"A\r\n\n", b"\r\n\r\n"])
def test_a_head_ends_with_its_empty_line_and_what_follows_is_not_of_it(head: bytes) -> None:
    with serving(echo) as door:
        assert door.ask(head) == b"127.0.0.1 " + head
        assert door.ask(head + b"body\r\n\r\n") == b"127.0.0.1 " + head


def test_a_head_may_come_in_pieces() -> None:
    with serving(echo) as door, door.connect() as line:
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for number in range(len(ASK)):
            line.sendall(ASK[number : number + 1])
        assert all_from(line) == b"127.0.0.1 " + ASK


def test_a_head_that_is_too_long_is_known_by_having_no_end() -> None:
    heads = []

    def respond(head: bytes, _: str) -> bytes:
        heads.append(head)
        return b"too long"

    with serving(respond, largest_head=100) as door:
        assert door.ask(b"x" * 100_000) == b"too long"
        assert len(heads) == 1  # and it was asked about once, however much came
        assert len(heads[0]) > 100
        assert set(heads[0]) == set(b"x")


def test_a_long_answer_comes_whole_and_others_need_not_wait_for_it() -> None:
    long = b"0123456789" * 2_000_000  # more than fits between the two

    def respond(head: bytes, _: str) -> bytes:
        return long if b"long" in head else b"well"

    with serving(respond) as door, door.connect() as slow:
        slow.sendall(b"GET /long\r\n\r\n")
        assert slow.recv(1) == b"0"
        assert door.ask() == b"well"
        assert b"0" + all_from(slow) == long


def test_an_answer_is_not_lost_to_whoever_goes_on_sending() -> None:
    with serving(well) as door, door.connect() as line:
        line.sendall(ASK)
        assert line.recv(4) == b"well"
        line.sendall(b"x" * 20_000_000)  # a connection that was closed would be reset by this
        assert line.recv(1) == b""


def test_one_who_is_to_be_told_nothing_is_sent_away() -> None:
    with serving(lambda head, _: b"" if b"stranger" in head else b"well") as door:
        assert door.ask(b"stranger\r\n\r\n") == b""
        assert door.ask() == b"well"


def test_a_request_that_cannot_be_answered_is_no_end_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    def respond(head: bytes, _: str) -> bytes:
        if b"bad" in head:
            raise RuntimeError("beside itself")
        return b"well"

    with serving(respond, callers="a tester") as door:
        for _ in range(3):
            assert door.ask(b"bad\r\n\r\n") == b""
            assert door.ask() == b"well"
    (record,) = caplog.records  # not each time: whoever asks comes again
    assert record.getMessage() == "A request of a tester cannot be answered."
    assert record.exc_info is not None


def test_several_listeners_of_several_kinds() -> None:
    other = socket.socket(socket.AF_UNIX)
    other.bind("")  # a name of the kernel's choice, in no folder
    other.listen()
    here = listen_on("::1", 0, CannotListen)
    places = [other.getsockname(), here.getsockname()]
    server = SmallServer([other, here], echo, name="doors")
    server.start()
    try:
        told = []
        for family, place in zip((socket.AF_UNIX, socket.AF_INET6), places, strict=True):
            with socket.socket(family) as line:
                line.settimeout(PATIENCE_SECONDS)
                line.connect(place)
                line.sendall(ASK)
                told.append(all_from(line))
        assert told == [b" " + ASK, b"::1 " + ASK]
    finally:
        server.stop()


# Who takes room, time or descriptors.


def test_the_oldest_makes_room_and_those_who_say_nothing_keep_nobody_out() -> None:
    with serving(well, seconds_each=1000.0) as door, ExitStack() as stack:  # they would not go by themselves
        silent = [stack.enter_context(door.connect()) for _ in range(32)]
        for line in silent:
            line.sendall(b"GET /")
        assert door.ask() == b"well"
        assert silent[0].recv(1) == b""
        silent[-1].sendall(b"\r\n\r\n")
        assert all_from(silent[-1]) == b"well"  # only as many go as must


def test_whoever_has_asked_is_answered_before_it_makes_room() -> None:
    asked, go_on = threading.Event(), threading.Event()

    def respond(head: bytes, _: str) -> bytes:
        if b"slow" in head:
            asked.set()
            assert go_on.wait(PATIENCE_SECONDS)
        return b"well"

    with (
        serving(respond, most_connections=2, seconds_each=1000.0) as door,
        door.connect() as oldest,
        door.connect() as other,
    ):
        other.sendall(b"slow\r\n\r\n")
        assert asked.wait(PATIENCE_SECONDS)
        with door.connect() as newcomer:
            oldest.sendall(ASK)  # when it looks again it sees both: the newcomer, and the one who must make room
            go_on.set()
            assert all_from(oldest) == b"well"
            newcomer.sendall(ASK)
            assert all_from(newcomer) == b"well"


@pytest.mark.parametrize("said", [b"", b"GET /", ASK], ids=["nothing", "a part", "all, and stays"])
def test_whoever_takes_too_long_is_sent_away(said: bytes) -> None:
    door = Door(well, seconds_each=0.1)
    with door.connect() as line:
        line.sendall(said)
        door.server.start()
        try:
            assert all_from(line) == (b"well" if said == ASK else b"")
            with pytest.raises(ConnectionError):  # what comes after both ends are closed is answered with a reset
                send_on(line)
        finally:
            door.server.stop()


def test_without_descriptors_the_oldest_goes_the_others_go_on_and_newcomers_wait(
    caplog: pytest.LogCaptureFixture,
) -> None:
    turned = threading.Semaphore(0)

    def beat() -> None:
        turned.release()

    caplog.set_level(logging.INFO)
    with (
        serving(well, seconds_each=1000.0, callers="a tester", beat=beat) as door,
        socket.socket() as newcomer,
        ExitStack() as stack,
    ):
        oldest, *_, youngest = [stack.enter_context(door.connect()) for _ in range(30)]
        assert door.ask() == b"well"  # so they have been taken in
        newcomer.settimeout(PATIENCE_SECONDS)
        before, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))  # those that are open stay so, and there is no other
        try:
            newcomer.connect(door.address)
            newcomer.sendall(ASK)
            assert oldest.recv(1) == b""
            youngest.sendall(ASK)
            assert youngest.recv(4) == b"well"
            while turned.acquire(blocking=False):
                pass
            for _ in range(5):  # it goes on trying
                assert turned.acquire(timeout=PATIENCE_SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (before, hard))
        assert all_from(newcomer) == b"well"
    assert [record.getMessage() for record in caplog.records] == [
        "No connection of a tester can be taken: Too many open files."
    ]


# Beginning, beating and ending.


def test_it_beats_in_time_though_nobody_comes() -> None:
    beats: list[float] = []
    enough = threading.Event()

    def beat() -> float | None:
        beats.append(real_seconds())
        if len(beats) == 5:
            enough.set()
            return None
        return real_seconds() + 0.01

    with serving(well, beat=beat) as door:
        assert enough.wait(PATIENCE_SECONDS)
        assert door.ask() == b"well"  # now it is called when something happens
        assert len(beats) > 5


def test_whoever_comes_before_it_is_served_waits() -> None:
    door = Door(well)
    with door.connect() as line:
        line.sendall(ASK)
        door.server.start()
        try:
            assert all_from(line) == b"well"
        finally:
            door.server.stop()


def test_it_stops_at_once_and_leaves_nothing() -> None:
    with serving(well, seconds_each=1000.0) as door, door.connect() as line:
        line.sendall(b"GET /")
        assert door.ask() == b"well"
        door.server.stop()
        assert line.recv(1) == b""
        with pytest.raises(ConnectionRefusedError):
            door.connect()
        assert not any(thread.name == "door" for thread in threading.enumerate())


def test_one_that_was_never_started_gives_the_address_back() -> None:
    door = Door(well)
    door.server.stop()
    door.server.stop()
    listen_on(*door.address, CannotListen).close()


@pytest.mark.parametrize(
    ("host", "port", "told"),
    [
        ("192.0.2.1", 0, "Cannot listen on 192.0.2.1:0: Cannot assign requested address."),
        ("2001:db8::1", 9, "Cannot listen on [2001:db8::1]:9: Cannot assign requested address."),
        ("a\0b", 0, "Cannot listen on a\0b:0: "),
    ],
)
def test_an_address_that_cannot_be_had_is_named(host: str, port: int, told: str) -> None:
    with pytest.raises(CannotListen) as caught:
        listen_on(host, port, CannotListen)
    assert str(caught.value).startswith(told)
