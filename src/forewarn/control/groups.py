"""/v1/groups: groups and their policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.input import read_fields
from forewarn.control.paging import PAGING, Names, page_of_names
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    MAYBE_TEXT,
    TEXT,
    TEXTS,
    Field,
    Schema,
    choice,
    list_of,
    page_schema,
    record,
    ref,
)
from forewarn.core.access import Role
from forewarn.core.fleet import Group, GroupKind
from forewarn.core.fleet_commands import Policy, set_policy
from forewarn.core.operations import AUTO_APPROVE_WORDS
from forewarn.core.windows import format_window, parse_window
from forewarn.errors import BadRequestBody, nearest
from forewarn.files.policy import format_terminate_notice, parse_terminate_notice

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.requests import Request

    from forewarn.engine.engine import Engine

NO_NOTICE = "off"
"""What terminate_notice is set to where there is to be none."""


POLICY = (
    Field("auto_approve", list_of(choice(*AUTO_APPROVE_WORDS)), "What is approved without anybody's doing."),
    Field("terminate_notice", TEXT, f"How long beforehand deletions are told, like PT10M; {NO_NOTICE}: not at all."),
    Field("windows", list_of(TEXT), "When routine work may start, like 'sat,sun 02:00 4h Europe/Berlin'."),
)


class GroupControl:
    """Groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._group_names = Names(engine, lambda fleet: fleet.groups)

    def endpoints(self) -> list[Endpoint]:
        group = ref("Group")
        return [
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

    async def groups(self, request: Request) -> Response:
        """Declared groups; a VM in none of them is a scope of its own."""
        groups = self._engine.fleet.groups
        return page_of_names(request, "groups", self._group_names(), lambda name: self._group(groups[name]))

    async def group(self, request: Request) -> Response:
        name = request.path_params["name"]
        group, _ = self._engine.preview(set_policy, name, Policy(), caller(request).name)
        return JSONResponse(self._group(group))

    def _group(self, group: Group) -> dict[str, Any]:
        return group_shape(group, len(self._engine.fleet.members(group.name)))

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
        group = await self._engine.set_policy(request.path_params["name"], policy, caller(request).name)
        return JSONResponse(self._group(group))


def _read(parse: Callable[[str], Any], text: str, pointer: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestBody(pointer=pointer, problem=str(error)) from None


SHAPES: dict[str, Schema] = {
    "Group": record(
        {
            "name": TEXT,
            "kind": choice(*(kind.value for kind in GroupKind)),
            "update_domains": COUNT,
            "fault_domains": COUNT,
            "auto_approve": TEXTS,
            "terminate_notice": MAYBE_TEXT,
            "windows": TEXTS,
            "vms": COUNT,
        }
    ),
}


def group_shape(group: Group, members: int) -> dict[str, Any]:
    """A declared group."""
    return {
        "name": group.name,
        "kind": group.kind,
        "update_domains": group.update_domains,
        "fault_domains": group.fault_domains,
        "auto_approve": list(group.auto_approve),
        "terminate_notice": format_terminate_notice(group.terminate_notice),
        "windows": [format_window(window) for window in group.windows],
        "vms": members,
    }
