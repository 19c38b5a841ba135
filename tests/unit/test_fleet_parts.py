"""Changes of a part of the fleet: they mean the same as a whole file with these changes."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.fleet import Fleet, FleetChange, FleetPlan, Host, HostState, apply_declared
from forewarn.core.fleet_parts import MAX_PART_ITEMS, FleetNames, plan_part, plan_removal
from forewarn.core.placement import moved
from forewarn.errors import (
    BadFleet,
    ForewarnError,
    NothingToRemove,
    StillInUse,
    UnknownHost,
    UnknownResource,
    UnknownVM,
)
from forewarn.files.fleet_file import parse_fleet, parse_part

if TYPE_CHECKING:
    from collections.abc import Iterable

Entries = dict[str, dict[str, dict[str, Any]]]

BASE: Entries = {
    "group": {
        "web": {"kind": "availability-set"},
        "set": {"kind": "scale-set", "terminate_notice": "PT5M"},
        "gpu": {"kind": "scale-set", "visibility": "own"},
        "batch": {"kind": "scale-set", "eviction_policy": "delete"},
        "one": {"kind": "standalone"},
    },
    "host": {"A": {}, "B": {}, "C": {}},
    "vm": {
        "x": {"host": "A", "address": "10.0.0.1"},
        "y": {},
        "web-0": {"group": "web", "host": "A", "update_domain": 0, "fault_domain": 0},
        "web-1": {"group": "web", "host": "B", "update_domain": 1, "fault_domain": 1, "listen": "127.0.0.1:9001"},
        "set_0": {"group": "set", "host": "B", "update_domain": 0, "fault_domain": 0},
        "gpu_0": {"group": "gpu", "update_domain": 0, "fault_domain": 0},
        "batch_0": {"group": "batch", "priority": "spot", "update_domain": 0, "fault_domain": 0},
        "alone": {"group": "one"},
    },
}


def text_of(entries: Entries) -> str:
    lines = []
    for table, named in entries.items():
        for name, keys in named.items():
            lines += [f"[[{table}]]", f"name = {json.dumps(name)}"]
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines)


def merged(base: Entries, part: Entries) -> Entries:
    return {table: {**base.get(table, {}), **part.get(table, {})} for table in ("group", "host", "vm")}


def without(entries: Entries, table: str, *names: str) -> Entries:
    return {**entries, table: {name: keys for name, keys in entries[table].items() if name not in names}}


FLEET = apply_declared(parse_fleet(text_of(BASE), "fleet.toml"), Fleet(), set(), 3).after


def add(part: Entries, before: Fleet = FLEET, sequence: int = 7) -> FleetPlan:
    return plan_part(parse_part(text_of(part), "part.toml", before), before, sequence)


def content(fleet: Fleet) -> tuple[object, ...]:
    """Everything in a fleet, without the order, and what its indexes say."""
    hosts = {name: sorted(fleet.on_host(name)) for name in fleet.host_names()}
    members = {name: sorted(fleet.members(name)) for name in fleet.groups}
    scopes = {name: fleet.scopes(name) for name in fleet.groups}
    at = {vm.address: fleet.at_address(vm.address) for vm in fleet.vms.values() if vm.address}
    return fleet.vms, fleet.groups, fleet.hosts, hosts, members, scopes, at, sorted(fleet.listeners())


def changes(change: FleetChange) -> dict[str, Any]:
    return {name: sorted(found) for name, found in change._asdict().items() if found}


def outcome(plan: Any, *arguments: Any) -> tuple[Any, str]:
    try:
        return plan(*arguments), ""
    except ForewarnError as error:
        return None, str(error)


# --- The same as a whole file ---------------------------------------------------------------------------

HOSTS = st.sampled_from(["A", "B", "C", "D"])
DOMAINS = st.sampled_from([0, 1])
WITHOUT_GROUP = st.fixed_dictionaries(
    {},
    optional={
        "host": HOSTS,
        "address": st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        "listen": st.sampled_from(["127.0.0.1:9001", "127.0.0.1:9002"]),
        "auto_approve": st.sampled_from([[], ["reboot"]]),
    },
)


def in_group(*groups: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {"group": st.sampled_from(groups), "update_domain": DOMAINS, "fault_domain": DOMAINS},
        optional={"host": HOSTS, "priority": st.sampled_from(["spot", "regular"])},
    )


VM_KEYS = {
    **dict.fromkeys(("x", "y", "new", "web", "set.2", "gpu"), WITHOUT_GROUP | in_group("web")),
    **dict.fromkeys(("web-0", "web-1", "web-2"), in_group("web") | WITHOUT_GROUP),
    **dict.fromkeys(("set_0", "set_1"), in_group("set")),
    **dict.fromkeys(("gpu_0", "gpu_1"), in_group("gpu")),
    # A set with an eviction policy keeps it when its last Spot VM leaves. A whole file reports that.
    **dict.fromkeys(("batch_0", "batch_1"), in_group("batch").map(lambda keys: {**keys, "priority": "spot"})),
    "alone": st.just({"group": "one"}),
    "second": st.just({"group": "one"}),
}
SET_POLICY = st.fixed_dictionaries(
    {}, optional={"terminate_notice": st.just("PT10M"), "windows": st.just(["sat 2:00 1h"])}
)
GROUP_KEYS = {
    "web": st.fixed_dictionaries({"kind": st.just("availability-set")}, optional={"auto_approve": st.just(["reboot"])}),
    "set": SET_POLICY.map(lambda keys: {"kind": "scale-set", **keys}),
    "batch": SET_POLICY.map(lambda keys: {"kind": "scale-set", **keys})
    | st.just({"kind": "scale-set", "eviction_policy": "deallocate"}),
    "y": st.just({"kind": "availability-set"}),
    "new": st.just({"kind": "scale-set"}),
    "set.3": st.just({"kind": "availability-set"}),
}
PARTS = st.fixed_dictionaries(
    {
        "group": st.fixed_dictionaries({}, optional=GROUP_KEYS),
        "host": st.fixed_dictionaries({}, optional={name: st.just({}) for name in ("A", "D", "y-host", "new-host")}),
        "vm": st.fixed_dictionaries({}, optional=VM_KEYS),
    }
).filter(lambda part: any(part.values()))


def with_runtime_state(fleet: Fleet, number: int) -> Fleet:
    """Return the fleet after some operations."""
    vms = []
    if number & 1:
        vms.append(moved(fleet.vm("x"), "C"))
    if number & 2:
        vms.append(fleet.vm("set_0")._replace(deallocated=True))
    hosts = [Host("B", HostState.FAILED), Host("spare-1", spare=True)] if number & 4 else []
    groups = []
    if number & 8:
        for name in ("web", "y"):
            group = fleet.group(name)
            groups.append(group.with_policy(group.policy._replace(auto_approve=("redeploy",)), group.policy))
    return fleet.changed_by(FleetChange(changed=tuple(vms), hosts=tuple(hosts), groups=tuple(groups)))


@settings(max_examples=amount(2000))
@given(part=PARTS, number=st.integers(0, 15))
def test_a_part_means_the_same_as_the_whole_file_with_it(part: Entries, number: int) -> None:
    before = with_runtime_state(FLEET, number)
    entries = merged(BASE, part)
    if number & 4:  # a part leaves a spare host, a whole file removes it
        entries["host"] = {**entries["host"], "spare-1": {}}
    whole, problem = outcome(lambda: apply_declared(parse_fleet(text_of(entries), ""), before, set(), 7))
    found, found_problem = outcome(lambda: add(part, before))
    assert bool(problem) is bool(found_problem), problem or found_problem
    if whole is not None and number & 4:
        whole = FleetPlan(
            before, whole.after.changed_by(FleetChange(hosts=(Host("spare-1", spare=True),))), whole.change
        )
        whole = whole._replace(
            change=whole.change._replace(hosts=tuple(h for h in whole.change.hosts if h.name != "spare-1"))
        )
    if whole is not None:
        assert content(found.after) == content(whole.after)
        assert content(found.after) == content(
            Fleet(found.after.vms.values(), found.after.groups.values(), found.after.hosts.values())
        )
        assert changes(found.change) == changes(whole.change)


def test_an_entry_replaces_what_an_earlier_file_said() -> None:
    after = add({"vm": {"x": {"host": "A"}}}).after
    assert (after.vm("x").address, after.at_address("10.0.0.1")) == ("", None)


def test_a_part_that_changes_nothing_is_no_change() -> None:
    assert not add({"group": BASE["group"], "host": BASE["host"], "vm": BASE["vm"]}).change


def test_vms_without_domains_get_the_next_in_turn_or_those_of_their_host() -> None:
    part: Entries = {
        "vm": {name: {"group": "web", "host": host} for name, host in (("n-0", "A"), ("n-1", "C"), ("n-2", "C"))}
    }
    after = add(part).after
    domains = {name: (after.vm(name).update_domain, after.vm(name).fault_domain) for name in part["vm"]}
    assert domains == {"n-0": (0, 0), "n-1": (2, 0), "n-2": (2, 0)}, "the group has two VMs"


def test_a_vm_keeps_its_domains_while_it_stays_on_its_host() -> None:
    after = add({"vm": {"web-1": {"group": "web", "host": "B", "size": "large"}}}).after
    assert (after.vm("web-1").update_domain, after.vm("web-1").size) == (1, "large")


def test_a_new_instance_gets_the_first_placement_group_with_a_free_place() -> None:
    full: Entries = {"vm": {f"set_{number}": {"group": "set"} for number in range(1, 101)}}
    before = add(full).after
    assert before.vm("set_100").placement_group == 2
    assert add({"vm": {"set_101": {"group": "set"}}}, before).after.vm("set_101").placement_group == 2


def test_a_moved_vm_stays_unless_the_file_names_another_host() -> None:
    before = with_runtime_state(FLEET, 1)
    assert add({"vm": {"x": {"host": "A", "size": "large"}}}, before).after.vm("x").host == "C"
    assert add({"vm": {"x": {"host": "B"}}}, before).after.vm("x").host == "B"


def test_a_moved_vm_returns_if_another_domain_of_its_new_group_is_there() -> None:
    both = tuple(moved(FLEET.vm(name), "C") for name in ("x", "web-1"))
    before = FLEET.changed_by(FleetChange(changed=both))
    after = add({"vm": {"x": {"host": "A", "group": "web", "update_domain": 0, "fault_domain": 0}}}, before).after
    assert (after.vm("x").host, after.vm("web-1").host) == ("A", "C")


def test_the_policy_of_a_vm_without_a_group_stays_while_the_file_has_the_same() -> None:
    before = with_runtime_state(FLEET, 8)
    assert add({"vm": {"y": {"size": "large"}}}, before).after.group("y").auto_approve == ("redeploy",)
    plan = add({"vm": {"y": {"auto_approve": ["reboot"]}}}, before)
    assert (plan.after.group("y").auto_approve, plan.change.groups_removed) == (("reboot",), ("y",))


# --- What only a part can do wrong ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "problem"),
    [
        ({"vm": {"z": {"address": "10.0.0.1"}}}, "'10.0.0.1' is already used by vm \"x\" of the fleet"),
        ({"vm": {"z": {"listen": "127.0.0.1:9001"}}}, 'already used by vm "web-1" of the fleet'),
        ({"vm": {"z": {"host": "D"}}}, "No [[host]] is named 'D'"),
        ({"vm": {"z": {"group": "nope"}}}, "No [[group]] is named 'nope'"),
        ({"vm": {"z": {"group": "one"}}}, "Standalone group 'one' already has its VM \"alone\""),
        ({"vm": {"z": {"group": "web", "host": "A", "update_domain": 3}}}, "already holds update domain 0"),
        ({"vm": {"web": {}}}, "'web' is also the name of a group"),
        ({"vm": {"set.2": {}}}, "'set.2' is the name of a placement group of 'set'"),
        ({"group": {"y": {"kind": "availability-set"}}}, "'y' is also the name of a VM"),
        ({"host": {"y-host": {}}}, "'y-host' is the own host of VM 'y'"),
        ({"group": {"web": {"kind": "scale-set"}}}, "The group has kind = 'availability-set'"),
        ({"group": {"web": {"kind": "availability-set", "update_domains": 2}}}, "The group has update_domains = 5"),
        ({"group": {"batch": {"kind": "scale-set", "terminate_notice": "PT5M"}}}, "Spot VM"),
        ({"group": {"set": {"kind": "scale-set", "eviction_policy": "delete"}}}, "Only Spot VMs are evicted"),
        ({}, "The file has nothing to add"),
    ],
)  # fmt: skip
def test_mistakes_against_the_rest_of_the_fleet_are_reported(part: Entries, problem: str) -> None:
    with pytest.raises(ForewarnError, match=re.escape(problem)):
        add(part)


def test_a_scale_set_cannot_take_the_scope_names_of_others() -> None:
    before = add({"vm": {"late.2": {}}}).after
    with pytest.raises(BadFleet, match=r"would have the name of 'late\.2'"):
        add({"group": {"late": {"kind": "scale-set"}}}, before)


def test_a_part_has_a_maximum_size() -> None:
    text = '[[vm]]\nname = "many-{n}"\ncount = '
    assert len(parse_part(f"{text}{MAX_PART_ITEMS}", "", FLEET).vms) == MAX_PART_ITEMS
    for count in (MAX_PART_ITEMS + 1, 900_000):
        with pytest.raises(BadFleet, match=f"at most {MAX_PART_ITEMS} VMs, groups and hosts"):
            parse_part(f"{text}{count}", "", FLEET)


# --- Removing -------------------------------------------------------------------------------------------


def remove(before: Fleet = FLEET, destinations: Iterable[str] = (), **names: tuple[str, ...]) -> FleetPlan:
    return plan_removal(FleetNames(**names), before, {*destinations})


@pytest.mark.parametrize("number", range(16))
def test_removing_means_the_same_as_the_whole_file_without_them(number: int) -> None:
    before = with_runtime_state(FLEET, number & ~4)
    entries = without(without(BASE, "vm", "x", "y", "gpu_0"), "group", "gpu")
    whole = apply_declared(parse_fleet(text_of(entries), ""), before, set(), 7)
    found = remove(before, vms=("x", "y", "gpu_0"), groups=("gpu",))
    assert content(found.after) == content(whole.after)
    assert changes(found.change) == changes(whole.change)


@pytest.mark.parametrize(
    ("names", "error", "problem"),
    [
        ({}, NothingToRemove, "names nothing"),
        ({"vms": ("z",)}, UnknownVM, "Unknown VM 'z'"),
        ({"groups": ("webb",)}, UnknownResource, "Unknown group 'webb'. Did you mean 'web'?"),
        ({"hosts": ("Z",)}, UnknownHost, "Unknown host 'Z'"),
        ({"hosts": ("A",)}, StillInUse, "The host A cannot be removed, because it still has x, web-0. Move or"),
        ({"hosts": ("A",), "vms": ("x",)}, StillInUse, "it still has web-0"),
        ({"hosts": ("y-host",)}, StillInUse, "it still has y"),
        ({"groups": ("web",), "vms": ("web-1",)}, StillInUse, "The group web cannot be removed, because it still"),
        ({"groups": ("y",)}, StillInUse, "it still has y"),
        ({"hosts": ("C",)}, StillInUse, "VMs are being moved to it"),
    ],
)  # fmt: skip
def test_what_is_in_use_or_unknown_is_not_removed(names: Any, error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=re.escape(problem)):
        remove(destinations=["C"], **names)


def test_a_host_and_a_group_leave_with_their_vms() -> None:
    plan = remove(hosts=("A",), vms=("x", "web-0", "web-1"), groups=("web",))
    assert (plan.change.hosts_removed, plan.change.groups_removed) == (("A",), ("web",))
    assert plan.change.vacated == {"x", "web"}
