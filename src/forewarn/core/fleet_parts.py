"""Changes of a part of the fleet: VMs, hosts and groups are added, changed or removed. The rest stays as it is.

The work is proportional to the part, not to the fleet. Only the fleet's own copy of its dictionaries is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.fleet import (
    Fleet,
    FleetChange,
    FleetPlan,
    GroupKind,
    check_no_spot,
    keep_group_state,
    keep_policy,
    keep_vm_state,
    placement_groups,
    still_moved,
    with_leaving,
)
from forewarn.core.placement import UNPLACED, spread_domains
from forewarn.core.waits import first_names
from forewarn.errors import NothingToRemove, StillInUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence, Set

    from forewarn.core.fleet import VM, Group, Host

MAX_PART_ITEMS = 2000
"""Maximum number of VMs, groups and hosts in one change of a part of the fleet."""


class FleetPart(NamedTuple):
    """VMs, groups and hosts as a file declares them. Domains that it does not name are UNPLACED."""

    vms: Sequence[VM]
    groups: Mapping[str, Group]
    hosts: Mapping[str, Host]
    host_choices: Mapping[str, tuple[str, ...]]


class FleetNames(NamedTuple):
    """VMs, groups and hosts to remove."""

    vms: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


# --- Adding and changing --------------------------------------------------------------------------


def plan_part(part: FleetPart, before: Fleet, sequence: int) -> FleetPlan:
    """Plan to add or change a part of the fleet. An entry replaces the declaration of its VM, group or host.

    What happened to these since stays, as with a whole file. `sequence`: the newest row of history.
    """
    vms = _vms(part, before, sequence)
    groups_of = {vm.name: vm.group for vm in vms}
    groups = [_group(before, group, groups_of, sequence) for group in part.groups.values()]
    hosts = (host._replace(state=before.host_state(name)) for name, host in part.hosts.items())
    change = FleetChange(
        added=tuple(vm for vm in vms if vm.name not in before.vms),
        changed=tuple(vm for vm in vms if vm.name in before.vms and before.vms[vm.name] != vm),
        groups=tuple(group for group in groups if before.groups.get(group.name) != group),
        groups_removed=tuple(vm.name for vm in vms if not _keeps_own_policy(part, before, vm)),
        hosts=tuple(host for host in hosts if before.hosts.get(host.name) != host),
    )
    after = before.changed_by(change)
    after.host_choices = part.host_choices
    for group in change.groups:
        if group.terminate_notice is not None:
            check_no_spot(after, group)
    return FleetPlan(before, after, with_leaving(change, before, after))


def _group(before: Fleet, declared: Group, groups_of: Mapping[str, str], sequence: int) -> Group:
    """Return a group with its runtime state. `groups_of`: the groups of the VMs in the part."""
    known, name = before.groups.get(declared.name), declared.name
    group = (keep_policy(known, declared) if known is not None else None) or declared
    is_own = groups_of[name] == name if name in groups_of else before.standalone(name) is not None
    if is_own and group.kind == GroupKind.STANDALONE:
        return group  # its VM has the generation
    return keep_group_state(before, group, sequence)


def _vms(part: FleetPart, before: Fleet, sequence: int) -> list[VM]:
    """Return the VMs with their domains, placement groups and runtime state."""
    replaced = {vm.name for vm in part.vms}
    groups = {
        vm.group: group
        for vm in part.vms
        if (group := part.groups.get(vm.group) or before.groups.get(vm.group)) is not None
    }
    members = {name: len(before.members(name)) for name in groups}
    vms = spread_domains([_with_known_domains(vm, before, replaced) for vm in part.vms], groups, members)
    near = Fleet([*_neighbours(vms, before, groups, replaced), *vms], groups.values())
    moved, numbers = still_moved(before, near), placement_groups(before, near)
    found = []
    for vm in vms:
        alone = vm.group == vm.name and (vm.group not in groups or groups[vm.group].kind == GroupKind.STANDALONE)
        found.append(keep_vm_state(before, vm, numbers.get(vm.name), vm.name in moved, alone, sequence))
    return found


def _with_known_domains(vm: VM, before: Fleet, replaced: Set[str]) -> VM:
    """Return the VM with the domains that it has, or those that its group has on this host, unless they are given."""
    if UNPLACED not in (vm.update_domain, vm.fault_domain):
        return vm
    known = before.vms.get(vm.name)
    if known is not None and known.group == vm.group and vm.host in (known.host, known.configured_host):
        like: VM | None = known
    else:
        there = before.on_host(vm.host) if vm.host in before.hosts else ()
        tenants = (before.vms[name] for name in there if name not in replaced)
        like = next((tenant for tenant in tenants if tenant.group == vm.group), None)
    if like is None:
        return vm
    return vm._replace(
        update_domain=like.update_domain if vm.update_domain == UNPLACED else vm.update_domain,
        fault_domain=like.fault_domain if vm.fault_domain == UNPLACED else vm.fault_domain,
    )


def _neighbours(vms: Iterable[VM], before: Fleet, groups: Mapping[str, Group], replaced: Set[str]) -> Iterable[VM]:
    """Return the other VMs that decide about these: of their scale sets, and on the hosts to which they were moved."""
    names: dict[str, None] = {}
    for name, group in groups.items():
        if group.kind == GroupKind.SCALE_SET:
            names.update(dict.fromkeys(before.members(name)))
    for vm in vms:
        known = before.vms.get(vm.name)
        if known is not None and known.configured_host and known.configured_host == vm.host:
            names.update(dict.fromkeys(before.on_host(known.host)))
    return [before.vms[name] for name in names if name not in replaced]


def _keeps_own_policy(part: FleetPart, before: Fleet, vm: VM) -> bool:
    """Return whether the policy of a VM without a group stays, if one was set at run time.

    It ends if the file has another policy than before, or puts the VM into a group.
    """
    if vm.name in part.groups or vm.name not in before.groups or before.standalone(vm.name) is None:
        return True
    return vm.group == vm.name and _own_policy(vm) == _own_policy(before.vms[vm.name])


def _own_policy(vm: VM) -> tuple[object, ...]:
    return vm.auto_approve, vm.terminate_notice, vm.approve_when_down


# --- Removing -------------------------------------------------------------------------------------


def plan_removal(names: FleetNames, before: Fleet, destinations: Set[str]) -> FleetPlan:
    """Plan to remove VMs, groups and hosts. `destinations`: the hosts to which VMs are being moved."""
    if not any(names):
        raise NothingToRemove
    vms = {name: before.vm(name) for name in names.vms}
    for name in names.groups:
        before.known_group(name)
        _check_empty("group", name, before.members(name), vms)
    for name in names.hosts:
        before.host(name)
        _check_empty("host", name, before.on_host(name), vms)
        if name in destinations:
            raise StillInUse(what="host", name=name, problem="VMs are being moved to it", remedy="Wait for them")
    policies = (name for name in vms if name in before.groups and before.standalone(name) is not None)
    change = FleetChange(
        removed=tuple(vms.values()),
        groups_removed=tuple(name for name in dict.fromkeys((*names.groups, *policies)) if name in before.groups),
        hosts_removed=tuple(name for name in dict.fromkeys(names.hosts) if name in before.hosts),
    )
    after = before.changed_by(change)
    return FleetPlan(before, after, with_leaving(change, before, after))


def _check_empty(what: str, name: str, vms: Iterable[str], removed: Mapping[str, VM]) -> None:
    staying = [vm for vm in vms if vm not in removed]
    if staying:
        problem = f"it still has {first_names(staying)}"
        raise StillInUse(what=what, name=name, problem=problem, remedy="Move or remove its VMs first")
