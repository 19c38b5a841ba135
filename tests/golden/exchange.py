"""Raw bytes to the metadata service and whole answers back, as they stand on the wire."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    import socket

    from forewarn.testing import ServiceProcess

GUID = rb"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
DATE = rb"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT"
_MASKS = (
    (re.compile(rb"\r\ndate: " + DATE + rb"\r\n"), b"\r\ndate: <date>\r\n"),
    (re.compile(rb"\r\nx-ms-request-id: " + GUID + rb"\r\n"), b"\r\nx-ms-request-id: <guid>\r\n"),
    (re.compile(rb'\r\netag: "[0-9a-f]{8}\.'), b'\r\netag: "<enabling>.'),
)


@dataclass(frozen=True)
class Reply:
    """One answer, byte for byte."""

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
        """Without what differs in every answer: only a date, an id and a tag of the right form are masked."""
        head = self.head
        for pattern, name in _MASKS:
            head = pattern.sub(name, head)
        return head + self.body

    @property
    def unmeasured(self) -> bytes:
        """Masked, and without the length, which has been checked."""
        length = self.header("content-length")
        if self.body or length == "0":
            assert int(length or -1) == len(self.body), self.raw
        return re.sub(rb"\r\ncontent-length: [0-9]+\r\n", b"\r\ncontent-length: <length>\r\n", self.masked, count=1)

    def header(self, name: str) -> str | None:
        """The value of a header that may stand there once."""
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
    """The bytes of a request; a body gets its length unless the headers say how it ends."""
    lines = [f"{method} {target} HTTP/{protocol}", "Host: 169.254.169.254", *(f"{n}: {v}" for n, v in headers)]
    framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in headers)
    if body is not None and not framed:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + (body or b"")


class Line:
    """A connection to the service. What is read waits for the server at most the socket's time-out."""

    def __init__(
        self, service: ServiceProcess, source: str = "127.0.0.1", address: tuple[str, int] | None = None
    ) -> None:
        self.socket: socket.socket = service.connect(address, source)
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, *, bodiless: bool = False) -> Reply:
        """The next answer, whole; `bodiless` when it is to a HEAD."""
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

    def ask(self, data: bytes) -> Reply:
        self.send(data)
        return self.answer(bodiless=data.startswith(b"HEAD "))

    def rest(self) -> bytes:
        """Everything until the server closes, by either way of closing."""
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
"""The request that clients send all day."""


def stop_cleanly(service: ServiceProcess) -> None:
    """Stop the service, and fail with its words if it stumbled over anything."""
    assert service.stop() == 0
    if "Traceback" in service.greeting:
        raise AssertionError(service.greeting)
