"""When an operation may start: after its notice, in the windows of groups without approval, deletions together."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from engines import MINUTE, START, approve, cancel, request_operation, running_engine
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_placement import HOUR, LENGTHS, MortalEngine

from depth import amount
from forewarn.core import approvals, fleet_commands, rollout_commands
from forewarn.core.durations import to_text
from forewarn.core.explain import explain
from forewarn.core.fleet import VM, Fleet, Group, Host, Visibility, own_host
from forewarn.core.fleet_commands import PolicyUpdate
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CAUSES, CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.core.rollouts import RolloutSettings
from forewarn.core.state import Changes
from forewarn.core.windows import is_open, parse_window
from forewarn.errors import TooManyPendingOperations
from forewarn.ports import ListFilter
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.operations import Operation
    from forewarn.core.windows import Window

DAY = timedelta(days=1)
# Whatever windows groups have of these, Saturday from 00:00 to 02:00 UTC is in all of them.
WINDOWS: list[tuple[Window, ...]] = [
    (),
    (parse_window("daily 22:00 4h"),),
    (parse_window("daily 23:00 6h"), parse_window("wed 06:00 3h")),
    (parse_window("fri 12:00 24h Europe/Berlin"),),
    (parse_window("daily 20:00 12h America/New_York"),),
]
SHARED = Fleet(
    [
        VM("red-0", "red", "a", 0),
        VM("green-0", "green", "a", 0),
        VM("solo", "solo", "a"),
        VM("red-1", "red", "b", 1),
        VM("blue-0", "blue", "b", 0),
        VM("blue-1", "blue", "c", 1),
    ],
    [Group(name, "availability-set", 2) for name in ("red", "green", "blue")],
    [Host("a"), Host("b"), Host("c")],
)
SCOPES = ["red", "green", "blue", "solo"]
NUMBERS = st.integers(0, 59)
CAUSE_NAMES = ["host-update", "host-update", "live-migration", "degraded-hardware"]
DEADLINES = [None, None, 6 * HOUR, 4 * DAY]


class PolicyMachine(MortalEngine):
    """Routine work on hosts that groups with different windows share; some listen, some approve, some do neither."""

    def __init__(self) -> None:
        super().__init__()
        self.not_before: dict[str, datetime] = {}
        self.seen_started: set[str] = set()
        self.held: set[str] = set()
        """What may wait for who is not notified: it was postponed for them too, or they had windows once."""

    @initialize(windows=st.tuples(*[st.sampled_from(WINDOWS)] * 3), listening=st.sets(st.sampled_from(SCOPES)))
    def begin(self, windows: tuple[tuple[Window, ...], ...], listening: set[str]) -> None:
        groups = [group._replace(windows=found) for group, found in zip(SHARED.groups.values(), windows, strict=True)]
        self.do(self.live())
        self.do(self.engine.apply_fleet(Fleet(SHARED.vms.values(), groups, SHARED.hosts.values()), by="test"))
        for scope in sorted(listening):
            self.polls(scope)
        for host in "ab":
            self.do(self.engine.execute(request, CauseRequest("host-update", host=host, notice=2 * DAY), "operator"))

    @rule(scope=st.sampled_from(SCOPES))
    def polls(self, scope: str) -> None:
        self.do(self.engine.enable(scope, by=scope))
        self.engine.polled.add(scope)

    @rule(
        cause=st.sampled_from(CAUSE_NAMES),
        which=NUMBERS,
        notice=st.sampled_from([None, 20 * MINUTE, 2 * DAY]),
        insists=st.booleans(),
        deadline=st.sampled_from(DEADLINES),
    )
    def operator_asks(
        self, cause: str, which: int, notice: timedelta | None, insists: bool, deadline: timedelta | None
    ) -> None:
        requested = CauseRequest(
            cause,
            vms=([*SHARED.vms][which % len(SHARED.vms)],) if cause == "live-migration" else (),
            host="" if cause == "live-migration" else "abc"[which % 3],
            notice=notice,
            overrides=("windows",) if insists and which % 3 == 0 else (),
            postpone_deadline=self.engine.clock.now() + deadline if deadline else None,
        )
        self.attempt(self.engine.execute(request, requested, "operator"))

    @rule(host=st.sampled_from("abc"))
    def host_returns(self, host: str) -> None:
        self.do(self.engine.execute(fleet_commands.return_host, host, "operator"))

    @rule(which=NUMBERS)
    def group_approves(self, which: int) -> None:
        if not (live := self.engine.live_events()):
            return
        event = live[which % len(live)]
        self.do(approve(self.engine, event.id, by=event.group, group=event.group))
        if (operation := self.operation(event.operation)) is not None:
            notified = [other for other in self.engine.live_events() if other.operation == operation.id]
            windowed = any(self.engine.fleet.group(group).windows for group, _ in operation.not_notified)
            if all(other.approved_at for other in notified) and not windowed and operation.id not in self.held:
                assert operation.started_at is not None, "all have approved: it need not wait for a window"

    @rule(which=NUMBERS, length=st.sampled_from([*LENGTHS, 3 * DAY, 8 * DAY]))
    def operator_postpones(self, which: int, length: timedelta) -> None:
        if not (live := self.engine.live_events()):
            return
        event = live[which % len(live)]
        operation = self.operation(event.operation)
        after = self.attempt(self.engine.execute(approvals.postpone, event.id, "test", event.not_before + length))
        if after is not None:
            assert operation is not None
            assert operation.request.postpone_deadline is not None
            assert event.not_before + length <= after.not_before <= operation.request.postpone_deadline
            self.held.add(operation.id)

    @rule(scope=st.sampled_from(SCOPES), windows=st.sampled_from(WINDOWS))
    def policy_changes(self, scope: str, windows: tuple[Window, ...]) -> None:
        self.do(self.engine.execute(fleet_commands.set_policy, scope, PolicyUpdate(windows=windows), "operator"))

    @rule(length=st.sampled_from([HOUR, 5 * HOUR, 30 * HOUR, 6 * DAY]))
    def service_is_down(self, length: timedelta) -> None:
        now = self.engine.clock.now()
        self.do(self.engine.stop())
        store = SqliteStore(self.folder)
        store.load()
        store.commit(Changes(facts={"virtual_now": to_text(now + length)}))
        store.close()
        self.do(self.live())

    def operation(self, operation_id: str) -> Operation | None:
        return next((one for one in self.engine.live_operations() if one.id == operation_id), None)

    def look(self) -> None:
        for event in self.engine.live_events():
            if event.not_before < self.not_before.get(event.id, event.not_before):
                self.problems.append(f"NotBefore went back: {event}")
            self.not_before[event.id] = event.not_before
        for operation in self.engine.live_operations():
            if any(self.engine.fleet.group(group).windows for group, _ in operation.not_notified):
                self.held.add(operation.id)
            if operation.started_at is not None and operation.id not in self.seen_started:
                self.seen_started.add(operation.id)
                self.check_start(operation, operation.started_at)

    def check_start(self, operation: Operation, started_at: datetime) -> None:
        """A group without approval is affected only after NotBefore, and in a window."""
        fleet, moves = self.engine.fleet, dict(operation.moves)
        events = [event for event in self.engine.live_events() if event.operation == operation.id]
        approved = {event.group for event in events if event.approved_at is not None}
        touched = {
            fleet.vms[name].group for name in operation.vms if name in moves or fleet.vms[name].host == operation.host
        }
        if any(started_at < event.not_before for event in events if event.group not in approved):
            self.problems.append(f"too early: {operation}")
        if CAUSES[operation.cause].routine and "windows" not in operation.request.overrides:
            for group in touched - approved:
                if not is_open(fleet.group(group).windows, started_at):
                    self.problems.append(f"outside the windows of {group}: {operation}")

    async def check_the_end(self) -> None:
        await self.engine.advance(60 * DAY)
        assert not self.problems, self.problems[0]
        assert not self.engine.live_operations(), "something waits for ever"


TestPolicy = PolicyMachine.TestCase
TestPolicy.settings = settings(
    max_examples=amount(80), stateful_step_count=30, suppress_health_check=list(HealthCheck), print_blob=True
)


async def test_new_windows_of_a_group_without_notice_delay_the_start() -> None:
    async with running_engine(fleet=SHARED, enable_groups=False) as engine:
        await engine.enable("red", by="red")
        operation = await request_operation(engine, "host-update", host="a")
        await engine.execute(fleet_commands.set_policy, "solo", PolicyUpdate(windows=WINDOWS[1]), "operator")
        await approve(engine, *operation.events, by="red-1")
        assert [one.started_at for one in engine.live_operations()] == [None], "it is 07:08, and not 22:00"
        await engine.advance(DAY)
        assert not engine.live_operations()
        ((_, done),) = await engine.records.operations(ListFilter(live=False))
        assert done.started_at == START.replace(hour=22, minute=0, second=0)


async def test_a_group_without_notice_and_windows_delays_nothing() -> None:
    async with running_engine(fleet=SHARED, enable_groups=False) as engine:
        await engine.enable("red", by="red")
        await engine.execute(fleet_commands.set_policy, "red", PolicyUpdate(windows=WINDOWS[1]), "operator")
        operation = await request_operation(engine, "host-update", host="a")
        await engine.execute(fleet_commands.set_policy, "red", PolicyUpdate(windows=WINDOWS[2]), "operator")
        await engine.advance(START.replace(hour=22, minute=30) - START)
        assert [event.not_before.hour for event in engine.live_events()] == [23], "the window is another one now"
        await approve(engine, *operation.events, by="red-1")
        assert [one.status for one in engine.live_operations()] == [OperationStatus.STARTED]


@pytest.mark.parametrize("visibility", Visibility)
async def test_the_limit_of_pending_user_operations_is_one_for_all_scopes_of_a_group(visibility: Visibility) -> None:
    vms = [VM(f"web_{number}", "web", f"host-{number}", placement_group=number + 1) for number in range(3)]
    fleet = Fleet(vms, [Group("web", "scale-set", visibility=visibility)], [Host(vm.host) for vm in vms])
    limits = OperatorLimits(max_pending_user_operations=2)
    async with running_engine(fleet=fleet, enable_groups=False, limits=limits) as engine:
        for vm in vms:
            await engine.enable(fleet.scope_of(vm), by=vm.name)
        await request_operation(engine, "restart", "web_0")
        await request_operation(engine, "restart", "web_1")
        with pytest.raises(TooManyPendingOperations):
            await request_operation(engine, "restart", "web_2")


async def test_the_response_to_a_policy_change_has_the_new_policy() -> None:
    async with running_engine(fleet=SHARED) as engine:
        answered = await engine.execute(fleet_commands.set_policy, "red", PolicyUpdate(windows=WINDOWS[1]), "operator")
        assert (
            answered
            == engine.fleet.group("red")
            == SHARED.group("red")._replace(windows=WINDOWS[1], file_policy=SHARED.group("red").policy)
        )


async def test_the_explanation_names_the_window_and_when_it_closes() -> None:
    always = (parse_window("daily 00:00 24h"),)
    async with running_engine(fleet=SHARED) as engine:
        await engine.execute(fleet_commands.set_policy, "red", PolicyUpdate(windows=WINDOWS[1]), "operator")
        await engine.execute(fleet_commands.set_policy, "green", PolicyUpdate(windows=always), "operator")
        operation = await request_operation(engine, "host-update", host="a")
        waits = explain(engine.draft(), engine.limits, operation, None).waits
        opens = START.replace(hour=22, minute=0, second=0)
        words = {"red": "daily 22:00 4h UTC, which closes at 2041-05-07 02:00:00 UTC", "green": "daily 00:00 1d UTC"}
        assert {wait.group: wait.text for wait in waits if wait.kind == "window"} == words
        assert {wait.until for wait in waits} == {opens}


async def test_a_rollout_keeps_to_the_windows_unless_it_insists() -> None:
    for overrides, expected in (((), START.replace(hour=22, minute=0, second=0)), (("windows",), START + 15 * MINUTE)):
        groups = [group._replace(windows=WINDOWS[1]) for group in SHARED.groups.values()]
        async with running_engine(fleet=Fleet(SHARED.vms.values(), groups, SHARED.hosts.values())) as engine:
            await engine.execute(rollout_commands.start, ["a"], RolloutSettings(overrides=overrides), "operator")
            assert {event.not_before for event in engine.live_events()} == {expected}
            await engine.advance(DAY)
            ((_, operation),) = await engine.records.operations(ListFilter(live=False))
            assert (operation.status, operation.started_at) == (OperationStatus.DONE, expected)


async def test_a_paused_rollout_announces_nothing_until_it_is_resumed() -> None:
    async with running_engine(fleet=SHARED, enable_groups=False) as engine:
        rollout = await engine.execute(rollout_commands.start, ["*"], RolloutSettings(max_unavailable=1), "operator")
        await engine.execute(rollout_commands.pause, rollout.id, "operator")
        await engine.advance(DAY)
        assert (len(await engine.records.operations(ListFilter(live=False))), engine.live_operations()) == (1, [])
        await engine.execute(rollout_commands.resume, rollout.id, "operator")
        assert len(engine.live_operations()) == 1
        await engine.advance(DAY)
        assert (len(await engine.records.operations(ListFilter(live=False))), engine.live_rollouts()) == (3, [])


# --- Deletions that wait for each other -----------------------------------------------------------------

DELETIONS = ["delete", "scale-in", "instance-repair"]
DOINGS = ["approve", "approve", "approve", "approve both", "cancel", "leave"]
ACTS = st.tuples(st.integers(0, 14), st.sampled_from(DOINGS), st.integers(0, 5))


@settings(max_examples=amount(100))
@given(second=st.integers(0, 4), later=st.integers(0, 4), acts=st.lists(ACTS, max_size=9), notice=st.integers(5, 15))
@example(second=0, later=0, acts=[(1, "approve", number) for number in range(6)], notice=10)
@example(second=0, later=0, acts=[(1, "approve", 0), *((2, "cancel", number) for number in range(1, 6))], notice=10)
@example(second=0, later=0, acts=[(1, "approve", 0), *((2, "leave", number) for number in range(1, 6))], notice=10)
def test_deletions_start_when_all_pending_ones_are_approved_or_not_before_is_reached(
    second: int, later: int, acts: list[tuple[int, str, int]], notice: int
) -> None:
    names = [f"vm-{number}" for number in range(6)]
    group = Group("set", "scale-set", terminate_notice=notice * MINUTE)
    fleet = Fleet([VM(name, "set", own_host(name)) for name in names], [group])

    async def run() -> None:
        async with running_engine(fleet=fleet) as engine:
            requested: dict[str, Operation] = {}
            not_before: dict[str, datetime] = {}
            approved, cancelled, left, started = set[str](), set[str](), set[str](), set[str]()

            async def check(minute: int) -> None:
                pending = {*requested} - cancelled - left - started
                pending -= (due := {one for one in pending if START + minute * MINUTE >= not_before[one]})
                started.update(due, pending if pending <= approved else ())
                for one in {*requested} - cancelled - left:
                    operation = await engine.records.operation(requested[one].id)
                    assert operation is not None
                    assert (operation.started_at is not None) == (one in started)

            for minute in range(16):
                await check(minute)
                for number, name in enumerate(names):
                    if minute == (later if number < second else 0):
                        requested[name] = await request_operation(engine, DELETIONS[number % 3], name)
                        not_before[name] = START + (minute + notice) * MINUTE
                for _, what, number in (act for act in acts if act[0] == minute and names[act[2]] in requested):
                    pending = {one.vms[0] for one in engine.live_operations() if one.status is OperationStatus.PENDING}
                    chosen = {names[number], names[number - (what == "approve both")]} & pending
                    ids = [requested[name].events[0] for name in sorted(chosen)]
                    if ids and what == "cancel":
                        await cancel(engine, *ids)
                        cancelled |= chosen
                    elif ids and what == "leave":
                        left |= chosen
                        there = [vm for name, vm in engine.fleet.vms.items() if name not in left]
                        await engine.apply_fleet(Fleet(there, [group]), by="test", force=True)
                    elif ids:
                        await approve(engine, *ids, by="vm-0", group="set")
                        approved |= chosen
                    await check(minute)
                await engine.advance(MINUTE)
            await engine.advance(30 * MINUTE)
            assert {*engine.fleet.vms} == cancelled, "at the timeout deletion is certain"

    asyncio.run(run())
