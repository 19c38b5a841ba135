"""/v1/fleet: the size of the fleet, applying a fleet file without delaying polls, and changes of a part."""

from __future__ import annotations

from codecs import getincrementaldecoder
from functools import partial
from hashlib import sha256
from io import IncrementalNewlineDecoder
from typing import TYPE_CHECKING, Annotated, Any, Self

from msgspec import Struct

from forewarn.control.idempotency import create_once, is_repeated
from forewarn.control.input import BodyLimit, read_body, read_bytes
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Body, Count, Name, NoMembers, Shape, at_most, help_text, json_response
from forewarn.core.access import Role
from forewarn.core.fleet import Fleet
from forewarn.core.fleet_parts import MAX_PART_ITEMS, FleetNames, plan_part, plan_removal
from forewarn.core.waits import first_names
from forewarn.errors import MAX_SHOWN
from forewarn.files.fleet_file import MAX_FLEET_BYTES, parse_fleet, parse_part
from forewarn.system.memory import without_garbage_collection
from forewarn.system.sockets import release

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Set
    from datetime import datetime

    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.control.slices import Slices
    from forewarn.core.fleet import FleetPlan
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import AppliedFleet, Engine, FleetPlanner
    from forewarn.metadata.server import MetadataServer


MAX_FLEET_FILES = 2
"""Maximum number of files that are received and applied at a time. Each may have hundreds of megabytes."""
FLEET_FILE = BodyLimit(MAX_FLEET_BYTES, " Write sets of VMs with count.", "fleet files", MAX_FLEET_FILES)
MAX_PARTS = 20
"""Maximum number of changes of a part of the fleet at a time. They wait for each other."""
FLEET_PART = BodyLimit(
    hint=" Write several files, or apply a file with the whole fleet.", what="changes of the fleet", at_once=MAX_PARTS
)
LAST_FILE = "fleet file"
"""Name of the stored fact with the hash of the fleet file that was applied last, by whatever way."""


_PART = 65_536
"""Characters to decode or to hash with one call, because a call holds the interpreter lock."""


async def is_last_applied(engine: Engine, text: str) -> bool:
    """Return whether this file was applied last.

    A restart must not apply it again: that would bring back VMs that were deleted since.
    """
    return engine.facts.get(LAST_FILE) == await engine.worker.run(_hash, text)


def _hash(text: str) -> str:
    # The command line reads files with the line ends of any system.
    line_ends = IncrementalNewlineDecoder(None, translate=True)
    digest = sha256()
    for start in range(0, len(text), _PART):
        digest.update(line_ends.decode(text[start : start + _PART]).encode())
    digest.update(line_ends.decode("", final=True).encode())
    return digest.hexdigest()


def _decode(body: bytearray) -> str:
    decoder = getincrementaldecoder("utf-8")(errors="replace")
    starts = range(0, len(body), _PART)
    parts = [decoder.decode(body[start : start + _PART]) for start in starts]
    return "".join((*parts, decoder.decode(b"", final=True)))


def _read_fleet(text: str, source: str) -> tuple[Fleet, str]:
    return parse_fleet(text, source), _hash(text)


def _always_wanted(work: Awaitable[tuple[Fleet, str]]) -> Awaitable[tuple[Fleet, str]]:
    return work


async def apply_fleet(
    engine: Engine,
    metadata: MetadataServer,
    text: str,
    source: str,
    by: str,
    *,
    force: bool,
    dry_run: bool = False,
    while_wanted: Callable[[Coroutine[Any, Any, tuple[Fleet, str]]], Awaitable[tuple[Fleet, str]]] = _always_wanted,
) -> FleetChangeShape:
    """Apply a fleet file: reserve the addresses of the VMs, commit the change, then listen on these addresses.

    `source` is the name of the file in messages. A dry run drops the change, and releases the addresses.
    `while_wanted` may end the wait for the decoded file.
    """
    async with metadata.applying:
        with without_garbage_collection():
            fleet, file_hash = await while_wanted(engine.worker.run(_read_fleet, text, source))
            reserved = metadata.reserve(fleet)
            try:
                facts = {LAST_FILE: file_hash}
                applied = await engine.apply_fleet(fleet, by, force=force, reason=source, facts=facts, dry_run=dry_run)
            except BaseException:
                release(reserved)
                raise
            if dry_run:
                release(reserved)
            else:
                await metadata.listen(engine.fleet, reserved)
    return FleetChangeShape.of(applied, fleet)


class FleetShape(Shape):
    """The size of the fleet."""

    vms: Count
    groups: Count
    hosts: Count


