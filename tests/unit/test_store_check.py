"""Whether the store works: a check that does not end, and many at the same time."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from engines import running_engine
from moved_loop import MovedLoop, move_on

from forewarn.engine.engine import CHECK_SECONDS

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"loop_factory": MovedLoop}


async def test_a_store_that_does_not_answer_is_a_problem_and_gets_one_check(tmp_path: Path) -> None:
    disk_works, checks = threading.Event(), 0

    def read() -> None:
        nonlocal checks
        checks += 1
        disk_works.wait()

    async with running_engine(tmp_path) as engine:
        assert await engine.store_problems() == []
        engine.records._failed = read
        try:
            for _ in range(3):
                probes = [asyncio.ensure_future(engine.store_problems()) for _ in range(5)]
                await asyncio.sleep(0)
                move_on(CHECK_SECONDS)
                for problems in await asyncio.gather(*probes):
                    assert problems == ["The store has not answered for 10 seconds."]
        finally:
            disk_works.set()
        assert await engine.store_problems() == []
        assert checks == 1
