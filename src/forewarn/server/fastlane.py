"""The poll, answered in the protocol: that of intake.py, approvals.py and holds.py, with a shortcut.

A GET of the document that is in order in every respect is answered at once with bytes that are
already rendered. Everything else goes on to the ASGI application, which gives the same answers. A
client that polls sends the same bytes each time, so a request whose bytes equal the connection's
last poll is not even parsed: the same bytes, at the same place in the stream, mean the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.server.holds import Holds
from forewarn.server.lane import Poll
from forewarn.server.request import LARGEST_BODY
from forewarn.server.tally import Tally
from forewarn.wire.preferences import parse_wait

if TYPE_CHECKING:
    import asyncio

    from forewarn.server.lane import Lane

LARGEST_REMEMBERED = 2048

# A request with one of these is for the application to judge.
_SLOW_HEADERS = frozenset((b"x-forwarded-for", b"transfer-encoding", b"upgrade", b"expect", b"connection"))


class FastLane(Holds):
    """One connection to the metadata service."""

    def __init__(self, *arguments: Any, lane: Lane, **options: Any) -> None:
        super().__init__(lane, *arguments, **options)
        # The last poll, while nothing else is under way on this connection: its bytes, what they
        # meant, and the answer in two parts around the stamp, good for one epoch.
        self._poll_bytes = b""
        self._poll: Poll | None = None
        self._epoch = -1
        self._group = ""
        self._head = b""
        self._tail = b""
        self._tally = Tally()
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
                self._tally.count += 1
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
        self._tally.count += 1
        self.transport.write(self._head + self._lane.stamp.next() + self._tail)
        return True

    def _prepare(self, poll: Poll | None) -> bool:
        """Lay the answer to the poll ready; False when it is for the application to give."""
        caller = self._settle_caller()
        if caller is None or poll is None or not self._lane.targets:
            return False
        page = self._lane.pages.page(caller.group, poll.version)
        if page is None:
            return False
        if poll.if_none_match not in page.same_tags:
            self._head, self._tail, status = page.found_head, poll.applied + b"\r\n" + page.body, 200
        elif poll.wait_seconds:
            return False  # it is held
        else:
            self._head, self._tail, status = page.unchanged_head, poll.applied + b"\r\n", 304
        self._tally = self._lane.tallies.poll(poll.version.name, status)
        self._group = caller.group
        self._epoch = self._lane.epoch
        return True

    def _read_request(self) -> Poll | None:
        """The request as a poll or an approval, if it is one in every respect that its head can show."""
        version = self._lane.targets.get(self.url.lower())
        if version is None or self.parser.get_http_version() != "1.1":
            return None
        is_true = not version.header_enforced
        if_none_match = None
        length = 0
        prefer: list[str] = []
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
            elif name == b"prefer":
                prefer.append(value.decode("latin-1"))
            elif name in _SLOW_HEADERS and (name != b"connection" or value.lower() != b"keep-alive"):
                return None
        if not is_true:
            return None
        wait_seconds = parse_wait(prefer) if prefer and if_none_match else None
        if wait_seconds is None:
            return Poll(version, if_none_match, length)
        return Poll(version, if_none_match, length, wait_seconds, b"preference-applied: wait=%d\r\n" % wait_seconds)

    # --- The parser's callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._answered_here = False
        self._begun += 1

    def _on_request(self) -> None:
        poll = self._read_request()
        method = self.parser.get_method()
        if poll is not None and method == b"GET" and not poll.length:
            if self._answer(poll):
                self._answered_here = True
                return
            if poll.wait_seconds:
                self.take_hold(poll)
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


def protocol_for(lane: Lane, connection: type[FastLane] = FastLane) -> Any:
    """What uvicorn makes a connection's protocol with."""

    def make(*arguments: Any, **options: Any) -> asyncio.Protocol:
        return connection(*arguments, lane=lane, **options)

    return make
