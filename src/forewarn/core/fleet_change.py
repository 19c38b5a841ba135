"""What lies between two fleets, and what of the one outlives the coming of the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.fleet import Fleet, HostState

if TYPE_CHECKING:
    from collections.abc import Set

    from forewarn.core.fleet import VM, Group, Host


class FleetChange(NamedTuple):
    """What lies between two fleets. Changed things are listed as they are afterwards."""

    added: tuple[VM, ...] = ()
    changed: tuple[VM, ...] = ()
    removed: tuple[VM, ...] = ()
    groups: tuple[Group, ...] = ()
    groups_removed: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()
    hosts_removed: tuple[str, ...] = ()
    leaving: frozenset[str] = frozenset()
    """VMs that are removed, or come to be in another group."""
    vacated: frozenset[str] = frozenset()
    """Groups that have no VM any more."""
    in_place: bool = False
    """Nobody comes, goes or is called otherwise: only where VMs are, and what state they and hosts are in."""

    def __bool__(self) -> bool:
        return any(self)


def difference(before: Fleet, after: Fleet) -> FleetChange:
    """What must be done to `before` to have `after`."""
    changed = tuple(vm for name, vm in after.vms.items() if name in before.vms and before.vms[name] != vm)
    removed = tuple(vm for name, vm in before.vms.items() if name not in after.vms)
    groups_removed = tuple(name for name in before.groups if name not in after.groups)
    leaving = {vm.name for vm in removed} | {vm.name for vm in changed if before.vms[vm.name].group != vm.group}
    left = {before.vms[name].group for name in leaving} | {*groups_removed}
    return FleetChange(
        added=tuple(vm for name, vm in after.vms.items() if name not in before.vms),
        changed=changed,
        removed=removed,
        groups=tuple(group for name, group in after.groups.items() if before.groups.get(name) != group),
        groups_removed=groups_removed,
        hosts=tuple(host for name, host in after.hosts.items() if before.hosts.get(name) != host),
        hosts_removed=tuple(name for name in before.hosts if name not in after.hosts),
        leaving=frozenset(leaving),
        vacated=frozenset(group for group in left if not after.members(group)),
    )


def renew(before: Fleet, declared: Fleet, destinations: Set[str]) -> tuple[Fleet, FleetChange]:
    """The fleet after a file has been applied, and what that changes."""
    after = keep_what_happened(before, declared, destinations)
    return after, difference(before, after)


def keep_what_happened(before: Fleet, declared: Fleet, destinations: Set[str] = frozenset()) -> Fleet:
    """The fleet that a file declares, with what has happened to its VMs and hosts since they were last declared.

    A VM that was moved stays where it is unless the file now says another host than before, or the place is not
    free for its domains any more. A spare host stays while VMs are on it, or on their way. What is deallocated
    stays so, and what is out of use stays out of use.
    """
    moved = _still_moved(before, declared)
    kept: list[VM] = []
    for name, vm in declared.vms.items():
        known = before.vms.get(name)
        if known is not None and name in moved:
            kept.append(vm._replace(deallocated=known.deallocated, host=known.host, home=known.home))
        elif known is not None and known.deallocated:
            kept.append(vm._replace(deallocated=True))
    in_place = {vm.host for vm in kept} | destinations
    hosts = []
    for name, host in before.hosts.items():
        if name in declared.hosts:
            if host.state is not HostState.IN_USE:
                hosts.append(host._replace(spare=False))
        elif name in in_place or (host.state is not HostState.IN_USE and _is_own_host(declared, name)):
            hosts.append(host)
    if not kept and not hosts:
        return declared
    return declared.changed_by(FleetChange(changed=tuple(kept), hosts=tuple(hosts)))


def _is_own_host(fleet: Fleet, name: str) -> bool:
    return name not in fleet.hosts and any(vm.host == name for vm in fleet.vms.values())


def _still_moved(before: Fleet, declared: Fleet) -> set[str]:
    """The VMs that stay where they were moved: their file says the same host as before, and their domains fit there."""
    moved = {
        name: None  # in their order, so that the same of them go home each time
        for name, vm in declared.vms.items()
        if (known := before.vms.get(name)) is not None and known.home and known.home == vm.host
    }
    while moved:
        taken: dict[tuple[str, str], tuple[int, int]] = {}
        for name, vm in declared.vms.items():
            if name not in moved:
                taken[vm.host, vm.group] = (vm.update_domain, vm.fault_domain)
        in_the_way = set()
        for name in moved:
            vm = declared.vms[name]
            domains = (vm.update_domain, vm.fault_domain)
            if taken.setdefault((before.vms[name].host, vm.group), domains) != domains:
                in_the_way.add(name)
        if not in_the_way:
            break
        # They go home, where others may now be in the way.
        moved = {name: None for name in moved if name not in in_the_way}
    return set(moved)