class FleetChangeShape(Shape):
    """What a change of the fleet changed, or would change."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    groups: list[str]
    groups_removed: list[str]
    hosts: list[str]
    hosts_removed: list[str]
    tokens_revoked: Annotated[list[str], help_text("Tokens whose group was removed.")]

    @classmethod
    def of(cls, applied: AppliedFleet, fleet: Fleet) -> Self:
        change = applied.change
        # The policy of a VM without a group, if it was set at run time, is stored as a group.
        reset = [name for name in change.groups_removed if name in fleet.vms]
        return cls(
            added=[vm.name for vm in change.added],
            changed=[vm.name for vm in change.changed],
            removed=[vm.name for vm in change.removed],
            groups=[*(group.name for group in change.groups), *reset],
            groups_removed=[name for name in change.groups_removed if name not in fleet.vms],
            hosts=[host.name for host in change.hosts],
            hosts_removed=list(change.hosts_removed),
            tokens_revoked=applied.tokens_revoked,
        )


MAX_PATH = 4096
"""Maximum length of a path on Linux."""


class FleetFileQuery(Struct):
    """How to apply a fleet file."""

    source: Annotated[Annotated[str, at_most(MAX_PATH)] | None, help_text("Name of the file in messages.")] = None
    force: Annotated[bool, help_text("End the events of VMs that leave the fleet or change their group.")] = False
    dry_run: Annotated[bool, help_text("Return the difference, and change nothing.")] = False


TOML = "application/toml"
_Names = Annotated[list[Name], at_most(MAX_PART_ITEMS)] | None


class FleetRemoval(Body):
    """What to remove from the fleet."""

    vms: Annotated[_Names, help_text("Names of VMs.")] = None
    groups: Annotated[_Names, help_text("Names of groups. All VMs of a group must be removed with it.")] = None
    hosts: Annotated[_Names, help_text("Names of hosts. All VMs on a host must be removed with it.")] = None
    force: Annotated[bool | None, help_text("End the events of the VMs.")] = None
    dry_run: Annotated[bool | None, help_text("Return the difference, and change nothing.")] = None


class FleetControl:
    """The fleet."""

    def __init__(self, engine: Engine, metadata: MetadataServer, slices: Slices) -> None:
        self._engine = engine
        self._metadata = metadata
        self._slices = slices

    def routes(self) -> list[Route]:
        return [
            Route("GET", "/v1/fleet", self.fleet, "Return the size of the fleet.", FleetShape),
            Route(
                "PUT",
                "/v1/fleet",
                self.replace_fleet,
                "Apply a fleet file.",
                FleetChangeShape,
                Role.ADMIN,
                query=FleetFileQuery,
                body=NoMembers,
                body_type=TOML,
                body_limit=FLEET_FILE,
            ),
            Route(
                "PATCH",
                "/v1/fleet",
                self.add,
                "Add VMs, groups and hosts to the fleet, or change them.",
                FleetChangeShape,
                Role.ADMIN,
                query=FleetFileQuery,
                body=NoMembers,
                body_type=TOML,
                body_limit=FLEET_PART,
                creates=True,
            ),
            Route(
                "POST",
                "/v1/fleet/remove",
                self.remove,
                "Remove VMs, groups and hosts from the fleet.",
                FleetChangeShape,
                Role.ADMIN,
                body=FleetRemoval,
                creates=True,
            ),
        ]

    async def fleet(self, _: Request) -> Response:
        fleet = self._engine.fleet
        return json_response(FleetShape(len(fleet.vms), len(fleet.groups), len(fleet.hosts)))

    async def replace_fleet(self, request: Request) -> Response:
        query: FleetFileQuery = request.state.query
        source = "the fleet file" if query.source is None else query.source[-MAX_SHOWN:]
        with self._slices.body_place(FLEET_FILE):
            body = await read_bytes(request, FLEET_FILE)
            change = await apply_fleet(
                self._engine,
                self._metadata,
                await self._engine.worker.run(_decode, body),
                source,
                caller(request).name,
                force=query.force,
                dry_run=query.dry_run,
                while_wanted=partial(self._slices.while_wanted, request),
            )
        return json_response(change)

    async def add(self, request: Request) -> Response:
        query: FleetFileQuery = request.state.query
        source = "the file" if query.source is None else query.source[-MAX_SHOWN:]
        with self._slices.body_place(FLEET_PART):
            body = await read_bytes(request, FLEET_PART)
            text = _decode(body)
            request.state.body = {"file": _hash(text), "force": query.force}

            def plan(before: Fleet, _: Set[str], sequence: int) -> FleetPlan:
                return plan_part(parse_part(text, source, before), before, sequence)

            return await self._change(request, plan, source, force=query.force, dry_run=query.dry_run)

    async def remove(self, request: Request) -> Response:
        body = await read_body(request, FleetRemoval)
        names = FleetNames(*(tuple(found or ()) for found in (body.vms, body.groups, body.hosts)))

        def plan(before: Fleet, destinations: Set[str], _: int) -> FleetPlan:
            return plan_removal(names, before, destinations)

        reason = f"removed {first_names([name for each in names for name in each])}"
        with self._slices.body_place(FLEET_PART):
            return await self._change(request, plan, reason, force=bool(body.force), dry_run=bool(body.dry_run))

    async def _change(
        self, request: Request, planner: FleetPlanner, reason: str, *, force: bool, dry_run: bool
    ) -> Response:
        """Change a part of the fleet, and listen on the addresses of its VMs."""
        engine, metadata = self._engine, self._metadata
        async with metadata.applying:
            plan = None
            if dry_run or not is_repeated(engine, request):
                plan = await self._slices.while_wanted(request, engine.plan_fleet(planner))
            change = engine.fleet_change(planner, plan, caller(request).name, force=force, reason=reason)

            def decide(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[FleetChangeShape]:
                applied = yield from change(draft, now, limits)
                return FleetChangeShape.of(applied, draft.fleet)

            reserved = metadata.reserve(Fleet((*plan.change.added, *plan.change.changed))) if plan is not None else {}
            try:
                if dry_run:
                    return json_response(await engine.preview_in_steps(decide))
                response = await create_once(engine, request, decide, status=200)
                await metadata.listen(engine.fleet, reserved)
                reserved = {}
                return response
            finally:
                release(reserved)
