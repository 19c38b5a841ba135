"""Changes of a fleet, and the parts of a fleet that survive the next fleet file."""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
from engines import MINUTE, START, make_engine, request_operation, scope_members
from hypothesis import given, settings
from hypothesis import strategies as st
from test_placement import fleets

from depth import amount
from forewarn.core import fleet_commands, placement, rollout_commands
from forewarn.core.fleet import (
    VM,
    Fleet,
    FleetChange,
    Group,
    Host,
    HostState,
    Visibility,
    difference,
    keep_runtime_state,
    own_host,
)
from forewarn.core.limits import OperatorLimits
from forewarn.core.placement import find_clashes, spare_name
from forewarn.core.rollouts import RolloutSettings
from forewarn.core.state import Draft, ServiceState
from forewarn.errors import Conflict, ForewarnError, PlacementGroupFixed, UnknownHost

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from forewarn.engine.engine import Engine

NAMES = [f"vm-{number}" for number in range(5)]
SETS = ["red", "green"]
SHARED = ["host-a", "host-b", "host-c"]
PLACES = [f"10.0.0.{number}" for number in range(7)]


@st.composite
def universes(draw: st.DrawFn) -> Fleet:
    """Fleets made of the same few names, so that any two of them differ by all that can differ."""
    groups = {
        name: Group(name, "scale-set", draw(st.integers(1, 3)), visibility=draw(st.sampled_from(Visibility)))
        for name in draw(st.sets(st.sampled_from(SETS)))
    }
    hosts = {name: Host(name, draw(st.sampled_from(HostState))) for name in draw(st.sets(st.sampled_from(SHARED)))}
    addresses, listeners = draw(st.permutations(PLACES)), draw(st.permutations(PLACES))
    vms = []
    for number, name in enumerate(draw(st.permutations(NAMES))[: draw(st.integers(0, len(NAMES)))]):
        if draw(st.integers(0, 3)) == 0:
            groups[name] = Group(name, "standalone", auto_approve=("reboot",))  # by another policy
        if draw(st.integers(0, 3)) == 0:
            hosts[own_host(name)] = Host(own_host(name), draw(st.sampled_from(HostState)))  # by another state
        group = draw(st.sampled_from([name, *(group for group in SETS if group in groups)]))
        vms.append(
            VM(
                name,
                group,
                draw(st.sampled_from([own_host(name), *hosts])),
                address=addresses[number] if draw(st.booleans()) else "",
                listen=listeners[number] if draw(st.booleans()) else "",
                auto_approve=draw(st.sampled_from([(), ("redeploy",)])),
                placement_group=draw(st.integers(1, 3)) if group in SETS else 1,
            )
        )
    return Fleet(vms, groups.values(), hosts.values())


def tried(call: Callable[[str], object], name: str) -> object:
    try:
        return call(name)
    except ForewarnError as error:
        return type(error)


def all_that_can_be_asked(fleet: Fleet) -> dict[str, object]:
    groups, hosts = [*NAMES, *SETS], [*SHARED, *(own_host(name) for name in NAMES)]
    on_host = {name: tried(fleet.on_host, name) for name in hosts}
    return {
        "vms": dict(fleet.vms),
        "groups": dict(fleet.groups),
        "hosts": dict(fleet.hosts),
        "host_names": sorted(fleet.host_names()),
        "listeners": sorted(fleet.listeners()),
        "hosts_by_load": list(fleet.hosts_by_load()),
        "vm": {name: tried(fleet.vm, name) for name in NAMES},
        "group": {name: tried(fleet.group, name) for name in groups},
        "members": {name: sorted(fleet.members(name)) for name in groups},
        "scope_members": {name: sorted(scope_members(fleet, name)) for name in [*groups, "red.2", "green.3"]},
        "scope_size": {name: fleet.scope_size(name) for name in [*groups, "red.2", "green.3"]},
        "is_down": {name: fleet.is_down(name) for name in [*groups, "red.2", "green.3"]},
        "scopes": {name: fleet.scopes(name) for name in groups},
        "host": {name: tried(fleet.host, name) for name in hosts},
        "has_host": {name: fleet.has_host(name) for name in hosts},
        "on_host": {name: sorted(found) if isinstance(found, tuple) else found for name, found in on_host.items()},
        "domains_on": {name: tried(fleet.domains_on, name) for name in hosts},
        "at_address": {place: fleet.at_address(place) for place in PLACES},
        "at_listener": {place: fleet.at_listener(place) for place in PLACES},
    }


