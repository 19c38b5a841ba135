"""A request with its exact response, and how that is known.

Texts in angle brackets are placeholders for values that differ between services: `<told>` is the id of an event,
`<tag>` the current ETag of the caller's group. world.py fills them in.
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus

from forewarn import __version__
from golden.exchange import request

DEFAULT = "default"
LENIENT = "lenient"
"""With preview versions, and approvals without the header."""

# Callers. web-0 has a scheduled restart, app_0 has events to approve, quiet has none, fresh has never polled. full has
# every key of the fleet file that /metadata/instance shows.
WEB_0, WEB_1, QUIET, APP_0, APP_1, FRESH = (f"127.0.0.{number}" for number in range(1, 7))
FULL = "127.0.0.8"
OTHER = "127.0.0.7"
STRANGER = "127.0.0.9"

EVENTS = "/metadata/scheduledevents"
NEWEST = f"{EVENTS}?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
UPGRADE = (("Connection", "Upgrade, HTTP2-Settings"), ("Upgrade", "h2c"), ("HTTP2-Settings", "AAEAAEAA"))
JSON = "application/json; charset=utf-8"
TEXT = "text/plain; charset=utf-8"

EMPTY = b'{"DocumentIncarnation":0,"Events":[]}'
TOLD = (
    b'{"DocumentIncarnation":1,"Events":[{"EventId":"<told>","EventStatus":"Scheduled","EventType":"Reboot",'
    b'"ResourceType":"VirtualMachine","Resources":["web-0"],"NotBefore":"<not before>",'
    b'"Description":"Virtual machine is going to be restarted as requested by authorized user.",'
    b'"EventSource":"User","DurationInSeconds":-1}]}'
)

NO_HEADER = b'{ "error": "Bad request: . Required metadata header not specified" }'
BAD_VERSION = (
    b'{"error":"Bad request. api-version is invalid or was not specified in the request. For more information '
    b'refer to aka.ms/azureimds","newest-versions":["2020-07-01","2019-08-01","2019-04-01"]}'
)
BAD_INSTANCE_VERSION = BAD_VERSION.replace(
    b'"2020-07-01","2019-08-01","2019-04-01"', b'"2025-04-07","2024-07-17","2024-03-15"'
)
UNKNOWN_VERSION = b'{ "error": "Not found. Invalid version requested" }'
NOT_A_VM = b'{ "error": "Not found." }'
NO_PATH = b'{ "error": "Not found. There is no such path." }'
FORWARDED = b'{ "error": "Bad request. Requests with an X-Forwarded-For header are not served." }'
TWICE = b'{ "error": "Bad request. A query parameter is given more than once." }'
NO_VERB = b'{ "error": "Method not allowed. Use GET or POST." }'
ONLY_GET = b'{ "error": "Method not allowed. Use GET." }'
TOO_LARGE = b'{ "error": "Request entity too large. The body may have at most 65536 bytes." }'


def unknown_id(event_id: str) -> bytes:
    """Return the body for an approval of an unknown id."""
    text = f"Bad request. No scheduled event with EventId {event_id} is known here; nothing was approved."
    return f'{{ "error": "{text}" }}'.encode()


def bad_body(problem: str) -> bytes:
    """Return the body for a malformed approval."""
    return (
        f'{{ "error": "Bad request. {problem} Expected {{\\"StartRequests\\": [{{\\"EventId\\": \\"<id>\\"}}]}}." }}'
    ).encode()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One request and its complete response."""

    name: str
    mark: str
    says: str
    method: str = "GET"
    target: str = NEWEST
    headers: tuple[tuple[str, str], ...] = TRUE
    body: bytes | None = None
    protocol: str = "1.1"
    source: str = WEB_0
    rules: str = DEFAULT
    status: int = 200
    answer: bytes = b""
    tag: int | None = None
    """The incarnation in the ETag, if there is one."""
    allow: str = ""
    applied: str = ""
    content_type: str = JSON
    closes: bool = False

    @property
    def request_bytes(self) -> bytes:
        return request(self.method, self.target, self.headers, self.body, self.protocol)

    @property
    def expected(self) -> bytes:
        """The response on the wire, with variable parts masked."""
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        if self.answer or self.status not in (200, 304):
            lines.append(f"content-type: {self.content_type}")
        if self.status != 304:
            lines.append("content-length: <length>")
        if self.tag is not None:
            lines.append(f'etag: "<enabling>.{self.tag}.<scope>"')
        if self.allow:
            lines.append(f"allow: {self.allow}")
        lines += [f"server: IMDS/{__version__}", "date: <date>", "x-ms-request-id: <guid>"]
        if self.applied:
            lines.append(f"preference-applied: {self.applied}")
        if self.closes:
            lines.append("connection: close")
        return "\r\n".join([*lines, "", ""]).encode() + (b"" if self.method == "HEAD" else self.answer)
