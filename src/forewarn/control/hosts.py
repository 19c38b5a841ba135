"""/v1/hosts: what is on hosts, and which are in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.input import read_fields
from forewarn.control.paging import PAGING, Names, page_of_names
from forewarn.control.routing import DRY_RUN, Endpoint, caller
from forewarn.control.schema import (
    FLAG,
    TEXT,
    TEXTS,
    Schema,
    choice,
    list_of,
    page_schema,
    record,
    ref,
)
from forewarn.core.access import Role
from forewarn.core.fleet import Fleet, HostState
from forewarn.core.fleet_commands import return_host

if TYPE_CHECKING:
    from collections.abc import Sequence

    from starlette.requests import Request

    from forewarn.core.operations import Operation
    from forewarn.engine.engine import Engine


class HostControl:
    """Hosts."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._host_names = Names(engine, lambda fleet: fleet.host_names())

    def endpoints(self) -> list[Endpoint]:
        host = ref("Host")
        return [
            Endpoint("GET", "/v1/hosts", self.hosts, "List hosts.", page_schema("hosts", "Host"), query=PAGING),
            Endpoint("GET", "/v1/hosts/{name}", self.host, "See a host, and what is on it.", host),
            Endpoint(
                "POST",
                "/v1/hosts/{name}/return",
                self.return_host,
                "Take a host back into use.",
                ref("ReturnedHost"),
                Role.OPERATOR,
                body=(DRY_RUN,),
            ),
        ]

    async def hosts(self, request: Request) -> Response:
        return page_of_names(request, "hosts", self._host_names(), self._host)

    async def host(self, request: Request) -> Response:
        return JSONResponse(self._host(request.path_params["name"]))

    def _host(self, name: str) -> dict[str, Any]:
        draft = self._engine.draft()
        return host_shape(draft.fleet, name, draft.operations_at(name))

    async def return_host(self, request: Request) -> Response:
        name, by = request.path_params["name"], caller(request).name
        fields = await read_fields(request)
        draft = self._engine.draft()
        if fields.flag("dry_run"):
            withdrawn = return_host(draft, self._engine.clock.now(), self._engine.terms, name, by)
        else:
            withdrawn = await self._engine.return_host(name, by)
        shape = host_shape(draft.fleet, name, draft.operations_at(name))
        return JSONResponse({**shape, "withdrawn": [operation.id for operation in withdrawn]})


_HOST: dict[str, Schema] = {
    "name": TEXT,
    "state": choice(*(state.value for state in HostState)),
    "spare": FLAG,
    "vms": TEXTS,
    "operations": list_of(record({"id": TEXT, "cause": TEXT, "progress": TEXT})),
}


SHAPES: dict[str, Schema] = {
    "Host": record(_HOST),
    "ReturnedHost": record({**_HOST, "withdrawn": TEXTS}),
}


def host_shape(fleet: Fleet, name: str, operations: Sequence[Operation]) -> dict[str, Any]:
    """A host with what is on it, and what is being done to it."""
    host = fleet.host(name)
    return {
        "name": host.name,
        "state": host.state.value,
        "spare": host.spare,
        "vms": list(fleet.on_host(name)),
        "operations": [
            {"id": operation.id, "cause": operation.cause, "progress": operation.progress.value}
            for operation in operations
        ],
    }
