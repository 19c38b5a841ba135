"""/v1/map and /v1/overview: what the first view of a page needs, in two requests.

The map is the structure of the fleet, which seldom changes. The overview is what happens now; the feed continues it. A
tenant sees its group in both, and no hosts.
"""

from __future__ import annotations

import asyncio
import heapq
from datetime import timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from msgspec.structs import asdict

from forewarn.control.clock import ClockShape, clock_shape
from forewarn.control.entity_tags import tagged_response
from forewarn.control.explanations import explanation
from forewarn.control.rollouts import RolloutShape
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Count, Shape, choice, help_text, json_response
from forewarn.core.events import EventStatus
from forewarn.core.fleet import SPOT, GroupKind, HostState
from forewarn.core.history import event_entry
from forewarn.core.steps import COMMAND_COST, SLICE_COST
from forewarn.delivery.event_shapes import HistorySnapshotShape, snapshot_of
from forewarn.delivery.history_rows import as_tenants_see
from forewarn.engine.history import optional
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.access import Token
    from forewarn.core.events import Event
    from forewarn.core.fleet import Fleet, Host
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine

MAX_EVENTS = 1000
MAX_ENDED_EVENTS = 200
ENDED_TIME = timedelta(minutes=30)
READ_ROWS = 2000
"""Rows of history that one read searches for ended events."""
NO_HOST = -1
JSON_TYPE = "application/json"


# --- The map --------------------------------------------------------------------------------------


class MapGroupShape(Shape):
    """A group and its VMs."""

    name: str
    kind: Annotated[str, choice(*(kind.value for kind in GroupKind))]
    declared: Annotated[bool, help_text("Whether it is in the fleet file. A VM outside of groups is its own group.")]
    update_domains: Count
    fault_domains: Count
    scopes: list[str]
    vms: Annotated[
        list[tuple[str, int, int, int, int, int, int]],
        help_text(
            "Of each VM: name, update domain, fault domain, index of its scope in scopes, index of its host in hosts "
            "(-1: not shown), whether it is deallocated, whether it is a Spot VM (0 or 1)."
        ),
    ]


class MapHostShape(Shape):
    """A host."""

    name: str
    state: Annotated[str, choice(*(state.value for state in HostState))]
    spare: bool

    @classmethod
    def of(cls, host: Host) -> MapHostShape:
        return cls(host.name, host.state.value, host.spare)


class MapShape(Shape):
    """The structure of the fleet."""

    groups: list[MapGroupShape]
    hosts: list[MapHostShape]


def build_map(fleet: Fleet, own: str = "") -> Steps[MapShape]:
    """Return the map of a fleet. With the group of a tenant: of this group, without hosts."""
    indexes: dict[str, int] = {}
    for name in fleet.host_names() if not own else ():
        indexes.setdefault(name, len(indexes))
    alone = (vm.name for vm in fleet.vms.values() if vm.group not in fleet.groups)
    groups = []
    for name in (name for name in (*fleet.groups, *alone) if own in ("", name)):
        group = yield from _group(fleet, name, indexes)
        groups.append(group)
    hosts = []
    for name in indexes:
        hosts.append(MapHostShape.of(fleet.host(name)))
        yield 1
    return MapShape(groups, hosts)


def _group(fleet: Fleet, name: str, hosts: dict[str, int]) -> Steps[MapGroupShape]:
    group = fleet.group(name)
    scopes: dict[str, int] = {}
    rows = []
    for vm in map(fleet.vms.__getitem__, fleet.members(name)):
        rows.append(
            (
                vm.name,
                vm.update_domain,
                vm.fault_domain,
                scopes.setdefault(fleet.scope_of(vm), len(scopes)),
                hosts.get(vm.host, NO_HOST),
                int(vm.deallocated),
                int(vm.priority == SPOT),
            )
        )
        yield 1
    return MapGroupShape(
        group.name, group.kind, name in fleet.groups, group.update_domains, group.fault_domains, list(scopes), rows
    )


