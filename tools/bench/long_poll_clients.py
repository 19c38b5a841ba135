"""Clients with long polls, in a process of their own. Each client has its own connection and source address.

Reads {"address", "sources"} as JSON from standard input. Prints a line when the service has received all long polls.
After each change, when all clients have the changed document, it prints the times of the first and the last response.
All processes share this monotonic clock. Each client sends its next long poll at once, as a real client does.
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
from tools.bench.connection import DOCUMENT, poll_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

CONNECTIONS_AT_ONCE = 100
VERSIONS = b"GET /metadata/versions HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\n\r\n"


def long_poll_bytes(tag: bytes) -> bytes:
    """Return the bytes of a long poll of one minute."""
    head = f"GET {DOCUMENT} HTTP/1.1\r\nHost: 169.254.169.254\r\nMetadata: true\r\nPrefer: wait=60\r\nIf-None-Match: "
    return head.encode() + tag + b"\r\n\r\n"


class Progress:
    """Counts the clients that wait, and the clients that have received a change."""

    def __init__(self, clients: int) -> None:
        self._clients = clients
        self._waiting = 0
        self._changed = 0
        self._first = 0.0

    def on_waiting(self) -> None:
        self._waiting += 1
        if self._waiting == self._clients:
            _print({"waiting": self._clients})

    def on_changed(self) -> None:
        now = time.perf_counter()
        if not self._changed:
            self._first = now
        self._changed += 1
        if self._changed == self._clients:
            self._changed = 0
            _print({"first": self._first, "last": now})


class Client(asyncio.Protocol):
    """One connection.

    It sends a request for the versions together with its first long poll. The response to the versions shows that the
    service has read the long poll too.
    """

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._received = b""
        self._on_response: Callable[[bytes], None] = self._on_document

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        transport.write(poll_bytes())

    def connection_lost(self, _: Exception | None) -> None:
        _fail("The service closed a connection.")

    def data_received(self, data: bytes) -> None:
        data = self._received + data if self._received else data
        end = data.find(b"\r\n\r\n")
        if end >= 0:
            place = data.find(b"content-length: ", 0, end)
            length = int(data[place + 16 : data.index(b"\r\n", place)]) if place >= 0 else 0
            if len(data) >= end + 4 + length:
                self._received = b""
                self._on_response(data)
                return
        self._received = data

    def _on_document(self, response: bytes) -> None:
        self._on_response = self._on_versions
        self._transport.write(VERSIONS + long_poll_bytes(_tag(response)))

    def _on_versions(self, _: bytes) -> None:
        self._on_response = self._on_long_poll
        self._progress.on_waiting()

    def _on_long_poll(self, response: bytes) -> None:
        if response.startswith(b"HTTP/1.1 200"):
            self._progress.on_changed()
        elif not response.startswith(b"HTTP/1.1 304"):
            _fail(f"A long poll failed: {response[:200]!r}")
        self._transport.write(long_poll_bytes(_tag(response)))


def _tag(response: bytes) -> bytes:
    return response.partition(b"\r\netag: ")[2].partition(b"\r\n")[0]


def _fail(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
    os._exit(1)  # the loop would only log an exception of a callback, and go on


def _print(message: dict[str, float]) -> None:
    print(json.dumps(message), flush=True)


async def run(address: tuple[str, int], sources: list[str]) -> None:
    """Connect all clients, and run until the process is killed."""
    loop = asyncio.get_running_loop()
    progress = Progress(len(sources))
    for start in range(0, len(sources), CONNECTIONS_AT_ONCE):
        part = sources[start : start + CONNECTIONS_AT_ONCE]
        await asyncio.gather(
            *(loop.create_connection(lambda: Client(progress), *address, local_addr=(source, 0)) for source in part)
        )
    gc.freeze()
    gc.disable()  # a pause of this process would look like a pause of the service
    await asyncio.Event().wait()


def main() -> None:
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    arguments = json.loads(sys.stdin.readline())
    uvloop.run(run(tuple(arguments["address"]), arguments["sources"]))


if __name__ == "__main__":
    main()
