"""Rollouts as they run: with other changes in between, and with crashes at any point."""

from __future__ import annotations

from collections import Counter
from contextlib import asynccontextmanager
from datetime import timedelta
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from engines import MINUTE, START, approve, cancel, make_engine, request_operation, running_engine, scope_members
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule
from test_placement import GROUPS, HOUR, LENGTHS, MortalEngine, fleets

from depth import amount
from forewarn.core import approvals, fleet_commands, rollout_commands
from forewarn.core.events import EventStatus
from forewarn.core.explain import explain, explain_rollout
from forewarn.core.fleet import VM, Fleet, Group, Host, HostState
from forewarn.core.history import ROLLOUT_END_KINDS
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, Health, OperationStatus
from forewarn.core.requests import request
from forewarn.core.rollouts import RolloutSettings, RolloutStatus
from forewarn.core.waits import Wait
from forewarn.core.windows import parse_window
from forewarn.ports import HistoryFilter, ListFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from pathlib import Path

    from forewarn.core.explain import Explanation
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import HistoryEntry
    from forewarn.engine.engine import Engine
    from forewarn.fabrics.simulated import SimulatedFabric

WINDOWS = [(), (), (parse_window("daily 02:00 4h"),), (parse_window("daily 05:00 9h"),)]
BUDGETS, PAUSES = st.integers(1, 3), st.sampled_from([0, 20, 180])
ANSWERS = ["approve", "approve", "approve", "cancel", "postpone"]
NUMBERS = st.integers(0, 59)
SCOPES = [*GROUPS, "vm-0", "vm-1", "vm-2"]
PATTERNS = st.sampled_from(["*", "host-[012]", "host-[02]", "host-[134]", "host-4"])
"""Hosts of rollouts. Some have no host in common, so that several rollouts run at once."""


