"""Answers of the metadata service, without the headers that every answer has; and one for each kind of rejection.

Texts with the mark `observed` are the real service's to the space; the others are assumed, since nobody has
published them. (docs/explanation/contract.md, section 3.)
"""

from __future__ import annotations

import json
from typing import NamedTuple

from forewarn.wire.versions import NEWEST_INSTANCE_VERSIONS, NEWEST_THREE

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


class Answer(NamedTuple):
    """Status, body, and what is special about it."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()
    applied: str = ""
    """Which preference was followed, if any."""


def error_answer(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Answer:
    """An error as this wire says it, spaced as the real service spaces its own."""
    return Answer(status, f'{{ "error": {json.dumps(text)} }}'.encode(), headers=headers)


# --- Rejections -----------------------------------------------------------------------------------


def _bad_version(newest: tuple[str, ...]) -> bytes:
    text = (
        "Bad request. api-version is invalid or was not specified in the request. "
        "For more information refer to aka.ms/azureimds"
    )
    return json.dumps({"error": text, "newest-versions": newest}, separators=(",", ":")).encode()


def head_too_large(most_bytes: int) -> Answer:
    """The head of the request has more bytes than are read."""
    return error_answer(431, f"Request header fields too large. At most {most_bytes} bytes are read.")


NOT_A_VM = error_answer(404, "Not found.")
TOO_MANY = Answer(429, b"Throttle Result: Too Many Requests", TEXT)
FORWARDED = error_answer(400, "Bad request. Requests with an X-Forwarded-For header are not served.")
NO_SUCH_PATH = error_answer(404, "Not found. There is no such path.")
NO_SUCH_VERB = error_answer(405, "Method not allowed. Use GET or POST.", headers=(("allow", "GET, POST"),))
ONLY_GET = error_answer(405, "Method not allowed. Use GET.", headers=(("allow", "GET"),))
DUPLICATE_QUERY = error_answer(400, "Bad request. A query parameter is given more than once.")
NO_METADATA_HEADER = Answer(400, b'{ "error": "Bad request: . Required metadata header not specified" }')
BAD_VERSION = Answer(400, _bad_version(NEWEST_THREE))
BAD_INSTANCE_VERSION = Answer(400, _bad_version(NEWEST_INSTANCE_VERSIONS))
UNKNOWN_VERSION = Answer(404, b'{ "error": "Not found. Invalid version requested" }')
BODY_TOO_LARGE = error_answer(413, "Request entity too large. The body may have at most 65536 bytes.")
MALFORMED = error_answer(400, "Bad request. This is not an HTTP request.")

# What the service says when it fails on purpose; 410 and 500 are documented as statuses, their texts are not.
GONE = error_answer(410, "Gone. The service is being updated. Try again in a while.")
FAILED = error_answer(500, "Internal server error. Try again in a while.")
