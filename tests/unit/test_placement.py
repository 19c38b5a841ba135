"""Where a VM is moved to: a host in use that is left alone, with the fewest VMs, on which the domains hold.

The random fleets that other tests use are made here as well, and the service that dies and comes back in them.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from engines import MINUTE, START, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from depth import amount
from forewarn.clock import VirtualClock
from forewarn.core import placement
from forewarn.core.fleet import VM, Fleet, Group, Host, HostState, own_host
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest, Operation, OperationStatus
from forewarn.core.placement import choose_host, find_clashes, spare_name
from forewarn.core.state import Changes, Draft, ServiceState
from forewarn.core.steps import finish
from forewarn.errors import ForewarnError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from datetime import datetime

    from forewarn.engine.engine import Engine
    from forewarn.fabrics.simulated import SimulatedFabric

GROUPS = ("red", "green", "blue")
DOMAINS = 3
STATES = st.sampled_from([HostState.IN_SERVICE] * 4 + [HostState.DEGRADED, HostState.FAILED])


@st.composite
def fleets(
    draw: st.DrawFn,
    *,
    most_hosts: int = 6,
    vms: tuple[int, int] = (0, 14),
    states: st.SearchStrategy[HostState] = STATES,
    zones: tuple[str, ...] = ("", "1"),
) -> Fleet:
    """Random fleets in which the domains hold. VMs are of a group or alone, on shared hosts or on one of their own."""
    hosts = [f"host-{number}" for number in range(draw(st.integers(1, most_hosts)))]
    kinds = [Group(name, "availability-set", DOMAINS, DOMAINS) for name in GROUPS]
    zone_of = {host: draw(st.sampled_from(zones)) for host in hosts}
    domain_of: dict[tuple[str, str], int] = {}
    made = []
    rows = st.tuples(st.sampled_from([*GROUPS, ""]), st.sampled_from([*hosts, ""]), st.integers(0, DOMAINS - 1))
    for number, (group, host, domain) in enumerate(draw(st.lists(rows, min_size=vms[0], max_size=vms[1]))):
        name = f"vm-{number}"
        mine = domain_of.setdefault((group, host or name), domain) if group else 0
        made.append(VM(name, group or name, host or own_host(name), mine, mine, zone=zone_of.get(host, "")))
    return Fleet(made, kinds, [Host(host, draw(states)) for host in hosts])


HOUR = timedelta(hours=1)
LENGTHS = [MINUTE, 5 * MINUTE, 10 * MINUTE, 10 * MINUTE, 15 * MINUTE, HOUR, 12 * HOUR]


class MortalEngine(RuleBasedStateMachine):
    """An engine for random tests. It can crash whenever it publishes or its clock stops."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        memory = Path("/dev/shm")  # noqa: S108 - a crash is a copy here, so nothing waits for a disk
        self.root = Path(tempfile.mkdtemp(prefix="forewarn-mortal-", dir=memory if memory.is_dir() else None))
        self.lives = 0
        self.engine: Engine
        self.fabric: SimulatedFabric
        self.dies_in = 0
        self.problems: list[str] = []
        self.stopped_at: Counter[datetime] = Counter()

    @property
    def folder(self) -> Path:
        return self.root / str(self.lives)

    def do(self, work: Awaitable[Any]) -> Any:
        return self.runner.run(self.do_and_settle(work))

    async def do_and_settle(self, work: Awaitable[Any]) -> Any:
        outcome = await work
        assert isinstance(self.engine.clock, VirtualClock)
        await self.engine._scheduler.wait_until_idle(self.engine.clock)
        return outcome

    def attempt(self, work: Awaitable[Any]) -> Any:
        """Run a command that may be rejected. Then nothing has changed."""
        try:
            return self.do(work)
        except ForewarnError:
            return None

    async def live(self) -> None:
        self.engine, self.fabric = make_engine(self.folder)
        assert isinstance(self.engine.clock, VirtualClock)
        self.engine.subscribe(lambda _: self.seen())
        self.engine.clock.on_move = self.moved
        await self.engine.start()

    @rule(length=st.sampled_from(LENGTHS))
    def time_passes(self, length: timedelta) -> None:
        self.do(self.engine.advance(length))

    @rule(length=st.sampled_from(LENGTHS), moments=st.integers(1, 8))
    def service_dies_meanwhile(self, length: timedelta, moments: int) -> None:
        """Crash after this many steps: the next engine has only what was on disk then."""
        self.dies_in = moments
        self.do(self.engine.advance(length))
        if self.dies_in > 0:
            self.copy()
        self.do(self.engine.stop())
        self.lives, self.dies_in = self.lives + 1, 0
        self.do(self.live())

    def copy(self) -> None:
        shutil.copytree(self.folder, self.root / str(self.lives + 1))

    def moved(self) -> None:
        """Note that time has moved. The clock must not stop at the same time forever."""
        self.seen()
        self.stopped_at[self.engine.clock.now()] += 1
        assert self.stopped_at[self.engine.clock.now()] < 1000, "time does not pass"

    def seen(self) -> None:
        """Check the current state, while nothing is being written. States after the crash do not count."""
        if not (self.root / str(self.lives + 1)).exists():
            self.look()
            self.dies_in -= 1
            if not self.dies_in:
                self.copy()

    def look(self) -> None:
        """Check the rules; subclasses override it. It records violations, because an error here would be lost."""

    @invariant()
    def no_problem_was_seen(self) -> None:
        if hasattr(self, "engine"):
            self.look()
        assert not self.problems, self.problems[0]

    def teardown(self) -> None:
        try:
            if hasattr(self, "engine"):
                self.do(self.check_the_end())
                self.do(self.engine.stop())
        finally:
            self.runner.close()
            shutil.rmtree(self.root)

    async def check_the_end(self) -> None:
        """To be overridden: what must be so in the end."""


