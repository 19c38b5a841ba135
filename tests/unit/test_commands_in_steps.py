"""Commands in steps: others have their turn between two slices, and see the command as a whole, or not at all."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from engines import MINUTE, START, running_engine

from forewarn.core.fleet import VM, Fleet, Group, Host
from forewarn.core.history import ENGINE, record_clock
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.core.steps import SLICE_COST
from forewarn.engine.writer import MAX_BATCH_ROWS
from forewarn.errors import NotLeading, StoreFailed, UnknownVM
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.state import Changes, Draft
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine

VMS = ("web-0", "web-1", "db-0")


def restart_one_by_one(
    draft: Draft, now: datetime, limits: OperatorLimits, at_each: Callable[[], object], *more: str
) -> Steps[list[str]]:
    """Restart VMs, one in each slice."""
    found = []
    for name in (*VMS, *more):
        found += [each.id for each in request(draft, now, limits, CauseRequest("restart", (name,)), "operator")]
        at_each()
        yield SLICE_COST
    return found


def seen(engine: Engine) -> tuple[int, int, int]:
    """Return what a reader sees."""
    return len(engine.live_operations()), len(engine.document("web").events), engine.records.newest


async def test_readers_see_the_state_of_before_until_the_command_is_on_disk() -> None:
    async with running_engine() as engine:
        before, readings, steps = seen(engine), list[tuple[int, int, int]](), list[int]()
        command = asyncio.create_task(engine.execute_in_steps(restart_one_by_one, lambda: steps.append(len(readings))))
        while not command.done():
            readings.append(seen(engine))
            await asyncio.sleep(0)
        assert len(set(steps)) == len(VMS), "one slice in each iteration"
        assert set(readings) <= {before, seen(engine)}
        assert [each.id for each in engine.live_operations()] == await command
        assert engine.document("web").incarnation == 2, "one change of the document"


async def test_other_commands_wait_for_a_command_in_steps() -> None:
    async with running_engine() as engine:
        others: list[asyncio.Task[Any]] = []

        def begin_other() -> None:
            wanted = CauseRequest("redeploy", ("web-2",))
            others.append(asyncio.create_task(engine.execute(request, wanted, f"other {len(others)}")))

        await engine.execute_in_steps(restart_one_by_one, begin_other)
        await asyncio.gather(*others, return_exceptions=True)
        rows = await engine.records.history(HistoryFilter(kinds=("requested",), limit=10))
        assert [row.by for row in rows] == ["operator"] * 3 + ["other 0"]
        assert [row.sequence for row in rows] == sorted({row.sequence for row in rows})


async def test_time_passes_only_when_the_command_is_on_disk() -> None:
    async with running_engine() as engine:
        advances, times = list[asyncio.Task[datetime]](), set[datetime]()

        def advance() -> None:
            times.add(engine.clock.now())
            advances.append(asyncio.create_task(engine.advance(MINUTE)))

        await engine.execute_in_steps(restart_one_by_one, advance)
        assert times == {START}
        assert await asyncio.gather(*advances) == [START + number * MINUTE for number in (1, 2, 3)]


async def test_a_command_that_fails_late_changes_nothing() -> None:
    async with running_engine() as engine:
        before = seen(engine)
        with pytest.raises(UnknownVM):
            await engine.execute_in_steps(restart_one_by_one, lambda: None, "nobody")
        assert seen(engine) == before


async def test_a_preview_in_steps_changes_nothing() -> None:
    async with running_engine() as engine:
        before, commits = seen(engine), list[object]()
        engine.subscribe_to_commits(commits.append)
        assert len(await engine.preview_in_steps(restart_one_by_one, lambda: None)) == len(VMS)
        assert (seen(engine), commits) == (before, [])


async def test_a_node_that_stops_to_lead_drops_the_command() -> None:
    async with running_engine() as engine:
        before, steps = seen(engine), list[asyncio.Task[None]]()

        def step_down() -> None:
            if not steps:
                steps.append(asyncio.create_task(engine.follow()))

        with pytest.raises(NotLeading):
            await engine.execute_in_steps(restart_one_by_one, step_down)
        await asyncio.gather(*steps)
        assert seen(engine) == before
        await engine.lead()
        assert len(await engine.execute_in_steps(restart_one_by_one, lambda: None)) == len(VMS)


async def test_a_batch_with_many_rows_gets_no_more_commands() -> None:
    def write_rows(draft: Draft, now: datetime, _: OperatorLimits, count: int) -> int:
        for _each in range(count):
            record_clock(draft, now, ENGINE, "", accepted=True)
        return draft.sequence

    async with running_engine() as engine:
        first, commits = engine.records.newest, list[int]()
        engine.subscribe_to_commits(lambda changes: commits.append(len(changes.history)))
        counts = (MAX_BATCH_ROWS // 2, MAX_BATCH_ROWS, 1, 1)
        sequences = await asyncio.gather(*(engine.execute(write_rows, count) for count in counts))
        assert commits == [counts[0] + counts[1], 2]
        assert sequences == [first + sum(counts[: number + 1]) for number in range(len(counts))]


async def test_what_is_due_at_the_same_time_is_committed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    count = 2 * MAX_BATCH_ROWS - 1
    vms = [VM(f"vm-{number}", "group", "host-a") for number in range(count)]
    fleet = Fleet(vms, [Group("group", "availability-set", 1, 1)], [Host("host-a")])
    async with running_engine(fleet=fleet, limits=OperatorLimits(max_pending_user_operations=0)) as engine:
        requested = [one.id for one in await engine.request(CauseRequest("restart", tuple(fleet.vms)), "user")]
        parts, commit = list[list[str]](), engine._writer._store.commit

        def commit_one_part(changes: Changes) -> int:
            part = [row.operation for row in changes.history if row.kind == "started"]
            if part and parts:
                raise StoreFailed(problem="no room")
            position = commit(changes)
            parts.extend([part] if part else [])
            return position

        with monkeypatch.context() as patch:
            patch.setattr(engine._writer._store, "commit", commit_one_part)
            with pytest.raises(StoreFailed):
                await engine.advance(15 * MINUTE)
        assert parts == [requested[:MAX_BATCH_ROWS]]
        pending = [one.id for one in engine.live_operations() if one.status is OperationStatus.PENDING]
        assert pending == requested[MAX_BATCH_ROWS:]
        await engine.advance(timedelta(0))
        rows = await engine.records.history(HistoryFilter(kinds=("started",), limit=2 * count))
        assert [row.operation for row in rows] == requested, "each of them once"
