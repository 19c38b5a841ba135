"""An HTTP request, its response and the connection, at the level of bytes."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Self

from forewarn.clock import real_seconds
from forewarn.verify.check import CheckFailed

METADATA_TRUE = (("Metadata", "true"),)
"""Header that every request needs, except at the first preview version."""
CONNECTION_CLOSE = ("Connection", "close")
MAX_RESPONSE_SIZE = 1_000_000
"""In bytes. A document with two thousand events fits."""
_MAX_SHOWN = 600
_STATUSES_WITHOUT_BODY = (204, 304)
_EXTRA_BODY_SECONDS = 0.2
"""How long to look for a body that must not be there, if the connection stays open."""
_CLOSE_SECONDS = 2.0
_TOO_LARGE = f"a response of more than {MAX_RESPONSE_SIZE} bytes"


@dataclass(frozen=True)
class HttpRequest:
    """A request to send."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = METADATA_TRUE
    body: bytes | None = None
    protocol: str = "1.1"
    host: str | None = "169.254.169.254"

    @property
    def raw(self) -> bytes:
        """Bytes on the wire. Adds Content-Length unless the headers frame the body."""
        lines = [f"{self.method} {self.target} HTTP/{self.protocol}"]
        if self.host is not None:
            lines.append(f"Host: {self.host}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in self.headers)
        if self.body is not None and not framed:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (self.body or b"")

    @property
    def summary(self) -> str:
        """One readable line for reports."""
        lines = [f"{self.method} {self.target}", *(f"{name}: {value}" for name, value in self.headers)]
        if self.body:
            lines.append(self.body.decode("utf-8", "backslashreplace"))
        return truncate(" | ".join(lines))


@dataclass(frozen=True)
class HttpResponse:
    """A response, with the request it belongs to."""

    request: HttpRequest
    protocol: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """Return the value of a header. Repeated headers are joined with commas."""
        values = [value for found, value in self.headers if found.lower() == name.lower()]
        return ", ".join(values) if values else None

    @property
    def closes(self) -> bool:
        """Whether the response announces that the server closes the connection."""
        value = (self.header("connection") or "").lower()
        return "close" in value or (self.protocol == "1.0" and "keep-alive" not in value)

    @property
    def summary(self) -> str:
        """One readable line for reports."""
        content_type = self.header("content-type")
        body = self.body.decode("utf-8", "backslashreplace") or "no body"
        return truncate(f"{self.status}{f' ({content_type})' if content_type else ''}: {body}")

    def expect(self, condition: bool, expected: str, *, actual: str = "") -> None:
        """Fail the check unless the condition holds. `actual` defaults to a summary of this response."""
        if not condition:
            shown = truncate(actual) if actual else self.summary
            raise CheckFailed(expected, request=self.request.summary, actual=shown)


def truncate(text: str) -> str:
    """Shorten a text for a report."""
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}… ({len(text)} characters)"


class HttpConnection:
    """A TCP connection. A read raises TimeoutError after the timeout."""

    def __init__(self, address: tuple[str, int], timeout_seconds: float) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._deadline_seconds = real_seconds() + timeout_seconds
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read_response(self, request: HttpRequest) -> HttpResponse:
        """Read the next complete response, which belongs to this request. Skip 1xx responses."""
        self._deadline_seconds = real_seconds() + self._timeout_seconds
        try:
            head = self._read_head(request)
            while 100 <= head.status < 200:
                head = self._read_head(request)
            return HttpResponse(request, head.protocol, head.status, head.headers, self._read_body(head))
        except TimeoutError as error:
            actual = f"no more data within {self._timeout_seconds:g} s, after {self._buffer[:200]!r}"
            raise CheckFailed("a complete response", request=request.summary, actual=actual) from error
        except (OSError, ValueError) as error:
            actual = str(error) or type(error).__name__
            raise CheckFailed("a complete response", request=request.summary, actual=actual) from error

    def is_closed(self, seconds: float | None = None) -> bool:
        """Return whether the server closes the connection within that time without sending more data."""
        try:
            self.socket.settimeout(self._timeout_seconds if seconds is None else seconds)
            return not self._buffer and self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _read_head(self, request: HttpRequest) -> HttpResponse:
        while b"\r\n\r\n" not in self._buffer:
            self._receive()
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/([0-9.]+) ([0-9]{3})(?: .*)?", first)
        if found is None:
            raise ValueError(f"not an HTTP status line: {first[:200]!r}")
        pairs = [line.partition(":") for line in lines]
        headers = tuple((name, value.strip()) for name, _, value in pairs)
        return HttpResponse(request, found[1], int(found[2]), headers, b"")

    def _read_body(self, head: HttpResponse) -> bytes:
        if head.request.method == "HEAD" or head.status in _STATUSES_WITHOUT_BODY:
            return self._read_extra_body(_CLOSE_SECONDS if head.closes else _EXTRA_BODY_SECONDS)
        if "chunked" in (head.header("transfer-encoding") or "").lower():
            return self._read_chunks()
        length = head.header("content-length")
        if length is not None:
            if not re.fullmatch("[0-9]+", length):
                raise ValueError(f"Content-Length is not a number: {length[:200]!r}")
            return self._read_bytes(int(length))
        try:
            while True:
                self._receive()
        except ConnectionError:
            body, self._buffer = self._buffer, b""
            return body

    def _read_extra_body(self, seconds: float) -> bytes:
        """Return the start of a body that must not be there, or nothing."""
        if self._buffer:
            return self._buffer
        self._deadline_seconds = min(self._deadline_seconds, real_seconds() + seconds)
        try:
            self._receive()
        except (TimeoutError, ConnectionError):
            return b""
        return self._buffer

    def _read_chunks(self) -> bytes:
        body = b""
        while size := self._read_chunk_size():
            if len(body) + size > MAX_RESPONSE_SIZE:
                raise ValueError(_TOO_LARGE)
            body += self._read_bytes(size)
            self._read_line()
        while self._read_line():
            pass
        return body

    def _read_chunk_size(self) -> int:
        text = self._read_line().partition(b";")[0].strip()
        if not re.fullmatch(b"[0-9A-Fa-f]{1,16}", text):
            raise ValueError(f"chunk size is not a number: {text[:200]!r}")
        return int(text, 16)

    def _read_line(self) -> bytes:
        while b"\r\n" not in self._buffer:
            self._receive()
        line, _, self._buffer = self._buffer.partition(b"\r\n")
        return line

    def _read_bytes(self, size: int) -> bytes:
        if size > MAX_RESPONSE_SIZE:
            raise ValueError(_TOO_LARGE)
        while len(self._buffer) < size:
            self._receive()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _receive(self) -> None:
        remaining = self._deadline_seconds - real_seconds()
        if remaining <= 0:  # also for a server that sends a byte now and then
            raise TimeoutError
        if len(self._buffer) > MAX_RESPONSE_SIZE:
            raise ValueError(_TOO_LARGE)
        self.socket.settimeout(remaining)
        data = self.socket.recv(65536)
        if not data:
            after = f" after {self._buffer[:200]!r}" if self._buffer else ""
            raise ConnectionError(f"the server closed the connection{after}")
        self._buffer += data