class RolloutMachine(MortalEngine):
    """Runs rollouts over a random fleet while much else happens to it. The fabric is sometimes slow, but works."""

    def __init__(self) -> None:
        super().__init__()
        self.file: Fleet
        self.max_unavailable_of: dict[str, int] = {}
        self.begun: dict[str, set[str]] = {}
        """The hosts of each rollout that was begun."""
        self.withdrawn: set[str] = set()
        self.let_go_on: set[str] = set()

    @initialize(
        fleet=fleets(most_hosts=5, vms=(3, 9), states=st.just(HostState.IN_SERVICE), zones=("",)),
        windows=st.tuples(*[st.sampled_from(WINDOWS)] * 3),
        listening=st.sets(st.sampled_from(SCOPES)),
        max_unavailable=BUDGETS,
        pattern=PATTERNS,
    )
    def begin(
        self, fleet: Fleet, windows: tuple[Any, ...], listening: set[str], max_unavailable: int, pattern: str
    ) -> None:
        groups = [group._replace(windows=found) for group, found in zip(fleet.groups.values(), windows, strict=True)]
        self.file = Fleet(fleet.vms.values(), groups, fleet.hosts.values())
        self.do(self.live())
        self.do(self.engine.apply_fleet(self.file, by="test"))
        for scope in sorted(listening):
            self.polls(scope)
        self.rollout_starts(max_unavailable, 60 * max_unavailable - 60, pattern)

    # --- What can happen --------------------------------------------------------------------------------

    @rule(max_unavailable=BUDGETS, pause=PAUSES, pattern=PATTERNS)
    def rollout_starts(self, max_unavailable: int, pause: int, pattern: str) -> None:
        settings = RolloutSettings(max_unavailable=max_unavailable, pause=pause * MINUTE, health_timeout=3 * HOUR)
        begun = self.attempt(self.engine.execute(rollout_commands.start, [pattern], settings, "operator"))
        if begun is not None:
            self.begun[begun.id] = {*begun.hosts, *begun.done, *(host for host, _ in begun.skipped)}

    @rule(scope=st.sampled_from(SCOPES))
    def polls(self, scope: str) -> None:
        if scope_members(self.engine.fleet, scope):
            self.do(self.engine.enable(scope, by=scope))
            self.engine.polled.add(scope)

    # What is drawn must not depend on what is so: else a settings that goes otherwise the second time hides why.

    @rule(which=NUMBERS, what=st.sampled_from(ANSWERS), length=st.sampled_from(LENGTHS))
    def somebody_answers(self, which: int, what: str, length: timedelta) -> None:
        if not (live := self.engine.live_events()):
            return
        event = live[which % len(live)]
        if what == "approve":
            self.do(approve(self.engine, event.id, by=event.group, group=event.scope))
        elif what == "cancel":
            self.attempt(cancel(self.engine, event.id))
        else:
            self.attempt(self.engine.execute(approvals.postpone, event.id, "operator", event.not_before + length))

    @rule(which=NUMBERS, what=st.sampled_from(["pause", "pause", "resume", "resume", "cancel"]))
    def operator_turns(self, which: int, what: str) -> None:
        if not (live := self.engine.live_rollouts()):
            return
        rollout = live[which % len(live)]
        mine = [one for one in self.engine.live_operations() if one.request.rollout == rollout.id]
        self.attempt(self.engine.execute(getattr(rollout_commands, what), rollout.id, "operator"))
        if what == "cancel":
            self.withdrawn.update(one.id for one in mine if one.status is OperationStatus.PENDING)
            self.let_go_on.update(one.id for one in mine if one.status is OperationStatus.STARTED)

    @rule(which=NUMBERS, what=st.sampled_from(["degraded-hardware", "hardware-failure", "host-update", "return"]))
    def something_happens_to_a_host(self, which: int, what: str) -> None:
        hosts = self.engine.fleet.host_names()
        host = hosts[which % len(hosts)] if hosts else "none"
        if what == "return":
            self.attempt(self.engine.execute(fleet_commands.return_host, host, "operator"))
        else:
            self.attempt(self.engine.execute(request, CauseRequest(what, host=host), "operator"))

    @rule(number=st.integers(0, 8), cause=st.sampled_from(["live-migration", "redeploy"]))
    def a_vm_is_moved(self, number: int, cause: str) -> None:
        self.attempt(request_operation(self.engine, cause, f"vm-{number}"))

    @rule(failures=st.integers(0, 2), slow=st.booleans())
    def fabric_misbehaves(self, failures: int, slow: bool) -> None:
        self.fabric.failures, self.fabric.delay = failures, 3 * MINUTE if slow else None

    @rule(missing=st.sets(st.integers(0, 8), max_size=2), empty=st.booleans(), force=st.booleans())
    def fleet_is_applied(self, missing: set[int], empty: bool, force: bool) -> None:
        vms = [vm for vm in self.file.vms.values() if vm.name not in {f"vm-{number}" for number in missing}]
        hosts = [host for host in self.file.hosts.values() if empty or any(vm.host == host.name for vm in vms)]
        self.attempt(self.engine.apply_fleet(Fleet(vms, self.file.groups.values(), hosts), by="test", force=force))

    # --- What must be true at every moment, and in the end ------------------------------------------------

    def look(self) -> None:
        fleet = self.engine.fleet
        self.max_unavailable_of.update(
            (rollout.id, rollout.settings.max_unavailable) for rollout in self.engine.live_rollouts()
        )
        live = self.engine.live_operations()
        for rollout_id, max_unavailable in self.max_unavailable_of.items():
            if (count := sum(one.request.rollout == rollout_id for one in live)) > max_unavailable:
                self.problems.append(f"{count} hosts are out")
        out = [one for one in live if one.request.rollout]
        there = {name for one in out if fleet.has_host(one.host) for name in fleet.on_host(one.host)}
        arrived = {name for name in there if fleet.vms[name].configured_host}  # untold: they have been moved there
        if self.are_of_two_domains(arrived.union(*(one.vms for one in out)) & fleet.vms.keys()):
            self.problems.append(f"two domains are out: {out}")
        for rollout in self.engine.live_rollouts():
            waits = explain_rollout(self.engine.draft(), rollout).waits
            if rollout.waits_for_hosts and not waits:
                self.problems.append(f"a rollout waits for nothing: {rollout}")
            if any(rollout.id in wait.text for wait in waits if wait.kind in ("host", "rollout")):
                self.problems.append(f"a rollout waits for itself: {rollout}")
            if rollout.status is RolloutStatus.RUNNING and not waits:
                self.problems.append(f"a rollout stands still: {rollout}")
        for operation in live:
            before = [one for one in live if one.host == operation.host and one.requested_at < operation.requested_at]
            if operation.request.rollout and any(one.cause == "host-update" for one in before):
                self.problems.append(f"a second update of a host: {operation}")

    def are_of_two_domains(self, names: Iterable[str]) -> bool:
        domains = {(self.file.vms[name].group, self.file.vms[name].update_domain) for name in names}
        return len(domains) > len({group for group, _ in domains})

    async def check_the_end(self) -> None:
        for rollout in self.engine.live_rollouts():
            if rollout.status is RolloutStatus.PAUSED:
                await self.engine.execute(rollout_commands.resume, rollout.id, "operator")
        await self.engine.advance(40 * 24 * HOUR)
        assert not self.engine.live_rollouts(), "a rollout does not end"
        assert not self.problems, self.problems[0]
        entries = await self.engine.records.history(HistoryFilter(limit=100_000))
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        carried_out = Counter(entry.operation for entry in entries if entry.kind == "executed")
        assert all(count == 1 for count in carried_out.values()), "something was carried out twice"
        everything = ListFilter(live=False, limit=100_000)
        operations = [operation for _, operation in await self.engine.records.operations(everything)]
        withdrawn = {operation.id for operation in operations if operation.status is OperationStatus.CANCELLED}
        assert self.withdrawn <= withdrawn
        assert not self.let_go_on & withdrawn
        rollouts = {rollout.id: rollout for _, rollout in await self.engine.records.rollouts(everything)}
        assert {*rollouts} == {*self.begun}, "a rollout is lost"
        for rollout in rollouts.values():
            mine = [operation for operation in operations if operation.request.rollout == rollout.id]
            self.check_rollout(rollout, mine, [entry for entry in entries if entry.operation == rollout.id])
            assert all(
                carried_out[one.id] == 1 for one in mine if one.status is OperationStatus.DONE and not one.reason
            )

    def check_rollout(self, rollout: Rollout, operations: list[Operation], entries: list[HistoryEntry]) -> None:
        assert rollout.status in (RolloutStatus.DONE, RolloutStatus.CANCELLED), rollout.reason
        assert len(operations) == len({operation.host for operation in operations}), "a host was announced twice"
        if rollout.status is RolloutStatus.DONE:
            assert sorted([*rollout.done, *(host for host, why in rollout.skipped if why)]) == sorted(
                self.begun[rollout.id]
            )
            assert sorted(rollout.done) == sorted(one.host for one in operations if one.status is OperationStatus.DONE)
        paused, waves, wave_of = False, 0, dict[str, int]()
        for entry in entries:
            if entry.kind == "wave-scheduled":
                waves += 1
                assert not paused, "announced during a pause"
                number, _, named = entry.reason.removeprefix("wave ").partition(": ")
                assert int(number) == waves
                wave_of.update(dict.fromkeys(named.split(", "), waves))
            elif entry.kind in ("rollout-paused", "rollout-resumed"):
                paused = entry.kind == "rollout-paused"
        for one, other in combinations(sorted(operations, key=lambda operation: wave_of[operation.host]), 2):
            if wave_of[one.host] == wave_of[other.host]:
                assert one.requested_at == other.requested_at
                assert not self.are_of_two_domains({*one.vms, *other.vms})
            else:
                assert one.ended_at is not None
                assert one.ended_at + rollout.settings.pause <= other.requested_at, "two waves are out"
        assert waves == rollout.wave
        assert entries[-1].kind == ROLLOUT_END_KINDS[rollout.status]


