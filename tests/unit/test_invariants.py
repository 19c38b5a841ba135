"""The rules of "Must never happen" (docs/explanation/design.md), tested with random events and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engines import approve, cancel, make_engine, scope_members
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from depth import amount
from forewarn.clock import VirtualClock
from forewarn.core import approvals
from forewarn.core.events import EventStatus
from forewarn.core.fleet import VM, Fleet, Group, Host, HostState, Visibility
from forewarn.core.fleet_commands import return_host
from forewarn.core.history import ENGINE
from forewarn.core.operations import CauseRequest, OperationStatus
from forewarn.core.requests import request
from forewarn.errors import (
    DestinationConflict,
    ForewarnError,
    HostOutOfService,
    HostWorkStarted,
    UnknownStartRequest,
    VMHasLiveEvent,
)
from forewarn.ports import HistoryFilter, ListFilter
from forewarn.wire.document import render
from forewarn.wire.versions import KNOWN_VERSIONS
from postgresql import SERVERS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from datetime import datetime
    from typing import Any

    from forewarn.core.events import Event
    from forewarn.engine.engine import Engine
    from forewarn.fabrics.simulated import SimulatedFabric
    from postgresql import SharedStore

pytestmark = pytest.mark.timeout(600)  # the deep profile takes minutes on a busy machine


# The runs and steps that the project promises for every change.
RUNS, POSTGRESQL_RUNS, STEPS = 1000, 100, 50

NEWEST = KNOWN_VERSIONS["2024-07-09"]
FLEET = Fleet(
    [
        VM("web-0", "web", "host-a", update_domain=0),
        VM("web-1", "web", "host-b", update_domain=1),
        VM("web-2", "web", "host-a", update_domain=0),
        VM("db-0", "db-0", "host-a"),
        VM("auto-0", "auto", "host-b"),
        VM("pool_0", "pool", "host-a", update_domain=0, priority="spot"),
        VM("pool_1", "pool", "host-b", update_domain=1, priority="spot"),
        VM("set_0", "set", "host-a", update_domain=0, placement_group=1),
        VM("set_1", "set", "host-b", update_domain=1, placement_group=1),
        VM("set_2", "set", "host-a", update_domain=0, placement_group=2),
        VM("set_3", "set", "host-a", update_domain=0, placement_group=2),
        VM("gpu_0", "gpu", "host-a"),
        VM("gpu_1", "gpu", "host-b", priority="spot", eviction_policy="delete"),
    ],
    [
        Group("web", "availability-set", 5, 2),
        Group("auto", "availability-set", 5, 2, auto_approve=("reboot",)),
        Group("pool", "scale-set", 5, 5, terminate_notice=timedelta(minutes=10)),
        Group("set", "scale-set", 5, 5, terminate_notice=timedelta(minutes=5), os_image_notice=timedelta(minutes=15)),
        Group("gpu", "scale-set", 1, 1, visibility=Visibility.OWN, terminate_notice=timedelta(minutes=5)),
    ],
    [Host("host-a"), Host("host-b"), Host("host-c")],
)
HOSTS = sorted(FLEET.hosts)
ROUTINE = ("host-update", "live-migration", "degraded-hardware")
VMS = sorted(FLEET.vms)
SCOPES = sorted({*map(FLEET.scope_of, FLEET.vms.values()), "gpu", "set_0", "set_2"})
"""Also those that the set and the GPU set have while they have the visibility of the other."""
LENGTHS = [timedelta(seconds=1), timedelta(minutes=1), timedelta(minutes=10), timedelta(minutes=15)]
LONG_LENGTHS = [timedelta(hours=5), timedelta(hours=23), timedelta(hours=25)]
# What is drawn must not depend on what is so: else a course that goes otherwise the second time hides why.
NUMBERS = st.integers(0, 59)
SETS = st.sampled_from(["set", "gpu"])


def _maybe(*values: str) -> st.SearchStrategy[str]:
    return st.one_of(st.just(""), st.sampled_from(values))


FILTERS = st.builds(
    ListFilter,
    live=st.just(True),
    after=st.just(0),
    after_id=st.just(""),
    limit=st.just(1000),
    group=_maybe(*FLEET.groups, "db-0"),
    generation=st.integers(0, 3),
    vm=_maybe("web-*", "[^w]*", "set_?", "db-0"),
    host=_maybe(*HOSTS),
    type=_maybe("Reboot", "Redeploy", "Freeze", "Terminate"),
    cause=_maybe("restart", "host-update", "delete", "eviction"),
    status=_maybe("Scheduled", "Started", "pending", "started"),
    unexecuted=st.booleans(),
)


class InvariantsMachine(RuleBasedStateMachine):
    """Drives an engine at random and remembers what it was promised."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        # In memory where there is such a place: a crash is a copy here, so nothing waits for a disk.
        memory = Path("/dev/shm")  # noqa: S108
        self.root = Path(tempfile.mkdtemp(prefix="forewarn-never-", dir=memory if memory.is_dir() else None))
        self.lives = 0
        self.engine: Engine
        self.fabric: SimulatedFabric
        self.promised: dict[str, Event] = {}
        self.known_rows = 0
        self.approved: set[str] = set()
        self.approvals: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.gone: set[str] = set()
        self.over: dict[str, Event] = {}
        self.seen: dict[str, tuple[int, int, bytes]] = {}

    def do(self, work: Awaitable[Any]) -> Any:
        return self.runner.run(self.do_and_settle(work))

    async def do_and_settle(self, work: Awaitable[Any]) -> Any:
        """Wait for the fabric, so that its speed does not decide the result of a later step."""
        outcome = await work
        if isinstance(self.engine.clock, VirtualClock):
            await self.engine._scheduler.wait_until_idle(self.engine.clock)
        return outcome

    @property
    def now(self) -> datetime:
        return self.engine.clock.now()

    def next_engine(self) -> tuple[Engine, SimulatedFabric]:
        """Make the engine of the next life: it has only what the one before it has on disk now."""
        folder = self.root / str(self.lives)
        if self.lives:
            shutil.copytree(self.root / str(self.lives - 1), folder)
        return make_engine(folder)

    @initialize()
    def begin(self) -> None:
        self.engine, self.fabric = self.next_engine()
        self.do(self.engine.start())
        self.do(self.engine.apply_fleet(FLEET, by="test"))

    def teardown(self) -> None:
        try:
            self.check_the_end()
            self.do(self.engine.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.root)

    def check_the_end(self) -> None:
        self.check_what_is_over()
        entries = self.do(self.engine.records.history(HistoryFilter(limit=100_000)))
        assert [entry.sequence for entry in entries] == list(range(1, len(entries) + 1))
        assert {entry.event for entry in entries if entry.kind == "scheduled"} == set(self.promised)
        for what in ("scheduled", "started", "completed", "cancelled"):
            told = [entry.event for entry in entries if entry.kind == what and entry.event]
            assert len(told) == len(set(told)), f"{what} twice"
        latest = {entry.event: entry for entry in entries if entry.event}
        now = self.do(self.read(list(latest)))
        assert {event_id: entry.event_then for event_id, entry in latest.items()} == now, "a change without its row"
        assert all(entry.waits == () for entry in latest.values() if not now[entry.event].status.live)
        carried_out = [entry.operation for entry in entries if entry.kind == "executed"]
        assert len(carried_out) == len(set(carried_out))

    # --- What can happen ----------------------------------------------------------------------------

    @rule(
        cause=st.sampled_from(["restart", "redeploy", "live-migration", "delete", "start", "reimage"]),
        vm=st.sampled_from(VMS),
    )
    def something_is_asked_for(self, cause: str, vm: str) -> None:
        self.request_operation(CauseRequest(cause, (vm,)))

    @rule(
        cause=st.sampled_from(["eviction", "rebalance", "scale-in"]),
        vm=st.sampled_from(["pool_0", "pool_1", "db-0", "set_2", "set_3", "gpu_1"]),
    )
    def room_is_needed(self, cause: str, vm: str) -> None:
        self.request_operation(CauseRequest(cause, (vm,)))

    @rule(host=st.sampled_from(HOSTS), kind=st.sampled_from(["Freeze", "Reboot"]))
    def host_is_updated(self, host: str, kind: str) -> None:
        self.request_operation(CauseRequest("host-update", host=host, type=kind))

    @rule(
        cause=st.sampled_from(["degraded-hardware", "hardware-failure", "emergency-repair"]),
        host=st.sampled_from(HOSTS),
    )
    def host_is_ill(self, cause: str, host: str) -> None:
        notice = timedelta(hours=1) if cause == "degraded-hardware" else None
        self.request_operation(CauseRequest(cause, host=host, notice=notice))

    @rule(host=st.sampled_from(HOSTS))
    def host_is_well_again(self, host: str) -> None:
        self.do(self.engine.execute(return_host, host, "operator"))

    def request_operation(self, asked: CauseRequest) -> None:
        before = self.engine.preview(lambda draft, now, limits: draft.fleet)[0]
        try:
            operations = self.do(self.engine.execute(request, asked, "somebody"))
        except ForewarnError:
            assert self.engine.fleet is before, "what was refused has changed the fleet"
            return
        for event_id in [event_id for operation in operations for event_id in operation.events]:
            event = self.do(self.engine.records.event(event_id))
            assert event is not None
            self.promised[event_id] = event
            if event.approved_at is not None:
                self.approved.add(event_id)

    @rule(which=NUMBERS, length=st.sampled_from([timedelta(minutes=7), timedelta(days=2), timedelta(days=9)]))
    def operator_postpones(self, which: int, length: timedelta) -> None:
        live = self.engine.live_events()
        if not live:
            return
        event = live[which % len(live)]
        try:
            after = self.do(self.engine.execute(approvals.postpone, event.id, "operator", event.not_before + length))
        except ForewarnError:
            operation = self.do(self.engine.records.operation(event.operation))
            late = (
                operation.request.postpone_deadline is not None
                and event.not_before + length > operation.request.postpone_deadline
            )
            assert late or event.approved_at or event.status is EventStatus.STARTED or operation.cause not in ROUTINE
        else:
            assert after.not_before == event.not_before + length

    @rule(scope=st.sampled_from(SCOPES))
    def scope_polls(self, scope: str) -> None:
        if scope_members(self.engine.fleet, scope):
            self.do(self.engine.enable(scope, by=scope))
            self.engine.polled.add(scope)

    @rule(which=st.lists(NUMBERS, min_size=1, max_size=3), scope=st.sampled_from(SCOPES))
    def vm_approves(self, which: list[int], scope: str) -> None:
        live = self.engine.live_events()
        if not live:
            return
        wanted = [live[number % len(live)].id for number in which]
        own = {event.id for event in live if event.scope == scope}
        in_time = {event.id for event in live if event.status is EventStatus.SCHEDULED and event.approved_at is None}
        try:
            self.do(approve(self.engine, *wanted, by=scope, group=scope))
        except UnknownStartRequest:
            assert not own.issuperset(wanted), "an approval of one's own live events was refused"
        else:
            assert own.issuperset(wanted), "another scope's event was approved"
            self.approved.update(wanted)
            self.approvals.update((event_id, scope) for event_id in wanted if event_id in in_time)

    @rule(which=NUMBERS)
    def operator_cancels(self, which: int) -> None:
        live = self.engine.live_events()
        if not live:
            return
        event = live[which % len(live)]
        try:
            self.do(cancel(self.engine, event.id))
        except ForewarnError:
            assert event.status is EventStatus.STARTED
        else:
            assert event.status is not EventStatus.STARTED
            operation = self.do(self.engine.records.operation(event.operation))
            self.cancelled.update(operation.events)

    @rule(length=st.sampled_from(LENGTHS))
    def time_passes(self, length: timedelta) -> None:
        self.do(self.engine.advance(length))

    @rule(length=st.sampled_from(LONG_LENGTHS))
    def much_time_passes(self, length: timedelta) -> None:
        self.do(self.engine.advance(length))

    @rule(failures=st.integers(0, 2), forgets=st.integers(0, 1), slow=st.booleans())
    def fabric_misbehaves(self, failures: int, forgets: int, slow: bool) -> None:
        self.fabric.failures, self.fabric.lost_orders = failures, forgets
        self.fabric.delay = timedelta(minutes=3) if slow else None

    @rule(which=NUMBERS, scope=st.sampled_from(SCOPES))
    def approval_is_repeated_after_the_end(self, which: int, scope: str) -> None:
        """The scope of an event that ended within a day gets no error, and all others do."""
        if not self.over:
            return
        event = list(self.over.values())[which % len(self.over)]
        before = self.engine.records.newest
        try:
            self.do(approve(self.engine, event.id, by=scope, group=scope))
        except UnknownStartRequest:
            assert event.scope != scope or self.now - (event.ended_at or self.now) >= timedelta(days=1)
        else:
            assert event.scope == scope
            assert self.now - (event.ended_at or self.now) < timedelta(days=1)
        assert self.engine.records.newest == before

    @rule(missing=st.sets(st.sampled_from(VMS), max_size=2), force=st.booleans(), others=st.sets(SETS))
    def fleet_changes(self, missing: set[str], force: bool, others: set[str]) -> None:
        """Apply a file without some VMs. Some sets have the other visibility."""
        groups = [
            group._replace(visibility=Visibility.OWN if group.visibility is Visibility.GROUP else Visibility.GROUP)
            if group.name in others
            else group
            for group in FLEET.groups.values()
        ]
        vms = [vm for vm in FLEET.vms.values() if vm.name not in missing]
        fleet, now = Fleet(vms, groups, FLEET.hosts.values()), self.engine.fleet
        leaving = {vm.name for vm in now.vms.values() if vm.name in missing or now.scope_of(vm) != fleet.scope_of(vm)}
        touched = {event.operation for event in self.engine.live_events() if leaving & {*event.resources}}
        goes_on = {
            one.id
            for one in self.engine.live_operations()
            if one.status is OperationStatus.STARTED and one.executed_at is None
        }
        try:
            self.do(self.engine.apply_fleet(fleet, by="operator", force=force))
        except HostOutOfService:
            assert any(host.state is not HostState.IN_SERVICE for host in now.hosts.values())
        except HostWorkStarted:
            assert any(one.is_on_host and one.started_at is not None for one in self.engine.live_operations())
        except DestinationConflict:
            assert any(operation.moves for operation in self.engine.live_operations())
        except VMHasLiveEvent:
            assert touched
            assert not force
        else:
            assert force or not touched
            # Work in progress goes on for other VMs.
            self.gone.update(
                event.id
                for event in self.promised.values()
                if event.operation in touched and (event.operation not in goes_on or leaving & {*event.resources})
            )

    @rule()
    def service_is_killed(self) -> None:
        """Crash. What the old engine writes while it stops is not in the next one."""
        self.lives += 1
        following = self.next_engine()
        self.do(self.engine.stop())
        self.engine, self.fabric = following
        self.do(self.engine.start())
        self.check_what_is_over()

    @rule(filters=FILTERS, limit=st.integers(1, 3))
    def active_items_are_listed(self, filters: ListFilter, limit: int) -> None:
        """Memory and store must give the same lists."""
        self.do(self.compare_lists(filters, limit))

    async def compare_lists(self, filters: ListFilter, limit: int) -> None:
        records = self.engine.records
        for name in ("events", "operations", "rollouts"):
            stored = [item for _, item in await records._read(getattr(records._records, name), filters)]
            listed: list[Any] = []
            page = filters._replace(limit=limit)
            while part := await getattr(records, name)(page):
                listed += [item for _, item in part]
                page = page._replace(after_id=part[-1][0])
            assert listed == stored
            if name != "rollouts":
                assert await getattr(records, f"count_{name}")(filters) == len(stored)

    # --- What must be true after each step ------------------------------------------------------------

    @invariant()
    def promises_are_kept(self) -> None:
        if hasattr(self, "engine"):
            self.learn_of_newcomers()
            live = {event.id: event for event in self.engine.live_events()}
            # What is over is in the store, and stays: it is looked at once, and again after a kill and at the end.
            ended = [event_id for event_id in self.promised if event_id not in live and event_id not in self.over]
            self.over.update(self.do(self.read(ended)))
            for event_id in [*live, *ended]:
                self.check_promise(live.get(event_id) or self.over[event_id])

    def learn_of_newcomers(self) -> None:
        """A VM that arrives at a host with work ahead of it gets an event that no request has returned."""
        if self.engine.records.newest == self.known_rows:
            return
        new = HistoryFilter(after=self.known_rows, kinds=("scheduled", "approved"), limit=100_000)
        for entry in self.do(self.engine.records.history(new)):
            if entry.kind == "scheduled" and entry.event_then is not None:
                self.promised.setdefault(entry.event, entry.event_then)
            elif entry.by == ENGINE:
                self.approved.add(entry.event)
        self.known_rows = self.engine.records.newest

    async def read(self, ids: list[str]) -> dict[str, Event]:
        found = {event_id: await self.engine.records.event(event_id) for event_id in ids}
        assert None not in found.values(), "an acknowledged request is lost"
        return {event_id: event for event_id, event in found.items() if event is not None}

    def check_promise(self, event: Event) -> None:
        promised = self.promised[event.id]
        for name in ("id", "operation", "group", "scope", "type", "resources", "created_at"):
            assert getattr(event, name) == getattr(promised, name)
        assert event.not_before >= promised.not_before, "a notice was made shorter"
        self.promised[event.id] = promised._replace(not_before=event.not_before)
        if event.started_at is not None:
            assert event.id in self.approved or event.started_at >= event.not_before
        if event.id in self.approvals:
            assert event.approved_by == self.approvals[event.id], "an acknowledged approval is lost"
        if event.id in self.cancelled:
            assert event.status is EventStatus.CANCELLED
        if event.id in self.gone:
            assert not event.status.live

    def check_what_is_over(self) -> None:
        assert self.do(self.read(list(self.over))) == self.over

    @invariant()
    def documents_are_true(self) -> None:
        if not hasattr(self, "engine"):
            return
        for scope in SCOPES:
            document = self.engine.document(scope)
            assert all(event.scope == scope for event in document.events)
            assert all(event.status.live for event in document.events)
            members = {*scope_members(self.engine.fleet, scope)}
            # A started event stays to its end, even if its VM was deleted meanwhile.
            scheduled = [event for event in document.events if event.status is EventStatus.SCHEDULED]
            assert all(members & {*event.resources} for event in scheduled), "a notice to the wrong VMs"
            assert members or not document.enabled, "a document without VMs"
            if not document.enabled:
                continue
            body = render(document, NEWEST, "availability-set")
            enabling, incarnation, before = self.seen.get(scope, (0, 0, b""))
            assert document.enabling >= enabling, "an enabling went back"
            if document.enabling == enabling:
                assert document.incarnation >= incarnation, "an incarnation went back"
                assert (document.incarnation == incarnation) == (body == before)
            self.seen[scope] = (document.enabling, document.incarnation, body)

    @invariant()
    def domains_hold(self) -> None:
        """A host takes down at most one update domain of a group."""
        if not hasattr(self, "engine"):
            return
        found: dict[tuple[str, str], int] = {}
        for vm in self.engine.fleet.vms.values():
            assert found.setdefault((vm.host, vm.group), vm.update_domain) == vm.update_domain

    @invariant()
    def nothing_due_is_left(self) -> None:
        if not hasattr(self, "engine"):
            return
        for event in self.engine.live_events():
            assert (event.status is EventStatus.ADVISORY) == (event.type == "SpotRebalanceRecommendation")
            if event.status is EventStatus.SCHEDULED:
                assert not self.all_may_start(event), "what may start has not started"

    def all_may_start(self, event: Event) -> bool:
        operations = self.engine.live_operations()
        operation = next(one for one in operations if one.id == event.operation)
        bound_for = {host for one in operations if one.executed_at is None for _, host in one.moves}
        if operation.is_on_host and operation.host in bound_for:  # it waits for VMs on their way to its host
            return False
        siblings = [sibling for sibling in self.engine.live_events() if sibling.operation == event.operation]
        if event.type == "Terminate" and self.now < event.not_before:  # deletions of a group wait for each other
            siblings += [
                other for other in self.engine.live_events() if (other.scope, other.type) == (event.scope, event.type)
            ]
        return all(sibling.approved_at or self.now >= sibling.not_before for sibling in siblings)


