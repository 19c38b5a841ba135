"""The metadata service that fails on purpose: the application of metadata.py, and what faults make of its answers.

Used only where faults are allowed. Then every request comes to the application, and a connection hands over
its transport, since some faults are not answers.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from forewarn.server.fastlane import FastLane
from forewarn.server.lane import EVENTS_PATH
from forewarn.server.metadata import Metadata, Rules
from forewarn.server.request import Request
from forewarn.wire import refusals
from forewarn.wire.answer import Answer
from forewarn.wire.document import entity_tag, render

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.faults import Fault
    from forewarn.faults import Faults
    from forewarn.server.callers import Caller
    from forewarn.server.lane import Lane
    from forewarn.server.metadata import Send
    from forewarn.server.request import Receive
    from forewarn.wire.versions import ApiVersion

ANSWERS = {"410": refusals.GONE, "429": refusals.TOO_MANY, "500": refusals.FAILED}
MISSING_BYTES = 64
"""So much more than the body has is announced by a wrong length."""
_ONE_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


class OpenLane(FastLane):
    """A connection that hands its transport to the application."""

    def _on_request(self) -> None:
        self.scope["state"]["transport"] = self.transport
        super()._on_request()


class Inbox:
    """What a client sends, while it is also watched for hanging up: what is read by that is not lost."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._read: deque[dict[str, Any]] = deque()

    async def receive(self) -> dict[str, Any]:
        return self._read.popleft() if self._read else await self._receive()

    async def until_gone(self) -> None:
        while (message := await self._receive())["type"] != "http.disconnect":
            self._read.append(message)


class Exchange:
    """One request that is struck."""

    def __init__(self, scope: dict[str, Any], receive: Receive, send: Send, transport: asyncio.Transport) -> None:
        self.scope = scope
        self.inbox = Inbox(receive)
        self.send = send
        self.transport = transport
        # The right answer, where the fault needs one.
        self.start: dict[str, Any] = {}
        self.body = b""

    async def capture(self, message: dict[str, Any]) -> None:
        """Keep the right answer back."""
        if message["type"] == "http.response.start":
            self.start = message
        else:
            self.body += message["body"]

    def set_header(self, name: bytes, value: bytes) -> None:
        headers: list[tuple[bytes, bytes]] = self.start["headers"]
        self.start["headers"] = [(found, value if found == name else old) for found, old in headers]

    async def pass_on(self) -> None:
        """Send what was kept back, as it is now."""
        if self.start:  # else nobody is there any more
            await self.send(self.start)
            await self.send({"type": "http.response.body", "body": self.body})

    async def end(self, part: bytes, wait: Callable[[Inbox], Any] | None = None) -> None:
        """Send the head and a part of what it announces, perhaps wait, and close."""
        await self.send(self.start)
        await self.send({"type": "http.response.body", "body": part, "more_body": True})
        if wait is None or await wait(self.inbox):
            await self._close(self.transport.close)

    async def reset(self) -> None:
        """Close with a reset instead of an end."""
        connection = self.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await self._close(self.transport.abort)

    async def _close(self, close: Callable[[], None]) -> None:
        # To uvicorn a request without its whole answer is an error, unless the client is gone: wait until it is.
        gone = asyncio.create_task(self.inbox.until_gone())
        await asyncio.sleep(0)
        close()
        await gone


class Faulty(Metadata):
    """The application of the metadata service, with faults."""

    connection = OpenLane

    def __init__(self, lane: Lane, rules: Rules, faults: Faults) -> None:
        super().__init__(lane, rules)
        self._faults = faults

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        transport = scope["state"].pop("transport")
        request = Request(scope, receive)
        caller = request.caller
        found = caller is not None and request.path.lower() == EVENTS_PATH
        fault = self._faults.find(caller.vm, caller.group, request.method) if found and caller is not None else None
        if fault is None or caller is None:
            await super().__call__(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send, transport)
        kind = fault.order.kind
        if kind in ("empty", "stall", "length", "stale"):
            await self._spoil(fault, request, caller, exchange)
            return
        self._faults.strike(fault.id)
        if kind == "slow":
            if await self._wait(fault, exchange.inbox):
                await super().__call__(scope, exchange.inbox.receive, send)
        elif kind == "reset":
            await exchange.reset()
        elif kind == "unchanged":
            await self._send(request, _unchanged(request), send)
        else:
            await self._send(request, ANSWERS[kind], send)

    async def _spoil(self, fault: Fault, request: Request, caller: Caller, exchange: Exchange) -> None:
        """Spoil the right answer, if it is a document; the fault is not spent by another."""
        scope, kind = exchange.scope, fault.order.kind
        if kind == "stale":  # the tag that the client has is for the document that it is not to get
            kept = [(name, value) for name, value in scope["headers"] if name not in (b"if-none-match", b"prefer")]
            scope = {**scope, "headers": kept}
        await super().__call__(scope, exchange.inbox.receive, exchange.capture)
        fits = exchange.start.get("status") == 200 and request.method == "GET"
        older = self._faults.older(caller.group) if kind == "stale" else None
        if not fits or (kind == "stale" and older is None) or not self._faults.strike(fault.id):
            await exchange.pass_on()
        elif kind == "stall":
            await exchange.end(exchange.body[: len(exchange.body) // 2], lambda inbox: self._wait(fault, inbox))
        elif kind == "length":
            exchange.set_header(b"content-length", b"%d" % (len(exchange.body) + MISSING_BYTES))
            await exchange.end(exchange.body)
        else:
            exchange.body = b""
            if older is not None:
                exchange.set_header(b"etag", entity_tag(older).encode())
                exchange.body = render(older, self._version_of(request), self._engine.fleet.group(caller.group).kind)
            exchange.set_header(b"content-length", b"%d" % len(exchange.body))
            await exchange.pass_on()

    def _version_of(self, request: Request) -> ApiVersion:
        """It was answered, so it is known, or stands for the newest."""
        return self._versions.get(request.query["api-version"]) or self._versions[max(self._versions)]

    async def _wait(self, fault: Fault, inbox: Inbox) -> bool:
        """Keep the client waiting, unless the service stops; False when the client does not wait so long."""
        delay = fault.order.delay
        gone = asyncio.create_task(inbox.until_gone())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait(
                (gone, stopping),
                timeout=delay.total_seconds() if delay is not None else 0,
                return_when=asyncio.FIRST_COMPLETED,
            )
            return not gone.done()
        finally:
            gone.cancel()
            stopping.cancel()


def _unchanged(request: Request) -> Answer:
    """A 304 with the tag that the client has: when the fault is over it can still tell that things have changed."""
    tag = ",".join(request.headers(b"if-none-match")).strip()
    return Answer(304, headers=(("etag", tag),) if _ONE_TAG.fullmatch(tag) else ())


def metadata_app(lane: Lane, rules: Rules, faults: Faults) -> Metadata:
    """The application: the one that can fail only where that is allowed."""
    return Faulty(lane, rules, faults) if faults.allowed else Metadata(lane, rules)
