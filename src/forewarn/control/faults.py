"""/v1/faults: make the metadata endpoint fail on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.idempotency import make_once
from forewarn.control.input import read_fields
from forewarn.control.paging import PAGING, page, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    LENGTH,
    MOMENT,
    NAME,
    NUMBER,
    TEXT,
    Field,
    Schema,
    choice,
    list_of,
    nullable,
    page_schema,
    record,
    ref,
    whole,
)
from forewarn.core.access import Role
from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.faults import FAULTS, GET, LONGEST_DELAY, MOST_STRIKES, ON, FaultOrder
from forewarn.errors import BadRequestBody, UnknownVM

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.core.faults import Fault
    from forewarn.core.limits import Terms
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults


def fault_shape(fault: Fault) -> dict[str, Any]:
    """A fault, and how far it has come."""
    order = fault.order
    return {
        "id": fault.id,
        "kind": order.kind,
        "vm": order.vm or None,
        "on": order.on,
        "count": order.count,
        "for_seconds": seconds(order.length),
        "delay_seconds": seconds(order.delay),
        "added_by": fault.by,
        "added_at": to_text(fault.added_at),
        "until": to_text_if_any(fault.until),
        "left": fault.left,
        "struck": fault.struck,
    }


SHAPES: dict[str, Schema] = {
    "Fault": record(
        {
            "id": TEXT,
            "kind": choice(*FAULTS),
            "vm": {**nullable(TEXT), "description": "Whose requests it strikes; null: those of all VMs."},
            "on": choice(*ON),
            "count": nullable(COUNT),
            "for_seconds": nullable(NUMBER),
            "delay_seconds": nullable(NUMBER),
            "added_by": TEXT,
            "added_at": MOMENT,
            "until": {**nullable(MOMENT), "description": "When it is over; null: when its count is."},
            "left": {**nullable(COUNT), "description": "How many requests it will still strike; null: any number."},
            "struck": {**COUNT, "description": "How many requests it has struck; groups, of disabled."},
        }
    ),
    "ClearedFaults": record({"faults": list_of(ref("Fault"))}),
}


# --- Routes ---------------------------------------------------------------------------------------


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
