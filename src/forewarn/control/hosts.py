"""/v1/hosts: hosts, their state, and the VMs on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, UnsetType

from forewarn.control.filters import matching, one_of
from forewarn.control.input import read_body
from forewarn.control.paging import Counting, Names, page_of_names
from forewarn.control.routing import Route, caller
from forewarn.control.schema import MAX_LIST, DryRun, Name, Shape, at_most, choice, help_text, json_response, page_of
from forewarn.core.access import Role
from forewarn.core.fleet import HostState
from forewarn.core.fleet_commands import return_host_in_steps
from forewarn.core.shell_patterns import is_pattern

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine


class HostOperationShape(Shape):
    """An operation on a host."""

    id: str
    cause: str
    status: str


class HostShape(Shape):
    """A host with its VMs and the operations on it."""

    name: str
    state: Annotated[str, choice(*(state.value for state in HostState))]
    spare: bool
    vms: list[str]
    operations: list[HostOperationShape]
    cancelled: Annotated[
        list[str] | UnsetType, help_text("Only in the response to a return: the operations that it cancelled.")
    ] = UNSET

    @classmethod
    def of(cls, draft: Draft, name: str) -> Self:
        host = draft.fleet.host(name)
        return cls(
            name=host.name,
            state=host.state.value,
            spare=host.spare,
            vms=list(draft.fleet.on_host(name)),
            operations=[
                HostOperationShape(operation.id, operation.cause, operation.status.value)
                for operation in draft.operations_at(name)
            ],
        )


class HostsQuery(Counting):
    """Which hosts to list."""

    name: Annotated[
        Annotated[tuple[Name, ...], at_most(MAX_LIST)],
        help_text("Only hosts with this name, or with a name that matches this shell pattern. Can be repeated."),
    ] = ()
    state: Annotated[Name, choice(*(state.value for state in HostState)), help_text("Only hosts in this state.")] = ""


class HostControl:
    """Hosts."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices
        self._host_names = Names(engine, lambda fleet: fleet.host_names())

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/hosts",
                self.hosts,
                "List hosts.",
                page_of("hosts", HostShape, counted=True),
                query=HostsQuery,
            ),
            Route("GET", "/v1/hosts/{name}", self.host, "Return a host and the VMs on it.", HostShape),
            Route(
                "POST",
                "/v1/hosts/{name}/return",
                self.return_host,
                "Return a host to service.",
                HostShape,
                Role.OPERATOR,
                body=DryRun,
            ),
        ]

    async def hosts(self, request: Request) -> Response:
        query: HostsQuery = request.state.query
        fleet, state = self._engine.fleet, one_of("state", query.state, (state.value for state in HostState))
        names = self._host_names()
        if query.name:
            for name in query.name:
                if not is_pattern(name):
                    fleet.host(name)  # raises if there is no such host
            names = await matching(names, query.name)
            fleet = self._engine.fleet  # it may have changed in the meantime
            names = [name for name in names if fleet.has_host(name)]
        if state:
            names = [name for name in names if fleet.host(name).state.value == state]
        return await page_of_names(request, self._slices, "hosts", names, self._host)

    async def host(self, request: Request) -> Response:
        return json_response(self._host(request.path_params["name"]))

    def _host(self, name: str) -> HostShape:
        return HostShape.of(self._engine.draft(), name)

    async def return_host(self, request: Request) -> Response:
        name, by = request.path_params["name"], caller(request).name
        body = await read_body(request, DryRun)

        def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[HostShape]:
            cancelled = yield from return_host_in_steps(draft, now, limits, name, by)
            shape = HostShape.of(draft, name)
            shape.cancelled = [operation.id for operation in cancelled]
            return shape

        run = self._engine.preview_in_steps if body.dry_run else self._engine.execute_in_steps
        return json_response(await run(decide))
