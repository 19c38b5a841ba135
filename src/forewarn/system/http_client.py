"""HTTP requests of the command line and the test kit to a Forewarn service.

Each request has a connection of its own. There is no proxy in between, and no redirect is followed: a token goes to no
other place. Errors are those of the standard library: OSError and HTTPException.
"""

from __future__ import annotations

import ssl
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


class Origin(NamedTuple):
    """Where a service is."""

    host: str
    port: int
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""


def origin_of(url: str, certificate: str = "") -> Origin:
    """The origin in a URL. With https the system's authorities are trusted; or one certificate, and nothing else."""
    parts = urlsplit(url)
    if parts.scheme != "https":
        return Origin(parts.hostname or "", parts.port or 80)
    context = ssl.create_default_context(cafile=certificate or None)
    if certificate:
        # It is the very file that the service was given, whatever name and issuer stand in it.
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return Origin(parts.hostname or "", parts.port or 443, context)


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
) -> Iterator[HTTPResponse]:
    """An answer, to be read within the block. `seconds` limits each step; `source` is the address to call from."""
    away = (source, 0) if source else None
    connection = (
        HTTPConnection(origin.host, origin.port, timeout=seconds, source_address=away)
        if origin.tls is None
        else HTTPSConnection(origin.host, origin.port, timeout=seconds, source_address=away, context=origin.tls)
    )
    try:
        connection.request(method, target, body, headers)
        yield connection.getresponse()
    finally:
        connection.close()
