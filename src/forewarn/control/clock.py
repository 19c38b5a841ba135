"""/v1/clock: what time it is for the service, and moving a virtual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.input import A_LENGTH, read_fields, until_gone
from forewarn.control.routing import Endpoint
from forewarn.control.schema import (
    LENGTH,
    MOMENT,
    NUMBER,
    TEXT,
    Field,
    Schema,
    choice,
    list_of,
    record,
    ref,
)
from forewarn.core.access import Role
from forewarn.core.durations import format_duration, to_text
from forewarn.errors import BadRequestBody

if TYPE_CHECKING:
    from starlette.requests import Request

    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer

SEEN_WITHIN = timedelta(seconds=30)
"""How long, in real time, a VM may take to see a step of a moved clock."""
LONGEST_LIMIT = timedelta(hours=1)


class ClockControl:
    """The clock."""

    def __init__(self, engine: Engine, metadata: MetadataServer) -> None:
        self._engine = engine
        self._metadata = metadata

    def endpoints(self) -> list[Endpoint]:
        clock = ref("Clock")
        return [
            Endpoint("GET", "/v1/clock", self.clock, "See what time it is for the service.", clock, tenant=True),
            Endpoint(
                "POST",
                "/v1/clock/advance",
                self.advance,
                "Move a virtual clock on.",
                clock,
                Role.OPERATOR,
                body=(
                    Field("by", LENGTH, "How far.", required=True),
                    Field(
                        "seen_by",
                        list_of(TEXT),
                        "VMs that poll by themselves: each takes in every step before the next.",
                    ),
                    Field("limit", LENGTH, "How long they may take for a step, in real time; 30s if it is not said."),
                ),
            ),
        ]

    async def clock(self, _: Request) -> Response:
        return JSONResponse(self._clock())

    async def advance(self, request: Request) -> Response:
        fields = await read_fields(request)
        length, limit, vms = fields.length("by"), fields.length("limit"), fields.texts("seen_by")
        if length is None:
            raise BadRequestBody(pointer="/by", problem=f"must be {A_LENGTH}", valid=A_LENGTH)
        if limit is not None and (not vms or not timedelta(0) < limit <= LONGEST_LIMIT):
            problem = (
                f"is more than 0s, at most {format_duration(LONGEST_LIMIT)}"
                if vms
                else "is for the VMs of seen_by: name them"
            )
            raise BadRequestBody(pointer="/limit", problem=problem, valid=A_LENGTH)
        if vms:
            with self._metadata.seen.audience(vms, limit if limit is not None else SEEN_WITHIN) as audience:
                gone = asyncio.create_task(until_gone(request))
                gone.add_done_callback(lambda _: audience.abandon())
                try:
                    await self._engine.advance(length, audience)
                finally:
                    gone.cancel()
        else:
            await self._engine.advance(length)
        return JSONResponse(self._clock())

    def _clock(self) -> dict[str, Any]:
        clock, terms = self._engine.clock, self._engine.terms
        return {
            "now": to_text(clock.now()),
            "clock": "virtual" if clock.virtual else "system",
            "speed": terms.speed,
        }


SHAPES: dict[str, Schema] = {
    "Clock": record({"now": MOMENT, "clock": choice("system", "virtual"), "speed": NUMBER}),
}
