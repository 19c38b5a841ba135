"""A connection to the metadata service: HTTP/1.1 on httptools, with the limits of a public endpoint.

A polling client sends the same bytes each time. If the bytes equal the connection's previous poll, the connection does
not parse them again. All other requests are parsed and routed.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import TYPE_CHECKING

import httptools

from forewarn.clock import real_seconds
from forewarn.metadata import fixed_responses
from forewarn.metadata.callers import VMPolls
from forewarn.metadata.counters import RequestCounter
from forewarn.metadata.rendered_responses import CLOSE, RenderedResponse, rendered
from forewarn.metadata.request import MAX_BODY_BYTES, MetadataRequest, parse_target
from forewarn.metadata.routes import NeedsBody, failure
from forewarn.system.logs import OncePerMinute, get_logger

if TYPE_CHECKING:
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.fixed_responses import Response
    from forewarn.metadata.limits import Rounds
    from forewarn.metadata.routes import Result
    from forewarn.metadata.server import MetadataServer

_log = get_logger(__name__)
_warnings = OncePerMinute()

PROXY_SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
"""How a header of the PROXY protocol, version 2, begins."""
MAX_REPEAT_BYTES = 2048
MAX_DISCARDED_BYTES = 1_048_576
"""Bytes of a too large body that are read and discarded, so that the client receives the response."""
PARSE_CHUNK_BYTES = 4096
"""Bytes parsed before the connection checks again whether it may accept more requests."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


_NO_POLLS = VMPolls()
"""Of a connection without a repeated poll."""


