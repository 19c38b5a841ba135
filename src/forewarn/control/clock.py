"""/v1/clock: what time it is for the service, and moving a virtual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from forewarn.control.input import A_LENGTH, read_body, read_length, until_gone
from forewarn.control.routing import Endpoint
from forewarn.control.schema import Body, Length, Moment, Shape, answer, choice, help_text
from forewarn.core.access import Role
from forewarn.core.durations import format_duration, to_text
from forewarn.errors import BadRequestBody

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer

SEEN_WITHIN = timedelta(seconds=30)
"""How long, in real time, a VM may take to see a step of a moved clock."""
LONGEST_LIMIT = timedelta(hours=1)


class ClockShape(Shape):
    """What time it is for the service."""

    now: Moment
    clock: Annotated[str, choice("system", "virtual")]
    speed: float


class ClockAdvance(Body, kw_only=True):
    """How far a virtual clock is moved."""

    by: Annotated[Length, help_text("How far.")]
    seen_by: Annotated[
        list[str] | None, help_text("VMs that poll by themselves: each takes in every step before the next.")
    ] = None
    limit: Annotated[
        Length | None, help_text("How long they may take for a step, in real time; 30s if it is not said.")
    ] = None


class ClockControl:
    """The clock."""

    def __init__(self, engine: Engine, metadata: MetadataServer) -> None:
        self._engine = engine
        self._metadata = metadata

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/v1/clock", self.clock, "See what time it is for the service.", ClockShape, tenant=True),
            Endpoint(
                "POST",
                "/v1/clock/advance",
                self.advance,
                "Move a virtual clock on.",
                ClockShape,
                Role.OPERATOR,
                body=ClockAdvance,
            ),
        ]

    async def clock(self, _: Request) -> Response:
        return answer(self._clock())

    async def advance(self, request: Request) -> Response:
        body = await read_body(request, ClockAdvance)
        length, limit, vms = read_length(body.by, "/by"), read_length(body.limit, "/limit"), tuple(body.seen_by or ())
        if length is None:
            raise BadRequestBody(pointer="/by", problem=f"must be {A_LENGTH}", valid=A_LENGTH)
        if limit is not None and (not vms or not timedelta(0) < limit <= LONGEST_LIMIT):
            problem = (
                f"must be more than 0s and at most {format_duration(LONGEST_LIMIT)}"
                if vms
                else "needs seen_by: name the VMs to wait for"
            )
            raise BadRequestBody(pointer="/limit", problem=problem, valid=A_LENGTH)
        if vms:
            with self._metadata.delivery_tracker.audience(vms, limit if limit is not None else SEEN_WITHIN) as audience:
                gone = asyncio.create_task(until_gone(request))
                gone.add_done_callback(lambda _: audience.abandon())
                try:
                    await self._engine.advance(length, audience)
                finally:
                    gone.cancel()
        else:
            await self._engine.advance(length)
        return answer(self._clock())

    def _clock(self) -> ClockShape:
        clock, terms = self._engine.clock, self._engine.terms
        return ClockShape(to_text(clock.now()), "virtual" if clock.virtual else "system", terms.speed)
