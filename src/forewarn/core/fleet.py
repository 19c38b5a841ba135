"""VMs, groups and hosts, and the difference between two fleets."""

from __future__ import annotations

from copy import copy
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from forewarn.core.windows import Window
from forewarn.errors import UnknownHost, UnknownResource, UnknownVM, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Set


class GroupKind(StrEnum):
    """The delivery scopes of docs/contract.md, section 5."""

    STANDALONE = "standalone"
    CLOUD_SERVICE = "cloud-service"
    AVAILABILITY_SET = "availability-set"
    SCALE_SET = "scale-set"


class Group(NamedTuple):
    """A delivery scope: its VMs share one document."""

    name: str
    kind: str
    update_domains: int = 1
    fault_domains: int = 1
    auto_approve: tuple[str, ...] = ()
    terminate_notice: timedelta | None = None
    """How long beforehand a scale set is told of a deletion; None: it is not told."""
    windows: tuple[Window, ...] = ()
    """When routine operations of the platform may start; none: at any time."""


class HostState(StrEnum):
    """Whether a host can be used. VMs may stay on one that is out of use; none is put there."""

    IN_USE = "in-use"
    DEGRADED = "degraded"
    FAILED = "failed"


class Host(NamedTuple):
    """A physical node: what happens to it happens to the VMs on it."""

    name: str
    state: HostState = HostState.IN_USE
    spare: bool = False
    """Not in the fleet file: it was added because no other host fitted."""


class VM(NamedTuple):
    """One machine that can be told."""

    name: str
    group: str
    host: str
    update_domain: int = 0
    fault_domain: int = 0
    address: str = ""
    listen: str = ""
    hostname: str = ""
    priority: str = "regular"
    size: str = ""
    zone: str = ""
    tags: tuple[tuple[str, str], ...] = ()
    auto_approve: tuple[str, ...] = ()
    deallocated: bool = False
    home: str = ""
    """The host that the fleet file says, where the VM has since been moved to another."""


_Named = TypeVar("_Named", VM, Group, Host)


