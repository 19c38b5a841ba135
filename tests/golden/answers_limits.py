"""Answers to too much: their requests are too many, too large or too strange to stand in a list."""

from __future__ import annotations

from golden.cases import ASSUMED, OBSERVED
from golden.rows import TEXT, Row

THROTTLED = Row(
    name="more requests than allowed",
    mark=OBSERVED,
    says="More than 5 requests in a second from one VM, whatever they are: 429 and plain text.",
    status=429,
    answer=b"Throttle Result: Too Many Requests",
    content_type=TEXT,
)
HEAD_TOO_LARGE = Row(
    name="head too large",
    mark=ASSUMED,
    says="Request line and headers of more than 16384 bytes are refused, and the connection closed.",
    status=431,
    answer=b'{ "error": "Request header fields too large. At most 16384 bytes are read." }',
    closes=True,
)
MALFORMED = Row(
    name="not HTTP",
    mark=ASSUMED,
    says="What cannot be read as HTTP, a body in broken chunks too, is refused, and the connection closed.",
    status=400,
    answer=b'{ "error": "Bad request. This is not an HTTP request." }',
    closes=True,
)

LIMITS = (THROTTLED, HEAD_TOO_LARGE, MALFORMED)
