"""An answer as bytes, but for the headers that differ in every answer."""

from __future__ import annotations

from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from forewarn import __version__
from forewarn.errors import ForewarnError, Unavailable, UnknownVM
from forewarn.wire import refusals
from forewarn.wire.answer import Answer, error_answer

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
        return reply(refusals.NOT_A_VM)  # it left the fleet while its request was in progress
    # On this wire an unknown id is a bad request: 404 is for paths and versions.
    return build(error_answer(503 if isinstance(error, Unavailable) else 400, str(error)))
