"""/v1/clock: the time of the service, and moving a virtual clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

from forewarn.control.input import DURATION_FORMAT, read_body, read_duration, wait_for_disconnect
from forewarn.control.routing import Route, caller, partly_done
from forewarn.control.schema import (
    Body,
    Duration,
    NameIfAny,
    NoMembers,
    Shape,
    Time,
    at_most,
    choice,
    help_text,
    json_response,
)
from forewarn.core.access import Role
from forewarn.core.durations import format_duration, format_time, to_text
from forewarn.core.requests import MAX_VMS
from forewarn.engine.clock_hold import describe_step
from forewarn.errors import BadRequestBody, StoreFailed, shown

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer

DEFAULT_TIMEOUT = timedelta(seconds=30)
"""Real time that a VM has to poll after each step of the clock."""
NEXT = "next"
MAX_TIMEOUT = timedelta(hours=1)


class ClockJumpShape(Shape):
    """A jump of the system clock. Starts, inactivity and retention are held."""

    description: str
    seen_at: Time
    system_time: Time
    held_until: Time


class NextDueShape(Shape):
    """What happens next because of the time."""

    time: Time
    kind: Annotated[str, choice("operation", "rollout", "fabric")]
    id: Annotated[str | None, help_text("The id of the operation or the rollout.")]
    description: str


class ClockShape(Shape):
    """The time of the service."""

    now: Time
    clock: Annotated[str, choice("system", "virtual")]
    speed: float
    jump: Annotated[ClockJumpShape | None, help_text("The jump of the system clock that is not accepted yet.")] = None
    next_due: Annotated[
        NextDueShape | None,
        help_text("With a virtual clock: what is due next. Null if nothing is, and for tenants."),
    ] = None


class ClockAdvance(Body, kw_only=True):
    """How to move a virtual clock."""

    by: Annotated[Duration | None, help_text("Duration by which to move the clock. Give this or to.")] = None
    to: Annotated[
        Annotated[str, choice(NEXT)] | None,
        help_text("Where to move the clock: to the time at which something is due next. Give this or by."),
    ] = None
    seen_by: Annotated[
        Annotated[list[NameIfAny], at_most(MAX_VMS)] | None,
        help_text("VMs that poll on their own. After each step, the clock waits until they have polled."),
    ] = None
    timeout: Annotated[Duration | None, help_text("Real time that each of these VMs has for a step. Default: 30s.")] = (
        None
    )


class ClockControl:
    """The clock."""

    def __init__(self, engine: Engine, metadata: MetadataServer) -> None:
        self._engine = engine
        self._metadata = metadata

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/clock", self.clock, "Return the time of the service.", ClockShape, tenant=True),
            Route(
                "POST",
                "/v1/clock/advance",
                self.advance,
                "Move a virtual clock forward.",
                ClockShape,
                Role.OPERATOR,
                body=ClockAdvance,
            ),
            Route(
                "POST",
                "/v1/clock/accept",
                self.accept,
                "Accept the system time after a jump of the system clock.",
                ClockShape,
                Role.OPERATOR,
                body=NoMembers,
            ),
        ]

    async def clock(self, request: Request) -> Response:
        return json_response(clock_shape(self._engine, tenant=bool(caller(request).group)))

    async def advance(self, request: Request) -> Response:
        body = await read_body(request, ClockAdvance)
        if bool(body.by) == bool(body.to):
            raise BadRequestBody(pointer="/by", problem="give either /by or /to", allowed=DURATION_FORMAT)
        if body.to not in (None, "", NEXT):
            raise BadRequestBody(pointer="/to", problem=f"{shown(body.to)} is not {shown(NEXT)}", allowed=[NEXT])
        timeout, vms = read_duration(body.timeout, "/timeout"), tuple(body.seen_by or ())
        distance = read_duration(body.by, "/by")
        if distance is None:
            distance = self._engine.time_to_next()
        if timeout is not None and (not vms or not timedelta(0) < timeout <= MAX_TIMEOUT):
            problem = (
                f"must be more than 0s and at most {format_duration(MAX_TIMEOUT)}"
                if vms
                else "needs seen_by: name the VMs to wait for"
            )
            raise BadRequestBody(pointer="/timeout", problem=problem, allowed=DURATION_FORMAT)
        before = self._engine.clock.now()
        try:
            await self._advance(request, distance, vms, DEFAULT_TIMEOUT if timeout is None else timeout)
        except StoreFailed as error:
            now = self._engine.clock.now()
            if now > before:
                raise partly_done(f"The clock is at {format_time(now)}.", error) from error
            raise
        return json_response(clock_shape(self._engine))

    async def _advance(self, request: Request, distance: timedelta, vms: tuple[str, ...], longest: timedelta) -> None:
        if not vms:
            await self._engine.advance(distance)
            return
        with self._metadata.delivery_tracker.barrier(vms, longest) as barrier:
            disconnect = asyncio.create_task(wait_for_disconnect(request))
            disconnect.add_done_callback(lambda _: barrier.cancel())
            try:
                await self._engine.advance(distance, barrier)
            finally:
                disconnect.cancel()

    async def accept(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        await self._engine.accept_clock(caller(request).name)
        return json_response(clock_shape(self._engine))


def clock_shape(engine: Engine, *, tenant: bool = False) -> ClockShape:
    """Return the clock as JSON. Tenants do not see what is due, because it may concern other groups."""
    clock, limits = engine.clock, engine.limits
    now, jump = clock.now(), engine.clock_hold.jump
    shape = jump and ClockJumpShape(
        describe_step(jump), to_text(jump.seen_at), to_text(jump.system_time), to_text(jump.until)
    )
    due = engine.next_due() if clock.virtual and not tenant else None
    next_due = due and NextDueShape(to_text(due.time), due.kind, due.id or None, due.description)
    return ClockShape(to_text(now), "virtual" if clock.virtual else "system", limits.speed, shape, next_due)