TestRollouts = RolloutMachine.TestCase
TestRollouts.settings = settings(
    max_examples=amount(150), stateful_step_count=30, suppress_health_check=list(HealthCheck), print_blob=True
)


# --- A rollout, step by step ------------------------------------------------------------------------------

TENANTS = [VM(f"x{number}", f"x{number}", f"h{number}", priority="spot") for number in range(4)]
FOUR = Fleet(TENANTS, hosts=[Host(vm.host) for vm in TENANTS])


@asynccontextmanager
async def four_hosts(*listening: str, **settings: Any) -> AsyncIterator[tuple[Engine, SimulatedFabric, Rollout]]:
    """A rollout over four hosts with a VM each. What is started stays so for an hour."""
    engine, fabric = make_engine(limits=OperatorLimits(makes_hosts=True, settle={"host-update": HOUR}))
    await engine.start()
    await engine.apply_fleet(FOUR, by="test")
    for scope in listening:
        await engine.enable(scope, by=scope)
    yield engine, fabric, await engine.execute(rollout_commands.start, ["h*"], RolloutSettings(**settings), "operator")
    await engine.stop()


async def approve_all(engine: Engine, scope: str) -> None:
    await approve(engine, *(event.id for event in engine.document(scope).events), by=scope)


async def ended(engine: Engine) -> tuple[Rollout, dict[str, str]]:
    """The rollout, and why it and its operations were ended."""
    ((_, rollout),) = await engine.records.rollouts(ListFilter(live=False))
    entries = await engine.records.history(HistoryFilter())
    return rollout, {
        entry.operation: entry.reason for entry in entries if entry.kind in ("cancelled", "rollout-stopped")
    }


