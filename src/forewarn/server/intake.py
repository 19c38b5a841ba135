"""The limits of bounded.py as the metadata service sets them, and its answers past the application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forewarn.server.bounded import HEAD_TOO_LARGE, Bounded
from forewarn.server.pages import SERVER
from forewarn.wire import refusals

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from forewarn.server.stamp import Stamp
    from forewarn.wire.answer import Answer

LARGEST_DISCARDED_BODY = 1_048_576
"""Of a body that was refused as too large, this much is read and dropped, so that the refusal arrives."""


class Intake(Bounded):
    """A connection to the metadata service that can be answered with more than a page."""

    largest_body = LARGEST_DISCARDED_BODY

    def __init__(self, stamp: Stamp, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._stamp = stamp

    def _complete(self, cycle: RequestResponseCycle) -> None:
        """The request has been answered past the application: go on as if the application had done it."""
        cycle.response_started = cycle.response_complete = True
        cycle.on_response()

    def _refuse(self, status: int) -> None:
        answer = refusals.HEAD_TOO_LARGE if status == HEAD_TOO_LARGE else refusals.MALFORMED
        self._write_answer(answer, keep_alive=False)

    def _write_answer(self, answer: Answer, *, keep_alive: bool) -> None:
        """Write an answer past the application, as the application would; and close, unless the client may go on."""
        kind = f"content-type: {answer.content_type}\r\n" if answer.body else ""
        head = f"{kind}content-length: {len(answer.body)}\r\nserver: {SERVER}\r\n".encode()
        end = b"\r\n" if keep_alive else b"connection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[answer.status] + head + self._stamp.next() + end + answer.body)
        if not keep_alive:
            self.transport.close()
