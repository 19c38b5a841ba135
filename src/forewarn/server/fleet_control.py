"""Applying a fleet file to a running service, without holding up the polls."""

from __future__ import annotations

import asyncio
import gc
from hashlib import sha256
from typing import TYPE_CHECKING

from forewarn.system.sockets import release
from forewarn.wire.fleet_file import parse_fleet

if TYPE_CHECKING:
    from forewarn.core.fleet import FleetChange
    from forewarn.engine import Engine
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
