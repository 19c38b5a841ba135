"""What an injected fault makes of an answer. Used only where faults are allowed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.metadata import answers
from forewarn.metadata.answers import Answer
from forewarn.metadata.replies import Reply, document_reply, reply
from forewarn.wire.document import entity_tag, render

if TYPE_CHECKING:
    from forewarn.core.faults import Fault
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.metadata.callers import Caller
    from forewarn.metadata.request import Request
    from forewarn.metadata.routes import Result, Routes


ANSWERS = {"410": answers.GONE, "429": answers.TOO_MANY, "500": answers.FAILED}
DAMAGES = ("empty", "stall", "length", "stale")
"""These faults need the right answer, and damage it."""
MISSING_BYTES = 64
"""A wrong length announces so much more than the body has."""
_ONE_TAG = re.compile(r'(?:W/)?"[\x21\x23-\x7e]*"')


class InjectedFaults:
    """Stands before the routes: a request that a fault strikes is answered here."""

    def __init__(self, engine: Engine, faults: Faults, routes: Routes) -> None:
        self._engine = engine
        self._faults = faults
        self._routes = routes

    def find(self, caller: Caller, method: str) -> Fault | None:
        """The fault that would strike this caller's next request for the document."""
        return self._faults.find(caller.vm, caller.group, method)

    def answer(self, request: Request) -> Result:
        caller = request.caller
        if caller is None or not request.target.is_document:
            return self._routes.answer(request)
        fault = self.find(caller, request.method)
        if fault is None:
            return self._routes.answer(request)
        kind = fault.order.kind
        if kind in DAMAGES:
            return self._damage(fault, request, caller)
        self._faults.strike(fault.id)
        if kind == "slow":
            return self._slow(fault, request)
        if kind == "reset":
            request.connection.reset()
            return None
        return reply(_unchanged(request) if kind == "unchanged" else ANSWERS[kind])

    async def _slow(self, fault: Fault, request: Request) -> Result:
        await self._wait(fault)
        return self._routes.answer(request)

    async def _damage(self, fault: Fault, request: Request, caller: Caller) -> Result:
        """Damage the right answer, if it is a document; another answer does not spend the fault."""
        kind = fault.order.kind
        if kind == "stale":  # the tag that the client has is for the document that it is not to get
            conditions = (b"if-none-match", b"prefer")
            request.headers = [header for header in request.headers if header[0] not in conditions]
        answer = self._routes.answer(request)
        while isinstance(answer, Awaitable):
            answer = await answer
        older = self._faults.older(caller.group) if kind == "stale" else None
        if not isinstance(answer, Reply) or answer.status != 200 or request.method != "GET":
            return answer
        if (kind == "stale" and older is None) or not self._faults.strike(fault.id):
            return answer
        connection = request.connection
        if kind == "stall":
            connection.send_part(request, answer, answer.body[: len(answer.body) // 2])
            await self._wait(fault)
            connection.close()
            return None
        if kind == "length":
            wrong = _with_length(answer.head, len(answer.body) + MISSING_BYTES)
            connection.send_part(request, answer._replace(head=wrong), answer.body)
            connection.close()
            return None
        if older is not None and request.poll is not None:
            body = render(older, request.poll.version, self._engine.fleet.group(caller.group).kind)
            return document_reply(entity_tag(older), body)
        return answer._replace(head=_with_length(answer.head, 0), body=b"")

    async def _wait(self, fault: Fault) -> None:
        """Keep the client waiting, unless the service stops. Who hangs up cancels this."""
        delay = fault.order.delay
        with suppress(TimeoutError):
            async with asyncio.timeout(delay.total_seconds() if delay is not None else 0):
                await self._routes.stopping.wait()


def _with_length(head: bytes, length: int) -> bytes:
    return re.sub(rb"\r\ncontent-length: \d+", b"\r\ncontent-length: %d" % length, head)


def _unchanged(request: Request) -> Answer:
    """A 304 with the tag that the client has: when the fault is over it can still tell that things have changed."""
    tag = ",".join(request.values(b"if-none-match")).strip()
    return Answer(304, headers=(("etag", tag),) if _ONE_TAG.fullmatch(tag) else ())
