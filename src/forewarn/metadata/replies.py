"""Answers as bytes, and the headers that differ in each: the date, and a request id that no other answer has."""

from __future__ import annotations

import asyncio
import uuid
from email.utils import format_datetime
from functools import lru_cache
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple

from forewarn import __version__
from forewarn.errors import ForewarnError, Unavailable, UnknownVM
from forewarn.metadata import answers
from forewarn.metadata.answers import Answer, error_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.ports import Clock


# The last three digits of the ids, with the line's end: to count is to take the next one.
_ENDINGS = tuple(b"%03x\r\n" % number for number in range(4096))


class CommonHeaders:
    """Two header lines, made ahead: to format a date and a GUID would cost more than the rest of the answer.

    The date is refreshed at the turn of each second, or when a virtual clock has moved; ids begin with
    what is random and end with a count.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._id_start = str(uuid.uuid4())[:24]
        self._blocks = 0
        self._ready: Iterator[bytes] = iter(())

    def next(self) -> bytes:
        """The two header lines."""
        for line in self._ready:
            return line
        return self._refill()

    def refresh(self) -> None:
        """The date may have changed."""
        self._ready = iter(())

    async def keep(self) -> None:
        """Refresh at each second of the real time, for ever."""
        while True:
            into_second = self._clock.now().microsecond / 1_000_000
            await asyncio.sleep(1 - into_second)
            self.refresh()

    def _refill(self) -> bytes:
        self._blocks += 1
        date = format_datetime(self._clock.now(), usegmt=True)
        start = f"date: {date}\r\nx-ms-request-id: {self._id_start}{self._blocks:09x}".encode()
        self._ready = map(start.__add__, _ENDINGS)
        return next(self._ready)


# --- Replies --------------------------------------------------------------------------------------


SERVER = f"IMDS/{__version__}"
CLOSE = b"connection: close\r\n"


class Reply(NamedTuple):
    """The date and the request id go between the head and the rest."""

    status: int
    head: bytes
    """The status line and the headers before the date."""
    rest: bytes
    """The header lines behind the request id, without the empty line."""
    body: bytes


def build(answer: Answer) -> Reply:
    """The bytes of an answer."""
    lines = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    if answer.status != HTTPStatus.NOT_MODIFIED:
        if answer.body or answer.status != HTTPStatus.OK:
            lines.append(f"content-type: {answer.content_type}")
        lines.append(f"content-length: {len(answer.body)}")
    lines += [f"{name}: {value}" for name, value in answer.headers]
    head = "\r\n".join([*lines, f"server: {SERVER}", ""]).encode()
    return Reply(answer.status, head, b"", answer.body)


def document_reply(tag: str, body: bytes) -> Reply:
    """A document with its entity tag."""
    return build(Answer(200, body, headers=(("etag", tag),)))


def unchanged_reply(tag: str) -> Reply:
    """The client has this document."""
    return build(Answer(304, headers=(("etag", tag),)))


@lru_cache(maxsize=64)
def reply(answer: Answer) -> Reply:
    """The same for one of the few answers that are always the same."""
    return build(answer)


def error_reply(error: ForewarnError) -> Reply:
    """An error as the metadata service says it."""
    if isinstance(error, UnknownVM):
        return reply(answers.NOT_A_VM)  # it left the fleet while its request was in progress
    # On this wire an unknown id is a bad request: 404 is for paths and versions.
    return build(error_answer(503 if isinstance(error, Unavailable) else 400, str(error)))