def operation(
    number: int, requested: CauseRequest, progress: OperationStatus, moves: tuple[tuple[str, str], ...] = ()
) -> Operation:
    vms = tuple(name for name, _ in moves)
    return Operation(f"op-{number}", requested, vms, "test", START, progress, started_at=START, moves=moves)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """A random fleet with work on hosts and VMs on their way, part of it in the state and part in the draft."""
    fleet = draw(fleets())
    progress = st.sampled_from(
        [OperationStatus.PENDING, OperationStatus.STARTED, OperationStatus.STARTED, OperationStatus.DONE]
    )
    at_hosts = st.tuples(st.sampled_from([*fleet.hosts]), progress)
    made = [
        operation(number, CauseRequest("host-update", host=host, type="Freeze"), how_far)
        for number, (host, how_far) in enumerate(draw(st.lists(at_hosts, max_size=3)))
    ]
    if fleet.vms:
        moves = st.tuples(st.sampled_from([*fleet.vms]), st.sampled_from([*fleet.hosts]))
        for name, host in draw(st.lists(moves, max_size=4, unique_by=lambda move: move[0])):
            moving = operation(len(made), CauseRequest("redeploy", type="Redeploy"), draw(progress), ((name, host),))
            made.append(moving._replace(executed_at=draw(st.sampled_from([None, None, START]))))
    state = ServiceState(fleet)
    draft = Draft(state, iter("abcdefghijklmnop").__next__)
    for one in made:
        where = draw(st.sampled_from(["state", "draft", "both"]))
        if where != "draft":
            state.absorb(Changes(operations={one.id: one}))
        if where != "state":
            draft.put_operation(one)
    return draft


def all_operations(draft: Draft) -> Iterable[Operation]:
    assert isinstance(draft._base, ServiceState)
    return (draft._base.operations | draft.changes.operations).values()


def tenants(draft: Draft, host: str) -> list[VM]:
    """Who is on the host, and who is on the way to it: found without any index."""
    on_their_way = [
        name
        for one in all_operations(draft)
        if one.status.live and one.executed_at is None
        for name, target in one.moves
        if target == host
    ]
    there = [vm.name for vm in draft.fleet.vms.values() if vm.host == host]
    return [draft.fleet.vms[name] for name in (*there, *on_their_way)]


def fits(draft: Draft, vm: VM, host: Host) -> bool:
    busy = any(one.host == host.name and one.status.live for one in all_operations(draft))
    together = [*tenants(draft, host.name), vm]
    return (
        host.state is HostState.IN_SERVICE
        and host.name != vm.host
        and not busy
        and len({other.zone for other in together}) == 1
        and len({(other.update_domain, other.fault_domain) for other in together if other.group == vm.group}) == 1
    )


