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
    """The delivery scopes of docs/explanation/contract.md, section 5."""

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
    """Notice of deletions in a scale set; None: deletions have no notice."""
    windows: tuple[Window, ...] = ()
    """When routine platform operations may start; none: at any time."""
    os_image_notice: timedelta | None = None
    """Notice of reimages and image upgrades in a scale set; None: they have no notice."""


class HostState(StrEnum):
    """State of a host. A host that is out of service keeps its VMs, but gets no new ones."""

    IN_SERVICE = "in-service"
    DEGRADED = "degraded"
    FAILED = "failed"


class Host(NamedTuple):
    """A physical node. What happens to it affects all VMs on it."""

    name: str
    state: HostState = HostState.IN_SERVICE
    spare: bool = False
    """Not in the fleet file: added because no other host could take a VM."""


class VM(NamedTuple):
    """A virtual machine."""

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
    configured_host: str = ""
    """The host in the fleet file, if the VM has been moved to another since."""


_Named = TypeVar("_Named", VM, Group, Host)


class Fleet:
    """All VMs, groups and hosts, with indexes. Immutable once published: a change creates a new fleet."""

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
        """Return the VM of that name. The error for an unknown name suggests the most similar one."""
        found = self.vms.get(name)
        if found is None:
            raise UnknownVM(name=name, hint=nearest(name, self.vms))
        return found

    def at_address(self, address: str) -> VM | None:
        """Return the VM with this source address."""
        return self._by_address.get(address)

    def group(self, name: str) -> Group:
        """Return the group of that name: a declared one, or the implicit group of a standalone VM."""
        found = self.groups.get(name)
        if found is not None:
            return found
        return Group(name, GroupKind.STANDALONE, auto_approve=self.vm(name).auto_approve)

    def known_group(self, name: str) -> Group:
        """Return the group of a name from user input. The error for an unknown name suggests the most similar one."""
        if name not in self.groups and not self.members(name):
            raise UnknownResource(what="group", name=name, hint=nearest(name, [*self.groups, *self.vms]))
        return self.group(name)

    def members(self, group: str) -> tuple[str, ...]:
        """Names of the VMs in a group."""
        if group in self.groups:
            return tuple(self._members.get(group, ()))
        return (group,) if group in self.vms else ()

    def host(self, name: str) -> Host:
        """Return the host of that name: a declared one, or the implicit host of a VM."""
        found = self.hosts.get(name)
        if found is not None:
            return found
        if self._tenant(name) is None:
            raise UnknownHost(name=name, hint=nearest(name, self.host_names()))
        return Host(name)

    def has_host(self, name: str) -> bool:
        return name in self.hosts or self._tenant(name) is not None

    def host_names(self) -> list[str]:
        """Names of all hosts, declared and implicit."""
        own = (vm.host for vm in self.vms.values() if vm.host not in self.hosts)
        return [*self.hosts, *own]

    def on_host(self, name: str) -> tuple[str, ...]:
        """Names of the VMs on a host."""
        if name in self.hosts:
            return tuple(self._on_host.get(name, ()))
        tenant = self._tenant(name)
        if tenant is None:
            raise UnknownHost(name=name, hint=nearest(name, self.host_names()))
        return (tenant.name,)

    def _tenant(self, host: str) -> VM | None:
        """Return the VM whose implicit host this is."""
        vm = self.vms.get(host.removesuffix(OWN_HOST_SUFFIX))
        return vm if vm is not None and vm.host == host else None

    def domains_on(self, host: str) -> dict[str, frozenset[int]]:
        """The update domains on this host by declared group, normally one for each. Cached."""
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
        """Declared hosts in service, those with the fewest VMs first. Built on first use."""
        if self._by_load is None:
            in_service = (host.name for host in self.hosts.values() if host.state is HostState.IN_SERVICE)
            self._by_load = sorted((len(self._on_host.get(name, ())), name) for name in in_service)
        return self._by_load

    def at_listener(self, address: str) -> VM | None:
        """Return the VM that has this listen address."""
        return self._by_listen.get(address)

    def listeners(self) -> Iterable[str]:
        """Listen addresses that identify one VM each."""
        return self._by_listen.keys()

    def changed_by(self, change: FleetChange) -> Fleet:
        """Return a changed copy of this fleet. Copying is faster than building a new one."""
        after = copy(self)
        for name in ("vms", "groups", "hosts", "_by_address", "_by_listen", "_members", "_on_host"):
            setattr(after, name, getattr(self, name).copy())
        after.alter(change)
        return after

    def alter(self, change: FleetChange) -> None:
        """Change this fleet in place. Only for a copy that is not published yet."""
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
        self._rebuild_index(self._members, self.groups, "group", before, after.values(), members, change.groups_removed)
        tenants = {host.name: host.name.removesuffix(OWN_HOST_SUFFIX) for host in change.hosts}
        self._rebuild_index(self._on_host, self.hosts, "host", before, after.values(), tenants, change.hosts_removed)

    def _rebuild_index(
        self,
        lists: dict[str, list[str]],
        declared: Mapping[str, object],
        field: str,
        before: Iterable[VM],
        after: Iterable[VM],
        alone: Mapping[str, str],
        undeclared: Iterable[str],
    ) -> None:
        """Update the VMs by group or host. `alone`: newly declared names, each with the VM that had it implicitly."""
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
"""Suffix of the name of a VM's implicit host."""


