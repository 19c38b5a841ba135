"""A request and its answer, byte for byte, and the connection they go over."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Self

from forewarn.clock import real_seconds
from forewarn.verify.check import Departure

TRUE = (("Metadata", "true"),)
"""The header that every request but those of the first preview needs."""
CLOSE = ("Connection", "close")
_SHOWN = 600
LARGEST_ANSWER = 1_000_000
"""In bytes: a document of two thousand events."""
_BODILESS = (204, 304)
_BEHIND_SECONDS = 0.2
"""How long is waited for a body that must not come, over a connection that stays open."""
_CLOSING_SECONDS = 2.0
_TOO_LARGE = f"an answer of more than {LARGEST_ANSWER} bytes"


@dataclass(frozen=True)
class Request:
    """What is sent."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...] = TRUE
    body: bytes | None = None
    protocol: str = "1.1"
    host: str | None = "169.254.169.254"

    @property
    def raw(self) -> bytes:
        """As it stands on the wire; a body gets its length unless the headers say how it ends."""
        lines = [f"{self.method} {self.target} HTTP/{self.protocol}"]
        if self.host is not None:
            lines.append(f"Host: {self.host}")
        lines += [f"{name}: {value}" for name, value in self.headers]
        framed = any(name.lower() in ("content-length", "transfer-encoding") for name, _ in self.headers)
        if self.body is not None and not framed:
            lines.append(f"Content-Length: {len(self.body)}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1") + (self.body or b"")

    @property
    def shown(self) -> str:
        """As a person reads it."""
        lines = [f"{self.method} {self.target}", *(f"{name}: {value}" for name, value in self.headers)]
        if self.body:
            lines.append(self.body.decode("utf-8", "backslashreplace"))
        return cut(" | ".join(lines))


@dataclass(frozen=True)
class Reply:
    """What came back."""

    request: Request
    protocol: str
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str | None:
        """The value of a header; several are one list."""
        values = [value for found, value in self.headers if found.lower() == name.lower()]
        return ", ".join(values) if values else None

    @property
    def closes(self) -> bool:
        """Whether the answer says that the connection ends with it."""
        said = (self.header("connection") or "").lower()
        return "close" in said or (self.protocol == "1.0" and "keep-alive" not in said)

    @property
    def shown(self) -> str:
        """As a person reads it."""
        kind = self.header("content-type")
        body = self.body.decode("utf-8", "backslashreplace") or "no body"
        return cut(f"{self.status}{f' ({kind})' if kind else ''}: {body}")

    def must(self, holds: bool, right: str, *, came: str = "") -> None:
        """Unless it holds, this answer departs from the rule; `right` says what would not."""
        if not holds:
            raise Departure(right, sent=self.request.shown, came=cut(came) if came else self.shown)


def cut(text: str) -> str:
    """Short enough to read."""
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… ({len(text)} characters)"


class Line:
    """A connection. Whoever reads waits at most for its time-out."""

    def __init__(self, address: tuple[str, int], timeout_seconds: float) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_seconds)
        self._timeout_seconds = timeout_seconds
        self._end_seconds = real_seconds() + timeout_seconds
        self._read = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def answer(self, request: Request) -> Reply:
        """The next answer, whole, as the one to this request."""
        self._end_seconds = real_seconds() + self._timeout_seconds
        try:
            reply = self._head(request)
            while 100 <= reply.status < 200:
                reply = self._head(request)
            return Reply(request, reply.protocol, reply.status, reply.headers, self._body(reply))
        except TimeoutError as error:
            came = f"nothing more within {self._timeout_seconds:g} s, after {self._read[:200]!r}"
            raise Departure("a whole answer", sent=request.shown, came=came) from error
        except (OSError, ValueError) as error:
            raise Departure("a whole answer", sent=request.shown, came=str(error) or type(error).__name__) from error

    def ended(self, seconds: float | None = None) -> bool:
        """Whether the server closes the connection within that time, and sends nothing more before."""
        try:
            self.socket.settimeout(self._timeout_seconds if seconds is None else seconds)
            return not self._read and self.socket.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True

    def _head(self, request: Request) -> Reply:
        while b"\r\n\r\n" not in self._read:
            self._more()
        head, _, self._read = self._read.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        found = re.fullmatch(r"HTTP/([0-9.]+) ([0-9]{3})(?: .*)?", first)
        if found is None:
            raise ValueError(f"not an answer in HTTP: {first[:200]!r}")
        pairs = [line.partition(":") for line in lines]
        return Reply(request, found[1], int(found[2]), tuple((name, value.strip()) for name, _, value in pairs), b"")

    def _body(self, reply: Reply) -> bytes:
        if reply.request.method == "HEAD" or reply.status in _BODILESS:
            return self._behind(_CLOSING_SECONDS if reply.closes else _BEHIND_SECONDS)
        if "chunked" in (reply.header("transfer-encoding") or "").lower():
            return self._chunks()
        length = reply.header("content-length")
        if length is not None:
            if not re.fullmatch("[0-9]+", length):
                raise ValueError(f"a Content-Length that is no number: {length[:200]!r}")
            return self._take(int(length))
        try:
            while True:
                self._more()
        except ConnectionError:
            body, self._read = self._read, b""
            return body

    def _behind(self, seconds: float) -> bytes:
        """What comes where nothing belongs: the beginning of it is enough."""
        if self._read:
            return self._read
        self._end_seconds = min(self._end_seconds, real_seconds() + seconds)
        try:
            self._more()
        except (TimeoutError, ConnectionError):
            return b""
        return self._read

    def _chunks(self) -> bytes:
        body = b""
        while size := self._chunk_size():
            if len(body) + size > LARGEST_ANSWER:
                raise ValueError(_TOO_LARGE)
            body += self._take(size)
            self._to_line_end()
        while self._to_line_end():
            pass
        return body

    def _chunk_size(self) -> int:
        said = self._to_line_end().partition(b";")[0].strip()
        if not re.fullmatch(b"[0-9A-Fa-f]{1,16}", said):
            raise ValueError(f"a length of a chunk that is no number: {said[:200]!r}")
        return int(said, 16)

    def _to_line_end(self) -> bytes:
        while b"\r\n" not in self._read:
            self._more()
        line, _, self._read = self._read.partition(b"\r\n")
        return line

    def _take(self, size: int) -> bytes:
        if size > LARGEST_ANSWER:
            raise ValueError(_TOO_LARGE)
        while len(self._read) < size:
            self._more()
        data, self._read = self._read[:size], self._read[size:]
        return data

    def _more(self) -> None:
        left = self._end_seconds - real_seconds()
        if left <= 0:  # one that sends a byte now and then is too slow as well
            raise TimeoutError
        if len(self._read) > LARGEST_ANSWER:
            raise ValueError(_TOO_LARGE)
        self.socket.settimeout(left)
        data = self.socket.recv(65536)
        if not data:
            came = (
                f"the connection was closed after {self._read[:200]!r}" if self._read else "the connection was closed"
            )
            raise ConnectionError(came)
        self._read += data
