"""Approvals, answered in the protocol: past the application, but through the same checks, engine and texts.

Only a POST that is in order up to its body is taken here. It is a request of uvicorn's like any other, so
that pipelining, stopping and closing are as ever; but the task, the call of the application and the checks
of what it sends are left out.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from forewarn.errors import ForewarnError
from forewarn.server.intake import Intake
from forewarn.server.problems import metadata_answer
from forewarn.wire import refusals
from forewarn.wire.answer import Answer, error_answer
from forewarn.wire.document import parse_start_requests

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forewarn.server.callers import Caller
    from forewarn.server.lane import Lane

logger = logging.getLogger(__name__)

APPROVED = Answer(200)


class Approvals(Intake):
    """A connection that can take approvals itself. `take_approval` says of which request."""

    def __init__(self, lane: Lane, *arguments: Any, **options: Any) -> None:
        super().__init__(lane.stamp, *arguments, **options)
        self._lane = lane
        self._reading: RequestResponseCycle | None = None
        """The approval whose turn it is, and whose body is still on its way."""

    def take_approval(self, caller: Caller) -> None:
        """The request whose head has just been read is an approval in order, by this caller."""
        self.scope["state"]["approver"] = caller

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        caller: Caller | None = cycle.scope["state"].get("approver")
        if caller is None or not caller.allowed():
            super()._start_asgi_task(cycle, app)
            return
        self._under_way = self._reading = cycle
        self._judge_when_read()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        if self._reading is not None:
            self.flow.resume_reading()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._judge_when_read()

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._judge_when_read()

    def _judge_when_read(self) -> None:
        cycle = self._reading
        if cycle is None or cycle.more_body:
            return
        self._reading = None
        state = cycle.scope["state"]
        if state.get("broken"):
            self._send_soon(cycle, refusals.MALFORMED)
            return
        caller: Caller = state["approver"]
        try:
            ids = parse_start_requests(bytes(cycle.body))
        except ForewarnError as error:
            self._send_soon(cycle, metadata_answer(error))
            return
        self._lane.engine.approve_and_tell(ids, caller.vm, caller.group, partial(self._on_approved, cycle))

    def _on_approved(self, cycle: RequestResponseCycle, _: None, error: BaseException | None) -> None:
        if error is None:
            self._send(cycle, APPROVED)
        elif isinstance(error, ForewarnError):
            self._send(cycle, metadata_answer(error))
        else:
            logger.error("An approval could not be answered.", exc_info=error)
            self._send(cycle, error_answer(500, "Internal server error."))

    def _send_soon(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        """Not within the parser's callback: an answer lets the next request be parsed."""
        self.loop.call_soon(self._send, cycle, answer)

    def _send(self, cycle: RequestResponseCycle, answer: Answer) -> None:
        if cycle.disconnected:
            return
        self._write_answer(answer, keep_alive=cycle.keep_alive)
        self._lane.tallies.approval(answer.status).count += 1
        self._complete(cycle)