def own_host(vm_name: str) -> str:
    """Return the name of the implicit host of a VM."""
    return vm_name + OWN_HOST_SUFFIX


def _renew(found: dict[str, _Named], gone: Iterable[str], renewed: Iterable[_Named]) -> None:
    for name in gone:
        found.pop(name, None)
    found.update((thing.name, thing) for thing in renewed)


# --- The difference between two fleets ------------------------------------------------------------


class FleetChange(NamedTuple):
    """The difference between two fleets. Changed items are listed with their new values."""

    added: tuple[VM, ...] = ()
    changed: tuple[VM, ...] = ()
    removed: tuple[VM, ...] = ()
    groups: tuple[Group, ...] = ()
    groups_removed: tuple[str, ...] = ()
    hosts: tuple[Host, ...] = ()
    hosts_removed: tuple[str, ...] = ()
    leaving: frozenset[str] = frozenset()
    """VMs that are removed or change their group."""
    vacated: frozenset[str] = frozenset()
    """Groups that no longer have a VM."""
    in_place: bool = False
    """True if only placements and states change, not names, addresses or groups."""

    def __bool__(self) -> bool:
        return any(self)


def difference(before: Fleet, after: Fleet) -> FleetChange:
    """Return the change that turns `before` into `after`."""
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
    """Return the fleet after a file is applied, and the difference."""
    after = keep_runtime_state(before, declared, destinations)
    return after, difference(before, after)


def keep_runtime_state(before: Fleet, declared: Fleet, destinations: Set[str] = frozenset()) -> Fleet:
    """Return the declared fleet with the runtime state of its VMs and hosts.

    A moved VM stays on its host, unless the file names another host than before or its domains conflict there.
    A spare host stays while VMs are on it or on their way to it. Deallocated VMs stay deallocated, and hosts that are
    out of service stay so.
    """
    moved = _still_moved(before, declared)
    kept: list[VM] = []
    for name, vm in declared.vms.items():
        known = before.vms.get(name)
        if known is not None and name in moved:
            kept.append(
                vm._replace(deallocated=known.deallocated, host=known.host, configured_host=known.configured_host)
            )
        elif known is not None and known.deallocated:
            kept.append(vm._replace(deallocated=True))
    in_place = {vm.host for vm in kept} | destinations
    hosts = []
    for name, host in before.hosts.items():
        if name in declared.hosts:
            if host.state is not HostState.IN_SERVICE:
                hosts.append(host._replace(spare=False))
        elif name in in_place or (host.state is not HostState.IN_SERVICE and _is_own_host(declared, name)):
            hosts.append(host)
    if not kept and not hosts:
        return declared
    return declared.changed_by(FleetChange(changed=tuple(kept), hosts=tuple(hosts)))


def _is_own_host(fleet: Fleet, name: str) -> bool:
    return name not in fleet.hosts and any(vm.host == name for vm in fleet.vms.values())


def _still_moved(before: Fleet, declared: Fleet) -> set[str]:
    """VMs that stay where they were moved: their host in the file is unchanged, and their domains still fit."""
    moved = {
        name: None  # ordered, so that the result is deterministic
        for name, vm in declared.vms.items()
        if (known := before.vms.get(name)) is not None and known.configured_host and known.configured_host == vm.host
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
        # They return to their configured host, which may create new conflicts.
        moved = {name: None for name in moved if name not in in_the_way}
    return set(moved)
