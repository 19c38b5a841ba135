"""The limits of bounded.py as the control API sets them: they hold before any token is looked at."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from forewarn.errors import Invalid
from forewarn.server.bodies import LARGEST_FLEET
from forewarn.server.bounded import HEAD_TOO_LARGE, LARGEST_HEAD, MALFORMED, Bounded
from forewarn.server.problems import PROBLEM, problem

DISCARDED_BYTES = 1_048_576
"""Of a body that is larger than any may be, so much is dropped before the client is cut off: the refusal arrives."""

_REFUSALS = {
    MALFORMED: bytes(problem(Invalid(problem="it is not HTTP. Write it as RFC 9112 says."), MALFORMED).body),
    HEAD_TOO_LARGE: bytes(
        problem(
            Invalid(problem=f"its target and headers are too large. At most {LARGEST_HEAD} bytes are read."),
            HEAD_TOO_LARGE,
        ).body
    ),
}


class ControlIntake(Bounded):
    """A connection to the control API."""

    largest_body = LARGEST_FLEET + DISCARDED_BYTES

    def data_received(self, data: bytes) -> None:
        self._quiet_rounds = 0
        super().data_received(data)

    def on_body(self, body: bytes) -> None:
        # A fleet may take its time as long as it comes. What is dropped, since it was refused, may not.
        if not self.cycle.response_complete:
            self._open_rounds = 0
        super().on_body(body)

    def _refuse(self, status: int) -> None:
        body = _REFUSALS[status]
        headers = [
            *self.server_state.default_headers,
            (b"content-type", PROBLEM.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
        self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + body)
        self.transport.close()
