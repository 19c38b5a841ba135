"""/v1/scenarios and /v1/runs: list scenarios, and run them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from forewarn.control.input import read_body
from forewarn.control.paging import Paging, page, page_of_names, requested_page
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Body, Name, NoMembers, at_most, help_text, json_response, page_of
from forewarn.core.access import Role
from forewarn.core.requests import MAX_VMS
from forewarn.core.scenarios import RunOptions
from forewarn.errors import BadRequestBody
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library
from forewarn.scenarios.shapes import RunShape, ScenarioShape

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.scenarios import Scenario
    from forewarn.engine.engine import Engine
    from forewarn.scenarios.runs import ScenarioRuns


MAX_SCENARIO = 100_000
MIN_SPEED, MAX_SPEED = 0.001, 1_000_000


class RunRequest(Body):
    """Which scenario to run, and on which VMs."""

    scenario: Annotated[Name | None, help_text("The name of a built-in scenario. Give this or text.")] = None
    text: Annotated[
        Annotated[str, at_most(MAX_SCENARIO)] | None, help_text("The content of a scenario file (TOML).")
    ] = None
    name: Annotated[Name | None, help_text("With text: the name of the scenario in messages.")] = None
    vms: Annotated[
        Annotated[list[Name], at_most(MAX_VMS)] | None,
        help_text("The VMs to use. Default: chosen automatically if only one choice is possible."),
    ] = None
    group: Annotated[Name | None, help_text("Use VMs of this group. Give this or vms.")] = None
    speed: Annotated[
        Annotated[float, Meta(ge=MIN_SPEED, le=MAX_SPEED)] | None,
        help_text("Speed-up factor. Default: a virtual clock runs as fast as possible."),
    ] = None
    enable: Annotated[bool | None, help_text("Enable groups that have not polled yet.")] = None
    seen_by: Annotated[
        Annotated[list[Name], at_most(MAX_VMS)] | None,
        help_text("VMs that poll on their own. After each step, a virtual clock waits until they have polled."),
    ] = None


class ScenarioControl:
    """Scenarios, and their runs."""

    def __init__(self, engine: Engine, scenario_runs: ScenarioRuns, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices
        self._scenario_runs = scenario_runs

    def routes(self) -> list[Route]:
        run, path = RunShape, "/v1/runs/{id}"
        return [
            Route(
                "GET",
                "/v1/scenarios",
                self.scenarios,
                "List the built-in scenarios.",
                page_of("scenarios", ScenarioShape),
                query=Paging,
            ),
            Route("GET", "/v1/scenarios/{name}", self.scenario, "Return a scenario.", ScenarioShape),
            Route("GET", "/v1/runs", self.runs, "List runs, newest first.", page_of("runs", run), query=Paging),
            Route(
                "POST",
                "/v1/runs",
                self.start,
                "Run a scenario.",
                run,
                Role.OPERATOR,
                body=RunRequest,
                status=201,
                links=((path, "/id"),),
            ),
            Route("GET", path, self.run, "Return a run and its progress.", run),
            Route("POST", f"{path}/stop", self.stop, "Stop a run.", run, Role.OPERATOR, body=NoMembers),
        ]

    async def scenarios(self, request: Request) -> Response:
        return await page_of_names(
            request, self._slices, "scenarios", library.names(), lambda name: ScenarioShape.of(built_in(name))
        )

    async def scenario(self, request: Request) -> Response:
        name = request.path_params["name"]
        return json_response(ScenarioShape.of(built_in(name), library.text(name)))

    async def start(self, request: Request) -> Response:
        """No Idempotency-Key: runs are lost when the service stops, so a stored response would be wrong."""
        body = await read_body(request, RunRequest)
        options = RunOptions(
            vms=tuple(body.vms or ()),
            group=body.group or "",
            speed=body.speed,
            enable=bool(body.enable),
            seen_by=tuple(body.seen_by or ()),
        )
        run = await self._scenario_runs.start(await self._scenario(request, body), options, caller(request).name)
        return json_response(RunShape.of(run), 201)

    async def runs(self, request: Request) -> Response:
        """Newest first: a page continues below the number of the last run."""
        requested = requested_page(request)
        found = [
            run for run in self._scenario_runs.runs() if not requested.after or int(run.id[1:]) < requested.after_number
        ]
        part = found[: requested.limit]
        return page("runs", map(RunShape.of, part), part[-1].id[1:] if len(found) > len(part) else None)

    async def run(self, request: Request) -> Response:
        return json_response(RunShape.of(self._scenario_runs.run(request.path_params["id"])))

    async def stop(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        return json_response(RunShape.of(await self._scenario_runs.stop_run(request.path_params["id"])))

    async def _scenario(self, request: Request, body: RunRequest) -> Scenario:
        name, text = body.scenario, body.text
        if bool(name) == bool(text):
            known = library.names()
            problem = "give either scenario (a name) or text (the content of a scenario file)"
            raise BadRequestBody(pointer="/scenario", problem=problem, allowed=known)
        if not text:
            return built_in(name or "")
        shown_name = "scenario" if body.name is None else body.name
        work = self._engine.worker.run(parse_scenario, text, shown_name, shown_name)
        return await self._slices.while_wanted(request, work)


@cache
def built_in(name: str) -> Scenario:
    """Return a built-in scenario."""
    return parse_scenario(library.text(name), name, f"{name}.toml")
