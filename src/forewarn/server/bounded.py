"""What a client may send, and how fast: uvicorn's httptools protocol with the limits it lacks.

uvicorn bounds neither the size of a request's head nor the time it may take; it reads on while earlier
requests of the connection wait, it waits for ever for a client that does not read, and it takes the body of a
request with `Upgrade` for another protocol. Both services stand on this; what they say to a client
that is refused, and how large a body may be, is their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

LARGEST_HEAD = 16384
FED_AT_ONCE = 4096
"""As much is parsed before it is asked again whether there is room for more requests."""
REQUEST_SECONDS = 10
"""How long a request may take to arrive."""
IDLE_SECONDS = 75
UNREAD_SECONDS = 30
"""How long a client may leave its answers unread."""

MALFORMED = 400
HEAD_TOO_LARGE = 431


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


class Bounded(HttpToolsProtocol):
    """A connection that cannot be made to grow the process, or to wait for ever."""

    largest_body: int
    """Of one request, read or dropped; whoever sends more is cut off."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # Read, but not parsed yet: earlier requests come first.
        self._held: bytes | memoryview = b""
        # Nothing more is taken from this client: it was refused.
        self._deaf = False
        self._under_way: RequestResponseCycle | None = None
        # The request being read.
        self._open = False
        self._head_open = False
        self._head_bytes = 0
        self._fed = 0
        self._body_bytes = 0
        self._refusal = MALFORMED
        # Rounds of the sweeper since something happened.
        self._quiet_rounds = 0
        self._open_rounds = 0
        self._unread_rounds = 0
        # What the client had taken and sent when it was last looked at during a stop.
        self._moved_to: tuple[int, int] | None = None

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
        self._held = b"".join((self._held, data)) if self._held else data
        self._feed()

    def _feed(self) -> None:
        """Parse what was read, as long as no request has to queue for it and the client takes its answers."""
        if len(self._held) > FED_AT_ONCE:
            self._held = memoryview(self._held)  # cut without copying the rest each time
        while self._held and not (self.pipeline or self.flow.write_paused or self._deaf or self.transport.is_closing()):
            self._unset_keepalive_if_required()
            part, self._held = self._held[:FED_AT_ONCE], self._held[FED_AT_ONCE:]
            if self._open:
                self._fed += len(part)
            try:
                self.parser.feed_data(part)
            except httptools.HttpParserUpgrade as upgrade:
                self._ignore_upgrade(bytes(part[upgrade.args[0] :]))
            except httptools.HttpParserError:
                self.send_400_response("")
            if self._open and self._fed > LARGEST_HEAD and not self._deaf:
                # A header or trailer that never ends is not seen by the callbacks.
                self._refusal = HEAD_TOO_LARGE
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
        self._held = b"\r\n".join([*head, b"", rest + bytes(self._held)])

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
        self._head_bytes = self._fed = self._body_bytes = self._open_rounds = 0

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        self._bound_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_open:  # a trailer is no header
            super().on_header(name, value)
        self._bound_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        self._head_open = False
        self._fed = 0
        if not self._upgrading:
            self._on_request()

    def _on_request(self) -> None:
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._fed = 0
        self._body_bytes += len(body)
        if self._body_bytes > self.largest_body:
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
            self._refusal = HEAD_TOO_LARGE
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
        self._refuse(self._refusal)

    def _refuse(self, status: int) -> None:
        """Say so, as this wire does, and close."""
        raise NotImplementedError

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
            # Closing waits until the client has taken the rest, and over TLS for its word: not for ever.
            if self.transport.is_closing():
                self.transport.abort()
            else:
                self.transport.close()

    def sweep_at_stop(self) -> None:
        """Twice a second while the service stops: cut off what waits for the client alone, if nothing moves.

        A request that the application is working on is waited for; a client that does not take its answer, or
        send the rest of its request, or end its TLS, is not.
        """
        unread = self.transport.get_write_buffer_size()
        one = self._under_way
        # Half a request behind one that is under way is no reason to cut that one off.
        unsent = self._open and not self.flow.read_paused and (one is None or one.scope is self.scope)
        if not (unread or unsent or self.transport.is_closing()):
            self._moved_to = None
            return
        moved_to = (unread, self._body_bytes)
        if moved_to == self._moved_to:
            self.transport.abort()
        self._moved_to = moved_to
