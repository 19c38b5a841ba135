"""Approvals, answered in the protocol: past the application, but through the same checks, engine and texts.

Only a POST that is in order up to its body is taken here. It is a request of uvicorn's like any other, so
that pipelining, stopping and closing are as ever; but what would be three quarters of its time, building
a scope, calling an application and checking its headers, is left out.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forewarn.errors import ForewarnError
from forewarn.server.intake import Intake
from forewarn.server.pages import SERVER
from forewarn.server.problems import metadata_answer
from forewarn.wire import refusals
from forewarn.wire.answer import Answer
from forewarn.wire.document import parse_start_requests

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forewarn.engine import Engine
    from forewarn.server.callers import Caller

logger = logging.getLogger(__name__)

APPROVED = Answer(200)


class Approvals(Intake):
    """A connection that can take approvals itself. `take_approval` says of which request."""

    def __init__(self, engine: Engine, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._engine = engine

    def take_approval(self, caller: Caller) -> None:
        """The request whose head has just been read is an approval in order, by this caller."""
        self.scope["state"]["approver"] = caller

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        caller: Caller | None = cycle.scope["state"].get("approver")
        if caller is None or not caller.allowed():
            super()._start_asgi_task(cycle, app)
            return
        self._under_way = cycle
        task = self.loop.create_task(self._approve(cycle, caller))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)

    async def _approve(self, cycle: RequestResponseCycle, caller: Caller) -> None:
        while cycle.more_body and not cycle.disconnected:
            await cycle.message_event.wait()
            cycle.message_event.clear()
            self.flow.resume_reading()
        if cycle.disconnected:
            return
        try:
            answer = await self._judge(cycle, caller)
        except Exception:
            logger.exception("An approval could not be answered.")
            await cycle.send_500_response()
            return
        self._send(cycle, answer)

    async def _judge(self, cycle: RequestResponseCycle, caller: Caller) -> Answer:
        if cycle.scope["state"].get("broken"):
            return refusals.MALFORMED
        try:
            await self._engine.approve(parse_start_requests(bytes(cycle.body)), by=caller.vm, group=caller.group)
        except ForewarnError as error:
            return metadata_answer(error)
        return APPROVED

    def _send(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        if cycle.disconnected:
            return
        kind = f"content-type: {answer.content_type}\r\n" if answer.body else ""
        head = f"{kind}content-length: {len(answer.body)}\r\nserver: {SERVER}\r\n".encode()
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[answer.status] + head + self._stamp.next() + end + answer.body)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self.transport.close()
        cycle.on_response()
