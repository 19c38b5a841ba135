"""/v1/vms: VMs and the documents that they see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import UNSET, Meta, Struct, UnsetType, field
from starlette.responses import Response

from forewarn.control.filters import find_vm, matching, one_of, visible_groups
from forewarn.control.input import read_body
from forewarn.control.paging import Counting, Names, page_of_names
from forewarn.control.routing import Route, caller
from forewarn.control.schema import (
    MAX_LIST,
    Count,
    Name,
    NoMembers,
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
from forewarn.core.fleet import EVICTION_POLICIES, OPERATING_SYSTEMS, VM, Group, GroupKind, eviction_policy
from forewarn.core.shell_patterns import is_pattern
from forewarn.errors import InsufficientRole, UnknownVersion
from forewarn.metadata.fixed_responses import JSON
from forewarn.wire.document import render
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request

    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.core.events import Document
    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer
    from forewarn.wire.versions import ApiVersion


STATES = ("running", "deallocated")


class PollsShape(Shape):
    """How often a VM polls."""

    count: Annotated[Count, help_text("The number of its polls since the service started.")]
    last_at: Annotated[Time | None, help_text("When it last polled. Not later than a second after the poll.")]
    interval_seconds: Annotated[
        float | None, help_text("The average real time between its polls of the last one to two minutes.")
    ]


class VMShape(Shape):
    """A VM with its placement and its events."""

    name: str
    group: str
    scope: Annotated[str, help_text("The VMs with the same scope share one document. Other VMs do not see it.")]
    placement_group: Annotated[
        Annotated[int, Meta(ge=1)] | None, help_text("In a scale set, the number of its placement group.")
    ]
    kind: Annotated[str, choice(*(kind.value for kind in GroupKind))]
    host: Annotated[str | None, help_text("A tenant does not see it.")]
    configured_host: str | None
    state: Annotated[str, choice(*STATES)]
    update_domain: Count
    fault_domain: Count
    address: str | None
    listen: str | None
    hostname: str
    priority: str
    eviction_policy: Annotated[Annotated[str, choice(*EVICTION_POLICIES)] | None, help_text("Only of a Spot VM.")]
    size: str | None
    zone: str | None
    tags: dict[str, str]
    os: Annotated[str, choice(*OPERATING_SYSTEMS)]
    location: str
    public_keys: list[str]
    has_user_data: Annotated[bool, help_text("Whether the VM has user data. Only the VM itself can read its contents.")]
    has_custom_data: Annotated[
        bool, help_text("Whether the VM has custom data. Only the VM itself can read its contents.")
    ]
    auto_approve: list[str]
    events_enabled: bool
    last_seen_at: Annotated[Time | None, help_text("When a VM of its scope last polled.")]
    incarnation: Count
    events: list[str]
    polls: Annotated[PollsShape | UnsetType, help_text("Only in the response for one VM.")] = UNSET

    @classmethod
    def of(cls, vm: VM, group: Group, document: Document, last_seen_at: datetime | None, *, tenant: bool) -> Self:
        return cls(
            name=vm.name,
            group=group.name,
            scope=document.scope,
            placement_group=vm.placement_group if group.kind == GroupKind.SCALE_SET else None,
            kind=group.kind,
            host=None if tenant else vm.host,
            configured_host=None if tenant else vm.configured_host or None,
            state="deallocated" if vm.deallocated else "running",
            update_domain=vm.update_domain,
            fault_domain=vm.fault_domain,
            address=vm.address or None,
            listen=vm.listen or None,
            hostname=vm.hostname or vm.name,
            priority=vm.priority,
            eviction_policy=eviction_policy(vm, group) or None,
            size=vm.size or None,
            zone=vm.zone or None,
            tags=dict(vm.tags),
            os=vm.os,
            location=vm.location,
            public_keys=list(vm.public_keys),
            has_user_data=bool(vm.user_data),
            has_custom_data=bool(vm.custom_data),
            auto_approve=list(group.auto_approve),
            events_enabled=document.enabled,
            last_seen_at=to_text_if_any(last_seen_at),
            incarnation=document.incarnation,
            events=[event.id for event in document.events if vm.name in event.resources],
        )


class DocumentQuery(Struct):
    """The api-version of a document."""

    api_version: Annotated[
        Annotated[str, choice(*available_versions(preview=False))] | None,
        help_text("The api-version of the document. Default: the newest."),
    ] = field(name="api-version", default=None)


class VMsQuery(Counting):
    """Which VMs to list."""

    name: Annotated[
        Annotated[tuple[Name, ...], at_most(MAX_LIST)],
        Meta(examples=[["web-*"]]),
        help_text("Only VMs with this name, or with a name that matches this shell pattern. Can be repeated."),
    ] = ()
    group: Annotated[Name, help_text("Only VMs of this group.")] = ""
    host: Annotated[Name, help_text("Only VMs on this host.")] = ""
    state: Annotated[Name, choice(*STATES), help_text("Only VMs in this state.")] = ""


DOCUMENT = {"type": "object", "description": "The document in the format of Azure Scheduled Events."}


class VMControl:
    """VMs."""

    def __init__(
        self, engine: Engine, metadata: MetadataServer, versions: dict[str, ApiVersion], slices: Slices
    ) -> None:
        self._engine = engine
        self._slices = slices
        self._metadata = metadata
        self._versions = versions
        self._vm_names = Names(engine, lambda fleet: fleet.vms)

    def routes(self) -> list[Route]:
        return [
            Route(
                "GET",
                "/v1/vms",
                self.vms,
                "List VMs.",
                page_of("vms", VMShape, counted=True),
                query=VMsQuery,
                tenant=True,
            ),
            Route("GET", "/v1/vms/{name}", self.vm, "Return a VM.", VMShape, tenant=True),
            Route(
                "GET",
                "/v1/vms/{name}/document",
                self.document,
                "Return the document that a VM gets when it polls.",
                DOCUMENT,
                query=DocumentQuery,
                tenant=True,
            ),
            Route(
                "POST",
                "/v1/vms/{name}/enable",
                self.enable,
                "Enable events for a VM and its scope, and count that as a poll.",
                VMShape,
                Role.OPERATOR,
                body=NoMembers,
            ),
        ]

    async def vms(self, request: Request) -> Response:
        query: VMsQuery = request.state.query
        token = caller(request)
        if token.group and query.host:
            raise InsufficientRole(role=token.role.value, what="VMs by host", needed="viewer, operator or admin")
        fleet, state = self._engine.fleet, one_of("state", query.state, STATES)
        names = self._vm_names()
        (group, *_) = visible_groups(token, (query.group,) if query.group else ()) or ("",)
        if group:
            fleet.known_group(group)
            names = sorted(fleet.members(group))
        if query.host:
            on_host = fleet.on_host(query.host)
            names = sorted(set(names).intersection(on_host)) if group else sorted(on_host)
        if query.name:
            for name in query.name:
                if not is_pattern(name):
                    find_vm(fleet, token, name)  # raises if there is no such VM
            names = await matching(names, query.name)
            fleet = self._engine.fleet  # it may have changed in the meantime: a VM can have joined another group
            names = [name for name in names if name in fleet.vms and group in ("", fleet.vms[name].group)]
        if state:
            names = [name for name in names if fleet.vms[name].deallocated == (state == "deallocated")]
        return await page_of_names(request, self._slices, "vms", names, lambda name: self._vm(fleet.vm(name), token))

    async def vm(self, request: Request) -> Response:
        vm = find_vm(self._engine.fleet, caller(request), request.path_params["name"])
        shape = self._vm(vm, caller(request))
        polls = self._metadata.poll_statistics(vm.name)
        shape.polls = PollsShape(polls.polls, to_text_if_any(polls.last_at), polls.interval_seconds)
        return json_response(shape)

    async def enable(self, request: Request) -> Response:
        await read_body(request, NoMembers)
        engine, name = self._engine, request.path_params["name"]
        scope = engine.fleet.scope_of(engine.fleet.vm(name))
        await engine.enable(scope, caller(request).name)
        engine.polled.add(scope)
        engine.last_seen.record_polls()
        return json_response(self._vm(engine.fleet.vm(name), caller(request)))

    def _vm(self, vm: VM, token: Token) -> VMShape:
        engine = self._engine
        group = engine.fleet.group(vm.group)
        scope = engine.fleet.scope_of(vm)
        return VMShape.of(vm, group, engine.document(scope), engine.last_seen_at(scope), tenant=bool(token.group))

    async def document(self, request: Request) -> Response:
        vm = find_vm(self._engine.fleet, caller(request), request.path_params["name"])
        version = request.state.query.api_version or max(self._versions)
        if version not in self._versions:
            raise UnknownVersion(version=version, known=", ".join(self._versions))
        kind = self._engine.fleet.group(vm.group).kind
        document = self._engine.document(self._engine.fleet.scope_of(vm))
        return Response(render(document, self._versions[version], kind), media_type=JSON)
