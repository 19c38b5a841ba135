"""/v1/fleet: its size, and applying a fleet file without holding up the polls."""

from __future__ import annotations

import asyncio
import gc
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse, Response

from forewarn.control.input import LARGEST_FLEET, Query, read_body
from forewarn.control.routing import Endpoint, caller
from forewarn.control.schema import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    Field,
    Schema,
    record,
    ref,
)
from forewarn.core.access import Role
from forewarn.files.fleet_file import parse_fleet
from forewarn.system.sockets import release

if TYPE_CHECKING:
    from starlette.requests import Request

    from forewarn.core.fleet import FleetChange
    from forewarn.engine.engine import Engine
    from forewarn.metadata.server import MetadataServer


def applied_before(engine: Engine, text: str, path: str) -> bool:
    """Whether this file, as it is now, was the last of its path to be applied.

    What was applied from elsewhere since then stays: a restart must not take it back.
    """
    return engine.facts.get(_fact(path)) == _fingerprint(text)


def _fact(path: str) -> str:
    """The name under which the store keeps what was last applied from a path."""
    return f"fleet file {path}"


def _fingerprint(text: str) -> str:
    return sha256(text.encode()).hexdigest()


async def apply_fleet(
    engine: Engine, metadata: MetadataServer, text: str, source: str, by: str, *, path: str, force: bool
) -> FleetChange:
    """Parse, check, reserve the VMs' own addresses, write, and only then listen there.

    `source` is what messages call the file, `path` where it is, if it is known.
    """
    async with metadata.applying:
        # A full collection walks every VM with all threads stopped, and there is no garbage to find. But only where the
        # process is the service's own, and it has frozen what it began with: in a test it is somebody else's.
        own_process = gc.get_freeze_count() > 0
        if own_process:
            gc.disable()
        try:
            fleet = await asyncio.to_thread(parse_fleet, text, source)
            reserved = metadata.reserve(fleet)
            try:
                facts = {_fact(path): _fingerprint(text)} if path else {}
                change = await engine.apply_fleet(fleet, by, force=force, why=source, facts=facts)
            except BaseException:
                release(reserved)
                raise
            await metadata.listen(fleet, reserved)
        finally:
            if own_process:
                gc.enable()
                gc.freeze()
    return change


SHAPES: dict[str, Schema] = {
    "Fleet": record({"vms": COUNT, "groups": COUNT, "hosts": COUNT}),
    "FleetChange": record(
        dict.fromkeys(("added", "changed", "removed", "groups", "groups_removed", "hosts", "hosts_removed"), TEXTS)
    ),
}


def fleet_change_shape(change: FleetChange) -> dict[str, Any]:
    """What an applied fleet file has done."""
    return {
        "added": [vm.name for vm in change.added],
        "changed": [vm.name for vm in change.changed],
        "removed": [vm.name for vm in change.removed],
        "groups": [group.name for group in change.groups],
        "groups_removed": list(change.groups_removed),
        "hosts": [host.name for host in change.hosts],
        "hosts_removed": list(change.hosts_removed),
    }


TOML = "application/toml"


class FleetControl:
    """The fleet."""

    def __init__(self, engine: Engine, metadata: MetadataServer) -> None:
        self._engine = engine
        self._metadata = metadata

    def endpoints(self) -> list[Endpoint]:
        return [
            Endpoint("GET", "/v1/fleet", self.fleet, "See how large the fleet is.", ref("Fleet")),
            Endpoint(
                "PUT",
                "/v1/fleet",
                self.replace_fleet,
                "Apply a fleet file.",
                ref("FleetChange"),
                Role.ADMIN,
                query=(
                    Field("source", TEXT, "What messages call the file."),
                    Field("path", TEXT, "Where it is: a start with it then knows that it was applied."),
                    Field("force", FLAG, "End the events of VMs that leave or change group."),
                ),
                body=(),
                body_type=TOML,
            ),
        ]

    async def fleet(self, _: Request) -> Response:
        fleet = self._engine.fleet
        return JSONResponse({"vms": len(fleet.vms), "groups": len(fleet.groups), "hosts": len(fleet.hosts)})

    async def replace_fleet(self, request: Request) -> Response:
        query = Query(request)
        source, path, force = query.text("source", "the fleet file"), query.text("path"), query.flag("force")
        text = (await read_body(request, LARGEST_FLEET)).decode("utf-8", errors="replace")
        by = caller(request).name
        change = await apply_fleet(self._engine, self._metadata, text, source, by, path=path, force=force)
        return JSONResponse(fleet_change_shape(change))
