"""/v1/hosts and /v1/groups: what is on hosts, which are in use, and the policy of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from forewarn.core.causes import AUTO_APPROVE_WORDS
from forewarn.core.fleet_orders import Policy, return_host, set_policy
from forewarn.core.windows import parse_window
from forewarn.errors import BadRequestBody, nearest
from forewarn.server.bodies import read_fields, stream_list
from forewarn.server.operation_control import OPERATOR
from forewarn.wire import control as shapes
from forewarn.wire.policy import parse_terminate_notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from forewarn.core.fleet import Group
    from forewarn.engine import Engine

NO_NOTICE = "off"
"""What terminate_notice is set to where there is to be none."""


class HostControl:
    """Hosts and groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def routes(self) -> list[Route]:
        return [
            Route("/v1/hosts", self.hosts),
            Route("/v1/hosts/{name}", self.host),
            Route("/v1/hosts/{name}/return", self.return_host, methods=["POST"]),
            Route("/v1/groups", self.groups),
            Route("/v1/groups/{name}", self.group),
            Route("/v1/groups/{name}/policy", self.set_policy, methods=["POST"]),
        ]

    async def hosts(self, _: Request) -> Response:
        return stream_list("hosts", map(self._host, self._engine.fleet.host_names()))

    async def host(self, request: Request) -> Response:
        return JSONResponse(self._host(request.path_params["name"]))

    def _host(self, name: str) -> dict[str, Any]:
        draft = self._engine.draft()
        return shapes.host_shape(draft.fleet, name, draft.operations_at(name))

    async def return_host(self, request: Request) -> Response:
        name = request.path_params["name"]
        fields = await read_fields(request, ("dry_run",))
        draft = self._engine.draft()
        if fields.flag("dry_run"):
            withdrawn = return_host(draft, self._engine.clock.now(), self._engine.terms, name, OPERATOR)
        else:
            withdrawn = await self._engine.order(return_host, name, OPERATOR)
        shape = shapes.host_shape(draft.fleet, name, draft.operations_at(name))
        return JSONResponse({**shape, "withdrawn": [operation.id for operation in withdrawn]})

    # --- Groups -----------------------------------------------------------------------------------------

    async def groups(self, _: Request) -> Response:
        """Declared groups; a VM in none of them is a scope of its own."""
        fleet = self._engine.fleet
        return stream_list("groups", map(self._group, list(fleet.groups.values())))

    async def group(self, request: Request) -> Response:
        name = request.path_params["name"]
        group, _ = self._engine.preview(set_policy, name, Policy(), OPERATOR)
        return JSONResponse(self._group(group))

    def _group(self, group: Group) -> dict[str, Any]:
        return shapes.group_shape(group, len(self._engine.fleet.members(group.name)))

    async def set_policy(self, request: Request) -> Response:
        fields = await read_fields(request, ("auto_approve", "terminate_notice", "windows"))
        for index, word in enumerate(fields.texts("auto_approve")):
            if word not in AUTO_APPROVE_WORDS:
                known = ", ".join(AUTO_APPROVE_WORDS)
                problem = f"{word!r} is not one of {known}.{nearest(word, AUTO_APPROVE_WORDS)}"
                raise BadRequestBody(pointer=f"/auto_approve/{index}", problem=problem)
        notice = fields.text("terminate_notice")
        windows = [_read(parse_window, text, f"/windows/{index}") for index, text in enumerate(fields.texts("windows"))]
        policy = Policy(
            auto_approve=tuple(dict.fromkeys(fields.texts("auto_approve"))) if "auto_approve" in fields else None,
            terminate_notice=(
                _read(parse_terminate_notice, notice, "/terminate_notice") if notice not in ("", NO_NOTICE) else None
            ),
            no_terminate_notice=notice == NO_NOTICE,
            windows=tuple(dict.fromkeys(windows)) if "windows" in fields else None,
        )
        group = await self._engine.order(set_policy, request.path_params["name"], policy, OPERATOR)
        return JSONResponse(self._group(group))


def _read(parse: Callable[[str], Any], text: str, pointer: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestBody(pointer=pointer, problem=str(error)) from None
