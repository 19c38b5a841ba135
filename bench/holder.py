"""Clients whose polls are held, as a process of its own: each has a connection and an address of its own.

Reads {"address", "sources"} as JSON from standard input. Prints a line when all polls are held, and from then on, each
time that all have been answered with a changed document, when the first and the last answer was there, by the monotonic
clock that all processes share. Each client asks again at once, as it would in earnest.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from bench.connection import DOCUMENT, poll_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTED_AT_ONCE = 100
VERSIONS = b"GET /metadata/versions HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n\r\n"


def held_poll_bytes(tag: bytes) -> bytes:
    """A poll that may be held for a minute."""
    head = f"GET {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\nPrefer: wait=60\r\nIf-None-Match: "
    return head.encode() + tag + b"\r\n\r\n"


class Crowd:
    """All clients, and how far they are."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._held = 0
        self._answered = 0
        self._first = 0.0

    def on_held(self) -> None:
        self._held += 1
        if self._held == self._size:
            _say({"held": self._size})

    def on_changed(self) -> None:
        now = time.perf_counter()
        if not self._answered:
            self._first = now
        self._answered += 1
        if self._answered == self._size:
            self._answered = 0
            _say({"first": self._first, "last": now})


class Client(asyncio.Protocol):
    """One connection. What is asked first shows that the poll behind it has been read."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._read = b""
        self._on_answer: Callable[[bytes], None] = self._on_first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.write(poll_bytes())

    def connection_lost(self, _: Exception | None) -> None:
        _fail("The service closed a connection.")

    def data_received(self, data: bytes) -> None:
        data = self._read + data if self._read else data
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            place = data.find(b"content-length: ", 0, end)
            length = int(data[place + 16 : data.index(b"\r\n", place)]) if place >= 0 else 0
            if len(data) >= end + 4 + length:
                self._read = b""
                self._on_answer(data)
                return
        self._read = data

    def _on_first(self, answer: bytes) -> None:
        self._on_answer = self._on_read
        self._transport.write(VERSIONS + held_poll_bytes(_tag(answer)))

    def _on_read(self, _: bytes) -> None:
        self._on_answer = self._on_change
        self._crowd.on_held()

    def _on_change(self, answer: bytes) -> None:
        if answer.startswith(b"HTTP/1.1 200"):
            self._crowd.on_changed()
        elif not answer.startswith(b"HTTP/1.1 304"):
            _fail(f"A held poll was answered with {answer[:200]!r}")
        self._transport.write(held_poll_bytes(_tag(answer)))


def _tag(answer: bytes) -> bytes:
    return answer.partition(b"\r\netag: ")[2].partition(b"\r\n")[0]


def _fail(why: str) -> None:
    print(why, file=sys.stderr, flush=True)
    os._exit(1)  # a loop survives exceptions in callbacks, and nobody would notice


def _say(what: dict[str, float]) -> None:
    print(json.dumps(what), flush=True)


async def hold(address: tuple[str, int], sources: list[str]) -> None:
    """Until the process is ended."""
    loop = asyncio.get_running_loop()
    crowd = Crowd(len(sources))
    for start in range(0, len(sources), CONNECTED_AT_ONCE):
        part = sources[start : start + CONNECTED_AT_ONCE]
        await asyncio.gather(
            *(loop.create_connection(lambda: Client(crowd), *address, local_addr=(source, 0)) for source in part)
        )
    gc.freeze()
    gc.disable()  # a pause of the clients must not pass for one of the service
    await asyncio.Event().wait()


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    given = json.loads(sys.stdin.readline())
    uvloop.run(hold(tuple(given["address"]), given["sources"]))


if __name__ == "__main__":
    main()
