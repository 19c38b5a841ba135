"""/v1/fleet: the size of the fleet, and applying a fleet file without delaying polls."""

from __future__ import annotations

import asyncio
import gc
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Struct

from forewarn.control.input import MAX_FLEET_BYTES, read_bytes
from forewarn.control.routing import Route, caller
from forewarn.control.schema import Count, NoMembers, Shape, help_text, json_response
from forewarn.core.access import Role
from forewarn.files.fleet_file import parse_fleet
from forewarn.system.sockets import release

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from forewarn.core.fleet import Fleet, FleetChange
    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer


LAST_FILE = "fleet file"
"""Name of the stored fact with the hash of the fleet file that was applied last, by whatever way."""


def is_last_applied(engine: Engine, text: str) -> bool:
    """Return whether this file was applied last.

    A restart must not apply it again: that would bring back VMs that were deleted since.
    """
    return engine.facts.get(LAST_FILE) == _hash(text)


def _hash(text: str) -> str:
    # The command line reads files with the line ends of any system.
    return sha256(text.replace("\r\n", "\n").encode()).hexdigest()


async def apply_fleet(
    engine: Engine, metadata: MetadataServer, text: str, source: str, by: str, *, force: bool, dry_run: bool = False
) -> FleetChangeShape:
    """Apply a fleet file: reserve the addresses of the VMs, commit the change, then listen on these addresses.

    `source` is the name of the file in messages. A dry run drops the change, and releases the addresses.
    """
    async with metadata.applying:
        # A full garbage collection visits every VM with all threads stopped, and finds nothing. Disable it only in a
        # process of the service itself, which has called gc.freeze at its start. A test's process is not ours.
        own_process = gc.get_freeze_count() > 0
        if own_process:
            gc.disable()
        try:
            fleet = await asyncio.to_thread(parse_fleet, text, source)
            reserved = metadata.reserve(fleet)
            try:
                facts = {LAST_FILE: _hash(text)}
                change = await engine.apply_fleet(fleet, by, force=force, reason=source, facts=facts, dry_run=dry_run)
            except BaseException:
                release(reserved)
                raise
            if dry_run:
                release(reserved)
            else:
                await metadata.listen(fleet, reserved)
        finally:
            if own_process:
                gc.enable()
                gc.freeze()
    return FleetChangeShape.of(change, fleet)


class FleetShape(Shape):
    """The size of the fleet."""

    vms: Count
    groups: Count
    hosts: Count


class FleetChangeShape(Shape):
    """What a fleet file changed, or would change."""

    added: list[str]
    changed: list[str]
    removed: list[str]
    groups: list[str]
    groups_removed: list[str]
    hosts: list[str]
    hosts_removed: list[str]

    @classmethod
    def of(cls, change: FleetChange, fleet: Fleet) -> Self:
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
        )


class FleetFileQuery(Struct):
    """How to apply a fleet file."""

    source: Annotated[str | None, help_text("Name of the file in messages.")] = None
    force: Annotated[bool, help_text("End the events of VMs that leave the fleet or change their group.")] = False
    dry_run: Annotated[bool, help_text("Return the difference, and change nothing.")] = False


TOML = "application/toml"


class FleetControl:
    """The fleet."""

    def __init__(self, engine: Engine, metadata: MetadataServer) -> None:
        self._engine = engine
        self._metadata = metadata

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
            ),
        ]

    async def fleet(self, _: Request) -> Response:
        fleet = self._engine.fleet
        return json_response(FleetShape(len(fleet.vms), len(fleet.groups), len(fleet.hosts)))

    async def replace_fleet(self, request: Request) -> Response:
        query: FleetFileQuery = request.state.query
        source = query.source if query.source is not None else "the fleet file"
        text = (await read_bytes(request, MAX_FLEET_BYTES)).decode("utf-8", errors="replace")
        by, options = caller(request).name, {"force": query.force, "dry_run": query.dry_run}
        return json_response(await apply_fleet(self._engine, self._metadata, text, source, by, **options))
