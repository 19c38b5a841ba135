"""/v1/scenarios and /v1/runs: list scenarios, and run them."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from forewarn.control.input import read_body
from forewarn.control.paging import Paging, page, page_of_names, wanted
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import Body, Name, NoMembers, answer, help_text, page_of
from forewarn.core.access import Role
from forewarn.core.scenarios import RunOptions
from forewarn.errors import BadRequestBody
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library
from forewarn.scenarios.shapes import RunShape, ScenarioShape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.scenarios import Scenario
    from forewarn.scenarios.runs import ScenarioRuns


SLOWEST, FASTEST = 0.001, 1_000_000


class RunRequest(Body):
    """Which scenario to run, and on which VMs."""

    scenario: Annotated[Name | None, help_text("The name of one that comes with Forewarn; or give its text.")] = None
    text: Annotated[str | None, help_text("A scenario file, as TOML.")] = None
    name: Annotated[Name | None, help_text("With a text: what messages call it.")] = None
    vms: Annotated[list[Name] | None, help_text("Who plays it; if nobody is named, those that fit.")] = None
    group: Annotated[Name | None, help_text("Instead of VMs: as many of this group as are needed.")] = None
    speed: Annotated[
        Annotated[float, Meta(ge=SLOWEST, le=FASTEST)] | None,
        help_text("So many times faster; if it is not said, a virtual clock goes as fast as it can."),
    ] = None
    enable: Annotated[bool | None, help_text("Count groups that do not listen as listening.")] = None
    seen_by: Annotated[
        list[Name] | None, help_text("VMs that must have seen a change before a virtual clock moves on.")
    ] = None


class ScenarioControl:
    """Scenarios, and their runs."""

    def __init__(self, scenario_runs: ScenarioRuns) -> None:
        self._scenario_runs = scenario_runs

    def endpoints(self) -> list[Endpoint]:
        run, path = RunShape, "/v1/runs/{id}"
        return [
            Endpoint(
                "GET",
                "/v1/scenarios",
                self.scenarios,
                "List the scenarios that come with Forewarn.",
                page_of("scenarios", ScenarioShape),
                query=Paging,
            ),
            Endpoint("GET", "/v1/scenarios/{name}", self.scenario, "See a scenario.", ScenarioShape),
            Endpoint("GET", "/v1/runs", self.runs, "List runs, newest first.", page_of("runs", run), query=Paging),
            Endpoint(
                "POST",
                "/v1/runs",
                self.start,
                "Run a scenario.",
                run,
                Role.OPERATOR,
                body=RunRequest,
                status=201,
                leads_to=((path, "/id"),),
            ),
            Endpoint("GET", path, self.run, "See a run, and how far it has come.", run),
            Endpoint("POST", f"{path}/stop", self.stop, "Stop a run.", run, Role.OPERATOR, body=NoMembers),
        ]

    async def scenarios(self, request: Request) -> Response:
        return page_of_names(request, "scenarios", library.names(), lambda name: ScenarioShape.of(shelved(name)))

    async def scenario(self, request: Request) -> Response:
        name = request.path_params["name"]
        return answer(ScenarioShape.of(shelved(name), library.text(name)))

    async def start(self, request: Request) -> Response:
        """A run does not outlive the service, so an Idempotency-Key could not be kept: look at the runs instead."""
        body = await read_body(request, RunRequest)
        options = RunOptions(
            vms=tuple(body.vms or ()),
            group=body.group or "",
            speed=body.speed,
            enable=bool(body.enable),
            seen_by=tuple(body.seen_by or ()),
        )
        run = await self._scenario_runs.start(await _scenario(body), options, caller(request).name)
        return answer(RunShape.of(run), 201)

    async def runs(self, request: Request) -> Response:
        """Runs have numbers, and newer ones come first: a page goes on below a number."""
        asked = wanted(request)
        found = [run for run in self._scenario_runs.runs() if not asked.after or int(run.id[1:]) < asked.after_number]
        part = found[: asked.limit]
        return page("runs", map(RunShape.of, part), part[-1].id[1:] if len(found) > len(part) else None)

    async def run(self, request: Request) -> Response:
        return answer(RunShape.of(self._scenario_runs.run(request.path_params["id"])))

    async def stop(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        return answer(RunShape.of(await self._scenario_runs.stop_run(request.path_params["id"])))


@cache
def shelved(name: str) -> Scenario:
    """A scenario that comes with Forewarn."""
    return parse_scenario(library.text(name), name, f"{name}.toml")


async def _scenario(body: RunRequest) -> Scenario:
    name, text = body.scenario, body.text
    if bool(name) == bool(text):
        known = library.names()
        problem = "or /text must be given, but not both: the name of a scenario, or the text of a scenario file"
        raise BadRequestBody(pointer="/scenario", problem=problem, valid=known)
    if not text:
        return shelved(name or "")
    called = "scenario" if body.name is None else body.name
    # In a thread: the fleet in it may be large, and the polls should not wait for that.
    return await asyncio.to_thread(parse_scenario, text, called, called)
