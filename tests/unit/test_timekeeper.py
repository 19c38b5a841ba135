"""Time that runs by itself can be stopped at any moment."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from forewarn.clock import SystemClock
from forewarn.core.terms import Terms
from forewarn.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("turns", range(6))
async def test_a_stop_that_meets_a_new_deadline_is_not_lost(tmp_path: Path, turns: int) -> None:
    clock = SystemClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), Terms())
    await engine.start()
    await engine._hearing.write()
    for _ in range(20):  # by then it waits for the next deadline
        await asyncio.sleep(0)
    engine._agenda.sooner.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await engine._timekeeper.stop()
        await engine.stop()
