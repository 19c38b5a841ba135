"""/v1/faults: inject faults into the metadata endpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from forewarn.control.idempotency import create_once
from forewarn.control.input import read_body, read_duration
from forewarn.control.paging import Paging, page, requested_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    Body,
    Count,
    Duration,
    Name,
    Shape,
    Time,
    choice,
    help_text,
    integer,
    json_response,
    page_of,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.faults import FAULTS, GET, MAX_COUNT, MAX_DELAY, METHODS, FaultSpec
from forewarn.errors import BadRequestBody, UnknownVM

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.faults import Fault
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults


class FaultShape(Shape):
    """A fault and how often it was applied."""

    id: str
    kind: Annotated[str, choice(*FAULTS)]
    vm: Annotated[str | None, help_text("Affects only requests of this VM; null: of all VMs.")]
    method: Annotated[str, choice(*METHODS)]
    count: Count | None
    duration_seconds: float | None
    delay_seconds: float | None
    added_by: str
    added_at: Time
    expires_at: Annotated[Time | None, help_text("Expiry time; null: it expires when its count is used up.")]
    remaining: Annotated[Count | None, help_text("Number of requests that it will still affect; null: no limit.")]
    hits: Annotated[Count, help_text("Number of requests that it has affected; for disabled, number of scopes.")]

    @classmethod
    def of(cls, fault: Fault) -> Self:
        spec = fault.spec
        return cls(
            id=fault.id,
            kind=spec.kind,
            vm=spec.vm or None,
            method=spec.method,
            count=spec.count,
            duration_seconds=seconds(spec.duration),
            delay_seconds=seconds(spec.delay),
            added_by=fault.by,
            added_at=to_text(fault.added_at),
            expires_at=to_text_if_any(fault.expires_at),
            remaining=fault.remaining,
            hits=fault.hits,
        )


class ClearedFaultsShape(Shape):
    """The faults that were cleared."""

    faults: list[FaultShape]


class FaultRequest(Body, kw_only=True):
    """The fault to add."""

    kind: Annotated[str, choice(*FAULTS), help_text("The kind of fault.")]
    vm: Annotated[Name | None, help_text("Affect only requests of this VM. Default: all VMs.")] = None
    method: Annotated[
        Annotated[str, choice(*METHODS)] | None, help_text("Method of the requests to affect. Default: GET.")
    ] = None
    count: Annotated[
        Annotated[int, integer(1, MAX_COUNT)] | None,
        help_text("Number of requests to affect. Default: 1, if no duration is given."),
    ] = None
    duration: Annotated[
        Duration | None,
        help_text(
            "Time until the fault expires, on the service's clock. With a count, the fault ends with the first of both."
        ),
    ] = None
    delay: Annotated[
        Duration | None,
        help_text(f"Delay of a response, in real time. Maximum: {MAX_DELAY.total_seconds():.0f}s."),
    ] = None


class FaultControl:
    """Faults."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults

    def routes(self) -> list[Route]:
        one, path, operator = FaultShape, "/v1/faults/{id}", Role.OPERATOR
        listed, cleared = page_of("faults", one), ClearedFaultsShape
        return [
            Route("GET", "/v1/faults", self.faults, "List active faults.", listed, query=Paging),
            Route(
                "POST",
                "/v1/faults",
                self.add,
                "Add a fault to the metadata endpoint.",
                one,
                operator,
                body=FaultRequest,
                status=201,
                creates=True,
                links=((path, "/id"),),
            ),
            Route("DELETE", "/v1/faults", self.clear_all, "Clear all faults.", cleared, operator),
            Route("DELETE", path, self.clear, "Clear a fault.", one, operator),
        ]

    async def faults(self, request: Request) -> Response:
        requested = requested_page(request)
        later = [fault for fault in self._faults.list() if _number(fault) > requested.after_number]
        await self._faults.wait_until_recorded()  # history must already show how a fault ended that is no longer listed
        part = later[: requested.limit]
        return page("faults", map(FaultShape.of, part), _number(part[-1]) if len(later) > requested.limit else None)

    async def add(self, request: Request) -> Response:
        body = await read_body(request, FaultRequest)
        if body.vm == "":  # an empty variable in a script must not affect all VMs
            problem = "must be the name of a VM. Leave it out to affect all VMs"
            raise BadRequestBody(pointer="/vm", problem=problem, allowed="the name of a VM")
        spec = FaultSpec(
            kind=body.kind,
            vm=body.vm or "",
            method=GET if body.method is None else body.method,
            count=body.count,
            duration=read_duration(body.duration, "/duration"),
            delay=read_duration(body.delay, "/delay"),
        )
        made: list[Fault] = []
        try:
            add = self._faults.command_to_add(spec, caller(request).name)

            def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> FaultShape:
                made[:] = [add(draft, now, limits)]
                return FaultShape.of(made[0])

            added = await create_once(self._engine, request, decide)
        except UnknownVM as error:
            error.member = "vm"
            raise
        for fault in made:  # none if the response was replayed for an idempotency key
            self._faults.activate(fault)
        return added

    async def clear(self, request: Request) -> Response:
        (cleared,) = await self._faults.clear(request.path_params["id"], caller(request).name)
        return json_response(FaultShape.of(cleared))

    async def clear_all(self, request: Request) -> Response:
        cleared = await self._faults.clear(None, caller(request).name)
        return json_response(ClearedFaultsShape(list(map(FaultShape.of, cleared))))


def _number(fault: Fault) -> int:
    """Return the number in the id of a fault. Numbers restart with the service."""
    return int(fault.id.removeprefix("f"))
