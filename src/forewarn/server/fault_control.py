"""/v1/faults: how the endpoint fails on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.core.access import Role
from forewarn.core.faults import FAULTS, GET, LONGEST_DELAY, MOST_STRIKES, ON, FaultOrder
from forewarn.errors import BadRequestBody, UnknownVM
from forewarn.server.bodies import read_fields
from forewarn.server.endpoints import Endpoint, caller
from forewarn.server.paging import PAGING, page, wanted
from forewarn.server.repeats import make_once
from forewarn.wire.faults import fault_shape
from forewarn.wire.schema import LENGTH, NAME, Field, choice, ref, whole
from forewarn.wire.shapes_schema import page_schema

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.faults import Fault
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine import Engine
    from forewarn.faults import Faults

ASKED = (
    Field("kind", choice(*FAULTS), "How to fail.", required=True),
    Field("vm", NAME, "Strike only requests of this VM; if it is not said, of all."),
    Field("on", choice(*ON), "Which requests to strike; if it is not said, GET."),
    Field("count", whole(1, MOST_STRIKES), "How many requests to strike; 1 if neither this nor a length is said."),
    Field("for", LENGTH, "How long to strike, by the service's clock; with a count, whichever ends first."),
    Field(
        "delay",
        LENGTH,
        f"How long to keep a client waiting, in real time, at most {LONGEST_DELAY.total_seconds():.0f}s.",
    ),
)


class FaultControl:
    """Faults."""

    def __init__(self, engine: Engine, faults: Faults) -> None:
        self._engine = engine
        self._faults = faults

    def endpoints(self) -> list[Endpoint]:
        one, path, operator = ref("Fault"), "/v1/faults/{id}", Role.OPERATOR
        listed, cleared = page_schema("faults", "Fault"), ref("ClearedFaults")
        return [
            Endpoint("GET", "/v1/faults", self.faults, "List active faults.", listed, query=PAGING),
            Endpoint(
                "POST",
                "/v1/faults",
                self.add,
                "Make the endpoint fail on purpose.",
                one,
                operator,
                body=ASKED,
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
        return page("faults", map(fault_shape, part), _number(part[-1]) if len(later) > asked.limit else None)

    async def add(self, request: Request) -> Response:
        fields = await read_fields(request)
        if "vm" in fields and not fields.text("vm"):  # a name that was lost on the way must not strike them all
            problem = "must be the name of a VM. Leave it out to strike the requests of all"
            raise BadRequestBody(pointer="/vm", problem=problem, valid="the name of a VM")
        order = FaultOrder(
            kind=fields.text("kind"),
            vm=fields.text("vm"),
            on=fields.text("on", GET),
            count=fields.number("count", 0) if "count" in fields else None,
            length=fields.length("for"),
            delay=fields.length("delay"),
        )
        made: list[Fault] = []
        try:
            add = self._faults.adding(order, caller(request).name)

            def decide(draft: Draft, now: datetime, terms: Terms) -> dict[str, Any]:
                made[:] = [add(draft, now, terms)]
                return fault_shape(made[0])

            answer = await make_once(self._engine, request, fields, decide)
        except UnknownVM as error:
            error.member = "vm"
            raise
        for fault in made:  # none where a request is repeated by its key
            self._faults.take(fault)
        return answer

    async def clear(self, request: Request) -> Response:
        (cleared,) = await self._faults.clear(request.path_params["id"], caller(request).name)
        return JSONResponse(fault_shape(cleared))

    async def clear_all(self, request: Request) -> Response:
        cleared = await self._faults.clear(None, caller(request).name)
        return JSONResponse({"faults": [fault_shape(fault) for fault in cleared]})


def _number(fault: Fault) -> int:
    """Which one it was since the service was started."""
    return int(fault.id.removeprefix("f"))