def built_anew(fleet: Fleet) -> Fleet:
    return Fleet(fleet.vms.values(), fleet.groups.values(), fleet.hosts.values())


def test_a_group_that_becomes_a_scale_set_can_choose_placement_groups() -> None:
    """Only VMs that were in a scale set have a placement group that is fixed."""
    vms = [VM(f"web_{number}", "web", "host") for number in range(3)]
    before = Fleet(vms, [Group("web", "availability-set")])
    numbers = {"web_0": 0, "web_1": 1, "web_2": 2}
    scale_set = Fleet([vm._replace(placement_group=numbers[vm.name]) for vm in vms], [Group("web", "scale-set")])
    after = keep_runtime_state(before, scale_set)
    assert {name: vm.placement_group for name, vm in after.vms.items()} == {"web_0": 1, "web_1": 1, "web_2": 2}
    assert difference(before, after).leaving == {"web_2"}
    with pytest.raises(PlacementGroupFixed):
        keep_runtime_state(after, Fleet([vm._replace(placement_group=3) for vm in vms], scale_set.groups.values()))


@pytest.mark.parametrize("group", ["web", "db"])
@pytest.mark.parametrize("name", ["web", "web.2", "db"])
@pytest.mark.parametrize("number", [1, 2])
def test_names_of_vms_do_not_hide_scopes(name: str, group: str, number: int) -> None:
    """A VM in a group can have the name of a group, or of a placement group of its flexible set."""
    groups = [Group("web", "scale-set"), Group("db", "scale-set")]
    others = [
        VM(f"{group}_{number}", group, "host", placement_group=number) for group in ("web", "db") for number in (1, 2)
    ]
    fleet = Fleet([VM(name, group, "host", placement_group=number), *others], groups)
    for vm in fleet.vms.values():
        scope = fleet.scope_of(vm)
        assert vm.name in scope_members(fleet, scope)
        assert fleet.scope_size(scope) == len(scope_members(fleet, scope))
        assert fleet.group_of(scope).name == vm.group
        assert all(fleet.scope_of(fleet.vms[member]) == scope for member in scope_members(fleet, scope))


@settings(max_examples=amount(120))
@given(course=st.lists(universes(), min_size=2, max_size=4))
def test_a_changed_fleet_equals_a_new_one(course: list[Fleet]) -> None:
    fleet = course[0]
    for wanted in course[1:]:
        before = all_that_can_be_asked(fleet)
        changed = fleet.changed_by(difference(fleet, wanted))
        assert all_that_can_be_asked(changed) == all_that_can_be_asked(wanted)
        assert all_that_can_be_asked(fleet) == before, "the fleet itself must not change"
        fleet = changed


def scope(fleet: Fleet, name: str) -> str:
    """The scope of a VM, written down a second time."""
    vm = fleet.vms[name]
    if vm.group in SETS and fleet.groups[vm.group].visibility == "own":
        return name
    return vm.group if vm.placement_group == 1 else f"{vm.group}.{vm.placement_group}"


