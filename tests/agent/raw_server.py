"""A server that sends given bytes, for misbehaviour that the test kit cannot produce."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.address import EndpointAddress
from forewarn.agent.clock import real_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, Self

EMPTY_DOCUMENT = b'{"DocumentIncarnation":0,"Events":[]}'


class ReceivedRequest(NamedTuple):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: int
    """Which connection it came over, from 0 on."""
    at: float
    """In real seconds, as the client counts them."""


def answer(status: int = 200, body: bytes = b"", headers: dict[str, str] | None = None) -> bytes:
    """Return a valid response."""
    given = {"Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"HTTP/1.1 {status} Words\r\n{head}\r\n".encode() + body


def document(incarnation: int = 0, *events: dict[str, Any], tag: str | None = None) -> bytes:
    """Return a valid response with a document."""
    body = json.dumps({"DocumentIncarnation": incarnation, "Events": events}).encode()
    return answer(200, body, {"ETag": f'"{incarnation}"' if tag is None else tag})


def event(number: int, status: str = "Scheduled", vm: str = "web-0", **changes: object) -> dict[str, Any]:
    """An event as the wire has it."""
    return {
        "EventId": f"00000000-0000-0000-0000-{number:012}",
        "EventStatus": status,
        "EventType": "Reboot",
        "ResourceType": "VirtualMachine",
        "Resources": [vm],
        "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT" if status == "Scheduled" else "",
        **changes,
    }


def reset(connection: socket.socket) -> None:
    """End it with an RST."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    close(connection)


def close(connection: socket.socket) -> None:
    """End it at once, although it is still being read from."""
    socket.close(connection.detach())


def silence(connection: socket.socket) -> None:
    """Say nothing until the client gives up."""
    with suppress(OSError):
        connection.recv(1)
    close(connection)


def then(*parts: bytes | Callable[[socket.socket], object]) -> Callable[[socket.socket], object]:
    """One after the other."""

    def deed(connection: socket.socket) -> None:
        for part in parts:
            if isinstance(part, bytes):
                connection.sendall(part)
            else:
                part(connection)

    return deed


def trickle(text: bytes) -> Callable[[socket.socket], object]:
    """A byte now and then, without end, until the client gives up."""

    def deed(connection: socket.socket) -> None:
        with suppress(OSError):
            for number in range(10_000):
                connection.sendall(text[number % len(text) :][:1])
                if select.select([connection], [], [], 0.01)[0]:
                    break
        close(connection)

    return deed


def most_in_a_second(moments: Sequence[float]) -> int:
    return max(sum(first <= moment < first + 1 for moment in moments) for first in moments)


class RawServer:
    """Each request gets the next of its deeds; when there is none left, the last again."""

    def __init__(self, *deeds: bytes | Callable[[socket.socket], object], port: int = 0) -> None:
        self._deeds = list(deeds)
        self._guard = threading.Lock()
        self.received: list[ReceivedRequest] = []
        self.came = threading.Semaphore(0)
        """Released for each request that has come."""
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listener.getsockname()[1]
        self.endpoint = EndpointAddress("http", "127.0.0.1", self.port, "test")
        self.url = self.endpoint.url

    def __enter__(self) -> Self:
        self._begin(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def do(self, *deeds: bytes | Callable[[socket.socket], object]) -> None:
        """From now on these."""
        with self._guard:
            self._deeds = list(deeds)

    @property
    def most_in_a_second(self) -> int:
        """How many requests have come in the busiest second."""
        return most_in_a_second([received.at for received in self.received])

    @property
    def connections(self) -> int:
        """How many there have been."""
        return len(self._connections)

    def _begin(self, work: Callable[..., object], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._begin(self._serve, connection, len(self._connections) - 1)

    def _serve(self, connection: socket.socket, number: int) -> None:
        with connection, suppress(OSError, ValueError), connection.makefile("rb") as reader:
            while line := reader.readline():
                method, target, _ = line.decode().split()
                headers: dict[str, str] = {}
                while (line := reader.readline().strip()) != b"":
                    name, _, value = line.decode().partition(": ")
                    headers[name.lower()] = value
                body = reader.read(int(headers.get("content-length", 0)))
                with self._guard:
                    self.received.append(ReceivedRequest(method, target, headers, body, number, real_seconds()))
                    deed = self._deeds.pop(0) if len(self._deeds) > 1 else self._deeds[0]
                self.came.release()
                if isinstance(deed, bytes):
                    connection.sendall(deed)
                else:
                    deed(connection)
                    if connection.fileno() < 0:
                        return
