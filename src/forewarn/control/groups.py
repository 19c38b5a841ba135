"""/v1/groups: groups and their policy."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Self

from forewarn.control.filters import visible_groups
from forewarn.control.input import read_body
from forewarn.control.paging import Names, Paging, page_of_names
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    Body,
    Count,
    NameIfAny,
    Shape,
    Time,
    at_most,
    choice,
    help_text,
    json_response,
    page_of,
)
from forewarn.core.access import Role
from forewarn.core.durations import to_text_if_any
from forewarn.core.fleet import EVICTION_POLICIES, Group, GroupKind, SetMode, Visibility
from forewarn.core.fleet_commands import PolicyUpdate, set_policy
from forewarn.core.operations import AUTO_APPROVE_VALUES
from forewarn.core.windows import MAX_WINDOW_TEXT, MAX_WINDOWS, format_window, parse_window
from forewarn.errors import BadRequestBody, nearest, shown
from forewarn.files.policy import format_notice, parse_os_image_notice, parse_terminate_notice

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.engine.engine import Engine

NO_NOTICE = "off"
"""The value of a notice that turns it off."""
MAX_SCOPES = 100
"""Scopes of a group in a response."""


class ScopeShape(Shape):
    """VMs of a group that share one document."""

    name: str
    vms: Count
    events_enabled: bool
    incarnation: Count
    last_seen_at: Time | None


class GroupShape(Shape):
    """A declared group."""

    name: str
    kind: Annotated[str, choice(*(kind.value for kind in GroupKind))]
    update_domains: Count
    fault_domains: Count
    auto_approve: list[str]
    terminate_notice: str | None
    windows: list[str]
    mode: Annotated[Annotated[str, choice(*(mode.value for mode in SetMode))] | None, help_text("Only of a scale set.")]
    visibility: Annotated[
        Annotated[str, choice(*(visibility.value for visibility in Visibility))] | None,
        help_text("Only of a scale set."),
    ]
    eviction_policy: Annotated[
        Annotated[str, choice(*EVICTION_POLICIES)] | None, help_text("Of its Spot VMs without their own policy.")
    ]
    os_image_notice: str | None
    approve_when_down: Annotated[
        bool, help_text("Whether the events of a scope are approved automatically while all its VMs are deallocated.")
    ]
    policy_changed: Annotated[
        bool, help_text("Whether the policy was changed at run time. The fleet file has another one.")
    ]
    vms: Count
    scopes: Annotated[
        list[ScopeShape],
        help_text(
            f"The first {MAX_SCOPES}. A scale set has one for each placement group or, if VMs see only their "
            "own events, for each VM. Other groups have one."
        ),
    ]

    @classmethod
    def of(cls, group: Group, members: int, scopes: list[ScopeShape]) -> Self:
        return cls(
            name=group.name,
            kind=group.kind,
            update_domains=group.update_domains,
            fault_domains=group.fault_domains,
            auto_approve=list(group.auto_approve),
            terminate_notice=format_notice(group.terminate_notice),
            windows=[format_window(window) for window in group.windows],
            mode=group.mode if group.kind == GroupKind.SCALE_SET else None,
            visibility=group.visibility if group.kind == GroupKind.SCALE_SET else None,
            eviction_policy=group.eviction_policy or None,
            os_image_notice=format_notice(group.os_image_notice),
            approve_when_down=group.approve_when_down,
            policy_changed=group.file_policy is not None,
            vms=members,
            scopes=scopes,
        )


class PolicyChange(Body):
    """Changes to a group's policy."""

    auto_approve: Annotated[
        Annotated[list[Annotated[str, choice(*AUTO_APPROVE_VALUES)]], at_most(len(AUTO_APPROVE_VALUES))] | None,
        help_text("What the service approves automatically."),
    ] = None
    terminate_notice: Annotated[
        NameIfAny | None, help_text(f"Notice before a deletion, like PT10M; {NO_NOTICE}: no notice.")
    ] = None
    windows: Annotated[
        Annotated[list[Annotated[str, at_most(MAX_WINDOW_TEXT)]], at_most(MAX_WINDOWS)] | None,
        help_text("When routine maintenance may start, like 'sat,sun 02:00 4h Europe/Berlin'."),
    ] = None
    os_image_notice: Annotated[
        NameIfAny | None, help_text(f"Notice before a reimage or an OS image upgrade: PT15M; {NO_NOTICE}: no notice.")
    ] = None
    approve_when_down: Annotated[
        bool | None, help_text("Whether to approve the events of a scope while all its VMs are deallocated.")
    ] = None


class GroupControl:
    """Groups."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices
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
                tenant=True,
            ),
            Route("GET", "/v1/groups/{name}", self.group, "Return a group and its policy.", GroupShape, tenant=True),
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
        groups, own = self._engine.fleet.groups, caller(request).group
        names = [name for name in (own,) if name in groups] if own else self._group_names()
        return await page_of_names(request, self._slices, "groups", names, lambda name: self._group(groups[name]))

    async def group(self, request: Request) -> Response:
        (name,) = visible_groups(caller(request), (request.path_params["name"],))
        group, _ = self._engine.preview(set_policy, name, PolicyUpdate(), caller(request).name)
        return json_response(self._group(group))

    def _group(self, group: Group) -> GroupShape:
        fleet = self._engine.fleet
        scopes = list(islice(fleet.scopes(group.name).items(), MAX_SCOPES))
        return GroupShape.of(group, len(fleet.members(group.name)), [self._scope(*scope) for scope in scopes])

    def _scope(self, name: str, members: int) -> ScopeShape:
        document, last_seen_at = self._engine.document(name), self._engine.last_seen_at(name)
        return ScopeShape(name, members, document.enabled, document.incarnation, to_text_if_any(last_seen_at))

    async def set_policy(self, request: Request) -> Response:
        body = await read_body(request, PolicyChange)
        for index, word in enumerate(body.auto_approve or ()):
            if word not in AUTO_APPROVE_VALUES:
                known = ", ".join(AUTO_APPROVE_VALUES)
                problem = f"{shown(word)} is not one of {known}.{nearest(word, AUTO_APPROVE_VALUES)}"
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
            approve_when_down=body.approve_when_down,
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
