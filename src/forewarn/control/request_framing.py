"""Find the end of each request in the bytes of a connection (RFC 9112, sections 2 to 7)."""

from __future__ import annotations

import re
from enum import Enum, auto

import httptools

from forewarn.errors import BadRequestBody, ForewarnError, Invalid, UnknownHostName

MALFORMED = 400
TOO_SLOW = 408
MISDIRECTED = 421
HEADER_TOO_LARGE = 431

_END_OF_HEADER = b"\r\n\r\n"
_LAST_CHUNK = b"0\r\n\r\n"
_ABSOLUTE = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9a-f]{1,15})(?:;[^\r]*)?\r\n", re.IGNORECASE)


class RequestRejected(Exception):
    """The request is rejected with this error. The application does not get it."""

    def __init__(self, status: int, error: ForewarnError) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error


class IncomingRequest:
    """A request that is being received.

    The header is buffered until it is complete, so that uvicorn gets it in one piece. It is checked with httptools, the
    parser that uvicorn uses, which also reports how the body is framed. uvicorn gets a chunked body in new chunks,
    without extensions and trailers. So both always agree on where the request ends.
    """

    def __init__(self, max_header_bytes: int) -> None:
        self.header_complete = False
        self.complete = False
        self.body_bytes = 0
        """Received bytes of the body, without chunk framing."""
        self.max_body_bytes = -1
        """The body is held when it has more. -1: the application has not begun to read it."""
        self._max_header_bytes = max_header_bytes
        self._header = bytearray()
        self._header_count = 0
        self._target = b""
        self._host = b""
        self._parser: httptools.HttpRequestParser | None = httptools.HttpRequestParser(self)
        self._remaining = 0
        self._chunked_body: ChunkedBody | None = None

    @property
    def is_held(self) -> bool:
        """Whether the rest of the body must wait until the application reads it, or has responded."""
        return self.header_complete and not self.complete and self.body_bytes > self.max_body_bytes

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Process bytes, at most to the end of the header or of the body.

        Return the bytes for uvicorn, and the number of consumed bytes. Raise RequestRejected if they are not HTTP.
        """
        if self.header_complete:
            return self._feed_body(data)
        known = len(self._header)
        self._header += data
        found = self._header.find(_END_OF_HEADER, max(0, known - len(_END_OF_HEADER) + 1))
        end = found + len(_END_OF_HEADER) if found >= 0 else len(self._header)
        if end > self._max_header_bytes:
            raise _too_large("the request target and headers are too large", self._max_header_bytes)
        self._check_header(bytes(self._header[known:end]))
        if found < 0:
            return b"", len(data)
        if self._header_count != 1:  # in HTTP/0.9, the first line is the whole request
            raise _malformed()
        # RFC 9112, 3.2.2: the host of an absolute target counts. A client sends the same one in the Host header.
        absolute = _ABSOLUTE.match(self._target)
        if absolute is not None and absolute[1].lower() != self._host.lower():
            raise RequestRejected(MISDIRECTED, UnknownHostName(host=absolute[1].decode("latin-1")))
        header = bytes(self._header[:end])
        self._header.clear()
        self._parser = None  # breaks the reference cycle, so that both are freed at once
        self.header_complete = True
        self.complete = self._chunked_body is None and not self._remaining
        # RFC 9110, 7.8: a server may ignore Upgrade. Parsers do not: they treat the body as another protocol.
        return _UPGRADE.sub(b"", header), end - known

    def _check_header(self, data: bytes) -> None:
        assert self._parser is not None  # noqa: S101 - set until the header is complete
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            if self._parser.get_method() == b"CONNECT":
                raise _malformed() from None
        except httptools.HttpParserError:
            raise _malformed() from None

    def _feed_body(self, data: bytes) -> tuple[bytes, int]:
        if self._chunked_body is not None:
            body, consumed = self._chunked_body.feed(data)
            self.complete = self._chunked_body.complete
            part = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if self.complete:
                part += _LAST_CHUNK
        else:
            part = body = data[: self._remaining]
            consumed = len(body)
            self._remaining -= consumed
            self.complete = not self._remaining
        self.body_bytes += len(body)
        return part, consumed

    # --- Called by the parser ---------------------------------------------------------------------

    def on_url(self, url: bytes) -> None:
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"host":
            self._host = value
        elif name == b"content-length":
            self._remaining = int(value)
        elif name == b"transfer-encoding":  # the parser rejects all other encodings
            self._chunked_body = ChunkedBody(self._max_header_bytes)

    def on_headers_complete(self) -> None:
        self._header_count += 1


class _ChunkPart(Enum):
    """The next part of a chunked body."""

    SIZE = auto()
    DATA = auto()
    END_OF_DATA = auto()
    TRAILER = auto()


class ChunkedBody:
    """A chunked body that is being received (RFC 9112, 7.1). Extensions and trailers are discarded."""

    def __init__(self, max_framing_bytes: int) -> None:
        self.complete = False
        self._max_framing_bytes = max_framing_bytes
        self._framing_bytes = 0
        """Bytes of sizes, extensions and trailers since the last data."""
        self._next = _ChunkPart.SIZE
        self._remaining = 0
        self._line = b""

    def feed(self, data: bytes) -> tuple[bytes, int]:
        """Process bytes, at most to the end of the body. Return the data and the number of consumed bytes."""
        body: list[bytes] = []
        position = 0
        while position < len(data) and not self.complete:
            if self._next is _ChunkPart.DATA:
                part = data[position : position + self._remaining]
                body.append(part)
                self._remaining -= len(part)
                if not self._remaining:
                    self._next = _ChunkPart.END_OF_DATA
            else:
                part = data[position : data.find(b"\n", position) + 1 or len(data)]
                self._feed_line(part)
            position += len(part)
        return b"".join(body), position

    def _feed_line(self, part: bytes) -> None:
        self._line += part
        self._framing_bytes += len(part)
        if self._framing_bytes > self._max_framing_bytes:
            raise _too_large("the chunk headers are too large", self._max_framing_bytes)
        if self._next is _ChunkPart.END_OF_DATA and not b"\r\n".startswith(self._line):
            raise _invalid_chunks()
        if self._line.endswith(b"\n"):
            line, self._line = self._line, b""
            self._on_line(line)

    def _on_line(self, line: bytes) -> None:
        if self._next is _ChunkPart.END_OF_DATA:
            self._framing_bytes = 0
            self._next = _ChunkPart.SIZE
        elif not line.endswith(b"\r\n"):
            raise _invalid_chunks()
        elif self._next is _ChunkPart.TRAILER:
            self.complete = line == b"\r\n"
        else:
            size = _CHUNK_SIZE.fullmatch(line)
            if size is None:
                raise _invalid_chunks()
            self._remaining = int(size[1], 16)
            self._next = _ChunkPart.DATA if self._remaining else _ChunkPart.TRAILER


def _malformed() -> RequestRejected:
    return RequestRejected(MALFORMED, Invalid(problem="the request is not valid HTTP/1.1 (RFC 9112)."))


def _invalid_chunks() -> RequestRejected:
    return RequestRejected(
        MALFORMED, BadRequestBody(pointer="", problem="has invalid chunked encoding (RFC 9112, 7.1)")
    )


def _too_large(what: str, maximum: int) -> RequestRejected:
    return RequestRejected(HEADER_TOO_LARGE, Invalid(problem=f"{what}. The maximum is {maximum:,} bytes."))