class EncodedMap(NamedTuple):
    """The map as JSON, and what else is derived once from a fleet."""

    content: bytes
    tag: str
    scopes: tuple[str, ...]


def _encode(fleet: Fleet, token: Token) -> Steps[EncodedMap]:
    found = MapShape([], [])
    if token.has_group_in(fleet):  # otherwise the group was removed since the request was accepted
        found = yield from build_map(fleet, token.group)
    content = msgspec.json.encode(found)
    scopes = tuple(scope for group in found.groups for scope in group.scopes)
    return EncodedMap(content, f'"{sha256(content).hexdigest()[:32]}"', scopes)


# --- The overview ---------------------------------------------------------------------------------


class ActiveEventShape(HistorySnapshotShape):
    """An active event, with its operation. `waits`: what its start waits for; once it has started, its end."""

    host: Annotated[str | None, help_text("The host of its operation. A tenant does not see it.")]
    requested_by: str
    operation_events: Annotated[Count, help_text("The number of events of its operation that the caller can see.")]
    operation_approvals: Annotated[Count, help_text("How many of them are approved.")]


class OverviewShape(Shape):
    """What happens now."""

    sequence: Annotated[Count, help_text("The newest row of history that it contains. Follow the feed after it.")]
    clock: ClockShape
    events: Annotated[
        list[ActiveEventShape],
        help_text(f"Active events: at most {MAX_EVENTS}, the soonest not_before first."),
    ]
    total_events: Annotated[Count, help_text("The number of all active events.")]
    ended_events: Annotated[
        list[HistorySnapshotShape],
        help_text(
            f"Events that ended within the last 30 minutes: at most {MAX_ENDED_EVENTS}, newest first. "
            "Empty if the store cannot be read."
        ),
    ]
    not_enabled: Annotated[list[str], help_text("Scopes that get no events, because they do not poll.")]
    rollouts: Annotated[list[RolloutShape], help_text("Active rollouts, without the names of their hosts.")]
    hosts_out_of_service: list[MapHostShape]