@settings(max_examples=amount(250))
@given(draft=drafts(), data=st.data())
def test_a_vm_moves_to_the_fitting_host_with_the_fewest_vms(draft: Draft, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, 30))
    vm = VM("new", data.draw(st.sampled_from([*GROUPS, "new"])), own_host("new"), number % DOMAINS, number % DOMAINS)
    known = data.draw(st.booleans())
    if known and draft.fleet.vms:
        vm = list(draft.fleet.vms.values())[number % len(draft.fleet.vms)]
    fitting = [host.name for host in draft.fleet.hosts.values() if fits(draft, vm, host)]
    chosen = choose_host(draft, vm)
    if chosen is None:
        assert not fitting
    else:
        assert chosen in fitting
        assert len(tenants(draft, chosen)) == min(len(tenants(draft, host)) for host in fitting)


@settings(max_examples=amount(120))
@given(fleet=fleets(), makes_hosts=st.booleans(), data=st.data())
def test_domains_stay_separate_when_all_vms_of_a_host_move(
    fleet: Fleet, makes_hosts: bool, data: st.DataObject
) -> None:
    host = data.draw(st.sampled_from([*fleet.hosts]))
    draft = Draft(ServiceState(fleet), lambda: "id")
    moving = operation(0, CauseRequest("hardware-failure", host=host, type="Redeploy"), OperationStatus.PENDING)
    moving = moving._replace(vms=fleet.on_host(host))
    draft.put_operation(moving)
    moving = finish(placement.choose_destinations(draft, START, OperatorLimits(makes_hosts=makes_hosts), moving))
    assert len(moving.moves) == len({*moving.moves}) <= len(moving.vms)
    assert len(moving.moves) == len(moving.vms) or not makes_hosts
    placement.after_work(draft, START, moving)
    assert not list(find_clashes(draft.fleet.vms.values()))
    for name, target in moving.moves:
        assert target != host
        assert draft.fleet.vms[name].host == target
        assert draft.fleet.host(target).state is HostState.IN_SERVICE
        assert len({draft.fleet.vms[other].zone for other in draft.fleet.on_host(target)}) == 1
    spare = Counter(host.name for host in draft.fleet.hosts.values() if host.spare)
    noted = Counter(entry.reason.split(":")[0] for entry in draft.changes.history if entry.kind == "spare-host-added")
    assert noted == spare, "an added host is recorded once"


def crowded(*vms: VM, hosts: Iterable[Host] = (Host("a"), Host("b"), Host("c"))) -> Draft:
    return Draft(ServiceState(Fleet(vms, [Group("web", "availability-set", 5, 5)], hosts)), lambda: "id")


def vm(name: str, host: str, domain: int = 0, zone: str = "") -> VM:
    return VM(name, "web", host, domain, domain, zone=zone)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: crowded(vm("x", "a"), vm("y", "b")), "c"),
        (lambda: crowded(vm("x", "a"), vm("y", "b", 1), vm("z", "c")), "c"),
        (lambda: crowded(vm("x", "a"), vm("y", "b", 1), vm("z", "c", 2)), None),
        (lambda: crowded(vm("x", "a"), vm("y", "b", zone="1"), vm("z", "c", zone="2")), None),
        (lambda: crowded(vm("x", "a"), VM("y", "web", "b", 0, 1), vm("z", "c", 1)), None),
        (lambda: crowded(vm("x", "a"), hosts=[Host("a"), Host("b", HostState.FAILED)]), None),
        (lambda: crowded(vm("x", "a"), VM("y", "y", "y-host"), hosts=[Host("a")]), None),
        (lambda: crowded(vm("x", "x-host"), hosts=[Host("a")]), "a"),
    ],
    ids=["emptiest", "same domain", "domains", "zones", "fault domain", "out of use", "another's own", "from its own"],
)
def test_the_target_host_of_x(make: Callable[[], Draft], expected: str | None) -> None:
    draft = make()
    assert choose_host(draft, draft.fleet.vms["x"]) == expected


def test_a_spare_host_gets_a_name_that_is_free() -> None:
    assert spare_name(Fleet()) == "spare-1"
    assert spare_name(Fleet(hosts=[Host("spare-1"), Host("spare-2"), Host("spare-4")])) == "spare-3"