@settings(max_examples=amount(100))
@given(before=universes(), after=universes())
def test_the_difference_lists_removed_vms_and_empty_groups(before: Fleet, after: Fleet) -> None:
    change = difference(before, after)
    stay = {
        name
        for name, vm in before.vms.items()
        if name in after.vms and after.vms[name].group == vm.group and scope(after, name) == scope(before, name)
    }
    assert change.leaving == {*before.vms} - stay
    left = {scope(before, name) for name in change.leaving} | {*change.groups_removed}
    assert change.vacated == left - {scope(after, name) for name in after.vms}
    assert {vm.name for vm in change.added} == {*after.vms} - {*before.vms}
    assert {vm.name for vm in change.removed} == {*before.vms} - {*after.vms}
    assert bool(change) == (all_that_can_be_asked(before) != all_that_can_be_asked(after))


NUMBERS = st.integers(0, 59)
ACTS = st.tuples(st.sampled_from(["state", "policy", "move", "stop", "remove"]), NUMBERS, NUMBERS)


@settings(max_examples=amount(100))
@given(fleet=universes(), acts=st.lists(ACTS, min_size=1, max_size=6))
def test_commands_change_a_fleet_to_what_a_new_one_would_be(fleet: Fleet, acts: list[tuple[str, int, int]]) -> None:
    draft = Draft(ServiceState(fleet), lambda: "id")
    for what, which, how in acts:
        hosts, vms = draft.fleet.host_names(), [*draft.fleet.vms.values()]
        if what == "state" and hosts:
            state = [*HostState][how % len(HostState)]
            placement.set_host_state(draft, START, hosts[which % len(hosts)], state, "test")
        elif what == "policy" and vms:
            policy = fleet_commands.PolicyUpdate(auto_approve=[(), ("redeploy",)][how % 2])
            fleet_commands.set_policy(draft, START, OperatorLimits(), vms[which % len(vms)].group, policy, "test")
        elif what == "move" and vms and draft.fleet.hosts:
            target = [*draft.fleet.hosts][how % len(draft.fleet.hosts)]
            moved = vms[which % len(vms)]._replace(host=target)
            draft.change_fleet(FleetChange(changed=(moved,), in_place=True))
        elif what == "stop" and vms:
            stopped = vms[which % len(vms)]._replace(deallocated=how % 2 == 0)
            draft.change_fleet(FleetChange(changed=(stopped,), in_place=True))
        elif what == "remove" and vms:
            placement.remove_vms(draft, START, (vms[which % len(vms)],), "the VM was deleted")
        assert all_that_can_be_asked(draft.fleet) == all_that_can_be_asked(built_anew(draft.fleet))


# --- What a fleet file leaves as it is ------------------------------------------------------------------


def gets_on(fleet: Fleet, vm: VM, host: str) -> bool:
    others = [other for other in fleet.vms.values() if other.host == host and other.group == vm.group]
    return all((other.update_domain, other.fault_domain) == (vm.update_domain, vm.fault_domain) for other in others)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Fleet, Fleet]:
    """A fleet as a file declares it, and the same after this and that has happened to it."""
    declared = draw(fleets(states=st.just(HostState.IN_SERVICE), zones=("",)))
    draft = Draft(ServiceState(declared), lambda: "id")
    for _ in range(draw(st.integers(0, 8))):
        fleet = draft.fleet
        if draw(st.booleans()):
            host = draw(st.sampled_from(fleet.host_names()))
            placement.set_host_state(draft, START, host, draw(st.sampled_from(HostState)), "test")
        if not fleet.vms:
            continue
        vm = fleet.vms[draw(st.sampled_from([*fleet.vms]))]
        if draw(st.integers(0, 3)) == 0:
            draft.change_fleet(FleetChange(changed=(vm._replace(deallocated=not vm.deallocated),), in_place=True))
            continue
        fitting = [name for name in fleet.hosts if name != vm.host and gets_on(fleet, vm, name)]
        target = draw(st.sampled_from([*fitting, ""]))
        if not target:
            target = spare_name(fleet)
            draft.change_fleet(FleetChange(hosts=(Host(target, spare=True),), in_place=True))
        draft.change_fleet(FleetChange(changed=(placement.moved(draft.fleet.vms[vm.name], target),), in_place=True))
    return declared, draft.fleet


