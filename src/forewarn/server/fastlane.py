"""The poll, answered in the protocol: uvicorn's httptools protocol with a shortcut and stricter limits.

A GET of the document that is in order in every respect is answered at once with bytes that are
already rendered. Everything else goes on to the ASGI application, which gives the same answers. A
client that polls sends the same bytes each time, so a request whose bytes equal the connection's
last poll is not even parsed: the same bytes, at the same place in the stream, mean the same.

The limits are uvicorn's blind spots: it bounds neither the size of a request's head nor the time
it may take, and a client that never reads would grow the process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forewarn.server.metadata import EVENTS_PATH
from forewarn.server.pages import SERVER
from forewarn.wire import refusals

if TYPE_CHECKING:
    import asyncio

    from forewarn.engine import Engine, Published
    from forewarn.server.callers import Caller, Callers
    from forewarn.server.pages import Pages
    from forewarn.server.stamp import Stamp
    from forewarn.wire.answer import Answer
    from forewarn.wire.versions import ApiVersion

LARGEST_HEAD = 16384
LARGEST_DISCARDED_BODY = 1_048_576
"""Of a body that was refused as too large, this much is read and dropped, so that the refusal arrives."""
LARGEST_REMEMBERED = 2048
REQUEST_SECONDS = 10
"""How long a request may take to arrive."""
IDLE_SECONDS = 75
UNREAD_SECONDS = 30
"""How long a client may leave its answers unread."""

# A request with one of these is for the application to judge.
_SLOW_HEADERS = frozenset(
    (b"x-forwarded-for", b"prefer", b"content-length", b"transfer-encoding", b"upgrade", b"expect", b"connection")
)


class Poll(NamedTuple):
    """All that matters of a GET of the document."""

    version: ApiVersion
    if_none_match: bytes | None


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


class FastLane(HttpToolsProtocol):
    """One connection to the metadata service."""

    def __init__(self, *arguments: Any, lane: Lane, listener: str | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
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
        self._open = False
        self._head_open = False
        self._head_bytes = 0
        self._head_fed = 0
        self._body_bytes = 0
        self._begun = 0
        self._refusal: Answer = refusals.MALFORMED
        # Rounds of the sweeper since something happened.
        self._quiet_rounds = 0
        self._open_rounds = 0
        self._unread_rounds = 0

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
        fresh = not self._open
        self._poll_bytes = b""
        self._begun = 0
        self._answered_here = False
        if self._head_open:
            self._head_fed += len(data)
        super().data_received(data)
        if self._head_open:
            self._check_unfinished_head()
        elif self._answered_here and fresh and self._begun == 1 and not self._open:
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

    def _read_poll(self) -> Poll | None:
        """The request as a poll, if it is one in every respect."""
        version = self._lane.targets.get(self.url.lower())
        if version is None or self.parser.get_method() != b"GET" or self.parser.get_http_version() != "1.1":
            return None
        is_true = not version.header_enforced
        if_none_match = None
        for name, value in self.headers:
            if name == b"metadata":
                if value.strip().lower() != b"true":
                    return None
                is_true = True
            elif name == b"if-none-match":
                if if_none_match is not None or b"," in value or b"*" in value or b"W/" in value:
                    return None
                if_none_match = value.strip()
            elif name in _SLOW_HEADERS and (name != b"connection" or value.lower() != b"keep-alive"):
                return None
        return Poll(version, if_none_match) if is_true else None

    # --- The parser's callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._open = self._head_open = True
        self._answered_here = False
        self._head_bytes = self._head_fed = self._body_bytes = self._open_rounds = 0
        self._begun += 1

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._bound_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        self._bound_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._head_open = False
        poll = self._read_poll()
        if poll is not None and self._answer(poll):
            self._answered_here = True
            return
        self.scope["state"]["caller"] = self._settle_caller()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > LARGEST_DISCARDED_BODY:
            self.transport.abort()
        elif not self._answered_here:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._open = False
        if not self._answered_here:
            super().on_message_complete()

    # --- Limits -----------------------------------------------------------------------------------

    def _bound_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > LARGEST_HEAD:
            self._refusal = refusals.HEAD_TOO_LARGE
            raise ValueError  # ends the parsing; send_400_response says why

    def _check_unfinished_head(self) -> None:
        """A header that never ends is not seen by the callbacks: what was fed since the head began is counted too."""
        if self._head_fed > LARGEST_HEAD and not self.transport.is_closing():
            self._refusal = refusals.HEAD_TOO_LARGE
            self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is refused as this wire says it, and the connection closed.

        While earlier requests of the connection are under way their answers come first: a refusal now
        would be taken for one of them. The connection then closes behind the last answer.
        """
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.keep_alive = False
            return
        refusal = self._refusal
        head = (
            f"content-type: {refusal.content_type}\r\ncontent-length: {len(refusal.body)}\r\nserver: {SERVER}\r\n"
        ).encode()
        stamp = self._lane.stamp.next() + b"connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[refusal.status] + head + stamp + refusal.body)
        self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_rounds = 0
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        self.flow.resume_reading()

    def sweep(self) -> None:
        """Once a second: close what is idle, slow or deaf. Fast answers arm no timer of their own."""
        self._quiet_rounds += 1
        self._open_rounds += self._open
        self._unread_rounds += self.flow.write_paused
        busy = self.cycle is not None and not self.cycle.response_complete
        if (self._open and self._open_rounds > REQUEST_SECONDS) or (
            self.flow.write_paused and self._unread_rounds > UNREAD_SECONDS
        ):
            self.transport.abort()
        elif self._quiet_rounds > IDLE_SECONDS and not busy and not self._open:
            self.transport.close()


def protocol_for(lane: Lane, listener: str | None = None) -> Any:
    """What uvicorn makes a connection's protocol with."""

    def make(*arguments: Any, **options: Any) -> asyncio.Protocol:
        return FastLane(*arguments, lane=lane, listener=listener, **options)

    return make
