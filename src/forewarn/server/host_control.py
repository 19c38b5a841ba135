"""/v1/hosts and /v1/groups: what is on hosts, which are in use, and the policy of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.core.access import Role
from forewarn.core.fleet_commands import Policy, return_host, set_policy
from forewarn.core.operations import AUTO_APPROVE_WORDS
from forewarn.core.windows import parse_window
from forewarn.errors import BadRequestBody, nearest
from forewarn.server.bodies import read_fields
from forewarn.server.endpoints import Endpoint, caller
from forewarn.server.operation_control import DRY_RUN
from forewarn.server.paging import PAGING, Names, page_of_names
from forewarn.wire import control as shapes
from forewarn.wire.policy import parse_terminate_notice
from forewarn.wire.schema import TEXT, Field, choice, list_of, ref
from forewarn.wire.shapes_schema import page_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from forewarn.core.fleet import Group
    from forewarn.engine import Engine

NO_NOTICE = "off"
"""What terminate_notice is set to where there is to be none."""


POLICY = (
    Field("auto_approve", list_of(choice(*AUTO_APPROVE_WORDS)), "What is approved without anybody's doing."),
    Field("terminate_notice", TEXT, f"How long beforehand deletions are told, like PT10M; {NO_NOTICE}: not at all."),
    Field("windows", list_of(TEXT), "When routine work may start, like 'sat,sun 02:00 4h Europe/Berlin'."),
)


class HostControl:
    """Hosts and groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._host_names = Names(engine, lambda fleet: fleet.host_names())
        self._group_names = Names(engine, lambda fleet: fleet.groups)

    def endpoints(self) -> list[Endpoint]:
        host, group = ref("Host"), ref("Group")
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
            Endpoint(
                "GET", "/v1/groups", self.groups, "List declared groups.", page_schema("groups", "Group"), query=PAGING
            ),
            Endpoint("GET", "/v1/groups/{name}", self.group, "See a group, and its policy.", group),
            Endpoint(
                "POST",
                "/v1/groups/{name}/policy",
                self.set_policy,
                "Change the policy of a group.",
                group,
                Role.OPERATOR,
                body=POLICY,
            ),
        ]

    async def hosts(self, request: Request) -> Response:
        return page_of_names(request, "hosts", self._host_names(), self._host)

    async def host(self, request: Request) -> Response:
        return JSONResponse(self._host(request.path_params["name"]))

    def _host(self, name: str) -> dict[str, Any]:
        draft = self._engine.draft()
        return shapes.host_shape(draft.fleet, name, draft.operations_at(name))

    async def return_host(self, request: Request) -> Response:
        name, by = request.path_params["name"], caller(request).name
        fields = await read_fields(request)
        draft = self._engine.draft()
        if fields.flag("dry_run"):
            withdrawn = return_host(draft, self._engine.clock.now(), self._engine.terms, name, by)
        else:
            withdrawn = await self._engine.order(return_host, name, by)
        shape = shapes.host_shape(draft.fleet, name, draft.operations_at(name))
        return JSONResponse({**shape, "withdrawn": [operation.id for operation in withdrawn]})

    # --- Groups -----------------------------------------------------------------------------------------

    async def groups(self, request: Request) -> Response:
        """Declared groups; a VM in none of them is a scope of its own."""
        groups = self._engine.fleet.groups
        return page_of_names(request, "groups", self._group_names(), lambda name: self._group(groups[name]))

    async def group(self, request: Request) -> Response:
        name = request.path_params["name"]
        group, _ = self._engine.preview(set_policy, name, Policy(), caller(request).name)
        return JSONResponse(self._group(group))

    def _group(self, group: Group) -> dict[str, Any]:
        return shapes.group_shape(group, len(self._engine.fleet.members(group.name)))

    async def set_policy(self, request: Request) -> Response:
        fields = await read_fields(request)
        for index, word in enumerate(fields.texts("auto_approve")):
            if word not in AUTO_APPROVE_WORDS:
                known = ", ".join(AUTO_APPROVE_WORDS)
                problem = f"{word!r} is not one of {known}.{nearest(word, AUTO_APPROVE_WORDS)}"
                pointer = f"/auto_approve/{index}"
                raise BadRequestBody(pointer=pointer, problem=problem, valid=list(AUTO_APPROVE_WORDS))
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
        group = await self._engine.order(set_policy, request.path_params["name"], policy, caller(request).name)
        return JSONResponse(self._group(group))


def _read(parse: Callable[[str], Any], text: str, pointer: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestBody(pointer=pointer, problem=str(error)) from None
