"""--server with a wrong address, or with a server that is not Forewarn: one line, no stack trace, no endless loop."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from command_line import run_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.testing import Service


class OtherServer:
    """A server that answers every request with the same bytes."""

    def __init__(self) -> None:
        self.answer: Callable[[socket.socket], object] = lambda _: None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, suppress(OSError):
                received = b""
                while b"\r\n\r\n" not in received:
                    received += connection.recv(65536) or b"\r\n\r\n"
                self.answer(connection)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()


@pytest.fixture
def server() -> Iterator[OtherServer]:
    server = OtherServer()
    yield server
    server.close()


def response(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def send_for_ever(start: bytes, part: bytes) -> Callable[[socket.socket], None]:
    def send(connection: socket.socket) -> None:
        connection.sendall(start)
        while True:  # until the client closes the connection
            connection.sendall(part)

    return send


def assert_one_line(service: Service, server: OtherServer, *command: str, problem: str = "") -> None:
    run = run_command(service, *command, FOREWARN_SERVER=server.url)
    assert run.returncode == 6, (command, run.stdout, run.stderr)
    assert run.stderr.count("\n") == 1, (command, run.stderr)
    assert run.stderr.startswith(f"forewarn: No valid response from the service at {server.url}: ")
    assert problem in run.stderr


LISTS = ("vm", "event", "operation", "host", "group", "token", "webhook", "rollout")


def test_a_cursor_that_repeats_ends_the_command(forewarn: Service, server: OtherServer) -> None:
    page: dict[str, Any] = {"history": [], **{f"{noun}s": [] for noun in LISTS}}
    for cursor in ("abc", 5, ["abc"]):
        content = response(json.dumps({**page, "next": cursor}).encode())
        server.answer = lambda connection, content=content: connection.sendall(content)  # type: ignore[misc]
        for command in (*((noun, "list") for noun in LISTS), ("history", "--all"), ("fleet", "show")):
            assert_one_line(forewarn, server, *command, problem="the list does not end")


OTHER_PROGRAMS: dict[str, tuple[Any, str]] = {
    "closes the connection": (b"", "Remote end closed connection"),
    "speaks TLS": (bytes.fromhex("15030300020228"), "not valid HTTP"),
    "binary garbage": (os.urandom(4000) + b"\n", "not valid HTTP"),
    "garbage with line feeds": (b"HTTP/1.1 99999 a\nb\n\n", "not valid HTTP"),
    "a huge header": (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n", "not valid HTTP"),
    "endless headers": (send_for_ever(b"HTTP/1.1 200 OK\r\n", b"X: y\r\n" * 100), "not valid HTTP"),
    "HTML": (response(b"<html>"), "not JSON"),
    "an empty body": (response(b""), "not JSON"),
    "no UTF-8": (response(b"\xff\xfe\x00"), "not JSON"),
    "deep JSON": (response(b"[" * 200_000), "not JSON"),
    "a large number": (response(b"9" * 10_000), "not JSON"),
    "a short body": (response(b"{}", length=100), "incomplete"),
    "a bad chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}", "incomplete"),
    "HTML of a missing page": (response(b"<html>", "404 Not Found"), "HTTP 404, not from a control API"),
    "a deep problem": (response(b"[" * 200_000, "400 Bad Request"), "HTTP 400, not from a control API"),
    "an odd problem": (
        response(b'{"title": "Invalid", "detail": "x", "pointer": 7}', "400 Bad Request"),
        "HTTP 400, not from a control API",
    ),
}


@pytest.mark.parametrize("program", OTHER_PROGRAMS)
def test_another_program_is_reported_in_one_line(forewarn: Service, server: OtherServer, program: str) -> None:
    content, problem = OTHER_PROGRAMS[program]
    server.answer = content if callable(content) else lambda connection: connection.sendall(content)
    for command in (("vm", "list"), ("history", "--all"), ("history",), ("clock", "show")):
        assert_one_line(forewarn, server, *command, problem=problem)


def test_an_endless_body_is_reported_in_one_line(
    forewarn: Service, server: OtherServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forewarn.cli.client.MAX_RESPONSE_BYTES", 1_000_000)
    server.answer = send_for_ever(b"HTTP/1.1 200 OK\r\n\r\n[", b" " * 65536)
    for command in (("vm", "list"), ("history",)):
        assert_one_line(forewarn, server, *command, problem="more than 1000000 bytes")


OTHER_JSON = (
    "[]",
    "null",
    '"x"',
    "{}",
    json.dumps(
        {
            "vms": [1],
            "history": [3],
            "events": [None],
            "groups": [{}],
            "hosts": [{}],
            "operations": ["a"],
            "now": 7,
            "speed": "x",
        }
    ),
)
COMMANDS = (
    ("vm", "list"),
    ("vm", "show", "a"),
    ("vm", "restart", "a"),
    ("event", "list"),
    ("event", "show", "x"),
    ("event", "watch"),
    ("group", "list"),
    ("host", "list"),
    ("operation", "list"),
    ("fleet", "show"),
    ("history",),
    ("history", "--all"),
    ("clock", "show"),
    ("clock", "accept"),
)


@pytest.mark.parametrize("body", OTHER_JSON)
def test_json_of_another_program_is_reported_in_one_line(forewarn: Service, server: OtherServer, body: str) -> None:
    server.answer = lambda connection: connection.sendall(response(body.encode()))
    for command in COMMANDS:
        assert_one_line(forewarn, server, *command, problem="not from Forewarn")


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x",
        "http://",
        "http://host:99999",
        "http://host:-1",
        "http://.",
        "http://a..b",
        "http://" + "a" * 64,
        "127.0.0.1:8170",
    ],
)
def test_an_address_that_cannot_work_is_rejected_in_one_line(forewarn: Service, url: str) -> None:
    run = run_command(forewarn, "vm", "list", FOREWARN_SERVER=url)
    assert (run.returncode, run.stderr.count("\n")) == (2, 1), run.stderr
    assert "write it like https://forewarn.example.org:8170" in run.stderr
