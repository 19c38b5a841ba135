"""A connection to the metadata service: HTTP/1.1 on httptools, with the limits that a public endpoint needs.

A client that polls sends the same bytes each time. A request whose bytes equal the connection's last poll is not
parsed again: the same bytes, where a request may begin, mean the same. Everything else is parsed and routed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import httptools

from forewarn.metadata import answers
from forewarn.metadata.counters import Counter
from forewarn.metadata.replies import CLOSE, Reply, reply
from forewarn.metadata.request import LARGEST_BODY, Request, parse_target
from forewarn.metadata.routes import NeedsBody, failure

if TYPE_CHECKING:
    from forewarn.metadata.answers import Answer
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.limits import Rounds
    from forewarn.metadata.routes import Result
    from forewarn.metadata.server import MetadataServer

LARGEST_REMEMBERED = 2048
LARGEST_DISCARDED_BODY = 1_048_576
"""Of a body that was rejected as too large, this much is read and dropped, so that the answer arrives."""
PARSED_AT_ONCE = 4096
"""So many bytes are parsed before the connection looks again whether there is room for more requests."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Connection(asyncio.Protocol):
    """One client's connection. Its requests are answered one after the other, in their order."""

    __slots__ = (
        "__weakref__",
        "_aside",
        "_begun",
        "_body_open",
        "_called",
        "_caller",
        "_counter",
        "_current",
        "_deaf",
        "_epoch",
        "_generation",
        "_group",
        "_head",
        "_head_bytes",
        "_head_open",
        "_headers",
        "_incoming",
        "_listener",
        "_open_rounds",
        "_parser",
        "_parsing",
        "_peer",
        "_pending",
        "_priming",
        "_queue",
        "_quiet_rounds",
        "_read_paused",
        "_rejection",
        "_repeat",
        "_repeat_bytes",
        "_repeat_reply",
        "_server",
        "_tail",
        "_target",
        "_tracker",
        "_unnoticed_bytes",
        "_unparsed",
        "_unread_rounds",
        "_upgrading",
        "_write_paused",
        "transport",
    )

    def __init__(self, server: MetadataServer, listener: str | None = None) -> None:
        self._server = server
        self._tracker = server.delivery_tracker
        self._listener = listener
        """The address of one VM that was called, if it is one."""
        self.transport: asyncio.Transport
        self._peer: str | None = None
        self._called: str | None = None
        self._caller: Caller | None = None
        self._generation = -1
        self._parser: httptools.HttpRequestParser | None = self._new_parser()
        # The last poll, while nothing else is in progress: its bytes, the request that they are, and its answer in two
        # parts around the common headers, which holds within one epoch.
        self._repeat_bytes = b""
        self._repeat: Request | None = None
        self._repeat_reply: Reply | None = None
        self._epoch = -1
        self._group = ""
        self._head = b""
        self._tail = b""
        self._counter = Counter()
        # What was received, and not parsed yet: earlier requests come first.
        self._unparsed: bytes | memoryview = b""
        self._parsing = False
        # The request that is being read.
        self._incoming: Request | None = None
        self._head_open = self._body_open = False
        self._begun = 0
        """How many requests have begun in the bytes that were last received."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._unnoticed_bytes = 0
        """Parsed since the parser has last said anything of the request."""
        self._rejection: Answer = answers.MALFORMED
        self._upgrading = self._priming = False
        # The requests whose head was read: the one that is being answered, what it waits for, and those behind it.
        self._current: Request | None = None
        self._pending: asyncio.Future[Result] | None = None
        self._queue: list[Request] = []
        # Nothing more is taken from this client.
        self._deaf = False
        self._aside = False
        """Long polls of others are answered first: it is not read from meanwhile."""
        self._read_paused = self._write_paused = False
        # Rounds of the sweeper.
        self._quiet_rounds = self._open_rounds = self._unread_rounds = 0

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # What follows a request with `Connection: close` is dropped, and no reason to reject that one.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # uvloop's is one in all but name
        peer, called = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer = peer[0] if peer else None
        self._called = called[0] if called else None
        if not self._server.connections.add(self, self._peer or ""):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.remove(self)
        if self._current is not None:
            self._tracker.request_ended(self._current)
        pending, self._pending = self._pending, None
        # Nothing may hold this connection in a circle: then it is freed here and now, not by the collector.
        self._parser = self._repeat = self._incoming = self._current = None
        self._queue.clear()
        self._repeat_bytes = self._unparsed = b""
        self._deaf = True
        if pending is not None:
            pending.cancel()

    def find_caller(self) -> Caller | None:
        """Who is calling: found once per connection, and again when the fleet has changed."""
        callers = self._server.callers
        if self._generation != callers.generation:
            self._generation = callers.generation
            self._caller = callers.find(self._peer, self._called, self._listener)
        return self._caller

    # --- Reading --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        # The first branch is what a poll costs; each line of it was measured (docs/explanation/performance.md).
        # Within it there is a caller: _prepare found one.
        self._quiet_rounds = 0
        if data == self._repeat_bytes:
            server = self._server
            if (self._epoch == server.epoch or self._prepare()) and (
                not server.limited or self._caller.allowed()  # type: ignore[union-attr]
            ):
                server.polled.add(self._group)
                self._counter.count += 1
                self.transport.write(self._head + server.common_headers.next() + self._tail)
                if self._tracker.watching:
                    self._note_repeat()
                return
        was_idle = self._is_idle
        self._repeat_bytes = b""
        self._repeat = None
        self._begun = 0
        self._unparsed = b"".join((self._unparsed, data)) if self._unparsed else data
        self._parse()
        if was_idle and len(data) <= LARGEST_REMEMBERED:
            self._remember(data)

    def _remember(self, data: bytes) -> None:
        """If all of it was one poll, and nothing else is in progress: the same bytes will mean the same."""
        if self._repeat is not None and self._begun == 1 and self._is_idle and not self._deaf:
            self._repeat_bytes = data

    @property
    def _is_idle(self) -> bool:
        """Between two requests."""
        return not (self._head_open or self._body_open or self._unparsed or self._current or self._queue)

    @property
    def _last(self) -> Request | None:
        """The last of the requests in progress."""
        return self._queue[-1] if self._queue else self._current

    def _prepare(self) -> bool:
        """Lay the answer to a repeated poll ready; False when the request has to be routed anew."""
        caller, request = self.find_caller(), self._repeat
        if caller is None or request is None or request.poll is None or self._server.may_fail(caller):
            return False
        found = self._server.routes.document(request.poll, caller)
        if found is None:
            return False
        request.caller = caller
        self._repeat_reply = found
        self._head, self._tail = found.head, found.rest + b"\r\n" + found.body
        self._counter = self._server.counters.poll(request.target.query.get("api-version", ""), found.status)
        self._group = caller.group
        self._epoch = self._server.epoch
        return True

    def _note_repeat(self) -> None:
        if self._repeat is not None and self._repeat_reply is not None:
            self._tracker.request_began(self._repeat)
            self._tracker.request_answered(self._repeat, self._repeat_reply)
            self._tracker.request_ended(self._repeat)

    @property
    def _may_read_ahead(self) -> bool:
        """Whether another request would not have to wait too long, and the client reads its answers."""
        return len(self._queue) < self._server.limits.pipelined_requests and not self._write_paused and not self._deaf

    def _parse(self) -> None:
        """Parse what was received, as long as there is room for more requests."""
        if self._parsing or self._parser is None:
            return  # an answer within the parser's callback: the loop below goes on by itself
        self._parsing = True
        try:
            if len(self._unparsed) > PARSED_AT_ONCE:
                self._unparsed = memoryview(self._unparsed)  # cut without copying the rest each time
            while self._unparsed and self._may_read_ahead and not self.transport.is_closing():
                part, self._unparsed = self._unparsed[:PARSED_AT_ONCE], self._unparsed[PARSED_AT_ONCE:]
                self._parse_part(part)
        finally:
            self._parsing = False
        if self._unparsed and not self.transport.is_closing():
            self._pause_reading()

    def _parse_part(self, part: bytes | memoryview) -> None:
        if self._parser is None:
            return
        if self._head_open or self._body_open:
            self._unnoticed_bytes += len(part)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(bytes(part[upgrade.args[0] :]))
        except httptools.HttpParserError:
            self._reject()
        if (self._head_open or self._body_open) and self._unnoticed_bytes > self._server.limits.head_bytes:
            # A header or a trailer that never ends is not seen by the callbacks.
            self._rejection = answers.head_too_large(self._server.limits.head_bytes)
            self._reject()

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        may_read = self._may_read_ahead and not self._unparsed and not self._aside
        if self._read_paused and may_read and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    # --- The parser's callbacks -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._priming:
            return
        self._begun += 1
        self._incoming = None
        self._head_open = True
        self._target = b""
        self._headers = []
        self._head_bytes = self._unnoticed_bytes = self._open_rounds = 0

    def on_url(self, url: bytes) -> None:
        if not self._priming:
            self._target += url
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._priming:
            return
        if self._head_open:  # a trailer is no header
            self._headers.append((name.lower(), value))
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._priming or parser is None:
            return
        method = parser.get_method().decode("ascii")
        self._upgrading = bool(parser.should_upgrade())
        self._unnoticed_bytes = self._open_rounds = 0
        if method == "CONNECT":
            return  # the parser stops behind it
        target = self._server.targets.get(self._target) or parse_target(self._target)
        length, closes, expects = None, False, False
        for name, value in self._headers:
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = closes or b"close" in [word.strip() for word in value.lower().split(b",")]
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
        keep_alive = parser.get_http_version() != "1.0" and not closes
        self._head_open, self._body_open = False, True
        request = Request(self, method, target, self._headers, keep_alive=keep_alive, content_length=length)
        request.expects_continue = expects
        self._incoming = request
        if self._current is None:
            self._start(request)
        else:
            self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        request = self._incoming
        self._unnoticed_bytes = 0
        if request is None:
            return
        request.body_bytes += len(body)
        if request.body_bytes > LARGEST_DISCARDED_BODY:
            self.abort()
        elif request.is_answered:
            return
        elif request.body_bytes <= LARGEST_BODY:
            request.body += body
        else:
            request.body = b""
            self._go_on_with_body(request)

    def on_message_complete(self) -> None:
        if self._upgrading or self._incoming is None:
            return
        self._body_open = False
        self._incoming.body_complete = True
        self._go_on_with_body(self._incoming)

    def _count_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > self._server.limits.head_bytes:
            self._rejection = answers.head_too_large(self._server.limits.head_bytes)
            raise ValueError  # ends the parsing

    def _ignore_upgrade(self, rest: bytes) -> None:
        """A server may ignore `Upgrade`, but this parser stops there. Another one reads on behind the head."""
        request = self._incoming
        self._upgrading = False
        if request is None:  # CONNECT
            self._reject()
            return
        self._parser = self._new_parser()
        if request.content_length or request.values(b"transfer-encoding"):
            # It has to know how the body ends, and nothing else of the head.
            framing = (header for header in request.headers if header[0] in (b"content-length", b"transfer-encoding"))
            head = b"".join(b"%b: %b\r\n" % header for header in framing)
            self._priming = True
            try:
                self._parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
            except httptools.HttpParserError:
                self._reject()
            self._priming = False
        else:
            self.on_message_complete()
        self._unparsed = rest + bytes(self._unparsed)

    # --- Answering ------------------------------------------------------------------------------------

    def _start(self, request: Request) -> None:
        self._current = request
        request.caller = self.find_caller()
        if self._tracker.watching:
            self._tracker.request_began(request)
        try:
            result = self._server.answer(request)
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is answered
            result = failure(error)
        if request.poll is not None and isinstance(result, Reply):
            self._repeat = request
            self._epoch = -1
        self._take(request, result)

    def _take(self, request: Request, result: Result) -> None:
        """Send the answer, or wait for what gives it."""
        if isinstance(result, Reply):
            self._send(request, result)
        elif isinstance(result, NeedsBody):
            request.needs_body = True
            if request.body_complete or request.is_too_large:  # it came while the answer was held back
                self._go_on_with_body(request)
            elif request.expects_continue and not request.body_bytes:
                self.transport.write(CONTINUE)
        elif result is not None:
            self._pending = asyncio.ensure_future(result)
            self._pending.add_done_callback(self._on_done)

    def _go_on_with_body(self, request: Request) -> None:
        """More of the body is there: perhaps the answer can be given now."""
        if request.needs_body and request is self._current:
            request.needs_body = False
            self._take(request, self._server.routes.approve(request))

    def _on_done(self, pending: asyncio.Future[Result]) -> None:
        request = self._current
        if pending is not self._pending or request is None or pending.cancelled():
            return
        self._pending = None
        error = pending.exception()
        self._take(request, failure(error) if error is not None else pending.result())
        if self._current is None and not self.transport.is_closing():
            while self._queue and self._current is None:
                self._start(self._queue.pop(0))
            self._parse()
            self._resume_reading()

    def _send(self, request: Request, answer: Reply) -> None:
        """Write the answer; the request is over."""
        request.is_answered = True
        self._current = None
        self._quiet_rounds = 0  # an answer that was held back is not the client's silence
        self._write(answer, b"" if request.method == "HEAD" else answer.body, keep_alive=request.keep_alive)
        self._server.count(request, answer.status)
        if self._tracker.watching:
            self._tracker.request_answered(request, answer)
            self._tracker.request_ended(request)
        if not request.keep_alive:
            self.close()
        elif request.is_held and self._server.waiters.set_aside(self):
            self._aside = True
            self._pause_reading()

    def _write(self, answer: Reply, body: bytes, *, keep_alive: bool) -> None:
        end = b"\r\n" if keep_alive else CLOSE + b"\r\n"
        self.transport.write(answer.head + self._server.common_headers.next() + answer.rest + end + body)

    def close(self) -> None:
        """Nothing more is read; what was written is still sent."""
        self._deaf = True
        self._queue.clear()
        self._unparsed = b""
        self.transport.close()

    def _reject(self) -> None:
        """What cannot be parsed is rejected, and the connection closed.

        While earlier requests are in progress their answers come first: a rejection now would be taken for one of them.
        The connection then closes behind the last answer. If it is the body of such a request that cannot be parsed,
        that request is rejected.
        """
        if self._deaf:
            return
        self._deaf = True
        self._unparsed = b""
        incoming, self._incoming = (self._incoming if self._body_open else None), None
        self._head_open = self._body_open = False
        last = self._last
        if last is not None:
            last.keep_alive = False
            self._pause_reading()
            if incoming is last:
                last.is_broken = last.body_complete = True
                self._go_on_with_body(last)
        elif incoming is not None:
            self.close()  # it has been answered
        else:
            self._write(reply(self._rejection), self._rejection.body, keep_alive=False)
            self.close()

    def read_on(self) -> None:
        """The long polls of the others are answered: read what the client has sent since."""
        self._aside = False
        self._resume_reading()

    # --- For injected faults --------------------------------------------------------------------------

    def send_part(self, request: Request, answer: Reply, part: bytes) -> None:
        """Send the head of an answer, and only a part of what it announces. The connection has to be closed then."""
        self._server.count(request, answer.status)
        self._tracker.request_failed(request, answer.status)
        self._write(answer, part, keep_alive=True)

    def reset(self) -> None:
        """Close with a reset."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.abort()

    # --- Limits ---------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self._write_paused = True
        self._unread_rounds = 0
        self._pause_reading()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._parse()
        self._resume_reading()

    def sweep(self, rounds: Rounds) -> None:
        """Once in a while: close what is idle or slow. Fast answers need no timer of their own."""
        # There may be many thousands of connections, almost all with nothing to look at: they come first.
        self._quiet_rounds += 1
        is_open = self._head_open or self._body_open
        if is_open or self._write_paused:
            self._open_rounds += is_open and not self._read_paused
            self._unread_rounds += self._write_paused
            slow = self._open_rounds > (rounds.head if self._head_open else rounds.body)
            if (is_open and slow) or self._unread_rounds > rounds.unread:
                self.abort()
        elif self._quiet_rounds > rounds.idle and self._current is None:
            # Closing waits until the client has read the rest: not for ever.
            if self.transport.is_closing():
                self.abort()
            else:
                self.close()

    # --- The server stops -----------------------------------------------------------------------------

    def shut_down(self) -> None:
        """The requests in progress are the last."""
        if self._last is None:
            self.close()
        else:
            self._last.keep_alive = False

    def position(self) -> tuple[int, int] | None:
        """See Connections.drain."""
        unread = self.transport.get_write_buffer_size()
        unsent = self._body_open and not self._read_paused and self._incoming is self._current
        if not (unread or unsent or self.transport.is_closing()):
            return None
        return unread, self._incoming.body_bytes if self._incoming is not None else 0

    def abort(self) -> None:
        self._deaf = True
        self.transport.abort()