class Fleet:
    """All VMs, groups and hosts, with the ways to find them. Never changed once others can see it, only replaced."""

    __slots__ = ("_by_address", "_by_listen", "_by_load", "_domains", "_members", "_on_host", "groups", "hosts", "vms")

    def __init__(
        self,
        vms: Iterable[VM] = (),
        groups: Iterable[Group] = (),
        hosts: Iterable[Host] = (),
    ) -> None:
        self.vms: dict[str, VM] = {vm.name: vm for vm in vms}
        self.groups: dict[str, Group] = {group.name: group for group in groups}
        self.hosts: dict[str, Host] = {host.name: host for host in hosts}
        self._by_address = {vm.address: vm for vm in self.vms.values() if vm.address}
        self._by_listen = {vm.listen: vm for vm in self.vms.values() if vm.listen}
        self._domains: dict[str, dict[str, frozenset[int]]] = {}
        self._by_load: list[tuple[int, str]] | None = None
        self._members: dict[str, list[str]] = {}
        self._on_host: dict[str, list[str]] = {}
        for vm in self.vms.values():
            if vm.group in self.groups:
                self._members.setdefault(vm.group, []).append(vm.name)
            if vm.host in self.hosts:
                self._on_host.setdefault(vm.host, []).append(vm.name)

    def vm(self, name: str) -> VM:
        """The VM of that name, or an error with the nearest known one."""
        found = self.vms.get(name)
        if found is None:
            raise UnknownVM(name=name, hint=nearest(name, self.vms))
        return found

    def at_address(self, address: str) -> VM | None:
        """Who calls from there."""
        return self._by_address.get(address)

    def group(self, name: str) -> Group:
        """The group of that name: a declared one, or the scope of a standalone VM."""
        found = self.groups.get(name)
        if found is not None:
            return found
        return Group(name, GroupKind.STANDALONE, auto_approve=self.vm(name).auto_approve)

    def known_group(self, name: str) -> Group:
        """The same for a name that somebody has typed: an error that names the nearest, if there is no such group."""
        if name not in self.groups and not self.members(name):
            raise UnknownResource(what="group", name=name, hint=nearest(name, [*self.groups, *self.vms]))
        return self.group(name)

    def members(self, group: str) -> tuple[str, ...]:
        """The VMs that hear what this group is told."""
        if group in self.groups:
            return tuple(self._members.get(group, ()))
        return (group,) if group in self.vms else ()

    def host(self, name: str) -> Host:
        """The host of that name: a declared one, or a VM's own."""
        found = self.hosts.get(name)
        if found is not None:
            return found
        if self._tenant(name) is None:
            raise UnknownHost(name=name, hint=nearest(name, self.host_names()))
        return Host(name)

    def has_host(self, name: str) -> bool:
        return name in self.hosts or self._tenant(name) is not None

    def host_names(self) -> list[str]:
        """All hosts, declared or a VM's own."""
        own = (vm.host for vm in self.vms.values() if vm.host not in self.hosts)
        return [*self.hosts, *own]

    def on_host(self, name: str) -> tuple[str, ...]:
        """The VMs on a host."""
        if name in self.hosts:
            return tuple(self._on_host.get(name, ()))
        tenant = self._tenant(name)
        if tenant is None:
            raise UnknownHost(name=name, hint=nearest(name, self.host_names()))
        return (tenant.name,)

    def _tenant(self, host: str) -> VM | None:
        """The VM that has this host, which is not declared, for its own."""
        vm = self.vms.get(host.removesuffix(OWN_HOST_SUFFIX))
        return vm if vm is not None and vm.host == host else None

    def domains_on(self, host: str) -> dict[str, frozenset[int]]:
        """What of each declared group goes out with this host: its update domains, by rights one. Remembered."""
        found = self._domains.get(host)
        if found is None:
            found = {}
            for name in self.on_host(host):
                vm = self.vms[name]
                if vm.group in self.groups:
                    found[vm.group] = found.get(vm.group, frozenset()) | {vm.update_domain}
            self._domains[host] = found
        return found

    def hosts_by_load(self) -> list[tuple[int, str]]:
        """The declared hosts that are in use, those with the fewest VMs first. Made when first asked for."""
        if self._by_load is None:
            in_use = (host.name for host in self.hosts.values() if host.state is HostState.IN_USE)
            self._by_load = sorted((len(self._on_host.get(name, ())), name) for name in in_use)
        return self._by_load

    def at_listener(self, address: str) -> VM | None:
        """Whom an address of its own always means."""
        return self._by_listen.get(address)

    def listeners(self) -> Iterable[str]:
        """Addresses that always mean one VM."""
        return self._by_listen.keys()

    def changed_by(self, change: FleetChange) -> Fleet:
        """This fleet after a change of a few VMs, groups or hosts: it is copied, not built anew."""
        after = copy(self)
        for name in ("vms", "groups", "hosts", "_by_address", "_by_listen", "_members", "_on_host"):
            setattr(after, name, getattr(self, name).copy())
        after.alter(change)
        return after

    def alter(self, change: FleetChange) -> None:
        """Change this very fleet: only for a copy that nobody else holds yet."""
        self._by_load, self._domains = None, {}
        after = {vm.name: vm for vm in (*change.changed, *change.added)}
        gone = [vm.name for vm in change.removed]
        before = [self.vms[name] for name in (*after, *gone) if name in self.vms]
        _renew(self.groups, change.groups_removed, change.groups)
        _renew(self.hosts, change.hosts_removed, change.hosts)
        _renew(self.vms, gone, after.values())
        for index, field in ((self._by_address, "address"), (self._by_listen, "listen")):
            for vm in before:
                index.pop(getattr(vm, field), None)
            index.update((getattr(vm, field), vm) for vm in after.values() if getattr(vm, field))
        members = {group.name: group.name for group in change.groups}
        self._list_anew(self._members, self.groups, "group", before, after.values(), members, change.groups_removed)
        tenants = {host.name: host.name.removesuffix(OWN_HOST_SUFFIX) for host in change.hosts}
        self._list_anew(self._on_host, self.hosts, "host", before, after.values(), tenants, change.hosts_removed)

    def _list_anew(
        self,
        lists: dict[str, list[str]],
        declared: Mapping[str, object],
        field: str,
        before: Iterable[VM],
        after: Iterable[VM],
        alone: Mapping[str, str],
        undeclared: Iterable[str],
    ) -> None:
        """Bring the VMs by group or by host up to date. `alone`: what may be declared only now, each with the one VM
        that had it for its own."""
        touched: dict[str, dict[str, None]] = {}

        def names_of(name: str) -> dict[str, None]:
            if name not in touched:
                touched[name] = dict.fromkeys(lists.get(name, ()))
            return touched[name]

        for name, vm_name in alone.items():
            vm = self.vms.get(vm_name)
            if vm is not None and getattr(vm, field) == name:
                names_of(name)[vm_name] = None
        for vm in before:
            names_of(getattr(vm, field)).pop(vm.name, None)
        for vm in after:
            names_of(getattr(vm, field))[vm.name] = None
        for name in undeclared:
            lists.pop(name, None)
        lists.update((name, list(names)) for name, names in touched.items() if name in declared)


OWN_HOST_SUFFIX = "-host"
"""How the name of a VM's own host ends."""


def own_host(vm_name: str) -> str:
    """The name of the host that a VM without one is given."""
    return vm_name + OWN_HOST_SUFFIX


def _renew(found: dict[str, _Named], gone: Iterable[str], renewed: Iterable[_Named]) -> None:
    for name in gone:
        found.pop(name, None)
    found.update((thing.name, thing) for thing in renewed)


# --- The difference between two fleets ------------------------------------------------------------


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


def apply_declared(before: Fleet, declared: Fleet, destinations: Set[str]) -> tuple[Fleet, FleetChange]:
    """The fleet after a file has been applied, and what that changes."""
    after = keep_runtime_state(before, declared, destinations)
    return after, difference(before, after)


def keep_runtime_state(before: Fleet, declared: Fleet, destinations: Set[str] = frozenset()) -> Fleet:
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