WEB, THREE = [Group("web", "availability-set", 2)], [Host("h1"), Host("h2"), Host("h3")]
FILE = Fleet([VM("a", "web", "h1", 0), VM("b", "web", "h2", 1)], WEB, THREE)


@settings(max_examples=amount(200))
@given(history=histories())
def test_the_same_file_again_changes_nothing(history: tuple[Fleet, Fleet]) -> None:
    declared, before = history
    after = keep_runtime_state(before, declared)
    assert dict(after.vms) == dict(before.vms)
    for host in declared.host_names():
        assert not before.has_host(host) or tried(after.host, host) in {before.host(host), UnknownHost}
        assert not before.has_host(host) or before.host(host).state is HostState.IN_SERVICE or after.has_host(host)


def test_a_vm_stays_on_a_host_that_another_vm_has_left() -> None:
    """b was moved to h1 after a had been moved away from it: no domain is in b's way there."""
    before = Fleet(
        [VM("a", "web", "h3", 0, configured_host="h1"), VM("b", "web", "h1", 1, configured_host="h2")], WEB, THREE
    )
    assert dict(keep_runtime_state(before, FILE).vms) == dict(before.vms)


def test_vms_that_were_moved_to_one_host_part_when_a_file_gives_them_different_domains() -> None:
    before = Fleet([VM("a", "web", "h3", configured_host="h1"), VM("b", "web", "h3", configured_host="h2")], WEB, THREE)
    assert not list(find_clashes(keep_runtime_state(before, FILE).vms.values()))


@settings(max_examples=amount(200))
@given(history=histories(), data=st.data())
def test_another_file_keeps_moves_and_sets_the_configured_hosts(
    history: tuple[Fleet, Fleet], data: st.DataObject
) -> None:
    declared, before = history
    lost = data.draw(st.sets(st.sampled_from([*declared.vms])) if declared.vms else st.just(set()))
    elsewhere = data.draw(st.dictionaries(st.sampled_from([*declared.vms, "none"]), st.sampled_from([*declared.hosts])))
    renumbered = data.draw(st.dictionaries(st.sampled_from([*declared.vms, "none"]), st.integers(0, 2), max_size=2))
    vms: dict[str, VM] = {}
    for vm in declared.vms.values():
        domain = renumbered.get(vm.name, vm.update_domain)
        there = vm._replace(host=elsewhere.get(vm.name, vm.host), update_domain=domain, fault_domain=domain)
        if vm.name not in lost and gets_on(Fleet(vms.values()), there, there.host):
            vms[vm.name] = there
    used = {vm.host for vm in vms.values()}
    unwanted = data.draw(st.sets(st.sampled_from([*declared.hosts])))
    hosts = [host for host in declared.hosts.values() if host.name in used or host.name not in unwanted]
    file = Fleet(vms.values(), declared.groups.values(), hosts)

    after = keep_runtime_state(before, file)
    assert {*after.vms} == {*vms}
    assert not list(find_clashes(after.vms.values())), "a host holds two update domains of a group"
    for name, vm in after.vms.items():
        known, said = before.vms[name], vms[name]
        assert vm.deallocated == known.deallocated
        assert vm._replace(host="", configured_host="", deallocated=False) == said._replace(host="", configured_host="")
        assert (vm.host, vm.configured_host) in {(said.host, ""), (known.host, known.configured_host)}, (
            "neither said nor so"
        )
        if said.host != (known.configured_host or known.host):
            assert (vm.host, vm.configured_host) == (said.host, ""), "the file says another host than before"
        elif vm.host != known.host:
            assert not gets_on(after, vm, known.host), "it was sent back although its place is free"
        assert name in after.on_host(vm.host)
    for host in after.hosts.values():
        if host.name in before.hosts:
            assert host.state is before.hosts[host.name].state
        assert host.name in {*file.host_names()} or after.on_host(host.name), "it is no longer needed"
    assert {*file.hosts} <= {*after.hosts}


