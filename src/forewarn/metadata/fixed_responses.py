"""Fixed responses of the metadata service, without the headers that all responses share.

Texts marked `observed` match the real service byte for byte. The others are assumed: Microsoft has not published
them (docs/explanation/contract.md, section 3).
"""

from __future__ import annotations

import json
from typing import NamedTuple

from forewarn.wire.versions import NEWEST_INSTANCE_VERSIONS, NEWEST_THREE

JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"


class Response(NamedTuple):
    """A response before it is rendered to bytes."""

    status: int
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


def error_response(status: int, text: str, headers: tuple[tuple[str, str], ...] = ()) -> Response:
    """Return an error body with the spacing of the real service."""
    return Response(status, f'{{ "error": {json.dumps(text)} }}'.encode(), headers=headers)


# --- Rejections -----------------------------------------------------------------------------------


def _bad_version(newest: tuple[str, ...]) -> bytes:
    text = (
        "Bad request. api-version is invalid or was not specified in the request. "
        "For more information refer to aka.ms/azureimds"
    )
    return json.dumps({"error": text, "newest-versions": newest}, separators=(",", ":")).encode()


def header_too_large(max_bytes: int) -> Response:
    """Reject a request whose head is larger than the limit."""
    return error_response(431, f"Request header fields too large. At most {max_bytes} bytes are read.")


NOT_A_VM = error_response(404, "Not found.")
TOO_MANY = Response(429, b"Throttle Result: Too Many Requests", TEXT)
FORWARDED = error_response(400, "Bad request. Requests with an X-Forwarded-For header are not served.")
UNKNOWN_PATH = error_response(404, "Not found. There is no such path.")
METHOD_NOT_ALLOWED = error_response(405, "Method not allowed. Use GET or POST.", headers=(("allow", "GET, POST"),))
GET_ONLY = error_response(405, "Method not allowed. Use GET.", headers=(("allow", "GET"),))
DUPLICATE_QUERY = error_response(400, "Bad request. A query parameter is given more than once.")
NO_METADATA_HEADER = Response(400, b'{ "error": "Bad request: . Required metadata header not specified" }')
BAD_VERSION = Response(400, _bad_version(NEWEST_THREE))
BAD_INSTANCE_VERSION = Response(400, _bad_version(NEWEST_INSTANCE_VERSIONS))
UNKNOWN_VERSION = Response(404, b'{ "error": "Not found. Invalid version requested" }')
BODY_TOO_LARGE = error_response(413, "Request entity too large. The body may have at most 65536 bytes.")
MALFORMED = error_response(400, "Bad request. This is not an HTTP request.")
PROXY_HEADER = error_response(400, "Bad request. This address may not send a PROXY header.")
UNAVAILABLE = error_response(503, "Service unavailable. Try again in a while.", headers=(("retry-after", "2"),))
"""VMs can repeat everything. The reason is only in the log: it can have addresses and paths."""

# For injected faults. The statuses 410 and 500 are documented, their texts are not.
GONE = error_response(410, "Gone. The service is being updated. Try again in a while.")
FAILED = error_response(500, "Internal server error. Try again in a while.")
