"""Responses rendered to bytes, and the two headers that differ each time: date and request id."""

from __future__ import annotations

import asyncio
import os
from email.utils import format_datetime
from functools import lru_cache
from http import HTTPStatus
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from forewarn import __version__
from forewarn.errors import ForewarnError, Unavailable, UnknownVM
from forewarn.metadata import fixed_responses
from forewarn.metadata.fixed_responses import Response, error_response

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.ports import Clock


_BATCH = 256
"""Request ids prepared at a time."""
_RANDOM_PARTS = Struct("8s12s")
"""The hex digits of the first and of the last part of a GUID."""


class CommonHeaders:
    """The date and request-id header lines, prepared in advance.

    Formatting a date and a GUID for each response would cost more than the rest of it. The date is refreshed every
    second, and when a virtual clock moves. 80 bits of a request id are random, so the ids of one client say nothing
    about how many requests other clients send. The other bits are random for each refresh.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._template = b""
        """The two lines, without the random parts of the id. Empty: the date may have changed."""
        self._ready: Iterator[bytes] = iter(())

    def next(self) -> bytes:
        """Return the two header lines of the next response."""
        for line in self._ready:
            return line
        return self._refill()

    def refresh(self) -> None:
        """Drop the prepared lines, because the date may have changed."""
        self._template = b""
        self._ready = iter(())

    async def keep(self) -> None:
        """Refresh every second of real time until cancelled."""
        while True:
            into_second = self._clock.now().microsecond / 1_000_000
            await asyncio.sleep(1 - into_second)
            self.refresh()

    def _refill(self) -> bytes:
        if not self._template:
            date = format_datetime(self._clock.now(), usegmt=True)
            self._template = f"date: {date}\r\nx-ms-request-id: %b{str(uuid4())[8:24]}%b\r\n".encode()
        digits = os.urandom(_BATCH * _RANDOM_PARTS.size // 2).hex().encode()
        self._ready = map(self._template.__mod__, _RANDOM_PARTS.iter_unpack(digits))
        return next(self._ready)


# --- Responses ------------------------------------------------------------------------------------


SERVER = f"IMDS/{__version__}"
CLOSE = b"connection: close\r\n"


class RenderedResponse(NamedTuple):
    """A response as bytes. The date and request id go between `head` and `rest`."""

    status: int
    head: bytes
    """Status line and the headers before the date."""
    rest: bytes
    """Header lines after the request id, without the empty line."""
    body: bytes


def render_response(response: Response) -> RenderedResponse:
    """Render a response to bytes."""
    lines = [f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"]
    if response.status != HTTPStatus.NOT_MODIFIED:
        if response.body or response.status != HTTPStatus.OK:
            lines.append(f"content-type: {response.content_type}")
        lines.append(f"content-length: {len(response.body)}")
    lines += [f"{name}: {value}" for name, value in response.headers]
    head = "\r\n".join([*lines, f"server: {SERVER}", ""]).encode()
    return RenderedResponse(response.status, head, b"", response.body)


def document_response(tag: str, body: bytes) -> RenderedResponse:
    """Render a 200 response with a document and its entity tag."""
    return render_response(Response(200, body, headers=(("etag", tag),)))


def not_modified_response(tag: str) -> RenderedResponse:
    """Render a 304 response with the entity tag."""
    return render_response(Response(304, headers=(("etag", tag),)))


@lru_cache(maxsize=64)
def rendered(response: Response) -> RenderedResponse:
    """Render one of the few constant responses, cached."""
    return render_response(response)


def render_error(error: ForewarnError) -> RenderedResponse:
    """Render an error of Forewarn as a response of the metadata service."""
    if isinstance(error, UnknownVM):
        return rendered(fixed_responses.NOT_A_VM)  # the VM left the fleet while its request was in progress
    if isinstance(error, Unavailable):
        return rendered(fixed_responses.UNAVAILABLE)
    # In this protocol an unknown event id is a 400. 404 is for paths and api-versions.
    return render_response(error_response(400, str(error)))
