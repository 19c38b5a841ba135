"""VMs, groups and hosts: who hears of what, who lives at which address.

VM, Group and Host are tuples with names rather than dataclasses: a fleet of 100,000 is built from
the database in a fraction of the time and memory. A standalone VM's group and a VM's own host are
not stored: they follow from the VM.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import UnknownHost, UnknownVM, nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class GroupKind(StrEnum):
    """The delivery scopes of contract section 5."""

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


class Host(NamedTuple):
    """A physical node: what happens to it happens to the VMs on it."""

    name: str


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

    def __bool__(self) -> bool:
        return any(self)


class Fleet:
    """All VMs, groups and hosts, with the ways to find them. Never changed, only replaced."""

    __slots__ = ("_by_address", "_by_listen", "_members", "_on_host", "groups", "hosts", "vms")

    def __init__(
        self,
        vms: Iterable[VM] = (),
        groups: Iterable[Group] = (),
        hosts: Iterable[Host] = (),
    ) -> None:
        self.vms: Mapping[str, VM] = {vm.name: vm for vm in vms}
        self.groups: Mapping[str, Group] = {group.name: group for group in groups}
        self.hosts: Mapping[str, Host] = {host.name: host for host in hosts}
        self._by_address = {vm.address: vm for vm in self.vms.values() if vm.address}
        self._by_listen = {vm.listen: vm for vm in self.vms.values() if vm.listen}
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

    def members(self, group: str) -> tuple[str, ...]:
        """The VMs that hear what this group is told."""
        if group in self.groups:
            return tuple(self._members.get(group, ()))
        return (group,) if group in self.vms else ()

    def on_host(self, host: str) -> tuple[str, ...]:
        """The VMs on a host."""
        if host in self.hosts:
            return tuple(self._on_host.get(host, ()))
        alone = tuple(vm.name for vm in self.vms.values() if vm.host == host)
        if not alone:
            raise UnknownHost(name=host, hint=nearest(host, self.hosts))
        return alone

    def at_listener(self, address: str) -> VM | None:
        """Whom an address of its own always means."""
        return self._by_listen.get(address)

    def listeners(self) -> Iterable[str]:
        """Addresses that always mean one VM."""
        return self._by_listen.keys()


def own_host(vm_name: str) -> str:
    """The name of the host that a VM without one is given."""
    return f"{vm_name}-host"


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
