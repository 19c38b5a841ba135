"""What a client may send, and how fast: uvicorn's httptools protocol with the limits it lacks.

uvicorn bounds neither the size of a request's head nor the time it may take; it reads on while earlier
requests of the connection wait, and it takes the body of a request with `Upgrade` for another protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from forewarn.server.pages import SERVER
from forewarn.wire import refusals

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forewarn.server.stamp import Stamp
    from forewarn.wire.answer import Answer

LARGEST_HEAD = 16384
LARGEST_DISCARDED_BODY = 1_048_576
"""Of a body that was refused as too large, this much is read and dropped, so that the refusal arrives."""
FED_AT_ONCE = 4096
"""As much is parsed before it is asked again whether there is room for more requests."""
REQUEST_SECONDS = 10
"""How long a request may take to arrive."""
IDLE_SECONDS = 75
UNREAD_SECONDS = 30
"""How long a client may leave its answers unread."""


def _nothing() -> None:
    pass


def _never() -> bool:
    return False


class Flow(FlowControl):
    """Reads on only when all that was read has been dealt with, whoever asks for it."""

    def __init__(self, transport: asyncio.Transport, may_read: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._may_read = may_read

    def resume_reading(self) -> None:
        if self._may_read():
            super().resume_reading()

    def let_go(self) -> None:
        """The connection is gone: hold on to it no longer."""
        self._may_read = _never


class Intake(HttpToolsProtocol):
    """A connection that cannot be made to grow the process, or to wait for ever."""

    def __init__(self, stamp: Stamp, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stamp = stamp
        # Read, but not parsed yet: earlier requests come first.
        self._held = b""
        # Nothing more is taken from this client: it was refused.
        self._deaf = False
        self._under_way: RequestResponseCycle | None = None
        # The request being read.
        self._open = False
        self._head_open = False
        self._head_bytes = 0
        self._head_fed = 0
        self._body_bytes = 0
        self._refusal: Answer = refusals.MALFORMED
        # Rounds of the sweeper since something happened.
        self._quiet_rounds = 0
        self._open_rounds = 0
        self._unread_rounds = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.flow = Flow(transport, self._may_read)

    def connection_lost(self, exc: Exception | None) -> None:
        """uvicorn tells only the last request that its client is gone; the one being answered may be another."""
        self.pipeline.clear()
        if self._under_way is not None and not self._under_way.response_complete:
            self._under_way.disconnected = True
            self._under_way.message_event.set()
        super().connection_lost(exc)
        # Nothing may hold this connection in a circle: then it is freed here and now, not by the collector.
        if isinstance(self.flow, Flow):
            self.flow.let_go()
        if self.cycle is not None:
            self.cycle.on_response = _nothing
        if self._under_way is not None:
            self._under_way.on_response = _nothing

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._under_way = cycle
        super()._start_asgi_task(cycle, app)

    # --- Reading ----------------------------------------------------------------------------------

    def _may_read(self) -> bool:
        return not self._held and not self.pipeline and not self.flow.write_paused and not self._deaf

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        self._feed()

    def _feed(self) -> None:
        """Parse what was read, as long as no request has to queue for it and the client takes its answers."""
        while self._held and not (self.pipeline or self.flow.write_paused or self._deaf or self.transport.is_closing()):
            self._unset_keepalive_if_required()
            part, self._held = self._held[:FED_AT_ONCE], self._held[FED_AT_ONCE:]
            if self._head_open:
                self._head_fed += len(part)
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade(part[upgrade.args[0] :])
            except httptools.HttpParserError:
                self.send_400_response("")
            if self._head_open and self._head_fed > LARGEST_HEAD and not self._deaf:
                # A header that never ends is not seen by the callbacks.
                self._refusal = refusals.HEAD_TOO_LARGE
                self.send_400_response("")
        if self._held and not self.transport.is_closing():
            self.flow.pause_reading()

    def _ignore_upgrade(self, rest: bytes) -> None:
        """A server may ignore `Upgrade`, but this parser takes what follows for the other protocol: read
        the request anew, without it."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("")
            return
        head = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b"close" if b"close" in value.lower() else b"keep-alive"
            if name != b"upgrade":
                head.append(name + b": " + value)
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._held = b"\r\n".join([*head, b"", rest + self._held])

    def _complete(self, cycle: RequestResponseCycle) -> None:
        """The request has been answered past the application: go on as if the application had done it."""
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()

    def on_response_complete(self) -> None:
        self._quiet_rounds = 0  # an answer that was held back is not the client's silence
        super().on_response_complete()
        if not self.transport.is_closing():
            self._feed()
            self.flow.resume_reading()

    # --- The parser's callbacks -------------------------------------------------------------------

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._open = self._head_open = True
        self._head_bytes = self._head_fed = self._body_bytes = self._open_rounds = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._bound_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # a trailer is no header
            super().on_header(name, value)
        self._bound_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._head_open = False
        if not self._upgrading:
            self._on_request()

    def _on_request(self) -> None:
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > LARGEST_DISCARDED_BODY:
            self.transport.abort()
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._open = False
        if not self._upgrading:
            super().on_message_complete()

    @property
    def _upgrading(self) -> bool:
        return bool(self.parser.should_upgrade()) and self.parser.get_method() != b"CONNECT"

    # --- Limits -----------------------------------------------------------------------------------

    def _bound_head(self, more: int) -> None:
        self._head_bytes += more
        if self._head_bytes > LARGEST_HEAD:
            self._refusal = refusals.HEAD_TOO_LARGE
            raise ValueError  # ends the parsing; send_400_response says why

    def send_400_response(self, msg: str) -> None:
        """What cannot be parsed is refused as this wire says it, and the connection closed.

        While earlier requests of the connection are under way their answers come first: a refusal now
        would be taken for one of them. The connection then closes behind the last answer. When it is the
        body of a request under way that cannot be parsed, that request is told so.
        """
        self._deaf = True
        self._held = b""
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            self.flow.pause_reading()
            if self._open and cycle.scope is self.scope:
                cycle.scope["state"]["broken"] = True
                cycle.more_body = False
                cycle.message_event.set()
            return
        self._write_answer(self._refusal, keep_alive=False)

    def _write_answer(self, answer: Answer, *, keep_alive: bool) -> None:
        """Write an answer past the application, as the application would; and close, unless the client may go on."""
        kind = f"content-type: {answer.content_type}\r\n" if answer.body else ""
        head = f"{kind}content-length: {len(answer.body)}\r\nserver: {SERVER}\r\n".encode()
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[answer.status] + head + self._stamp.next() + end + answer.body)
        if not keep_alive:
            self.transport.close()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_rounds = 0
        self.flow.pause_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self.transport.is_closing():
            self._feed()
            self.flow.resume_reading()

    def sweep(self) -> None:
        """Once a second: close what is idle, slow or deaf. Fast answers arm no timer of their own."""
        # There may be many thousands of connections, almost all with nothing to look at: they come first.
        self._quiet_rounds += 1
        if self._open or self.flow.write_paused:
            self._open_rounds += self._open and not self.flow.read_paused
            self._unread_rounds += self.flow.write_paused
            if (self._open and self._open_rounds > REQUEST_SECONDS) or self._unread_rounds > UNREAD_SECONDS:
                self.transport.abort()
        elif self._quiet_rounds > IDLE_SECONDS and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
