"""How long history is kept, in virtual time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import FLEET, cancel, make_engine, request_operation, running_engine

from forewarn.core.access import run_once
from forewarn.core.limits import OperatorLimits
from forewarn.core.state import EndedEvent
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.core.state import HistoryEntry
    from forewarn.core.steps import Steps
    from forewarn.engine.engine import Engine

DAY = timedelta(days=1)
WEEK = OperatorLimits(makes_hosts=True, history_retention=7 * DAY)


async def rows(engine: Engine) -> list[HistoryEntry]:
    return await engine.records.history(HistoryFilter())


async def test_ended_operations_are_removed_after_the_retention() -> None:
    async with running_engine(limits=WEEK) as engine:
        operation = await request_operation(engine, "restart", "web-0")
        await engine.advance(timedelta(hours=1))
        event = operation.events[0]
        await engine.advance(6 * DAY)
        assert await engine.records.operation(operation.id) is not None
        await engine.advance(DAY)
        assert await engine.records.operation(operation.id) is None
        assert await engine.records.event(event) is None
        kept = await rows(engine)
        assert all(row.time >= engine.clock.now() - 7 * DAY for row in kept)
        assert [row.sequence for row in kept] == list(range(kept[0].sequence, engine.records.newest + 1))
        assert await engine.records.oldest() == kept[0].sequence


async def test_ended_events_are_kept_in_memory_for_a_day(tmp_path: Path) -> None:
    engine, _ = make_engine(tmp_path)
    await engine.start()
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="web-0")
    operation = await request_operation(engine, "restart", "web-0")
    await cancel(engine, operation.events[0])
    ended_at = engine.clock.now()
    for _ in range(2):
        ended = {**engine._writer.state.ended_events}
        assert ended == {operation.events[0]: EndedEvent("web", ended_at)}
        await engine.stop()
        engine, _ = make_engine(tmp_path)
        await engine.start()
    await engine.advance(DAY + timedelta(hours=2))
    assert engine._writer.state.ended_events == {}
    await engine.stop()


async def test_live_operations_are_never_removed() -> None:
    async with running_engine(limits=WEEK) as engine:
        operation = await request_operation(engine, "host-update", host="host-a", notice=60 * DAY)
        await engine.advance(50 * DAY)
        assert operation.id in {live.id for live in engine.live_operations()}
        found = await engine.records.operation(operation.id)
        assert found is not None
        assert set(found.events) <= {live.id for live in engine.live_events()}
        await cancel(engine, operation.events[0])
        await engine.advance(6 * DAY)
        assert await engine.records.operation(operation.id) is not None
        await engine.advance(2 * DAY)
        assert await engine.records.operation(operation.id) is None


async def test_the_sequence_continues_after_the_removal_of_all_rows_and_a_restart(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=WEEK) as engine:
        await engine.advance(100 * DAY)
        newest = engine.records.newest
        (last,) = await rows(engine)
        assert last.sequence == newest
    again, _ = make_engine(tmp_path, limits=WEEK)
    await again.start()
    try:
        assert again.records.newest == newest
        await request_operation(again, "restart", "web-0")
        assert [row.sequence for row in await rows(again)] == list(range(newest, again.records.newest + 1))
    finally:
        await again.stop()


async def test_rows_that_expired_during_downtime_are_removed_at_the_start(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=OperatorLimits(history_retention=timedelta(0))) as engine:
        await engine.advance(30 * DAY)
        before = await rows(engine)
        assert before[0].sequence == 1
    again, _ = make_engine(tmp_path, limits=WEEK)
    await again.start()
    try:
        await again.advance(timedelta(0))  # waits for what was begun at the start
        assert [row.sequence for row in await rows(again)] == [again.records.newest]
    finally:
        await again.stop()


async def test_a_stop_does_not_wait_for_all_of_it(tmp_path: Path) -> None:
    async with running_engine(tmp_path, limits=OperatorLimits(history_retention=timedelta(0))) as engine:
        for _ in range(200):
            await cancel(engine, (await request_operation(engine, "restart", "web-0")).events[0])
        await engine.advance(30 * DAY)
        newest = engine.records.newest
    again, _ = make_engine(tmp_path, limits=WEEK)
    await again.start()
    await again.stop()
    third, _ = make_engine(tmp_path, limits=OperatorLimits(history_retention=timedelta(0)))
    await third.start()
    try:
        left = await rows(third)
        assert len(left) > 1, "the stop waited until all was removed"
        assert [row.sequence for row in left] == list(range(newest + 1 - len(left), newest + 1))
    finally:
        await third.stop()


@pytest.mark.parametrize("retention", [timedelta(0), 1000 * DAY])
async def test_idempotent_responses_are_kept_for_a_day_whatever_the_retention(
    retention: timedelta,
) -> None:
    async with running_engine(limits=OperatorLimits(history_retention=retention)) as engine:

        async def answer(text: str) -> str:
            def decide(*_: object) -> Steps[tuple[int, str]]:
                yield 1
                return 201, text

            kept = await engine.execute_in_steps(run_once, "somebody k", "f", decide)
            return kept.body or (await engine.records.stored_response("somebody k")).body  # type: ignore[union-attr]

        assert await answer("first") == "first"
        assert await answer("second") == "first"
        await engine.advance(timedelta(hours=25))
        assert await engine.records.stored_response("somebody k") is None
        assert engine._writer.state.responses == {}
        assert await answer("third") == "third"
        assert len(await rows(engine)) > len(FLEET.groups)


@pytest.mark.parametrize("newest", [False, True])
async def test_history_is_the_same_for_any_page_size(monkeypatch: pytest.MonkeyPatch, newest: bool) -> None:
    async with running_engine() as engine:
        for _ in range(5):
            await cancel(engine, (await request_operation(engine, "restart", "web-0")).events[0])
        everything = await rows(engine)
        for size in (1, 2, 3, 7):
            monkeypatch.setattr("forewarn.engine.history.SCAN_ROWS", size)
            for limit in (1, 2, 5, 100):
                for after, before in ((0, 0), (3, 0), (0, 8), (3, 8), (8, 3), (99, 0)):
                    wanted = HistoryFilter(vm="web-0", after=after, before=before, limit=limit, newest=newest)
                    expected = [
                        row
                        for row in everything
                        if "web-0" in row.vms and row.sequence > after and (not before or row.sequence < before)
                    ]
                    found = await engine.records.history(wanted)
                    assert found == (expected[::-1] if newest else expected)[:limit]
