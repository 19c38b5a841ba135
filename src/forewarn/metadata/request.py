"""A request to the metadata service, parsed."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote

import httptools

if TYPE_CHECKING:
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.delivery_tracking import VMTracking
    from forewarn.metadata.protocol import MetadataConnection
    from forewarn.wire.versions import ApiVersion

EVENTS_PATH = "/metadata/scheduledevents"
MAX_BODY_BYTES = 65536


class RequestTarget(NamedTuple):
    """The request target: path and query."""

    path: str
    """Without a trailing slash."""
    lower_path: str
    query: dict[str, str]
    """Keys are lower case."""
    has_duplicates: bool
    """Whether a query parameter appears twice."""

    @property
    def is_document(self) -> bool:
        return self.lower_path == EVENTS_PATH


def parse_target(target: bytes) -> RequestTarget:
    """Parse a request target. Raise ValueError or an error of httptools if it is malformed."""
    url = httptools.parse_url(target)
    path = url.path.decode("ascii")
    if "%" in path:
        path = unquote(path)
    path = path.removesuffix("/")
    pairs = parse_qsl((url.query or b"").decode("latin-1"), keep_blank_values=True)
    names = [name.lower() for name, _ in pairs]
    query = dict(zip(names, (value for _, value in pairs), strict=True))
    return RequestTarget(path, path.lower(), query, len(names) != len(query))


class Poll(NamedTuple):
    """Everything besides the caller that determines the response to a GET of the document."""

    version: ApiVersion
    if_none_match: str
    wait_seconds: int | None
    """Maximum wait for a change; None: the client did not ask for a long poll."""

    @property
    def applied(self) -> bytes:
        """The Preference-Applied header line of the response, or nothing."""
        return b"" if self.wait_seconds is None else b"preference-applied: wait=%d\r\n" % self.wait_seconds


class MetadataRequest:
    """One request. The connection fills in `body` and the flags while it reads."""

    __slots__ = (
        "body",
        "body_bytes",
        "body_complete",
        "caller",
        "connection",
        "content_length",
        "expects_continue",
        "has_response",
        "headers",
        "is_broken",
        "is_held",
        "keep_alive",
        "method",
        "needs_body",
        "poll",
        "started_at",
        "target",
        "tracking",
    )

    def __init__(
        self,
        connection: MetadataConnection,
        method: str,
        target: RequestTarget,
        headers: list[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
        content_length: int | None,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        """Names are lower case."""
        self.keep_alive = keep_alive
        self.content_length = content_length
        self.caller: Caller | None = None
        """The calling VM, looked up when processing of the request started, and again after a wait."""
        self.poll: Poll | None = None
        self.started_at = 0.0
        """When processing of the request started, in real seconds. Only the access log needs it."""
        self.tracking: VMTracking | None = None
        """Delivery tracking of the caller, while the request is in progress and tracking is on."""
        self.body = b""
        self.body_bytes = 0
        """Bytes of the body received so far, including discarded ones."""
        self.body_complete = False
        self.is_broken = False
        """Whether the body could not be parsed."""
        self.needs_body = False
        """Whether the route waits for the body."""
        self.expects_continue = False
        self.has_response = False
        self.is_held = False
        """Whether the request was held as a long poll."""

    def values(self, name: bytes) -> list[str]:
        """Return all values of a header, in order."""
        return [value.decode("latin-1") for found, value in self.headers if found == name]

    @property
    def has_metadata_header(self) -> bool:
        values = self.values(b"metadata")
        return bool(values) and all(value.strip().lower() == "true" for value in values)

    @property
    def is_too_large(self) -> bool:
        """Whether the body, or its Content-Length, exceeds the limit."""
        return self.body_bytes > MAX_BODY_BYTES or (self.content_length or 0) > MAX_BODY_BYTES
