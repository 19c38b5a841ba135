"""What a row of history says about the start of its event: what it still waits for."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import approve, request_operation, running_engine

from forewarn.core import approvals
from forewarn.core.explain import explain
from forewarn.core.fleet import VM, Fleet, Group, Host
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import request
from forewarn.core.waits import MAX_OPEN_WAITS
from forewarn.core.windows import parse_window
from forewarn.delivery.history_rows import as_tenants_see
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from forewarn.core.state import HistoryEntry
    from forewarn.engine.engine import Engine


async def rows(engine: Engine, *kinds: str) -> list[HistoryEntry]:
    return await engine.records.history(HistoryFilter(kinds=kinds))


def kinds_and_groups(row: HistoryEntry) -> list[tuple[str, str]]:
    return [(wait.kind, wait.group) for wait in row.waits]


def busy_host(groups: int) -> Fleet:
    return Fleet([VM(f"vm-{number}", f"vm-{number}", "host-a") for number in range(groups)], [], [Host("host-a")])


async def test_a_row_lists_only_some_of_many_waits() -> None:
    many = MAX_OPEN_WAITS + 5
    async with running_engine(fleet=busy_host(many)) as engine:
        operation = await request_operation(engine, "host-update", host="host-a")
        scheduled = await rows(engine, "scheduled")
        assert len(scheduled) == many
        for row in scheduled:
            assert len(row.waits) == MAX_OPEN_WAITS
            assert row.waits[0].group == row.group, "its own condition comes first"
        assert len(explain(engine.draft(), engine.limits, operation, None).waits) == many
        # The fewer groups are left, the shorter the list.
        for event_id in operation.events:
            await approve(engine, event_id, by="ops")
        left = [len(row.waits) for row in await rows(engine, "approved")]
        assert left == [min(MAX_OPEN_WAITS, many - number) for number in range(1, many + 1)]


async def test_the_rows_of_a_request_know_all_its_events() -> None:
    async with running_engine(fleet=busy_host(3)) as engine:
        await request_operation(engine, "host-update", host="host-a")
        found = [{wait.group for wait in row.waits} for row in await rows(engine, "scheduled")]
        assert found == [{"vm-0", "vm-1", "vm-2"}] * 3
        assert {row.host for row in await rows(engine, "scheduled")} == {"host-a"}


async def test_all_rows_of_a_postponement_have_the_new_time() -> None:
    async with running_engine(fleet=busy_host(3)) as engine:
        operation = await request_operation(engine, "host-update", host="host-a")
        (first, *_) = (await rows(engine, "scheduled"))[0].waits
        assert first.until is not None
        until = first.until + timedelta(hours=2)
        await engine.execute(approvals.postpone, operation.events[1], "ops", until)
        moved = await rows(engine, "postponed")
        assert [{wait.until for wait in row.waits} for row in moved] == [{until}] * 3


async def test_an_approved_deletion_waits_for_the_others() -> None:
    group = Group("set", "scale-set", terminate_notice=timedelta(minutes=15))
    vms = [VM(f"set_{number}", "set", "host-a") for number in range(3)]
    async with running_engine(fleet=Fleet(vms, [group], [Host("host-a")])) as engine:
        operations = await engine.execute(request, CauseRequest("delete", tuple(vm.name for vm in vms)), "user")
        for operation in operations:
            await approve(engine, *operation.events, by="set_0")
        assert [kinds_and_groups(row) for row in await rows(engine, "scheduled")] == [[("approval", "set")]] * 3
        approved = await rows(engine, "approved")
        assert [kinds_and_groups(row) for row in approved] == [[("deletion", "set")] * 2, [("deletion", "set")], []]
        assert "set_2" in approved[1].waits[0].text
        # The other VMs are of its own group.
        assert as_tenants_see(approved[0]).waits == approved[0].waits


async def test_a_recommendation_waits_for_nothing() -> None:
    spot = VM("spot", "spot", "host-a", priority="spot")
    async with running_engine(fleet=Fleet([spot], [], [Host("host-a")])) as engine:
        await request_operation(engine, "rebalance", "spot")
        (row,) = await rows(engine, "scheduled")
        assert row.waits == ()
        assert row.event_then == engine.live_events()[0]


@pytest.mark.parametrize("override", [False, True])
async def test_windows_of_groups_with_and_without_notice(override: bool) -> None:
    windows = (parse_window("daily 00:00 24h UTC"),)
    groups = [Group(name, "availability-set", windows=windows) for name in ("notified", "silent")]
    fleet = Fleet([VM("a", "notified", "host-a"), VM("b", "silent", "host-a")], groups, [Host("host-a")])
    async with running_engine(fleet=fleet, enable_groups=False) as engine:
        await engine.enable("notified", by="a")
        overrides = ("windows",) if override else ()
        await request_operation(engine, "host-update", host="host-a", overrides=overrides)
        (row,) = await rows(engine, "scheduled")
        hold = [] if override else [("window", "notified"), ("window", "")]
        assert kinds_and_groups(row) == [("approval", "notified"), *hold]
        tenant = as_tenants_see(row)
        assert [wait.text for wait in tenant.waits if not wait.group] == [""] * (not override)
        assert [wait for wait in tenant.waits if wait.group] == [wait for wait in row.waits if wait.group]
