"""Applying a fleet file to a running service, without holding up the polls."""

from __future__ import annotations

import asyncio
import gc
from hashlib import sha256
from typing import TYPE_CHECKING

from forewarn.server.listeners import release
from forewarn.wire.fleet_file import parse_fleet

if TYPE_CHECKING:
    from forewarn.core.fleet import FleetChange
    from forewarn.engine import Engine
    from forewarn.server.listeners import MetadataServer

FILE_FACT = "fleet_file"
"""Under this name the store keeps which file was applied last."""


def fingerprint(text: str) -> str:
    """Tells a fleet file from an earlier version of itself."""
    return sha256(text.encode()).hexdigest()


async def apply_fleet(
    engine: Engine, metadata: MetadataServer, text: str, source: str, by: str, *, force: bool
) -> FleetChange:
    """Parse, check, reserve the VMs' own addresses, write, and only then listen there."""
    # A full collection walks every VM with all threads stopped, and there is no garbage to find.
    gc.disable()
    try:
        fleet = await asyncio.to_thread(parse_fleet, text, source)
        reserved = metadata.reserve(fleet)
        try:
            facts = {FILE_FACT: fingerprint(text)}
            change = await engine.apply_fleet(fleet, by, force=force, why=source, facts=facts)
        except BaseException:
            release(reserved)
            raise
        await metadata.listen(fleet, reserved)
    finally:
        gc.enable()
        gc.freeze()
    return change
