"""What a refusal must look like: its status, and the one form that every error has."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply

NO_HEADER = b'{ "error": "Bad request: . Required metadata header not specified" }'
UNKNOWN_VERSION = b'{ "error": "Not found. Invalid version requested" }'
BAD_VERSION_TEXT = (
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds"
)
BAD_VERSION = f'{{"error":"{BAD_VERSION_TEXT}","newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}}'.encode()
THROTTLED = b"Throttle Result: Too Many Requests"


def is_plain(reply: Reply) -> bool:
    """Whether an error is that and nothing else; about the version it may have the newest ones beside it."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return False
    beside = {"newest-versions"} if error_of(reply) == BAD_VERSION_TEXT else set()
    return isinstance(value, dict) and isinstance(value.get("error"), str) and set(value) - beside == {"error"}


def error_of(reply: Reply) -> str | None:
    """The text of an error, where the body has the form of one."""
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        return None
    text = value.get("error") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def refused(reply: Reply, *statuses: int, text: bytes | None = None, why: str = "") -> None:
    """Hold a refusal to its status and form, and to its exact text where the contract has it."""
    said = " or ".join(str(status) for status in statuses)
    because = f" ({why})" if why else ""
    if text is not None:
        right = f"{said}{because} with exactly {text.decode()}"
        reply.must(reply.status in statuses and reply.body == text, right)
        return
    if reply.request.method == "HEAD":
        reply.must(reply.status in statuses and not reply.body, f"{said}{because} and no body")
        return
    right = f'{said}{because} with a body like {{"error": "…"}}'
    reply.must(reply.status in statuses and error_of(reply) is not None, right)
