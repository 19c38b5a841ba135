"""Active items need no store: lists, lookup by id or prefix, and operations with events that have ended."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import make_engine, request_operation, running_engine

from forewarn.errors import StoreFailed
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.engine.engine import Engine

pytestmark = pytest.mark.anyio


async def stop_reader(engine: Engine) -> None:
    """Let every read of the store fail from now on."""
    (reader,) = engine._store._readers  # type: ignore[attr-defined]
    await engine.records._read(reader.set_progress_handler, lambda: 1, 1)


async def test_lists_and_items_without_the_store(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        operations = [await request_operation(engine, "restart", vm) for vm in ("web-0", "web-1", "db-0")]
        ended = await request_operation(engine, "restart", "web-2")
        await engine.cancel_operation(ended.id, "test")
        await stop_reader(engine)
        records, first = engine.records, operations[0]
        page = await records.operations(ListFilter(limit=2))
        assert [operation for _, operation in page] == operations[:2]
        rest = await records.operations(ListFilter(after_id=str(page[-1][0])))
        assert [operation for _, operation in rest] == operations[2:]
        assert await records.count_events(ListFilter(group="web")) == 2
        assert await records.operations_by_prefix(first.id) == [first]
        assert await records.operations_by_prefix(first.id[:-1]) == [first], "the store might have another one"
        assert len(await records.operations_by_prefix("")) == 2
        for missing in (
            records.operations(ListFilter(live=False)),
            records.operations(ListFilter(after_id=ended.id)),  # only the store knows its place in the list
            records.operations_by_prefix(ended.id),
            records.events_by_prefix(first.events[0], "db-0"),  # of another group
        ):
            with pytest.raises(StoreFailed):
                await missing


async def test_an_ended_event_stays_with_its_active_operation(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        work = await request_operation(engine, "host-update", host="host-a", type="Freeze", notice=timedelta(days=5))
        moving = await request_operation(engine, "redeploy", "db-0")
        await engine.approve(moving.events, "test")
        await engine.advance(timedelta(days=2))
    engine, _ = make_engine(tmp_path)
    await engine.start()
    await stop_reader(engine)
    events = [await engine.records.event(event_id) for event_id in work.events]
    assert {event.group: event.status.live for event in events if event is not None} == {"web": True, "db-0": False}
    found = await engine.records.operations(ListFilter(group="db-0"))
    assert [operation.id for _, operation in found] == [work.id]
    await engine.cancel_operation(work.id, "test")
    assert engine._writer.state.ended_of_active == {}
    await engine.stop()
