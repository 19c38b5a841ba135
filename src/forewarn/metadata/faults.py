"""Injected faults of the metadata endpoint. Used only with --allow-faults."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.metadata import fixed_responses
from forewarn.metadata.fixed_responses import Response
from forewarn.metadata.rendered_responses import RenderedResponse, document_response, rendered
from forewarn.wire.document import entity_tag, render

if TYPE_CHECKING:
    from forewarn.core.faults import Fault
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.request import MetadataRequest
    from forewarn.metadata.routes import Result, Routes


FAULT_RESPONSES = {"410": fixed_responses.GONE, "429": fixed_responses.TOO_MANY, "500": fixed_responses.FAILED}
DAMAGING_FAULTS = ("empty", "stall", "length", "stale")
"""Faults that change the correct response instead of replacing it."""
MISSING_BYTES = 64
"""The fault `length` adds this to the real Content-Length."""
_ONE_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


class InjectedFaults:
    """Responds to requests that match a fault, and passes the others to the routes."""

    def __init__(self, engine: Engine, faults: Faults, routes: Routes) -> None:
        self._engine = engine
        self._faults = faults
        self._routes = routes

    def find(self, caller: Caller, method: str) -> Fault | None:
        """Return the fault that matches this caller's next request for the document."""
        return self._faults.find(caller.vm, caller.scope, method)

    def respond(self, request: MetadataRequest) -> Result:
        caller = request.caller
        if caller is None or not request.target.is_document:
            return self._routes.respond(request)
        fault = self.find(caller, request.method)
        if fault is None:
            return self._routes.respond(request)
        kind = fault.spec.kind
        if kind in DAMAGING_FAULTS:
            return self._damage(fault, request)
        self._faults.count_hit(fault.id)
        if kind == "slow":
            return self._slow(fault, request)
        if kind == "reset":
            request.connection.reset()
            return None
        return rendered(_unchanged(request) if kind == "unchanged" else FAULT_RESPONSES[kind])

    async def _slow(self, fault: Fault, request: MetadataRequest) -> Result:
        await self._wait(fault)
        request.caller = request.connection.find_caller()
        return self._routes.respond(request)

    async def _damage(self, fault: Fault, request: MetadataRequest) -> Result:
        """Damage the correct response if it is a document. Other responses do not use up the fault."""
        kind = fault.spec.kind
        if kind == "stale":  # with the client's tag, the route would respond 304
            conditions = (b"if-none-match", b"prefer")
            request.headers = [header for header in request.headers if header[0] not in conditions]
        response = self._routes.respond(request)
        while isinstance(response, Awaitable):
            response = await response
        caller = request.connection.find_caller()
        if caller is None:
            return rendered(fixed_responses.NOT_A_VM)
        previous = self._faults.previous_document(caller.scope) if kind == "stale" else None
        if not isinstance(response, RenderedResponse) or response.status != 200 or request.method != "GET":
            return response
        if (kind == "stale" and previous is None) or not self._faults.count_hit(fault.id):
            return response
        connection = request.connection
        if kind == "stall":
            connection.send_part(request, response, response.body[: len(response.body) // 2])
            await self._wait(fault)
            connection.close()
            return None
        if kind == "length":
            wrong = _with_length(response.head, len(response.body) + MISSING_BYTES)
            connection.send_part(request, response._replace(head=wrong), response.body)
            connection.close()
            return None
        if previous is not None and request.poll is not None:
            body = render(previous, request.poll.version, self._engine.fleet.group_of(caller.scope).kind)
            return document_response(entity_tag(previous), body)
        return response._replace(head=_with_length(response.head, 0), body=b"")

    async def _wait(self, fault: Fault) -> None:
        """Delay the response until the fault's delay ends or the service stops. A disconnect cancels it."""
        delay = fault.spec.delay
        with suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds() if delay is not None else 0):
                await self._routes.stopping.wait()


def _with_length(head: bytes, length: int) -> bytes:
    return re.sub(rb"\r\ncontent-length: \d+", b"\r\ncontent-length: %d" % length, head)


def _unchanged(request: MetadataRequest) -> Response:
    """Return a 304 with the client's own tag, so that its next poll after the fault still detects a change."""
    tag = ",".join(request.values(b"if-none-match")).strip()
    return Response(304, headers=(("etag", tag),) if _ONE_TAG.fullmatch(tag) else ())