@pytest.mark.parametrize("state", [HostState.DEGRADED, HostState.FAILED])
def test_a_host_out_of_service_stays_so_whether_declared_or_implied(state: HostState) -> None:
    file = Fleet([VM("a", "a", "h1"), VM("b", "b", "b-host")], hosts=[Host("h1")])
    before = Fleet(file.vms.values(), hosts=[Host("h1", state), Host("b-host", state)])
    after = keep_runtime_state(before, file)
    assert (after.host("h1").state, after.host("b-host").state) == (state, state)
    assert keep_runtime_state(Fleet(), file) is file


# --- While a VM is on its way ---------------------------------------------------------------------------


@asynccontextmanager
async def on_its_way(*vms: VM, hosts: Sequence[str]) -> AsyncIterator[tuple[Engine, Callable[..., Fleet]]]:
    """An engine in which web-1 has set out from host b; and how to make another fleet for it."""

    def fleet(*vms: VM) -> Fleet:
        return Fleet(vms, WEB, [Host(name) for name in hosts])

    engine, fabric = make_engine()
    await engine.start()
    await engine.apply_fleet(fleet(*vms), by="test")
    fabric.delay = 3 * MINUTE
    await request_operation(engine, "live-migration", "web-1")
    yield engine, fleet
    await engine.stop()


WEB_0, WEB_1 = VM("web-0", "web", "a", 0), VM("web-1", "web", "b", 1)


async def test_the_host_that_a_vm_is_moved_to_is_there_when_it_arrives() -> None:
    async with on_its_way(WEB_0, WEB_1, hosts="ab") as (engine, fleet):
        await engine.apply_fleet(fleet(WEB_0, WEB_1, VM("new", "new", "a")), by="test")
        await engine.advance(4 * MINUTE)
        assert engine.fleet.vms["web-1"].host == "spare-1"
        assert engine.fleet.host("spare-1").spare


async def test_a_vm_that_is_moved_does_not_meet_another_domain_that_was_declared_meanwhile() -> None:
    async with on_its_way(WEB_1, hosts="ab") as (engine, fleet):
        with suppress(Conflict):
            await engine.apply_fleet(fleet(WEB_0, WEB_1), by="test")
        await engine.advance(4 * MINUTE)
        assert not list(find_clashes(engine.fleet.vms.values()))
        assert not [one for one in engine.live_operations() if one.executed_at is None]


async def test_a_rollout_skips_a_host_while_a_vm_moves_to_it() -> None:
    """Else it arrives on a host that is out, untold, and here with another domain of its group."""
    async with on_its_way(WEB_0, WEB_1, hosts="abc") as (engine, _):
        await engine.execute(rollout_commands.start, ["a", "c"], RolloutSettings(), "operator")
        for _minute in range(40):
            out = [one for one in engine.live_operations() if one.request.rollout]
            names = {name for one in out for name in (*one.vms, *engine.fleet.on_host(one.host))}
            assert len({engine.fleet.vms[name].update_domain for name in names}) <= 1
            await engine.advance(MINUTE)
        assert not engine.live_rollouts()
        assert engine.fleet.vms["web-1"].host == "c"


def test_readers_may_use_a_fleet_while_a_thread_makes_a_changed_copy_of_it() -> None:
    """The sizes of scopes are counted when they are first read."""
    names = ["a", "b", "c"]
    fleet = Fleet(
        [VM(name, f"set-{name}", "host") for name in names], [Group(f"set-{name}", "scale-set") for name in names]
    )
    unread = ["set-c", "set-b"]

    class Name(str):
        """A name during whose comparison another thread reads."""

        __slots__ = ()

        def __hash__(self) -> int:
            if unread:
                fleet.scope_size(unread.pop())
            return str.__hash__(self)

    fleet._scope_sizes = {Name("set-a"): fleet._sizes_in("set-a")}
    after = fleet.changed_by(FleetChange(changed=(fleet.vms["b"]._replace(size="large"),)))
    assert [after.scope_size(f"set-{name}") for name in names] == [1, 1, 1]
