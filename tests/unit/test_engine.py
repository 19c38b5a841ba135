"""The engine from request to removal, in virtual time (docs/explanation/contract.md, sections 4 and 5)."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from engines import FLEET, MINUTE, START, approve, cancel, make_engine, request_operation, running_engine

from forewarn.core import fleet_commands
from forewarn.core.events import EventStatus
from forewarn.core.explain import explain
from forewarn.core.fleet import VM, Fleet, Group, Host
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.errors import (
    BadOption,
    EventAlreadyStarted,
    NoHostAvailable,
    NoVMNamed,
    StoreFailed,
    UnknownCause,
    UnknownEvent,
    UnknownStartRequest,
    UnknownVM,
    VMDeallocated,
    VMHasLiveEvent,
)
from forewarn.ports import HistoryFilter

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine


async def only_event(engine: Engine, cause: str, *vms: str) -> Event:
    operation = await request_operation(engine, cause, *vms)
    (event_id,) = operation.events
    event = await engine.records.event(event_id)
    assert event is not None
    return event


def statuses(engine: Engine, group: str) -> list[EventStatus]:
    return [event.status for event in engine.document(group).events]


async def words(engine: Engine, event: Event) -> list[str]:
    entries = await engine.records.history(HistoryFilter(event=event.id, operation=event.operation))
    return [entry.kind for entry in entries]


async def test_a_restart_is_scheduled_started_and_completed() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "web-0")
        assert (event.type, event.source, event.not_before) == ("Reboot", "User", START + 15 * MINUTE)
        await engine.advance(15 * MINUTE - timedelta(seconds=1))
        assert statuses(engine, "web") == [EventStatus.SCHEDULED]
        await engine.advance(timedelta(seconds=1))
        assert statuses(engine, "web") == [EventStatus.STARTED]
        await engine.advance(10 * MINUTE - timedelta(seconds=1))
        assert statuses(engine, "web") == [EventStatus.STARTED]
        await engine.advance(timedelta(seconds=1))
        assert statuses(engine, "web") == []
        assert engine.document("web").incarnation == 3
        assert await words(engine, event) == ["requested", "scheduled", "started", "executed", "completed"]


async def test_a_redeploy_has_the_minimum_notice_of_its_type() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "redeploy", "db-0")
        assert (event.type, event.not_before) == ("Redeploy", START + 10 * MINUTE)


async def test_an_approval_by_any_vm_of_the_group_starts_it_at_once() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "web-0")
        await approve(engine, event.id, by="web-1", group="web")
        assert statuses(engine, "web") == [EventStatus.STARTED]
        again = await engine.records.event(event.id)
        assert again is not None
        assert again.approved_by == "web-1"
        await approve(engine, event.id, by="web-0", group="web")  # clients repeat themselves
        assert engine.document("web").incarnation == 2


async def test_another_group_can_neither_see_nor_approve_it_and_a_mixed_approval_is_rejected() -> None:
    async with running_engine() as engine:
        mine = await only_event(engine, "restart", "db-0")
        other = await only_event(engine, "restart", "web-0")
        assert [event.id for event in engine.document("db-0").events] == [mine.id]
        with pytest.raises(UnknownStartRequest, match=other.id):
            await approve(engine, mine.id, other.id, by="db-0", group="db-0")
        assert statuses(engine, "db-0") == [EventStatus.SCHEDULED]
        assert statuses(engine, "web") == [EventStatus.SCHEDULED]


async def test_shared_hardware_starts_when_every_group_has_approved_or_is_due() -> None:
    async with running_engine() as engine:
        operation = await request_operation(engine, "host-update", by="operator", host="host-a")
        events = {
            event.group: event for event_id in operation.events if (event := await engine.records.event(event_id))
        }
        assert events["web"].resources == ("web-0", "web-2")
        assert events["db-0"].resources == ("db-0",)
        assert engine.document("auto").events == ()
        await approve(engine, events["db-0"].id, by="db-0", group="db-0")
        assert statuses(engine, "db-0") == [EventStatus.SCHEDULED], "it waits for the other tenant"
        assert engine.document("db-0").incarnation == 1, "an approval alone changes no document"
        await engine.advance(15 * MINUTE)
        assert statuses(engine, "db-0") == statuses(engine, "web") == [EventStatus.STARTED]


async def test_shared_hardware_starts_early_when_all_approve() -> None:
    async with running_engine() as engine:
        operation = await request_operation(engine, "host-update", by="operator", host="host-a")
        for event_id in operation.events:
            await approve(engine, event_id, by="operator")
        assert statuses(engine, "db-0") == statuses(engine, "web") == [EventStatus.STARTED]


async def test_automatic_approval_starts_the_event_at_once() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "auto-0")
        assert event.status is EventStatus.STARTED
        assert engine.document("auto").incarnation == 1
        redeploy = await only_event(engine, "redeploy", "auto-0")
        assert redeploy.status is EventStatus.SCHEDULED, "the policy names reboots only"


async def test_a_cancelled_operation_disappears_from_every_document() -> None:
    async with running_engine() as engine:
        operation = await request_operation(engine, "host-update", by="operator", host="host-a")
        await cancel(engine, operation.events[0])
        assert statuses(engine, "db-0") == statuses(engine, "web") == []
        await engine.advance(60 * MINUTE)
        ended = await engine.records.operation(operation.id)
        assert ended is not None
        assert (ended.status, ended.started_at) == (OperationStatus.CANCELLED, None)


async def test_a_started_event_cannot_be_cancelled() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "auto-0")
        with pytest.raises(EventAlreadyStarted):
            await cancel(engine, event.id)


async def test_a_group_that_never_polled_gets_no_notice_and_a_history_row() -> None:
    async with running_engine(enable_groups=False) as engine:
        operation = await request_operation(engine, "restart", "db-0", by="user")
        assert operation.events == ()
        assert operation.status is OperationStatus.STARTED
        assert dict(operation.not_notified) == {"db-0": "db-0 has never polled"}
        await engine.enable("db-0", by="db-0")
        assert engine.document("db-0").events == ()
        entries = await engine.records.history(HistoryFilter(operation=operation.id))
        assert "db-0 has never polled" in [entry.reason for entry in entries]


async def test_inactivity_disables_a_group_and_its_next_poll_starts_at_incarnation_zero() -> None:
    async with running_engine() as engine:
        await only_event(engine, "restart", "web-0")
        first = engine.document("web").enabling
        await engine.advance(timedelta(hours=23))
        engine.polled.add("web")
        await engine.advance(timedelta(hours=23))
        assert engine.document("web").enabled, "it was last seen 23 hours ago"
        assert not engine.document("db-0").enabled
        await engine.advance(timedelta(hours=1))
        assert not engine.document("web").enabled
        operation = await request_operation(engine, "restart", "web-0", by="user")
        assert dict(operation.not_notified) == {"web": "web has not polled for 1d"}
        await engine.enable("web", by="web-0")
        document = engine.document("web")
        assert (document.incarnation, document.enabled) == (0, True)
        assert document.enabling == first + 1
        assert {entry.kind for entry in await engine.records.history(HistoryFilter())} <= HISTORY_KINDS.keys()


async def test_a_scope_that_leaves_the_fleet_and_returns_continues_its_enablings() -> None:
    async with running_engine() as engine:
        await engine.advance(timedelta(hours=25))
        await engine.enable("web", by="web-0")
        known = engine.document("web").enabling
        without = Fleet([vm for vm in engine.fleet.vms.values() if vm.group != "web"], hosts=FLEET.hosts.values())
        await engine.apply_fleet(without, by="test", force=True)
        await engine.apply_fleet(FLEET, by="test")
        await engine.enable("web", by="web-0")
        assert engine.document("web").enabling > known
        assert (engine.document("db-0").enabled, engine.document("db-0").enabling) == (False, 0)


async def test_a_notice_stays_valid_when_the_group_becomes_inactive() -> None:
    async with running_engine(limits=OperatorLimits(inactivity_timeout=5 * MINUTE)) as engine:
        event = await only_event(engine, "restart", "web-0")
        await engine.advance(5 * MINUTE)
        assert not engine.document("web").enabled
        await engine.enable("web", by="web-0")
        document = engine.document("web")
        assert [shown.id for shown in document.events] == [event.id]
        assert document.incarnation == 1, "0 is what a client takes for: nothing has happened yet"
        await engine.advance(10 * MINUTE)
        assert (await engine.records.event(event.id)).status is EventStatus.STARTED  # type: ignore[union-attr]


async def test_speed_shortens_notice_settle_time_and_inactivity_timeout() -> None:
    async with running_engine(limits=OperatorLimits(speed=60)) as engine:
        event = await only_event(engine, "restart", "web-0")
        assert event.not_before == START + timedelta(seconds=15)
        await engine.advance(timedelta(seconds=15))
        assert statuses(engine, "web") == [EventStatus.STARTED]
        await engine.advance(timedelta(seconds=10))
        assert statuses(engine, "web") == []
        await engine.advance(24 * MINUTE)
        assert not engine.document("web").enabled


@pytest.mark.parametrize(
    ("cause", "vms", "error"),
    [
        ("restart", ["web-9"], UnknownVM),
        ("restart", [], NoVMNamed),
        ("reboot", ["web-0"], UnknownCause),
    ],
)
async def test_a_wrong_request_changes_nothing(cause: str, vms: list[str], error: type[Exception]) -> None:
    async with running_engine() as engine:
        before = await engine.records.history(HistoryFilter())
        with pytest.raises(error):
            await request_operation(engine, cause, *vms)
        assert engine.live_events() == []
        assert await engine.records.history(HistoryFilter()) == before


@pytest.mark.parametrize(
    ("cause", "vm", "options", "error"),
    [
        ("restart", "spot_0", {}, VMDeallocated),
        ("live-migration", "plain", {}, NoHostAvailable),
        ("restart", "plain", {"postpone_deadline": START + timedelta(days=1)}, BadOption),
    ],
)
async def test_a_request_that_does_not_fit_the_vm_or_its_cause_changes_nothing(
    cause: str, vm: str, options: dict[str, Any], error: type[Exception]
) -> None:
    fleet = Fleet(
        [VM("spot_0", "spot", "a", priority="spot"), VM("plain", "plain", "a")],
        [Group("spot", "scale-set", 5, 5)],
        [Host("a")],
    )
    async with running_engine(fleet=fleet, limits=OperatorLimits(makes_hosts=False)) as engine:
        await request_operation(engine, "eviction", "spot_0")
        await engine.advance(2 * MINUTE)
        before = await engine.records.history(HistoryFilter())
        with pytest.raises(error):
            await request_operation(engine, cause, vm, **options)
        assert engine.live_operations() == []
        assert await engine.records.history(HistoryFilter()) == before


async def test_an_unknown_event_gets_the_nearest_one_as_a_hint() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "web-0")
        with pytest.raises(UnknownEvent, match=f"Did you mean '{event.id}'"):
            await cancel(engine, event.id[:-1] + "x")


async def test_a_vm_with_a_live_event_leaves_only_by_force_and_then_its_event_ends() -> None:
    async with running_engine() as engine:
        event = await only_event(engine, "restart", "db-0")
        without = Fleet([vm for vm in FLEET.vms.values() if vm.name != "db-0"], FLEET.groups.values())
        with pytest.raises(VMHasLiveEvent, match=event.id):
            await engine.apply_fleet(without, by="operator")
        assert "db-0" in engine.fleet.vms
        change = (await engine.apply_fleet(without, by="operator", force=True)).change
        assert [vm.name for vm in change.removed] == ["db-0"]
        assert (await engine.records.event(event.id)).status is EventStatus.CANCELLED  # type: ignore[union-attr]
        assert not engine.document("db-0").enabled


async def test_moving_a_vm_with_a_live_event_to_another_group_is_rejected() -> None:
    async with running_engine() as engine:
        await only_event(engine, "restart", "db-0")
        moved = Fleet(
            [vm if vm.name != "db-0" else VM("db-0", "web", "host-a") for vm in FLEET.vms.values()],
            FLEET.groups.values(),
            FLEET.hosts.values(),
        )
        with pytest.raises(VMHasLiveEvent):
            await engine.apply_fleet(moved, by="operator")


async def test_commands_in_one_batch_get_their_own_results() -> None:
    async with running_engine() as engine:
        outcomes = await asyncio.gather(
            *(request_operation(engine, "restart", name, by="user") for name in ("web-0", "nobody", "web-1", "db-0")),
            return_exceptions=True,
        )
        assert [isinstance(outcome, UnknownVM) for outcome in outcomes] == [False, True, False, False]
        assert len(engine.live_events()) == 3


async def test_an_order_sees_the_work_on_a_host_that_arrived_with_it() -> None:
    async with running_engine() as engine:
        moved_away, withdrawn = await asyncio.gather(
            engine.execute(request, CauseRequest("degraded-hardware", host="host-b"), "operator"),
            engine.execute(fleet_commands.return_host, "host-b", "operator"),
        )
        assert [one.id for one in withdrawn] == [one.id for one in moved_away]
        assert engine.live_events() == []


async def test_vitals_count_commits_and_have_the_last_error(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine() as engine:
        measurements, before = engine.measurements, sum(engine.measurements.commits.counts)
        assert (measurements.commits.sum > 0, measurements.problem) == (True, "")
        with pytest.raises(NoVMNamed):
            await request_operation(engine, "restart")
        assert sum(measurements.commits.counts) == before, "what changes nothing is not written"

        def fail(_: object) -> None:
            raise StoreFailed(problem="no room")

        with monkeypatch.context() as patch:
            patch.setattr(engine._writer._store, "commit", fail)
            with pytest.raises(StoreFailed):
                await request_operation(engine, "restart", "web-0")
            assert "no room" in measurements.problem
        await request_operation(engine, "restart", "web-0")
        assert (measurements.failed_commits, measurements.problem) == (1, "")


@pytest.mark.parametrize(
    ("cause", "options", "boots", "stays", "runs"),
    [
        ("host-update", {"host": "host-b", "type": "Freeze"}, 1, True, True),
        ("host-update", {"host": "host-b", "type": "Reboot"}, 2, True, True),
        ("restart", {"vms": ("spot-0",)}, 2, True, True),
        ("redeploy", {"vms": ("spot-0",)}, 2, False, True),
        ("eviction", {"vms": ("spot-0",)}, 1, True, False),
        ("delete", {"vms": ("spot-0",)}, 1, True, False),
    ],
    ids=["Freeze", "Reboot of a host", "Reboot", "Redeploy", "Preempt", "Terminate"],
)
async def test_the_fabric_does_to_the_vm_what_the_event_says(
    cause: str, options: dict[str, Any], boots: int, stays: bool, runs: bool
) -> None:
    engine, fabric = make_engine()
    await engine.start()
    fleet = Fleet(
        [VM("spot-0", "spot-0", "host-b", priority="spot")], [Group("spot-0", "standalone")], [Host("host-b")]
    )
    await engine.apply_fleet(fleet, by="test")
    (operation,) = await engine.execute(request, CauseRequest(cause, **options), "test")
    await engine.advance(timedelta(0))  # the fabric has reported
    vm = engine.fleet.vm("spot-0")
    machine = await fabric.inspect("spot-0")
    assert (machine.boots, vm.host == "host-b", machine.running) == (boots, stays, runs), operation
    await engine.stop()


async def test_the_fabric_failing_being_slow_or_forgetting_only_delays_the_end() -> None:
    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(FLEET, by="test")
    await engine.enable("web", by="test")
    fabric.failures, fabric.delay = 2, 20 * MINUTE
    event = await only_event(engine, "restart", "web-0")
    await approve(engine, event.id, by="web-0", group="web")
    await engine.advance(30 * MINUTE)
    assert statuses(engine, "web") == [EventStatus.STARTED], "the work is not done, though the settle time is over"
    await engine.advance(31 * MINUTE)
    assert statuses(engine, "web") == []
    assert (await fabric.inspect("web-0")).boots == 2
    await engine.stop()


async def test_attempts_that_fail_are_repeated_after_longer_and_longer_pauses() -> None:
    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(FLEET, by="test")
    fabric.failures = 9
    operation = await request_operation(engine, "restart", "web-0")
    await engine.advance(timedelta(0))
    pauses: list[float] = []
    while (failed := engine.failed_attempt(operation.id)) is not None:
        assert failed.failures == len(pauses) + 1
        assert "is set to fail" in failed.problem
        assert failed.next_at is not None
        pauses.append((failed.next_at - engine.clock.now()).total_seconds())
        await engine.advance(failed.next_at - engine.clock.now() - timedelta(microseconds=1))
        assert engine.failed_attempt(operation.id) == failed, "not earlier"
        await engine.advance(timedelta(microseconds=1))
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300, 300]
    assert (await fabric.inspect("web-0")).boots == 2
    await engine.stop()


async def test_no_next_attempt_is_scheduled_while_one_runs() -> None:
    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(FLEET, by="test")
    fabric.failures, fabric.delay = 1, MINUTE
    operation = await request_operation(engine, "restart", "web-0")
    await engine.advance(MINUTE)
    await engine.advance(timedelta(seconds=6))
    failed = engine.failed_attempt(operation.id)
    assert failed is not None
    assert (failed.failures, failed.next_at) == (1, None)
    explained = explain(engine.draft(), engine.limits, engine.live_operations()[0], None, failed)
    assert explained.waits[0].text.endswith("; the next attempt is in progress")
    await engine.mark_done(operation.id, "operator")
    assert engine.failed_attempt(operation.id) is None, "no operation waits for the fabric"
    await engine.stop()


async def test_after_a_restart_the_next_attempt_is_made_at_once(tmp_path: Path) -> None:
    engine, fabric = make_engine(tmp_path)
    await engine.start()
    await engine.apply_fleet(FLEET, by="test")
    fabric.failures = 1
    operation = await request_operation(engine, "restart", "web-0")
    await engine.advance(timedelta(0))
    assert engine.failed_attempt(operation.id) is not None
    await engine.stop()
    engine, fabric = make_engine(tmp_path)
    await engine.start()
    await engine.advance(timedelta(0))
    assert engine.failed_attempt(operation.id) is None
    assert (await fabric.inspect("web-0")).boots == 2
    await engine.stop()


async def test_after_a_restart_overdue_work_is_done_once(tmp_path: Path) -> None:
    async with running_engine(tmp_path) as engine:
        event = await only_event(engine, "restart", "web-0")
        document = engine.document("web")
    engine, fabric = make_engine(tmp_path)
    await engine.start()
    assert engine.document("web") == document
    assert engine.clock.now() == START
    await engine.advance(15 * MINUTE)
    await engine.stop()
    engine, fabric = make_engine(tmp_path)
    await engine.start()
    assert engine.clock.now() == START + 15 * MINUTE
    assert statuses(engine, "web") == [EventStatus.STARTED]
    assert (await fabric.inspect("web-0")).boots == 1, "it was carried out before"
    await engine.advance(10 * MINUTE)
    assert await words(engine, event) == ["requested", "scheduled", "started", "executed", "completed"]
    await engine.stop()


async def test_a_subscriber_can_send_commands_and_only_one_batch_is_committed_at_a_time() -> None:
    groups = [Group(name, "availability-set") for name in ("web", "db-0")]
    vms = [VM(f"{group.name}-{number}", group.name, "host") for group in groups for number in range(30)]
    async with running_engine(fleet=Fleet(vms, groups, [Host("host")])) as engine:
        loop = asyncio.get_running_loop()
        events = [await only_event(engine, "restart", f"db-0-{number}") for number in range(30)]
        names = [f"web-{number}" for number in range(30)]
        finished = loop.create_future()
        more: list[asyncio.Task[object]] = []

        def approve_next(_: None, error: BaseException | None) -> None:
            if error is not None:
                finished.set_exception(error)
            elif events:
                engine.approve_with_callback([events.pop().id], "db-0", "db-0", approve_next)
                loop.call_soon(
                    lambda: more.append(
                        asyncio.ensure_future(request_operation(engine, "restart", names.pop(), by="x"))
                    )
                )
            else:
                finished.set_result(None)

        approve_next(None, None)
        await finished
        await asyncio.gather(*more)
        entries = await engine.records.history(HistoryFilter(limit=10_000))
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert len(engine.document("web").events) == 30


async def test_not_notified_rows_name_only_the_vms_of_their_group() -> None:
    async with running_engine(enable_groups=False) as engine:
        operation = await request_operation(engine, "host-update", by="operator", host="host-a")
        entries = await engine.records.history(HistoryFilter(operation=operation.id))
        not_notified = {entry.group: entry.vms for entry in entries if entry.kind == "not-notified"}
        assert not_notified == {"web": ("web-0", "web-2"), "db-0": ("db-0",)}


async def test_a_group_of_another_kind_has_the_next_incarnation() -> None:
    async with running_engine() as engine:
        await only_event(engine, "restart", "web-0")
        before = engine.document("web").incarnation
        groups = [group._replace(kind="cloud-service") for group in FLEET.groups.values()]
        await engine.apply_fleet(Fleet(FLEET.vms.values(), groups, FLEET.hosts.values()), by="operator")
        assert engine.document("web").incarnation == before + 1


async def test_timers_do_not_accumulate() -> None:
    async with running_engine() as engine:
        for _ in range(20):
            engine.polled.update(("web", "db-0", "auto"))
            event = await only_event(engine, "restart", "web-0")
            await asyncio.gather(engine.last_seen.write(), cancel(engine, event.id))
            await engine.advance(timedelta(hours=23))
        silences = [entry for entry in engine._timers._heap if entry[1] == "inactivity"]
        assert len(silences) == 3, "one for each group"


async def test_groups_that_have_left_are_forgotten() -> None:
    async with running_engine() as engine:
        without = Fleet([vm for vm in FLEET.vms.values() if vm.name != "db-0"], FLEET.groups.values())
        engine.polled.add("db-0")
        await engine.apply_fleet(without, by="operator")
        engine.polled.add("db-0")  # its last poll, answered just before
        await engine.advance(MINUTE)
        assert engine.last_seen_at("db-0") is None


async def test_a_vm_that_its_file_puts_on_another_host_is_not_touched_by_work_on_the_old_one() -> None:
    async with running_engine() as engine:
        operation = await request_operation(engine, "host-update", host="host-a")
        before = {event.group: event.id for event in engine.live_events()}
        moved = [vm._replace(host="host-b") if vm.name == "db-0" else vm for vm in FLEET.vms.values()]
        await engine.apply_fleet(Fleet(moved, FLEET.groups.values(), FLEET.hosts.values()), by="operator")
        assert [event.group for event in engine.live_events()] == ["web"]
        await approve(engine, before["web"], by="web-0", group="web")
        assert statuses(engine, "web") == [EventStatus.STARTED], "there is no other group to wait for"
        gone = await engine.records.event(before["db-0"])
        assert gone is not None
        assert gone.status is EventStatus.CANCELLED
        assert "the fleet file puts the VM on another host" in [
            entry.reason.partition(": ")[2]
            for entry in await engine.records.history(HistoryFilter(operation=operation.id))
        ]
