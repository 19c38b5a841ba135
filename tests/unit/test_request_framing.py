"""Framing of requests: where each ends, however its bytes are split, and what the server receives."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import httptools
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.control.request_framing import IncomingRequest, RequestRejected

MAX_HEADER_BYTES = 1000
HOST = b"Host: a\r\n"
CHUNKED = b"POST /p?q HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
FOLLOWING = b"GET /next HTTP/1.1\r\n\r\n"

COMPLETE = {
    "no body": b"GET /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "length 0": b"POST /a HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "length": b"POST /a HTTP/1.1\r\nContent-Length: 13\r\n\r\nab\r\n\r\nGET / H",
    "HTTP/1.0": b"POST /a HTTP/1.0\r\nContent-Length: 2\r\n\r\nab",
    "close": b"GET /a HTTP/1.1\r\nConnection: close\r\n\r\n",
    "chunks": CHUNKED + b"3\r\nabc\r\n0A\r\n\r\n\r\n\r\n\r\n\r\n\r\n0\r\n\r\n",
    "no chunks": CHUNKED + b"0\r\n\r\n",
    "extensions": CHUNKED + b'3;a;b="0"\r\nabc\r\n0;c\r\n\r\n',
    "trailers": CHUNKED + b"1\r\na\r\n0\r\nAuthorization: b\r\nX: \r\n\r\n",
    "upgrade": b"POST /a HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n" + HOST + b"Content-Length: 2\r\n\r\nab",
    "upgrade, chunks": CHUNKED[:-2] + b"connection: upgrade\r\nUPGRADE: websocket\r\n\r\n1\r\na\r\n0\r\n\r\n",
    "upgrade, no body": b"GET /a HTTP/1.1\r\nUpgrade: a\r\nUpgrade: b\r\nConnection: close, upgrade\r\n\r\n",
}


@dataclass
class Parsed:
    """A request as httptools reads it, which uvicorn has for a parser."""

    url: bytes = b""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    body: bytes = b""
    complete: int = 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def parse(data: bytes) -> Parsed:
    parsed = Parsed()
    httptools.HttpRequestParser(parsed).feed_data(data)
    return parsed


def feed_all(parts: list[bytes]) -> tuple[bytes, bytes]:
    """What the server behind is given of one request, and what follows it."""
    request = IncomingRequest(MAX_HEADER_BYTES)
    given_on = rest = b""
    for part in parts:
        rest += part
        while rest and not request.complete:
            more, read = request.feed(rest)
            given_on, rest = given_on + more, rest[read:]
    assert request.complete
    return given_on, rest


@pytest.mark.parametrize("name", COMPLETE)
def test_the_end_of_a_request_does_not_depend_on_its_fragments(name: str) -> None:
    whole = COMPLETE[name]
    expected = parse(feed_all([whole])[0])
    stream = whole + FOLLOWING
    cuts = [[stream[:place], stream[place:]] for place in range(1, len(stream))]
    for parts in [*cuts, [stream], [bytes([byte]) for byte in stream]]:
        given_on, rest = feed_all(parts)
        assert rest == FOLLOWING
        assert parse(given_on) == expected
        assert expected.complete == 1


@pytest.mark.parametrize("name", [name for name in COMPLETE if "upgrade" not in name and name != "trailers"])
def test_the_server_behind_reads_the_same_request(name: str) -> None:
    assert parse(feed_all([COMPLETE[name]])[0]) == parse(COMPLETE[name])


@pytest.mark.parametrize(("name", "body"), [("upgrade", b"ab"), ("upgrade, chunks", b"a"), ("upgrade, no body", b"")])
def test_upgrade_is_ignored_and_the_body_is_kept(name: str, body: bytes) -> None:
    parsed = parse(feed_all([COMPLETE[name]])[0])
    assert parsed.body == body
    assert b"upgrade" not in dict(parsed.headers)


def test_a_trailer_does_not_become_a_header() -> None:
    parsed = parse(feed_all([COMPLETE["trailers"]])[0])
    assert parsed.headers == [(b"transfer-encoding", b"chunked")]
    assert parsed.body == b"a"


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40)),
    extension=st.sampled_from([b"", b";a", b";a=b;c"]),
    trailers=st.lists(st.sampled_from([b"A: b\r\n", b"0: 0\r\n"])),
    places=st.sets(st.integers(1, 2000)),
)
def test_chunks_of_any_kind_cut_at_any_places(
    chunks: list[bytes], extension: bytes, trailers: list[bytes], places: set[int]
) -> None:
    framed = [b"%x%b\r\n%b\r\n" % (len(chunk), extension, chunk) for chunk in chunks]
    stream = CHUNKED + b"".join([*framed, b"0", extension, b"\r\n", *trailers, b"\r\n"]) + FOLLOWING
    ends = [0, *sorted(place for place in places if place < len(stream)), len(stream)]
    given_on, rest = feed_all([stream[begin:end] for begin, end in pairwise(ends)])
    assert rest == FOLLOWING
    assert parse(given_on).body == b"".join(chunks)


MALFORMED = {
    "rubbish": b"\x16\x03\x01",
    "method": b"get",
    "version": b"GET / HTTP/9.9\r\n",
    "line feeds": b"GET / HTTP/1.1\n\n",
    "HTTP/0.9": b"GET /\r\nGET /other\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nA : b\r\n\r\n",
    "folded header": b"GET / HTTP/1.1\r\nUpgrade: b\r\n c\r\n\r\n",
    "CONNECT": b"CONNECT a:80 HTTP/1.1\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
    "negative length": b"POST / HTTP/1.1\r\nContent-Length: -3\r\n\r\n",
    "length and chunks": b"POST / HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks and length": b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
    "another coding": b"POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
    "chunk size": CHUNKED + b"zz\r\n",
    "no chunk size": CHUNKED + b"\r\n",
    "negative chunk size": CHUNKED + b"-1\r\n",
    "chunk size with prefix": CHUNKED + b"0x1\r\n",
    "chunk size with underscore": CHUNKED + b"1_0\r\n",
    "enormous chunk size": CHUNKED + b"1" + b"0" * 16 + b"\r\n",
    "chunk without end": CHUNKED + b"1\r\nab",
    "chunk size with line feed": CHUNKED + b"1\na",
    "trailer with line feed": CHUNKED + b"0\r\n\n",
}


@pytest.mark.parametrize("name", MALFORMED)
def test_invalid_http_is_rejected_as_early_as_possible(name: str) -> None:
    stream = MALFORMED[name]
    for parts in ([stream], [bytes([byte]) for byte in stream]):
        with pytest.raises(RequestRejected) as rejected:
            feed_all(parts)
        assert rejected.value.status == 400


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"GET /", b"a"),
        (b"GET / HTTP/1.1\r\nA: ", b"a"),
        (b"GET / HTTP/1.1\r\n", b"A: b\r\n"),
        (CHUNKED + b"1;a=", b"a"),
        (CHUNKED + b"1\r\na\r\n0\r\nA: ", b"a"),
        (CHUNKED + b"1\r\na\r\n0\r\n", b"A: b\r\n"),
    ],
)
def test_a_head_or_framing_that_does_not_end_is_rejected(begin: bytes, more: bytes) -> None:
    for parts in ([begin + more * MAX_HEADER_BYTES], [begin, *[more] * MAX_HEADER_BYTES]):
        with pytest.raises(RequestRejected) as rejected:
            feed_all(parts)
        assert rejected.value.status == 431


def test_a_head_may_be_as_large_as_the_limit() -> None:
    for size, fits in ((MAX_HEADER_BYTES, True), (MAX_HEADER_BYTES + 1, False)):
        head = b"GET / HTTP/1.1\r\nA: \r\n\r\n"
        head = head.replace(b"A: ", b"A: " + b"a" * (size - len(head)))
        if fits:
            assert feed_all([head + FOLLOWING]) == (head, FOLLOWING)
        else:
            with pytest.raises(RequestRejected):
                feed_all([head])
