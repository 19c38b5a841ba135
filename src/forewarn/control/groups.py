"""/v1/groups: groups and their policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from forewarn.control.input import read_body
from forewarn.control.paging import Names, Paging, page_of_names
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Body, Count, Shape, choice, help_text, json_response, page_of
from forewarn.core.access import Role
from forewarn.core.fleet import Group, GroupKind
from forewarn.core.fleet_commands import PolicyUpdate, set_policy
from forewarn.core.operations import AUTO_APPROVE_VALUES
from forewarn.core.windows import format_window, parse_window
from forewarn.errors import BadRequestBody, nearest
from forewarn.files.policy import format_notice, parse_os_image_notice, parse_terminate_notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.engine.engine import Engine

NO_NOTICE = "off"
"""The value of a notice that turns it off."""


class GroupShape(Shape):
    """A declared group."""

    name: str
    kind: Annotated[str, choice(*(kind.value for kind in GroupKind))]
    update_domains: Count
    fault_domains: Count
    auto_approve: list[str]
    terminate_notice: str | None
    windows: list[str]
    os_image_notice: str | None
    vms: Count

    @classmethod
    def of(cls, group: Group, members: int) -> Self:
        return cls(
            name=group.name,
            kind=group.kind,
            update_domains=group.update_domains,
            fault_domains=group.fault_domains,
            auto_approve=list(group.auto_approve),
            terminate_notice=format_notice(group.terminate_notice),
            windows=[format_window(window) for window in group.windows],
            os_image_notice=format_notice(group.os_image_notice),
            vms=members,
        )


class PolicyChange(Body):
    """Changes to a group's policy."""

    auto_approve: Annotated[
        list[Annotated[str, choice(*AUTO_APPROVE_VALUES)]] | None,
        help_text("What the service approves automatically."),
    ] = None
    terminate_notice: Annotated[
        str | None, help_text(f"Notice before a deletion, like PT10M; {NO_NOTICE}: no notice.")
    ] = None
    windows: Annotated[
        list[str] | None, help_text("When routine maintenance may start, like 'sat,sun 02:00 4h Europe/Berlin'.")
    ] = None
    os_image_notice: Annotated[
        str | None, help_text(f"Notice before a reimage or an OS image upgrade: PT15M; {NO_NOTICE}: no notice.")
    ] = None


class GroupControl:
    """Groups."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._group_names = Names(engine, lambda fleet: fleet.groups)

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/groups",
                self.groups,
                "List the groups of the fleet file.",
                page_of("groups", GroupShape),
                query=Paging,
            ),
            Route("GET", "/v1/groups/{name}", self.group, "Return a group and its policy.", GroupShape),
            Route(
                "POST",
                "/v1/groups/{name}/policy",
                self.set_policy,
                "Change the policy of a group.",
                GroupShape,
                Role.OPERATOR,
                body=PolicyChange,
            ),
        ]

    async def groups(self, request: Request) -> Response:
        """List declared groups. A VM outside of all of them is its own group."""
        groups = self._engine.fleet.groups
        return page_of_names(request, "groups", self._group_names(), lambda name: self._group(groups[name]))

    async def group(self, request: Request) -> Response:
        name = request.path_params["name"]
        group, _ = self._engine.preview(set_policy, name, PolicyUpdate(), caller(request).name)
        return json_response(self._group(group))

    def _group(self, group: Group) -> GroupShape:
        return GroupShape.of(group, len(self._engine.fleet.members(group.name)))

    async def set_policy(self, request: Request) -> Response:
        body = await read_body(request, PolicyChange)
        for index, word in enumerate(body.auto_approve or ()):
            if word not in AUTO_APPROVE_VALUES:
                known = ", ".join(AUTO_APPROVE_VALUES)
                problem = f"{word!r} is not one of {known}.{nearest(word, AUTO_APPROVE_VALUES)}"
                pointer = f"/auto_approve/{index}"
                raise BadRequestBody(pointer=pointer, problem=problem, allowed=list(AUTO_APPROVE_VALUES))
        windows = [_read(parse_window, text, f"/windows/{index}") for index, text in enumerate(body.windows or ())]
        policy = PolicyUpdate(
            auto_approve=tuple(dict.fromkeys(body.auto_approve)) if body.auto_approve is not None else None,
            terminate_notice=_read_notice(parse_terminate_notice, body.terminate_notice, "/terminate_notice"),
            no_terminate_notice=body.terminate_notice == NO_NOTICE,
            windows=tuple(dict.fromkeys(windows)) if body.windows is not None else None,
            os_image_notice=_read_notice(parse_os_image_notice, body.os_image_notice, "/os_image_notice"),
            no_os_image_notice=body.os_image_notice == NO_NOTICE,
        )
        group = await self._engine.set_policy(request.path_params["name"], policy, caller(request).name)
        return json_response(self._group(group))


def _read_notice(parse: Callable[[str], timedelta], text: str | None, pointer: str) -> timedelta | None:
    if not text or text == NO_NOTICE:
        return None
    notice: timedelta = _read(parse, text, pointer)
    return notice


def _read(parse: Callable[[str], Any], text: str, pointer: str) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise BadRequestBody(pointer=pointer, problem=str(error)) from None
