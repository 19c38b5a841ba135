"""/v1/scenarios and /v1/runs: list scenarios, and run them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse, Response

from forewarn.control.input import read_fields
from forewarn.control.paging import PAGING, page, page_of_names, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    FLAG,
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
)
from forewarn.core.access import Role
from forewarn.core.scenarios import Casting, RunState, StepState
from forewarn.errors import BadRequestBody
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library
from forewarn.scenarios.shapes import run_shape, scenario_shape

if TYPE_CHECKING:
    from starlette.requests import Request

    from forewarn.control.input import Fields
    from forewarn.core.scenarios import Scenario
    from forewarn.scenarios.runs import Player


_MAYBE_TEXT, _MAYBE_MOMENT, _TEXTS = nullable(TEXT), nullable(MOMENT), list_of(TEXT)
_SUMMARY: dict[str, Schema] = {
    "name": TEXT,
    "title": TEXT,
    "about": TEXT,
    "source": TEXT,
    "needs": record(
        {
            "words": TEXT,
            "vms": COUNT,
            "group": _MAYBE_TEXT,
            "priority": _MAYBE_TEXT,
            "update_domains": nullable(COUNT),
            "terminate_notice": FLAG,
        }
    ),
    "longest_seconds": NUMBER,
}

SHAPES: dict[str, Schema] = {
    "ScenarioSummary": record(_SUMMARY),
    "Scenario": record(
        {
            **_SUMMARY,
            "steps": list_of(record({"what": TEXT, "how": TEXT, "expects": _TEXTS})),
            "fleet": _MAYBE_TEXT,
            "text": TEXT,
        }
    ),
    "Run": record(
        {
            "id": TEXT,
            "scenario": TEXT,
            "title": TEXT,
            "vms": _TEXTS,
            "speed": nullable(NUMBER),
            "by": TEXT,
            "state": choice(*(state.value for state in RunState)),
            "started_at": MOMENT,
            "ended_at": _MAYBE_MOMENT,
            "operations": _TEXTS,
            "steps": list_of(
                record(
                    {
                        "what": TEXT,
                        "state": choice(*(state.value for state in StepState)),
                        "since": _MAYBE_MOMENT,
                        "ended_at": _MAYBE_MOMENT,
                        "expects": _TEXTS,
                        "problem": _MAYBE_TEXT,
                    }
                )
            ),
        }
    ),
}


# --- Routes ---------------------------------------------------------------------------------------


SLOWEST, FASTEST = 0.001, 1_000_000
SPEED = {"type": "number", "minimum": SLOWEST, "maximum": FASTEST}
ASKED = (
    Field("scenario", NAME, "The name of one that comes with Forewarn; or give its text."),
    Field("text", TEXT, "A scenario file, as TOML."),
    Field("name", NAME, "With a text: what messages call it."),
    Field("vms", list_of(NAME), "Who plays it; if nobody is named, those that fit."),
    Field("group", NAME, "Instead of VMs: as many of this group as are needed."),
    Field("speed", SPEED, "So many times faster; if it is not said, a virtual clock goes as fast as it can."),
    Field("enable", FLAG, "Count groups that do not listen as listening."),
    Field("seen_by", list_of(NAME), "VMs that must have seen a change before a virtual clock moves on."),
)


class ScenarioControl:
    """Scenarios, and their runs."""

    def __init__(self, player: Player) -> None:
        self._player = player

    def endpoints(self) -> list[Endpoint]:
        run, path = ref("Run"), "/v1/runs/{id}"
        return [
            Endpoint(
                "GET",
                "/v1/scenarios",
                self.scenarios,
                "List the scenarios that come with Forewarn.",
                page_schema("scenarios", "ScenarioSummary"),
                query=PAGING,
            ),
            Endpoint("GET", "/v1/scenarios/{name}", self.scenario, "See a scenario.", ref("Scenario")),
            Endpoint(
                "GET", "/v1/runs", self.runs, "List runs, newest first.", page_schema("runs", "Run"), query=PAGING
            ),
            Endpoint(
                "POST",
                "/v1/runs",
                self.start,
                "Run a scenario.",
                run,
                Role.OPERATOR,
                body=ASKED,
                status=201,
                leads_to=((path, "/id"),),
            ),
            Endpoint("GET", path, self.run, "See a run, and how far it has come.", run),
            Endpoint("POST", f"{path}/stop", self.stop, "Stop a run.", run, Role.OPERATOR, body=()),
        ]

    async def scenarios(self, request: Request) -> Response:
        return page_of_names(request, "scenarios", library.names(), lambda name: scenario_shape(shelved(name)))

    async def scenario(self, request: Request) -> Response:
        name = request.path_params["name"]
        return JSONResponse(scenario_shape(shelved(name), library.text(name)))

    async def start(self, request: Request) -> Response:
        """A run does not outlive the service, so an Idempotency-Key could not be kept: look at the runs instead."""
        fields = await read_fields(request)
        casting = Casting(
            vms=fields.texts("vms"),
            group=fields.text("group"),
            speed=_speed(fields),
            enable=fields.flag("enable"),
            seen_by=fields.texts("seen_by"),
        )
        run = await self._player.start(await _scenario(fields), casting, caller(request).name)
        return JSONResponse(run_shape(run), 201)

    async def runs(self, request: Request) -> Response:
        """Runs have numbers, and newer ones come first: a page goes on below a number."""
        asked = wanted(request)
        found = [run for run in self._player.runs() if not asked.after or int(run.id[1:]) < asked.after_number]
        part = found[: asked.limit]
        return page("runs", map(run_shape, part), part[-1].id[1:] if len(found) > len(part) else None)

    async def run(self, request: Request) -> Response:
        return JSONResponse(run_shape(self._player.run(request.path_params["id"])))

    async def stop(self, request: Request) -> Response:
        await read_fields(request)
        return JSONResponse(run_shape(await self._player.stop_run(request.path_params["id"])))


@cache
def shelved(name: str) -> Scenario:
    """A scenario that comes with Forewarn."""
    return parse_scenario(library.text(name), name, f"{name}.toml")


async def _scenario(fields: Fields) -> Scenario:
    name, text = fields.text("scenario"), fields.text("text")
    if bool(name) == bool(text):
        known = library.names()
        problem = "give the name of a scenario, or the text of one as text; one of the two"
        raise BadRequestBody(pointer="/scenario", problem=problem, valid=known)
    if not text:
        return shelved(name)
    called = fields.text("name", "scenario")
    # In a thread: the fleet in it may be large, and the polls should not wait for that.
    return await asyncio.to_thread(parse_scenario, text, called, called)


def _speed(fields: Fields) -> float | None:
    value = fields.values.get("speed")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not SLOWEST <= value <= FASTEST:
        valid = f"a number from {SLOWEST} to {FASTEST:,}"
        raise BadRequestBody(pointer="/speed", problem=f"must be {valid}", valid=valid)
    return float(value)
