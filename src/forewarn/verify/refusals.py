"""Expected error responses: status, body format and, where known, the exact text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forewarn.verify.exchange import HttpResponse

MISSING_HEADER = b'{ "error": "Bad request: . Required metadata header not specified" }'
UNKNOWN_VERSION = b'{ "error": "Not found. Invalid version requested" }'
BAD_VERSION_TEXT = (
    "Bad request. api-version is invalid or was not specified in the request. "
    "For more information refer to aka.ms/azureimds"
)
BAD_VERSION = f'{{"error":"{BAD_VERSION_TEXT}","newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}}'.encode()
THROTTLED = b"Throttle Result: Too Many Requests"


def is_error_object(response: HttpResponse) -> bool:
    """Return whether the body has only `error`. The error about the version may also have `newest-versions`."""
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        return False
    optional = {"newest-versions"} if error_text(response) == BAD_VERSION_TEXT else set()
    return isinstance(value, dict) and isinstance(value.get("error"), str) and set(value) - optional == {"error"}


def error_text(response: HttpResponse) -> str | None:
    """Return the text of `error`, or None if the body has another form."""
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        return None
    text = value.get("error") if isinstance(value, dict) else None
    return text if isinstance(text, str) else None


def expect_error(response: HttpResponse, status: int, *, text: bytes | None = None, reason: str = "") -> None:
    """Expect an error with this status. Compare the body byte for byte if `text` is given.

    The check requests/error-format judges the format of other bodies.
    """
    code = f"{status} ({reason})" if reason else str(status)
    if text is not None:
        response.expect(response.status == status and response.body == text, f"{code} with exactly {text.decode()}")
    elif response.request.method == "HEAD":
        response.expect(response.status == status and not response.body, f"{code} and no body")
    else:
        response.expect(response.status == status, f"{code} and an error")