class NeverAgainMachine(InvariantsMachine):
    """The other half of the runs, so that two workers can share them."""


class PostgresqlMachine(InvariantsMachine):
    """The same with PostgreSQL. A crash is a node that takes over while the old one still runs."""

    shared: SharedStore

    def next_engine(self) -> tuple[Engine, SimulatedFabric]:
        if not self.lives:
            self.shared.release()
            self.shared.clear()
        return make_engine(store=self.shared.take_over(f"node-{self.lives}"))


@pytest.fixture
def postgresql_machine(shared_store_of: Callable[[int], SharedStore]) -> None:
    """A state machine cannot have parameters, so it has the newest server only."""
    PostgresqlMachine.shared = shared_store_of(max(SERVERS))


TestNeverOnPostgresql = pytest.mark.usefixtures("postgresql_machine")(PostgresqlMachine.TestCase)
TestNeverOnPostgresql.settings = settings(
    max_examples=amount(POSTGRESQL_RUNS),
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)

TestNever, TestNeverAgain = InvariantsMachine.TestCase, NeverAgainMachine.TestCase
TestNever.settings = TestNeverAgain.settings = settings(
    max_examples=amount(RUNS // 2),
    stateful_step_count=STEPS,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)


def test_work_that_waits_for_a_vm_on_its_way_is_not_due() -> None:
    machine = InvariantsMachine()
    machine.begin()
    machine.scope_polls("auto")
    machine.fabric_misbehaves(0, 0, slow=True)
    machine.host_is_ill("degraded-hardware", "host-a")
    machine.host_is_well_again("host-a")
    machine.host_is_updated("host-b", "Freeze")
    machine.vm_approves([0], "auto")
    (event,) = machine.engine.live_events()
    assert (event.status, event.approved_by) == (EventStatus.SCHEDULED, "auto")
    machine.nothing_due_is_left()
    machine.time_passes(timedelta(minutes=3))
    (event,) = machine.engine.live_events()
    assert event.status is EventStatus.STARTED
    machine.teardown()
