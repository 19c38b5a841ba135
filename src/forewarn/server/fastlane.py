"""The poll, answered in the protocol: the protocol of intake.py and approvals.py with a shortcut.

A GET of the document that is in order in every respect is answered at once with bytes that are
already rendered. Everything else goes on to the ASGI application, which gives the same answers. A
client that polls sends the same bytes each time, so a request whose bytes equal the connection's
last poll is not even parsed: the same bytes, at the same place in the stream, mean the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.server.approvals import Approvals
from forewarn.server.metadata import EVENTS_PATH, LARGEST_BODY

if TYPE_CHECKING:
    import asyncio

    from forewarn.engine import Engine, Published
    from forewarn.server.callers import Caller, Callers
    from forewarn.server.pages import Pages
    from forewarn.server.stamp import Stamp
    from forewarn.wire.versions import ApiVersion

LARGEST_REMEMBERED = 2048

# A request with one of these is for the application to judge.
_SLOW_HEADERS = frozenset((b"x-forwarded-for", b"prefer", b"transfer-encoding", b"upgrade", b"expect", b"connection"))


class Poll(NamedTuple):
    """All that matters of the head of a GET of the document, or of a POST to it."""

    version: ApiVersion
    if_none_match: bytes | None
    length: int = 0
    """How long the body is."""


class Lane:
    """What all connections of the metadata service share."""

    def __init__(
        self,
        engine: Engine,
        callers: Callers,
        pages: Pages,
        stamp: Stamp,
        versions: dict[str, ApiVersion],
        *,
        limited: bool = True,
        fast: bool = True,
    ) -> None:
        self.engine = engine
        self.callers = callers
        self.pages = pages
        self.stamp = stamp
        self.asked = engine.asked
        self.limited = limited
        self.epoch = 0
        """Goes up with every change of any document or of the fleet: an answer holds within one."""
        # The whole request target says at once that path, query and version are in order.
        self.targets = (
            {f"{EVENTS_PATH}?api-version={name}".encode(): version for name, version in versions.items()}
            if fast
            else {}
        )
        engine.subscribe(self._on_published)

    def _on_published(self, _: Published) -> None:
        self.epoch += 1


class FastLane(Approvals):
    """One connection to the metadata service."""

    def __init__(self, *arguments: Any, lane: Lane, listener: str | None = None, **options: Any) -> None:
        super().__init__(lane.engine, lane.stamp, *arguments, **options)
        self._lane = lane
        self._listener = listener
        self._caller: Caller | None = None
        self._generation = -1
        # The last poll, while nothing else is under way on this connection: its bytes, what they
        # meant, and the answer in two parts around the stamp, good for one epoch.
        self._poll_bytes = b""
        self._poll: Poll | None = None
        self._epoch = -1
        self._group = ""
        self._head = b""
        self._tail = b""
        # The request being read.
        self._answered_here = False
        self._begun = 0

    # --- The shortcut -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        # The first branch is what a poll costs; each line of it was measured (docs/performance.md).
        # Within it there is a caller: _prepare found one.
        self._quiet_rounds = 0
        if data == self._poll_bytes:
            lane = self._lane
            if (self._epoch == lane.epoch or self._prepare(self._poll)) and (
                not lane.limited or self._caller.allowed()  # type: ignore[union-attr]
            ):
                lane.asked.add(self._group)
                self.transport.write(self._head + lane.stamp.next() + self._tail)
                return
        fresh = not self._open and not self._held
        self._poll_bytes = b""
        self._begun = 0
        self._answered_here = False
        super().data_received(data)
        if self._answered_here and fresh and self._begun == 1 and not self._open and not self._held:
            self._poll_bytes = data if len(data) <= LARGEST_REMEMBERED else b""

    def _answer(self, poll: Poll) -> bool:
        """Answer the poll if that can be done here and now."""
        if (self.cycle is not None and not self.cycle.response_complete) or self.pipeline:
            return False
        if not self._prepare(poll) or (self._lane.limited and not self._caller.allowed()):  # type: ignore[union-attr]
            return False
        self._poll = poll
        self._lane.asked.add(self._group)
        self.transport.write(self._head + self._lane.stamp.next() + self._tail)
        return True

    def _prepare(self, poll: Poll | None) -> bool:
        """Lay the answer to the poll ready; False when it is for the application to give."""
        caller = self._settle_caller()
        page = self._lane.pages.page(caller.group, poll.version) if caller is not None and poll is not None else None
        if caller is None or poll is None or page is None:
            return False
        if poll.if_none_match in page.same_tags:
            self._head, self._tail = page.unchanged_head, b"\r\n"
        else:
            self._head, self._tail = page.found_head, b"\r\n" + page.body
        self._group = caller.group
        self._epoch = self._lane.epoch
        return True

    def _settle_caller(self) -> Caller | None:
        """Who is calling: settled once per connection, and again when the fleet has changed."""
        if self._generation != self._lane.callers.generation:
            self._generation = self._lane.callers.generation
            peer = self.client[0] if self.client else None
            called = self.server[0] if self.server else None
            self._caller = self._lane.callers.find(peer, called, self._listener)
        return self._caller

    def _read_request(self) -> Poll | None:
        """The request as a poll or an approval, if it is one in every respect that its head can show."""
        version = self._lane.targets.get(self.url.lower())
        if version is None or self.parser.get_http_version() != "1.1":
            return None
        is_true = not version.header_enforced
        if_none_match = None
        length = 0
        for name, value in self.headers:
            if name == b"metadata":
                if value.strip().lower() != b"true":
                    return None
                is_true = True
            elif name == b"if-none-match":
                if if_none_match is not None or b"," in value or b"*" in value or b"W/" in value:
                    return None
                if_none_match = value.strip(b" \t")
            elif name == b"content-length":
                length = int(value)
            elif name in _SLOW_HEADERS and (name != b"connection" or value.lower() != b"keep-alive"):
                return None
        return Poll(version, if_none_match, length) if is_true else None

    # --- The parser's callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._answered_here = False
        self._begun += 1

    def _on_request(self) -> None:
        poll = self._read_request()
        method = self.parser.get_method()
        if poll is not None and method == b"GET" and not poll.length and self._answer(poll):
            self._answered_here = True
            return
        caller = self.scope["state"]["caller"] = self._settle_caller()
        if poll is not None and method == b"POST" and caller is not None and poll.length <= LARGEST_BODY:
            self.take_approval(caller)
        super()._on_request()

    def on_body(self, body: bytes) -> None:
        if not self._answered_here:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._answered_here:
            self._open = False
        else:
            super().on_message_complete()


def protocol_for(lane: Lane, listener: str | None = None) -> Any:
    """What uvicorn makes a connection's protocol with."""

    def make(*arguments: Any, **options: Any) -> asyncio.Protocol:
        return FastLane(*arguments, lane=lane, listener=listener, **options)

    return make
