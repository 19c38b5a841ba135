"""/v1/faults: make the metadata endpoint fail on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import field

from forewarn.control.idempotency import make_once
from forewarn.control.input import read_body, read_length
from forewarn.control.paging import Paging, page, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    Body,
    Count,
    Length,
    Moment,
    Name,
    Shape,
    answer,
    choice,
    help_text,
    page_of,
    whole,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.faults import FAULTS, GET, MAX_COUNT, MAX_DELAY, ON, FaultSpec
from forewarn.errors import BadRequestBody, UnknownVM

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.faults import Fault
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults


class FaultShape(Shape):
    """A fault, and how far it has come."""

    id: str
    kind: Annotated[str, choice(*FAULTS)]
    vm: Annotated[str | None, help_text("Whose requests it strikes; null: those of all VMs.")]
    on: Annotated[str, choice(*ON)]
    count: Count | None
    for_seconds: float | None
    delay_seconds: float | None
    added_by: str
    added_at: Moment
    until: Annotated[Moment | None, help_text("When it is over; null: when its count is.")]
    left: Annotated[Count | None, help_text("How many requests it will still strike; null: any number.")]
    struck: Annotated[Count, help_text("How many requests it has struck; groups, of disabled.")]

    @classmethod
    def of(cls, fault: Fault) -> Self:
        order = fault.order
        return cls(
            id=fault.id,
            kind=order.kind,
            vm=order.vm or None,
            on=order.on,
            count=order.count,
            for_seconds=seconds(order.length),
            delay_seconds=seconds(order.delay),
            added_by=fault.by,
            added_at=to_text(fault.added_at),
            until=to_text_if_any(fault.until),
            left=fault.left,
            struck=fault.struck,
        )


class ClearedFaultsShape(Shape):
    """The faults that were cleared."""

    faults: list[FaultShape]


class FaultRequest(Body, kw_only=True):
    """How to fail."""

    kind: Annotated[str, choice(*FAULTS), help_text("How to fail.")]
    vm: Annotated[Name | None, help_text("Strike only requests of this VM; if it is not said, of all.")] = None
    on: Annotated[
        Annotated[str, choice(*ON)] | None, help_text("Which requests to strike; if it is not said, GET.")
    ] = None
    count: Annotated[
        Annotated[int, whole(1, MAX_COUNT)] | None,
        help_text("How many requests to strike; 1 if neither this nor a length is said."),
    ] = None
    for_: Annotated[
        Length | None, help_text("How long to strike, by the service's clock; with a count, whichever ends first.")
    ] = field(name="for", default=None)
    delay: Annotated[
        Length | None,
        help_text(f"How long to keep a client waiting, in real time, at most {MAX_DELAY.total_seconds():.0f}s."),
    ] = None


class FaultControl:
    """Faults."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = FaultShape, "/v1/faults/{id}", Role.OPERATOR
        listed, cleared = page_of("faults", one), ClearedFaultsShape
        return [
            Endpoint("GET", "/v1/faults", self.faults, "List active faults.", listed, query=Paging),
            Endpoint(
                "POST",
                "/v1/faults",
                self.add,
                "Make the endpoint fail on purpose.",
                one,
                operator,
                body=FaultRequest,
                status=201,
                makes=True,
                leads_to=((path, "/id"),),
            ),
            Endpoint("DELETE", "/v1/faults", self.clear_all, "Clear all faults.", cleared, operator),
            Endpoint("DELETE", path, self.clear, "Clear a fault.", one, operator),
        ]

    async def faults(self, request: Request) -> Response:
        asked = wanted(request)
        later = [fault for fault in self._faults.list() if _number(fault) > asked.after_number]
        await self._faults.noted()  # who does not see a fault any more finds in history how it ended
        part = later[: asked.limit]
        return page("faults", map(FaultShape.of, part), _number(part[-1]) if len(later) > asked.limit else None)

    async def add(self, request: Request) -> Response:
        body = await read_body(request, FaultRequest)
        if body.vm == "":  # a name that was lost on the way must not strike them all
            problem = "must be the name of a VM. Omit it to affect the requests of all VMs"
            raise BadRequestBody(pointer="/vm", problem=problem, valid="the name of a VM")
        order = FaultSpec(
            kind=body.kind,
            vm=body.vm or "",
            on=GET if body.on is None else body.on,
            count=body.count,
            length=read_length(body.for_, "/for"),
            delay=read_length(body.delay, "/delay"),
        )
        made: list[Fault] = []
        try:
            add = self._faults.adding(order, caller(request).name)

            def decide(draft: Draft, now: datetime, terms: Terms) -> FaultShape:
                made[:] = [add(draft, now, terms)]
                return FaultShape.of(made[0])

            added = await make_once(self._engine, request, decide)
        except UnknownVM as error:
            error.member = "vm"
            raise
        for fault in made:  # none where a request is repeated by its key
            self._faults.take(fault)
        return added

    async def clear(self, request: Request) -> Response:
        (cleared,) = await self._faults.clear(request.path_params["id"], caller(request).name)
        return answer(FaultShape.of(cleared))

    async def clear_all(self, request: Request) -> Response:
        cleared = await self._faults.clear(None, caller(request).name)
        return answer(ClearedFaultsShape(list(map(FaultShape.of, cleared))))


def _number(fault: Fault) -> int:
    """Which one it was since the service was started."""
    return int(fault.id.removeprefix("f"))
