"""One request to the metadata service, as its connection has read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, unquote

import httptools

if TYPE_CHECKING:
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.delivery_tracking import VMTracking
    from forewarn.metadata.protocol import Connection
    from forewarn.wire.versions import ApiVersion

EVENTS_PATH = "/metadata/scheduledevents"
LARGEST_BODY = 65536


class Target(NamedTuple):
    """What a request asks for: path and query."""

    path: str
    lower_path: str
    query: dict[str, str]
    """By name in lower case."""
    has_duplicates: bool
    """A query parameter is there twice."""

    @property
    def is_document(self) -> bool:
        return self.lower_path == EVENTS_PATH


def parse_target(target: bytes) -> Target:
    """Raises ValueError, or httptools' error, for what is no target."""
    url = httptools.parse_url(target)
    path = url.path.decode("ascii")
    if "%" in path:
        path = unquote(path)
    pairs = parse_qsl((url.query or b"").decode("latin-1"), keep_blank_values=True)
    names = [name.lower() for name, _ in pairs]
    query = dict(zip(names, (value for _, value in pairs), strict=True))
    return Target(path, path.lower(), query, len(names) != len(query))


class Poll(NamedTuple):
    """All that decides the answer to a GET of the document, besides who asks."""

    version: ApiVersion
    if_none_match: str
    wait_seconds: int | None
    """How long it may be held while the document stays the same; None: nothing was said."""

    @property
    def applied(self) -> bytes:
        """The header line that says how long it may be held."""
        return b"" if self.wait_seconds is None else b"preference-applied: wait=%d\r\n" % self.wait_seconds


class Request:
    """One request. The connection sets `body` and the flags while it reads on."""

    __slots__ = (
        "body",
        "body_bytes",
        "body_complete",
        "caller",
        "connection",
        "content_length",
        "expects_continue",
        "headers",
        "is_answered",
        "is_broken",
        "is_held",
        "keep_alive",
        "method",
        "needs_body",
        "poll",
        "target",
        "tracking",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        target: Target,
        headers: list[tuple[bytes, bytes]],
        *,
        keep_alive: bool,
        content_length: int | None,
    ) -> None:
        self.connection = connection
        self.method = method
        self.target = target
        self.headers = headers
        """Names in lower case."""
        self.keep_alive = keep_alive
        self.content_length = content_length
        self.caller: Caller | None = None
        """Who asked, as the fleet was when the answer was begun."""
        self.poll: Poll | None = None
        self.tracking: VMTracking | None = None
        """What is known of the caller, while the request is in progress and somebody watches."""
        self.body = b""
        self.body_bytes = 0
        """How much of the body has come, also what was dropped."""
        self.body_complete = False
        self.is_broken = False
        """The body could not be parsed."""
        self.needs_body = False
        """The answer waits for the body."""
        self.expects_continue = False
        self.is_answered = False
        self.is_held = False
        """It was held as a long poll."""

    def values(self, name: bytes) -> list[str]:
        """The values of a header, in their order."""
        return [value.decode("latin-1") for found, value in self.headers if found == name]

    @property
    def has_metadata_header(self) -> bool:
        values = self.values(b"metadata")
        return bool(values) and all(value.strip().lower() == "true" for value in values)

    @property
    def is_too_large(self) -> bool:
        """The body has more bytes than it may have, or says that it will."""
        return self.body_bytes > LARGEST_BODY or (self.content_length or 0) > LARGEST_BODY