@pytest.mark.parametrize(
    ("way", "words"),
    [
        ("sick", "x0"),
        ("forgotten", "not finished 15m after its start"),
        ("given up", "the simulated fabric is set to fail permanently"),
        ("by hand", "its disk is dead"),
    ],
)
async def test_a_failed_health_check_stops_the_rollout_and_cancels_pending_operations(way: str, words: str) -> None:
    async with four_hosts("x0", "x1", "x2", "x3", max_unavailable=3, notice=3 * HOUR) as (engine, fabric, rollout):
        out = dict(rollout.in_progress)
        assert [*out] == ["h0", "h1", "h2"]
        await approve_all(engine, "x1")
        await engine.advance(MINUTE)
        fabric.unhealthy = {"x0"} if way == "sick" else set()
        fabric.lost_orders, fabric.permanent_failures = int(way == "forgotten"), int(way == "given up")
        fabric.delay = HOUR if way == "by hand" else None
        await approve_all(engine, "x0")
        if way == "by hand":
            await engine.mark_failed(out["h0"], "operator", "its disk is dead")
        await engine.advance(15 * MINUTE - timedelta(seconds=1))
        assert bool(engine.live_rollouts()) == (way in ("sick", "forgotten")), "they have their time"
        await engine.advance(timedelta(seconds=1))
        assert not engine.live_rollouts()
        rollout, why = await ended(engine)
        assert rollout.status is RolloutStatus.STOPPED
        assert rollout.reason.startswith("h0: ")
        assert words in rollout.reason
        assert why == {rollout.id: rollout.reason, out["h2"]: f"rollout stopped: {rollout.reason}"}
        assert (engine.document("x2").events, rollout.pending) == ((), ("h3",))
        assert [event.status for event in engine.document("x1").events] == [EventStatus.STARTED]
        await engine.advance(2 * HOUR)
        ended_how = {one.host: one.status for _, one in await engine.records.operations(ListFilter(live=False))}
        assert (ended_how["h1"], ended_how.get("h3")) == (OperationStatus.DONE, None), "nothing more is announced"


