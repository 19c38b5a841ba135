"""Responses whose requests do not fit in a list: too many, too large or not HTTP."""

from __future__ import annotations

from golden.cases import ASSUMED, OBSERVED
from golden.rows import TEXT, Row

THROTTLED = Row(
    name="more requests than allowed",
    mark=OBSERVED,
    says="More than 5 requests per second from one VM: 429 and plain text.",
    status=429,
    answer=b"Throttle Result: Too Many Requests",
    content_type=TEXT,
)
HEAD_TOO_LARGE = Row(
    name="headers too large",
    mark=ASSUMED,
    says="Request line and headers above 16384 bytes: 431, and the server closes the connection.",
    status=431,
    answer=b'{ "error": "Request header fields too large. At most 16384 bytes are read." }',
    closes=True,
)
MALFORMED = Row(
    name="not HTTP",
    mark=ASSUMED,
    says="Data that is not HTTP, or a body with invalid chunks: 400, and the server closes the connection.",
    status=400,
    answer=b'{ "error": "Bad request. This is not an HTTP request." }',
    closes=True,
)
PROXY_HEADER = Row(
    name="PROXY header of a client",
    mark=ASSUMED,
    says="A PROXY header from an address that is no trusted load balancer: 400, and the server closes the connection.",
    status=400,
    answer=b'{ "error": "Bad request. This address may not send a PROXY header." }',
    closes=True,
)

LIMITS = (THROTTLED, HEAD_TOO_LARGE, MALFORMED, PROXY_HEADER)
