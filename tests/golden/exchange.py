"""Raw requests to the metadata service and complete responses, at the level of bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import socket

    from forewarn.testing import ServiceProcess
    from forewarn.testing.client import ServiceClient

GUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
DATE = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
_MASKS = (
    (re.compile(rb"\r\ndate: " + DATE + rb"\r\n"), b"\r\ndate: <date>\r\n"),
    (re.compile(rb"\r\nx-ms-request-id: " + GUID + rb"\r\n"), b"\r\nx-ms-request-id: <guid>\r\n"),
    (re.compile(rb'\r\netag: "[1-9][0-9]*\.([0-9]+)\.[0-9a-f]{8}"'), rb'\r\netag: "<enabling>.\1.<scope>"'),
)


@dataclass(frozen=True)
class Reply:
    """One response, byte for byte."""

    head: bytes
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1])

    @property
    def raw(self) -> bytes:
        return self.head + self.body

    @property
    def masked(self) -> bytes:
        """The response with date, request id and ETag masked. Values of a wrong form stay visible."""
        head = self.head
        for pattern, name in _MASKS:
            head = pattern.sub(name, head)
        return head + self.body

    @property
    def unmeasured(self) -> bytes:
        """The masked response without the length. Checks the length first."""
        length = self.header("content-length")
        if self.body or length == "0":
            assert int(length or -1) == len(self.body), self.raw
        return re.sub(rb"\r\ncontent-length: [0-9]+\r\n", b"\r\ncontent-length: <length>\r\n", self.masked, count=1)

    def header(self, name: str) -> str | None:
        """Return the value of a header that may occur once."""
        values = self.headers(name)
        assert len(values) < 2, values
        return values[0] if values else None

    def headers(self, name: str) -> list[str]:
        lines = self.head.decode("latin-1").split("\r\n")[1:]
        pairs = [line.partition(": ") for line in lines]
        return [value for found, _, value in pairs if found.lower() == name]


def request(
    method: str,
    target: str,
    headers: tuple[tuple[str, str], ...] = (),
    body: bytes | None = None,
    protocol: str = "1.1",
) -> bytes:
    """Return the bytes of a request. Adds Content-Length unless the headers frame the body."""
    lines = [f"{method} {target} HTTP/{protocol}", "Host: 169.254.169.254", *(f"{n}: {v}" for n, v in headers)]
    framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers)
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Line:
    """A connection to the service. Reads have the timeout of the socket."""

    def __init__(
        self, service: ServiceClient, source: str = "127.0.0.1", address: tuple[str, int] | None = None
    ) -> None:
        self.socket: socket.socket = service.connect(address, source)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_response(self, *, bodiless: bool = False) -> Reply:
        """Read the next complete response. `bodiless`: it belongs to a HEAD request."""
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, rest = self._read.partition(b"\r\n\r\n")
        reply = Reply(head + b"\r\n\r\n", b"")
        length = 0 if bodiless or reply.status in (100, 304) else int(reply.header("content-length") or 0)
        while len(rest) < length:
            self._more()
            rest = self._read[len(reply.head) :]
        self._read = rest[length:]
        return Reply(reply.head, rest[:length])

    def exchange(self, data: bytes) -> Reply:
        self.send(data)
        return self.read_response(bodiless=data.startswith(b"HEAD "))

    def rest(self) -> bytes:
        """Read until the server closes or resets the connection."""
        try:
            while data := self.socket.recv(65536):
                self._read += data
        except ConnectionError:
            pass
        return self._read

    def _more(self) -> None:
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError(f"closed after {self._read!r}")
        self._read += data


POLL = request("GET", "/metadata/scheduledevents?api-version=2020-07-01", (("Metadata", "true"),))
"""The usual request of clients."""


def stop_cleanly(service: ServiceProcess) -> None:
    """Stop the service. Fail with its output if there was an unexpected error."""
    assert service.stop() == 0
    if "Traceback" in service.output:
        raise AssertionError(service.output)