async def test_an_operation_marked_done_is_complete_and_healthy_at_once() -> None:
    async with four_hosts("x0", max_unavailable=1) as (engine, fabric, rollout):
        fabric.delay = 10 * MINUTE
        await approve_all(engine, "x0")
        done = await engine.mark_done(rollout.in_progress[0][1], "operator")
        assert (done.status, done.health) == (OperationStatus.DONE, Health.GOOD)
        assert engine.document("x0").events == ()


async def test_the_health_check_runs_after_a_restart(tmp_path: Path) -> None:
    engine, fabric = make_engine(tmp_path)
    await engine.start()
    await engine.apply_fleet(FOUR, by="test")
    fabric.unhealthy = {"x0"}
    await engine.execute(rollout_commands.start, ["h0"], RolloutSettings(), "operator")
    await engine.advance(MINUTE)
    (unchecked,) = engine.live_operations()
    assert (unchecked.executed_at, unchecked.health) == (START, Health.UNKNOWN)
    await engine.stop()
    engine, _ = make_engine(tmp_path)  # by now x0 is well
    await engine.start()
    await engine.advance(HOUR)
    rollout, _ = await ended(engine)
    assert (rollout.status, rollout.done) == (RolloutStatus.DONE, ("h0",))
    await engine.stop()


async def test_the_explanation_of_a_rollout_operation_names_what_it_waits_for() -> None:
    async with four_hosts("x0", max_unavailable=1, notice=3 * HOUR) as (engine, fabric, rollout):

        def explained() -> Explanation:
            (operation,) = engine.live_operations()
            return explain(engine.draft(), engine.limits, operation, rollout)

        assert explained() == (
            (Wait("approval", done=False, group="x0", until=START + 3 * HOUR),),
            "It starts when all conditions are met.",
            START + 3 * HOUR,
        )
        fabric.unhealthy = {"x0"}
        await approve_all(engine, "x0")
        await engine.advance(MINUTE)
        wave = f"rollout {rollout.id}, wave 1"
        assert explained() == (
            (
                Wait("fabric", done=True, time=START, text="to freeze"),
                Wait("gate", done=False, until=START + 15 * MINUTE, text=wave),
                Wait("settling", done=False, until=START + HOUR),
            ),
            "It ends, and its events disappear from the document.",
            START + HOUR,
        )
        await engine.advance(14 * MINUTE)
        assert explained().waits[1].text == f"{wave}: not healthy in time: x0"


async def test_a_vm_that_was_evicted_meanwhile_is_not_expected_back() -> None:
    async with four_hosts("x0", max_unavailable=1) as (engine, fabric, _):
        fabric.delay = 10 * MINUTE
        await approve_all(engine, "x0")
        await engine.advance(MINUTE)
        fabric.delay = None
        await request_operation(engine, "eviction", "x0")
        await approve_all(engine, "x0")
        await engine.advance(12 * HOUR)
        rollout, _ = await ended(engine)
        assert (rollout.status, rollout.reason) == (RolloutStatus.DONE, "")


async def test_a_vm_that_left_the_fleet_and_was_added_again_was_not_updated() -> None:
    vms = [VM(f"web-{number}", "web", f"h{number}", number) for number in range(2)]
    fleet = Fleet(vms, [Group("web", "availability-set", 2)], [Host(vm.host) for vm in vms])
    async with running_engine(fleet=fleet, enable_groups=False) as engine:
        first = await engine.execute(rollout_commands.start, ["h0"], RolloutSettings(), "operator")
        await engine.apply_fleet(Fleet(vms[1:], fleet.groups.values(), fleet.hosts.values()), by="test")
        second = await engine.execute(rollout_commands.start, ["h1"], RolloutSettings(), "operator")
        assert [host for host, _ in (*first.in_progress, *second.in_progress)] == ["h0", "h1"]
        await engine.advance(MINUTE)  # the work is done, and settles
        await engine.apply_fleet(fleet, by="test")
        assert [one.vms for one in engine.live_operations()] == [(), ("web-1",)], "one update domain is out"


