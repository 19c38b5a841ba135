"""Where a request ends in the bytes of a connection (RFC 9112, sections 2 to 7)."""

from __future__ import annotations

import re
from enum import Enum, auto

import httptools

from forewarn.errors import BadRequestBody, ForewarnError, Invalid

MALFORMED = 400
HEAD_TOO_LARGE = 431

_END_OF_HEAD = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9a-f]{1,15})(?:;[^\r]*)?\r\n", re.IGNORECASE)


class Rejected(Exception):
    """The client does not get an answer from the application, but this error."""

    def __init__(self, status: int, error: ForewarnError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


class IncomingRequest:
    """One request, while its bytes arrive.

    The head is kept until it is complete, so that the server behind gets it in one piece. httptools, the parser of
    that server, checks the head here too, and tells how the body is framed. The server gets a chunked body in new
    chunks, without extensions and trailers, so both always agree on where the request ends.
    """

    def __init__(self, largest_head: int) -> None:
        self.head_complete = False
        self.complete = False
        self.body_bytes = 0
        """How much of the body has arrived, without the framing of chunks."""
        self._largest_head = largest_head
        self._head = bytearray()
        self._heads = 0
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._missing = 0
        self._chunks: Chunks | None = None

    def take(self, data: bytes) -> tuple[bytes, int]:
        """Read on, at most to the end of the head or of the body.

        Returns the bytes for the server behind, and how many bytes were read. Raises Rejected for what is not HTTP.
        """
        if self.head_complete:
            return self._take_body(data)
        known = len(self._head)
        self._head += data
        found = self._head.find(_END_OF_HEAD, max(0, known - len(_END_OF_HEAD) + 1))
        end = found + len(_END_OF_HEAD) if found >= 0 else len(self._head)
        if end > self._largest_head:
            raise _too_large("the request target and headers are too large", self._largest_head)
        self._check_head(bytes(self._head[known:end]))
        if found < 0:
            return b"", len(data)
        if self._heads != 1:  # HTTP/0.9 ends a request with its line
            raise _malformed()
        head = bytes(self._head[:end])
        self._head.clear()
        self._parser = None  # it holds this object: without it, both are freed at once
        self.head_complete = True
        self.complete = self._chunks is None and not self._missing
        # RFC 9110, 7.8: a server may ignore Upgrade. Parsers do not: they take the body for another protocol.
        return _UPGRADE.sub(b"", head), end - known

    def _check_head(self, data: bytes) -> None:
        assert self._parser is not None  # noqa: S101 - it stays until the head is complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._parser.get_method() == b"CONNECT":
                raise _malformed() from None
        except httptools.HttpParserError:
            raise _malformed() from None

    def _take_body(self, data: bytes) -> tuple[bytes, int]:
        if self._chunks is not None:
            body, read = self._chunks.take(data)
            self.complete = self._chunks.complete
            part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if self.complete:
                part += _LAST_CHUNK
        else:
            part = body = data[: self._missing]
            read = len(body)
            self._missing -= read
            self.complete = not self._missing
        self.body_bytes += len(body)
        return part, read

    # --- Called by the parser ---------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._missing = int(value)
        elif name == b"transfer-encoding":  # the parser rejects any that does not end in chunks
            self._chunks = Chunks(self._largest_head)

    def on_headers_complete(self) -> None:
        self._heads += 1


class _Next(Enum):
    """What a chunked body goes on with."""

    SIZE = auto()
    DATA = auto()
    END_OF_DATA = auto()
    TRAILER = auto()


class Chunks:
    """A chunked body, while its bytes arrive (RFC 9112, 7.1). Extensions and trailers are dropped."""

    def __init__(self, most_framing: int) -> None:
        self.complete = False
        self._most_framing = most_framing
        self._framing = 0
        """Bytes since the last data: of sizes, extensions and trailers."""
        self._next = _Next.SIZE
        self._missing = 0
        self._line = b""

    def take(self, data: bytes) -> tuple[bytes, int]:
        """Read on, at most to the end of the body. Returns the data of chunks, and how many bytes were read."""
        body: list[bytes] = []
        place = 0
        while place < len(data) and not self.complete:
            if self._next is _Next.DATA:
                part = data[place : place + self._missing]
                body.append(part)
                self._missing -= len(part)
                if not self._missing:
                    self._next = _Next.END_OF_DATA
            else:
                part = data[place : data.find(b"\n", place) + 1 or len(data)]
                self._take_line(part)
            place += len(part)
        return b"".join(body), place

    def _take_line(self, part: bytes) -> None:
        self._line += part
        self._framing += len(part)
        if self._framing > self._most_framing:
            raise _too_large("the chunk headers are too large", self._most_framing)
        if self._next is _Next.END_OF_DATA and not b"\r\n".startswith(self._line):
            raise _broken_chunks()
        if self._line.endswith(b"\n"):
            line, self._line = self._line, b""
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        if self._next is _Next.END_OF_DATA:
            self._framing = 0
            self._next = _Next.SIZE
        elif not line.endswith(b"\r\n"):
            raise _broken_chunks()
        elif self._next is _Next.TRAILER:
            self.complete = line == b"\r\n"
        else:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise _broken_chunks()
            self._missing = int(size[1], 16)
            self._next = _Next.DATA if self._missing else _Next.TRAILER


def _malformed() -> Rejected:
    return Rejected(MALFORMED, Invalid(problem="it is not valid HTTP/1.1 (RFC 9112)."))


def _broken_chunks() -> Rejected:
    return Rejected(MALFORMED, BadRequestBody(pointer="", problem="has invalid chunked encoding (RFC 9112, 7.1)"))


def _too_large(what: str, most: int) -> Rejected:
    return Rejected(HEAD_TOO_LARGE, Invalid(problem=f"{what}. The maximum is {most:,} bytes."))
