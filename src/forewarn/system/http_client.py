"""HTTP client of the command line and the test kit.

Each request uses a new connection, without proxies and redirects, so that tokens are sent to no other server. Errors
are OSError and HTTPException.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Origin(NamedTuple):
    """Address of a service."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""


def origin_of(url: str, certificate: str = "") -> Origin:
    """Return the origin of a URL. With https, trust the system's authorities, or only this certificate (PEM)."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return Origin(parts.hostname or "", parts.port or 80)
    context = ssl.create_default_context(cadata=certificate or None)
    if certificate:
        # It is the service's own certificate, so its name and issuer do not matter.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return Origin(parts.hostname or "", parts.port or 443, context)


@contextmanager
def connect(origin: Origin, *, seconds: float, source: str = "") -> Iterator[HTTPConnection]:
    """Yield a connection, which is opened when it is used. `seconds` and `source` are as for `opened`."""
    away = (source, 0) if source else None
    connection = (
        HTTPConnection(origin.host, origin.port, timeout=seconds, source_address=away)
        if origin.tls is None
        else HTTPSConnection(origin.host, origin.port, timeout=seconds, source_address=away, context=origin.tls)
    )
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def opened(
    origin: Origin,
    method: str,
    target: str,
    headers: Mapping[str, str],
    body: bytes | str | None = None,
    *,
    seconds: float,
    source: str = "",
    check: Callable[[HTTPConnection], None] | None = None,
) -> Iterator[HTTPResponse]:
    """Send a request and yield the response. `seconds` is the timeout of each step; `source` is the local address.

    `check` gets the connection first. It can send requests of its own, and raise an error.
    """
    with connect(origin, seconds=seconds, source=source) as connection:
        if check is not None:
            check(connection)
            connection.auto_open = 0  # the request must use the connection that was checked
        connection.request(method, target, body, headers)
        yield connection.getresponse()