class MetadataConnection(asyncio.Protocol):
    """One client's connection. It processes requests one after the other, in order."""

    __slots__ = (
        "__weakref__",
        "_begun",
        "_body_open",
        "_bytes_since_callback",
        "_called",
        "_caller",
        "_client",
        "_counter",
        "_current",
        "_epoch",
        "_generation",
        "_head",
        "_head_bytes",
        "_head_open",
        "_headers",
        "_idle_rounds",
        "_incoming",
        "_input_closed",
        "_listener",
        "_open_rounds",
        "_parser",
        "_parsing",
        "_peer",
        "_pending",
        "_polls",
        "_queue",
        "_read_paused",
        "_reading_deferred",
        "_rejection",
        "_repeat",
        "_repeat_bytes",
        "_repeat_reply",
        "_replaying_framing",
        "_scope",
        "_server",
        "_tail",
        "_target",
        "_tracker",
        "_unparsed",
        "_unread_rounds",
        "_upgrading",
        "_write_paused",
        "transport",
    )

    def __init__(self, server: MetadataServer, listener: str | None = None, client: str | None = None) -> None:
        """`client` is the address of the client, if a load balancer has passed it on."""
        self._server = server
        self._client = client
        self._tracker = server.delivery_tracker
        self._listener = listener
        """The VM address that the client connected to; None for the shared address."""
        self.transport: asyncio.Transport
        self._peer: str | None = None
        self._called: str | None = None
        self._caller: Caller | None = None
        self._generation = -1
        self._parser: httptools.HttpRequestParser | None = self._new_parser()
        # The previous poll, while nothing else is in progress: its bytes, its parsed request, and its response in two
        # parts around the common headers. The response is valid for one epoch.
        self._repeat_bytes = b""
        self._repeat: MetadataRequest | None = None
        self._repeat_reply: RenderedResponse | None = None
        self._epoch = -1
        self._scope = ""
        self._head = b""
        self._tail = b""
        self._counter = RequestCounter()
        self._polls = _NO_POLLS
        # Received and not parsed yet, because earlier requests are in progress.
        self._unparsed: bytes | memoryview = b""
        self._parsing = False
        # The request that is being received.
        self._incoming: MetadataRequest | None = None
        self._head_open = self._body_open = False
        self._begun = 0
        """Requests that began in the bytes received last."""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        self._bytes_since_callback = 0
        """Bytes parsed since the parser's last callback."""
        self._rejection: Response = fixed_responses.MALFORMED
        self._upgrading = self._replaying_framing = False
        # Requests with a complete head: the current one, the future it waits for, and the queue behind it.
        self._current: MetadataRequest | None = None
        self._pending: asyncio.Future[Result] | None = None
        self._queue: list[MetadataRequest] = []
        # No more input is accepted from this client.
        self._input_closed = False
        self._reading_deferred = False
        """Reading is paused until the long polls of other clients are completed."""
        self._read_paused = self._write_paused = False
        # Rounds of the sweeper.
        self._idle_rounds = self._open_rounds = self._unread_rounds = 0

    def _new_parser(self) -> httptools.HttpRequestParser:
        parser = httptools.HttpRequestParser(self)
        # Data after a request with `Connection: close` is ignored. It is no reason to reject that request.
        parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment] # uvloop's class does not inherit from it
        peer, called = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        self._peer = peer[0] if peer else None
        self._called = called[0] if called else None
        if self._client is not None:
            self._peer, self._called = self._client, None
        if not self._server.connections.add(self, self._peer or ""):
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.remove(self)
        if self._current is not None:
            self._tracker.request_ended(self._current)
        pending, self._pending = self._pending, None
        # Break reference cycles, so that the connection is freed now and not by the garbage collector.
        self._parser = self._repeat = self._incoming = self._current = None
        self._queue.clear()
        self._repeat_bytes = self._unparsed = b""
        self._input_closed = True
        if pending is not None:
            pending.cancel()

    def find_caller(self) -> Caller | None:
        """Return the calling VM. It is looked up once per connection, and again after a change of the fleet."""
        callers = self._server.callers
        if self._generation != callers.generation:
            self._generation = callers.generation
            self._caller = callers.find(self._peer, self._called, self._listener)
        return self._caller

    # --- Reading --------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        # The first branch is the hot path of a poll (docs/explanation/performance.md).
        # `_caller` is set there: _prepare has found it.
        self._idle_rounds = 0
        if data == self._repeat_bytes:
            server = self._server
            if (self._epoch == server.epoch or self._prepare()) and (
                not server.limited or self._caller.take_token()  # type: ignore[union-attr]
            ):
                server.polled.add(self._scope)
                self._counter.count += 1
                self._polls.count += 1
                self.transport.write(self._head + server.common_headers.next() + self._tail)
                if self._tracker.watching:
                    self._track_repeat()
                return
        was_idle = self._is_idle
        self._repeat_bytes = b""
        self._repeat = None
        self._begun = 0
        self._unparsed = b"".join((self._unparsed, data)) if self._unparsed else data
        self._parse()
        if was_idle and len(data) <= MAX_REPEAT_BYTES:
            self._remember(data)

    def _remember(self, data: bytes) -> None:
        """Keep the bytes for comparison if they were exactly one poll and nothing else is in progress."""
        if self._server.has_access_log:
            return  # every request is routed, and logged
        if self._repeat is not None and self._begun == 1 and self._is_idle and not self._input_closed:
            self._repeat_bytes = data

    @property
    def _is_idle(self) -> bool:
        """Whether no request is in progress."""
        return not (self._head_open or self._body_open or self._unparsed or self._current or self._queue)

    @property
    def _last(self) -> MetadataRequest | None:
        """The newest request in progress."""
        return self._queue[-1] if self._queue else self._current

    def _prepare(self) -> bool:
        """Prepare the response to a repeated poll. Return False if the request must be routed again."""
        caller, request = self.find_caller(), self._repeat
        if caller is None or request is None or request.poll is None or self._server.has_fault(caller):
            return False
        found = self._server.routes.document(request.poll, caller)
        if found is None:
            return False
        request.caller = caller
        self._repeat_reply = found
        self._head, self._tail = found.head, found.rest + b"\r\n" + found.body
        self._counter = self._server.counters.poll(request.target.query.get("api-version", ""), found.status)
        self._scope = caller.scope
        self._polls = caller.polls
        self._epoch = self._server.epoch
        return True

    def _track_repeat(self) -> None:
        if self._repeat is not None and self._repeat_reply is not None:
            self._tracker.request_started(self._repeat)
            self._tracker.response_sent(self._repeat, self._repeat_reply)
            self._tracker.request_ended(self._repeat)

    @property
    def _may_read_ahead(self) -> bool:
        """Whether the queue has room for another request and the client reads its responses."""
        return (
            len(self._queue) < self._server.limits.max_pipelined_requests
            and not self._write_paused
            and not self._input_closed
        )

    def _parse(self) -> None:
        """Parse received bytes while there is room for more requests."""
        if self._parsing or self._parser is None:
            return  # called from a parser callback: the loop below continues
        self._parsing = True
        try:
            if len(self._unparsed) > PARSE_CHUNK_BYTES:
                self._unparsed = memoryview(self._unparsed)  # slice without copying
            while self._unparsed and self._may_read_ahead and not self.transport.is_closing():
                part, self._unparsed = self._unparsed[:PARSE_CHUNK_BYTES], self._unparsed[PARSE_CHUNK_BYTES:]
                self._parse_part(part)
        finally:
            self._parsing = False
        if self._unparsed and not self.transport.is_closing():
            self._pause_reading()

    def _parse_part(self, part: bytes | memoryview) -> None:
        if self._parser is None:
            return
        if self._head_open or self._body_open:
            self._bytes_since_callback += len(part)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(bytes(part[upgrade.args[0] :]))
        except httptools.HttpParserError:
            if self._client is None and not self._body_open and _is_proxy_header(bytes(part[:20])):
                self._rejection = fixed_responses.PROXY_HEADER
                self._log_proxy_header()
            self._reject()
        if (self._head_open or self._body_open) and self._bytes_since_callback > self._server.limits.max_header_bytes:
            # The callbacks do not see a header or trailer that never ends.
            self._rejection = fixed_responses.header_too_large(self._server.limits.max_header_bytes)
            self._reject()

    def _log_proxy_header(self) -> None:
        if _warnings.allows(self._peer or "", real_seconds()):
            _log.warning(
                "proxy_header_not_trusted",
                "A PROXY header came from an address that --proxy-protocol does not name. "
                "If a load balancer has this address, add its network.",
                address=self._peer,
            )

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        may_read = self._may_read_ahead and not self._unparsed and not self._reading_deferred
        if self._read_paused and may_read and not self.transport.is_closing():
            self._read_paused = False
            self.transport.resume_reading()

    # --- The parser's callbacks -----------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._replaying_framing:
            return
        self._begun += 1
        self._incoming = None
        self._head_open = True
        self._target = b""
        self._headers = []
        self._head_bytes = self._bytes_since_callback = self._open_rounds = 0

    def on_url(self, url: bytes) -> None:
        if not self._replaying_framing:
            self._target += url
            self._count_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._replaying_framing:
            return
        if self._head_open:  # ignore trailers
            self._headers.append((name.lower(), value))
        self._count_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        parser = self._parser
        if self._replaying_framing or parser is None:
            return
        method = parser.get_method().decode("ascii")
        self._upgrading = bool(parser.should_upgrade())
        self._bytes_since_callback = self._open_rounds = 0
        if method == "CONNECT":
            return  # the parser stops after it
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
        request = MetadataRequest(self, method, target, self._headers, keep_alive=keep_alive, content_length=length)
        request.expects_continue = expects
        self._incoming = request
        if self._current is None:
            self._start(request)
        else:
            self._queue.append(request)

    def on_body(self, body: bytes) -> None:
        request = self._incoming
        self._bytes_since_callback = 0
        if request is None:
            return
        request.body_bytes += len(body)
        if request.body_bytes > MAX_DISCARDED_BYTES:
            self.abort()
        elif request.has_response:
            return
        elif request.body_bytes <= MAX_BODY_BYTES:
            request.body += body
        else:
            request.body = b""
            self._continue_with_body(request)

    def on_message_complete(self) -> None:
        if self._upgrading or self._incoming is None:
            return
        self._body_open = False
        self._incoming.body_complete = True
        self._continue_with_body(self._incoming)

    def _count_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > self._server.limits.max_header_bytes:
            self._rejection = fixed_responses.header_too_large(self._server.limits.max_header_bytes)
            raise ValueError  # stops the parser

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Ignore `Upgrade`, as a server may. The parser stops there, so a new one continues after the head."""
        request = self._incoming
        self._upgrading = False
        if request is None:  # CONNECT
            self._reject()
            return
        self._parser = self._new_parser()
        if request.content_length or request.values(b"transfer-encoding"):
            # The new parser needs the framing headers of the body, and nothing else of the head.
            framing = (header for header in request.headers if header[0] in (b"content-length", b"transfer-encoding"))
            head = b"".join(b"%b: %b\r\n" % header for header in framing)
            self._replaying_framing = True
            try:
                self._parser.feed_data(b"POST / HTTP/1.1\r\n" + head + b"\r\n")
            except httptools.HttpParserError:
                self._reject()
            self._replaying_framing = False
        else:
            self.on_message_complete()
        self._unparsed = rest + bytes(self._unparsed)

    # --- Responding -----------------------------------------------------------------------------------

    def _start(self, request: MetadataRequest) -> None:
        self._current = request
        request.caller = self.find_caller()
        if self._server.has_access_log:
            request.started_at = real_seconds()
        if self._tracker.watching:
            self._tracker.request_started(request)
        try:
            result = self._server.respond(request)
        except Exception as error:  # noqa: BLE001 - the client gets a response after any error
            result = failure(error)
        if request.poll is not None and isinstance(result, RenderedResponse):
            self._repeat = request
            self._epoch = -1
        self._handle_result(request, result)

    def _handle_result(self, request: MetadataRequest, result: Result) -> None:
        """Send the response, or wait for it."""
        if isinstance(result, RenderedResponse):
            self._send(request, result)
        elif isinstance(result, NeedsBody):
            request.needs_body = True
            if request.body_complete or request.is_too_large:  # the body arrived while the response was delayed
                self._continue_with_body(request)
            elif request.expects_continue and not request.body_bytes:
                self.transport.write(CONTINUE)
        elif result is not None:
            self._pending = asyncio.ensure_future(result)
            self._pending.add_done_callback(self._on_response_ready)

    def _continue_with_body(self, request: MetadataRequest) -> None:
        """Process the request if it waits for the body and the body is complete or too large."""
        if request.needs_body and request is self._current:
            request.needs_body = False
            self._handle_result(request, self._server.routes.approve(request))

    def _on_response_ready(self, pending: asyncio.Future[Result]) -> None:
        request = self._current
        if pending is not self._pending or request is None or pending.cancelled():
            return
        self._pending = None
        error = pending.exception()
        self._handle_result(request, failure(error) if error is not None else pending.result())
        if self._current is None and not self.transport.is_closing():
            while self._queue and self._current is None:
                self._start(self._queue.pop(0))
            self._parse()
            self._resume_reading()

    def _send(self, request: MetadataRequest, response: RenderedResponse) -> None:
        """Write the response and finish the request."""
        request.has_response = True
        self._current = None
        self._idle_rounds = 0  # time spent on a delayed response is not idle time
        body = b"" if request.method == "HEAD" else response.body
        self._write(response, body, keep_alive=request.keep_alive)
        self._server.count(request, response.status)
        if self._server.has_access_log:
            self._server.log_access(request, self._peer or "", response.status, len(body))
        if self._tracker.watching:
            self._tracker.response_sent(request, response)
            self._tracker.request_ended(request)
        if not request.keep_alive:
            self.close()
        elif request.is_held and self._server.long_polls.defer_reading(self):
            self._reading_deferred = True
            self._pause_reading()

    def _write(self, response: RenderedResponse, body: bytes, *, keep_alive: bool) -> None:
        end = b"\r\n" if keep_alive else CLOSE + b"\r\n"
        self.transport.write(response.head + self._server.common_headers.next() + response.rest + end + body)

    def close(self) -> None:
        """Close the connection after sending what was written. Read nothing more."""
        self._input_closed = True
        self._queue.clear()
        self._unparsed = b""
        self.transport.close()

    def _reject(self) -> None:
        """Reject input that cannot be parsed, and close the connection.

        Responses to earlier requests come first, because the client would take the rejection for one of them. The
        connection closes after the last response. If the body of a request in progress cannot be parsed, that request
        is rejected.
        """
        if self._input_closed:
            return
        self._input_closed = True
        self._unparsed = b""
        incoming, self._incoming = (self._incoming if self._body_open else None), None
        self._head_open = self._body_open = False
        last = self._last
        if last is not None:
            last.keep_alive = False
            self._pause_reading()
            if incoming is last:
                last.is_broken = last.body_complete = True
                self._continue_with_body(last)
        elif incoming is not None:
            self.close()  # its response was sent
        else:
            self._write(rendered(self._rejection), self._rejection.body, keep_alive=False)
            self.close()

    def resume_reading(self) -> None:
        """Read again, after the long polls of other clients were completed."""
        self._reading_deferred = False
        self._resume_reading()

    # --- For injected faults --------------------------------------------------------------------------

    def send_part(self, request: MetadataRequest, response: RenderedResponse, part: bytes) -> None:
        """Send the head of a response and only a part of its body. The caller must then close the connection."""
        self._server.count(request, response.status)
        self._tracker.request_failed(request, response.status)
        self._write(response, part, keep_alive=True)
        if self._server.has_access_log:
            self._server.log_access(request, self._peer or "", response.status, len(part))

    def reset(self) -> None:
        """Close the connection with a TCP reset."""
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
        """Close the connection if it is idle or slow. A periodic call is cheaper than a timer per request."""
        # There may be many thousands of connections. Most of them take the shortest path here.
        if not self._idle_rounds:  # there was a request since the last round
            self._polls.note(self._server.engine.clock)
        self._idle_rounds += 1
        is_open = self._head_open or self._body_open
        if is_open or self._write_paused:
            self._open_rounds += is_open and not self._read_paused
            self._unread_rounds += self._write_paused
            slow = self._open_rounds > (rounds.header if self._head_open else rounds.body)
            if (is_open and slow) or self._unread_rounds > rounds.send:
                self.abort()
        elif self._idle_rounds > rounds.idle and self._current is None:
            # A graceful close waits for the client to read. If it does not, abort.
            if self.transport.is_closing():
                self.abort()
            else:
                self.close()

    def idle_time(self) -> float | None:
        """See Connections: in rounds of the sweeper."""
        if not self._is_idle or self.transport.get_write_buffer_size():
            return None
        return self._idle_rounds

    # --- The server stops -----------------------------------------------------------------------------

    def shut_down(self) -> None:
        """Close the connection after the requests in progress."""
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
        self._input_closed = True
        self.transport.abort()


def _is_proxy_header(start: bytes) -> bool:
    """Return whether bytes that are not HTTP begin a header of the PROXY protocol. Its line ends may be gone."""
    signature, found = PROXY_SIGNATURE.lstrip(), start.lstrip(b"\r\n")
    return found.startswith((signature, b"PROXY ")) or (len(found) > 1 and signature.startswith(found))