class OverviewControl:
    """The map and the overview."""

    def __init__(self, engine: Engine, slices: Slices) -> None:
        self._engine = engine
        self._slices = slices
        self._fleet: Fleet | None = None
        self._maps: dict[tuple[str, int], EncodedMap] = {}
        """By group of a tenant, and its generation; an empty group: of all groups. Of the fleet above."""
        self._building = asyncio.Lock()

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/map", self.map, "Return the structure of the fleet.", MapShape, tenant=True),
            Route("GET", "/v1/overview", self.overview, "Return what happens now.", OverviewShape, tenant=True),
        ]

    async def map(self, request: Request) -> Response:
        found = await self._map(request)
        return tagged_response(request, found.content, found.tag, JSON_TYPE)

    async def _map(self, request: Request) -> EncodedMap:
        """Return the map. It is encoded once for each fleet."""
        token = caller(request)
        async with self._building:
            fleet = self._engine.fleet
            if self._fleet is not fleet:
                self._fleet, self._maps = fleet, {}
            own = (token.group, token.generation)
            if own not in self._maps:
                self._maps[own] = await self._slices.run(request, _encode(fleet, token))
            return self._maps[own]

    async def overview(self, request: Request) -> Response:
        token = caller(request)
        scopes = (await self._map(request)).scopes
        shape = await self._slices.run(request, self._state(token, scopes))
        ended = self._ended_events(token, shape.sequence, self._engine.clock.now() - ENDED_TIME)
        shape.ended_events = await optional(ended, [])
        return json_response(shape)

    def _state(self, token: Token, scopes: tuple[str, ...]) -> Steps[OverviewShape]:
        """Return the current state. Parts may be newer than its sequence: the feed repeats what changed since."""
        engine, draft, own = self._engine, self._engine.draft(), token.group
        sequence, now, clock = engine.records.newest, engine.clock.now(), clock_shape(engine, tenant=bool(own))
        events = [event for event in engine.live_events() if token.sees(event)]
        soonest = heapq.nsmallest(MAX_EVENTS, events, key=lambda event: (event.not_before, event.created_at, event.id))
        yield SLICE_COST
        active, counts = [], _OperationCounts(draft, token)
        for event in soonest:
            if (current := draft.event(event.id)) is not None:
                active.append(self._active_event(draft, now, current, counts, own))
            yield COMMAND_COST
        not_enabled = []
        for scope in scopes:
            if (known := draft.delivery(scope)) is None or not known.enabled:
                not_enabled.append(scope)
            yield 1
        out_of_service = (host for host in draft.fleet.hosts.values() if host.state is not HostState.IN_SERVICE)
        return OverviewShape(
            sequence=sequence,
            clock=clock,
            events=active,
            total_events=len(events),
            ended_events=[],
            not_enabled=not_enabled,
            rollouts=[RolloutShape.of(rollout, hosts=False) for rollout in draft.live_rollouts()] if not own else [],
            hosts_out_of_service=[MapHostShape.of(host) for host in out_of_service] if not own else [],
        )

    def _active_event(
        self, draft: Draft, now: datetime, event: Event, counts: _OperationCounts, own: str
    ) -> ActiveEventShape:
        entry = event_entry(draft, now, "scheduled", "", event)
        if own:
            entry = as_tenants_see(entry)
        snapshot, operation = snapshot_of(entry), draft.operation(event.operation)
        assert snapshot is not None  # noqa: S101 - the entry is about an event
        if operation is not None and event.status is EventStatus.STARTED:
            snapshot.waits = [wait for wait in explanation(self._engine, operation, own).waits if not wait.done]
        total, approved = counts.of(event.operation)
        return ActiveEventShape(
            **asdict(snapshot),
            host=entry.host or None,
            requested_by=operation.requested_by if operation is not None else "",
            operation_events=total,
            operation_approvals=approved,
        )

    async def _ended_events(self, token: Token, sequence: int, since: datetime) -> list[HistorySnapshotShape]:
        """Return the events whose end is in history, up to a row. Searches backwards to this time."""
        records, own = self._engine.records, token.group
        wanted = HistoryFilter(groups=(own,) if own else (), kinds=("completed", "cancelled"), since=since, newest=True)
        found: list[HistorySnapshotShape] = []
        oldest, end = max(await records.oldest(), token.generation + 1), sequence + 1
        while end > oldest and len(found) < MAX_ENDED_EVENTS:
            begin = max(end - READ_ROWS, oldest)
            part = wanted._replace(after=begin - 1, before=end, limit=MAX_ENDED_EVENTS - len(found))
            rows = await records.history(part)
            snapshots = await self._slices.collect(snapshot_of(as_tenants_see(row) if own else row) for row in rows)
            found += [each for each in snapshots if each is not None]  # others are about operations without events
            first = await records.history(HistoryFilter(after=begin - 1, before=end, limit=1))
            if first and first[0].time < since:
                break
            end = begin
        return found


class _OperationCounts:
    """Counts the events of operations and their approvals, once for each operation."""

    def __init__(self, draft: Draft, token: Token) -> None:
        self._draft = draft
        self._token = token
        self._known: dict[str, tuple[int, int]] = {}

    def of(self, operation_id: str) -> tuple[int, int]:
        found = self._known.get(operation_id)
        if found is None:
            operation = self._draft.operation(operation_id)
            events = [self._draft.event(event_id) for event_id in operation.events] if operation is not None else []
            seen = [event for event in events if event is not None and self._token.sees(event)]
            approved = sum(event.approved_at is not None for event in seen)
            found = self._known[operation_id] = (len(seen), approved)
        return found