@pytest.mark.parametrize("rollouts", [["h0", "h1"], ["h*"]])
@pytest.mark.parametrize("update_domain", [0, 1])
async def test_a_rollout_skips_a_host_if_a_vm_of_another_update_domain_arrives(
    rollouts: list[str], update_domain: int
) -> None:
    vms = [VM("x", "x", "h0"), VM("web-0", "web", "h1", 0), VM("web-1", "web", "h0", update_domain)]
    groups, hosts = [Group("web", "availability-set", 2)], [Host("h0"), Host("h1")]
    async with running_engine(fleet=Fleet(vms[:2], groups, hosts)) as engine:
        for pattern in rollouts:
            await engine.execute(rollout_commands.start, [pattern], RolloutSettings(), "operator")
        await engine.apply_fleet(Fleet(vms, groups, hosts), by="test")
        out = {one.host: one for one in engine.live_operations()}
        assert out.keys() == ({"h0", "h1"} if update_domain == 0 else {"h1"})
        await engine.advance(HOUR)
        ended = [one for _, one in await engine.records.rollouts(ListFilter(live=False))]
        assert {one.status for one in ended} == {RolloutStatus.DONE}
        reason = f"web-1 has arrived, and operation {out['h1'].id} affects update domain 0 of web"
        assert [skipped for one in ended for skipped in one.skipped] == ([("h0", reason)] if update_domain else [])


async def test_two_rollouts_update_the_same_update_domain_at_once_but_not_two() -> None:
    vms = [VM(f"web-{number}", "web", f"h{number}", number % 2) for number in range(4)]
    fleet = Fleet(vms, [Group("web", "availability-set", 2)], [Host(vm.host) for vm in vms])
    async with running_engine(fleet=fleet) as engine:
        first = await engine.execute(rollout_commands.start, ["h0"], RolloutSettings(), "operator")
        second = await engine.execute(rollout_commands.start, ["h[123]"], RolloutSettings(), "operator")
        assert [host for host, _ in second.in_progress] == ["h2"]
        await approve(engine, engine.live_operations()[1].events[0], by="web-2")
        await engine.advance(10 * MINUTE)
        waiting = next(one for one in engine.live_rollouts() if one.id == second.id)
        assert (waiting.done, waiting.in_progress, waiting.pending) == (("h2",), (), ("h1", "h3"))
        (wait,) = explain_rollout(engine.draft(), waiting).waits
        assert (wait.kind, wait.group) == ("rollout", "web")
        assert wait.text.startswith(f"rollout {first.id}: operation {first.in_progress[0][1]} ")
        await engine.advance(HOUR)
        rollouts = [one for _, one in await engine.records.rollouts(ListFilter(live=False))]
        assert [(one.status, one.wave) for one in rollouts] == [(RolloutStatus.DONE, 2), (RolloutStatus.DONE, 1)]


async def test_hosts_out_of_service_are_skipped_and_busy_ones_are_later() -> None:
    async with four_hosts("x2", max_unavailable=1, pause=10 * MINUTE) as (engine, _, rollout):
        await request_operation(engine, "degraded-hardware", host="h1")
        await request_operation(engine, "host-update", host="h2", notice=2 * HOUR)
        await engine.advance(24 * HOUR)
        rollout, _ = await ended(engine)
        assert (rollout.status, rollout.done) == (RolloutStatus.DONE, ("h0", "h3", "h2"))
        assert rollout.skipped == (("h1", "the host is degraded"),)
        entries = await engine.records.history(HistoryFilter(operation=rollout.id))
        waves = [entry.time - START for entry in entries if entry.kind == "wave-scheduled"]
        assert waves[:2] == [timedelta(0), 70 * MINUTE], "the pause is kept"
        assert waves[2] >= timedelta(hours=3), "the other work on it is over"
