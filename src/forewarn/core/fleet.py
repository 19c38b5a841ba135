"""VMs, groups and hosts, and the difference between two fleets."""

from __future__ import annotations

from collections import Counter
from copy import copy
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from forewarn.core.windows import Window
from forewarn.errors import (
    PlacementGroupFixed,
    PlacementGroupFull,
    SpotTerminateNotice,
    UnknownHost,
    UnknownResource,
    UnknownVM,
    nearest,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Set


class GroupKind(StrEnum):
    """The kinds of groups (docs/explanation/contract.md, section 5)."""

    STANDALONE = "standalone"
    CLOUD_SERVICE = "cloud-service"
    AVAILABILITY_SET = "availability-set"
    SCALE_SET = "scale-set"


class SetMode(StrEnum):
    """How the instances of a scale set get their names."""

    UNIFORM = "uniform"
    """The name of the set and a number: web_0."""
    FLEXIBLE = "flexible"
    """The operator names them."""


class Visibility(StrEnum):
    """Which events a VM of a scale set sees."""

    GROUP = "group"
    """Those of all VMs in its placement group."""
    OWN = "own"
    """Its own only, like GPU sets with one fault domain."""


SPOT = "spot"
"""The priority of a VM that the platform can evict."""
DEALLOCATE, DELETE = EVICTION_POLICIES = ("deallocate", "delete")
"""What happens to an evicted VM. The first is the default."""
TERMINATE_NOTICE_KINDS = (GroupKind.SCALE_SET, GroupKind.STANDALONE)
"""Kinds of groups that can have a terminate notice."""


class GroupPolicy(NamedTuple):
    """The choices of a group's owner, which can also change at run time."""

    auto_approve: tuple[str, ...] = ()
    terminate_notice: timedelta | None = None
    windows: tuple[Window, ...] = ()
    os_image_notice: timedelta | None = None
    approve_when_down: bool = True


class Group(NamedTuple):
    """VMs with one owner and one policy. They share one document, or several: see `Fleet.scope_of`."""

    name: str
    kind: str
    update_domains: int = 1
    fault_domains: int = 1
    auto_approve: tuple[str, ...] = ()
    terminate_notice: timedelta | None = None
    """Notice of deletions in a scale set, or of a standalone VM; None: deletions have no notice."""
    windows: tuple[Window, ...] = ()
    """When routine platform operations may start; none: at any time."""
    mode: SetMode = SetMode.UNIFORM
    visibility: Visibility = Visibility.GROUP
    eviction_policy: str = ""
    """What happens to its evicted VMs, unless the VM has its own policy; empty: the default."""
    os_image_notice: timedelta | None = None
    """Notice of reimages and image upgrades in a scale set; None: they have no notice."""
    approve_when_down: bool = True
    """Whether events of a scope are approved automatically while all its VMs are deallocated."""
    file_policy: GroupPolicy | None = None
    """The policy in the fleet file, if it was changed at run time since; None: it was not."""
    generation: int = 0
    """See `Fleet.generation`."""

    @property
    def policy(self) -> GroupPolicy:
        return GroupPolicy(*(getattr(self, name) for name in GroupPolicy._fields))

    def with_policy(self, policy: GroupPolicy, file_policy: GroupPolicy) -> Group:
        """Return the group with another policy than in the file, or with the same."""
        return self._replace(**policy._asdict(), file_policy=None if policy == file_policy else file_policy)


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


OPERATING_SYSTEMS = ("linux", "windows")


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
    placement_group: int = 1
    """The number of its placement group in a scale set. Assigned once; 0: not assigned yet."""
    os: str = OPERATING_SYSTEMS[0]
    location: str = "local"
    user_data: str = ""
    """Text for the VM. It can be confidential: only the VM itself may read it."""
    custom_data: str = ""
    """Like user_data."""
    public_keys: tuple[str, ...] = ()
    terminate_notice: timedelta | None = None
    """Notice of its deletion, if it has no group."""
    eviction_policy: str = ""
    """What happens when it is evicted; empty: the policy of its group."""
    approve_when_down: bool = True
    """Whether its events are approved automatically while it is deallocated, if it has no group."""
    generation: int = 0
    """Generation of its own group, if it has no other. See `Fleet.generation`."""


def eviction_policy(vm: VM, group: Group) -> str:
    """Return what happens to a VM when it is evicted; empty: it is not a Spot VM."""
    if vm.priority != SPOT:
        return ""
    return vm.eviction_policy or group.eviction_policy or DEALLOCATE


_Named = TypeVar("_Named", VM, Group, Host)


class ScopeSizes(NamedTuple):
    """How many VMs the scopes of a group have."""

    all: Counter[str]
    running: Counter[str]

    def add(self, vms: Iterable[VM], scope_of: Callable[[VM], str], step: int) -> None:
        for vm in vms:
            scope = scope_of(vm)
            self.all[scope] += step
            if not vm.deallocated:
                self.running[scope] += step


class Fleet:
    """All VMs, groups and hosts, with indexes. Immutable once published: a change creates a new fleet."""

    __slots__ = (
        *("_by_address", "_by_listen", "_by_load", "_domains", "_members", "_on_host", "_scope_sizes"),
        *("groups", "host_choices", "hosts", "vms"),
    )

    def __init__(
        self,
        vms: Iterable[VM] = (),
        groups: Iterable[Group] = (),
        hosts: Iterable[Host] = (),
        host_choices: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.vms: dict[str, VM] = {vm.name: vm for vm in vms}
        self.groups: dict[str, Group] = {group.name: group for group in groups}
        self.hosts: dict[str, Host] = {host.name: host for host in hosts}
        self.host_choices = host_choices or {}
        """VMs for which the fleet file names several hosts, each with these hosts. It had them in turn."""
        self._by_address = {vm.address: vm for vm in self.vms.values() if vm.address}
        self._by_listen = {vm.listen: vm for vm in self.vms.values() if vm.listen}
        self._domains: dict[str, dict[str, frozenset[int]]] = {}
        self._by_load: list[tuple[int, str]] | None = None
        self._scope_sizes: dict[str, ScopeSizes] = {}
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
        vm = self.vm(name)
        return Group(
            name,
            GroupKind.STANDALONE,
            auto_approve=vm.auto_approve,
            terminate_notice=vm.terminate_notice,
            approve_when_down=vm.approve_when_down,
        )

    def known_group(self, name: str) -> Group:
        """Return the group of a name from user input. The error for an unknown name suggests the most similar one."""
        if name not in self.groups:
            vm = self.vms.get(name)
            if vm is None:
                raise UnknownResource(what="group", name=name, hint=nearest(name, [*self.groups, *self.vms]))
            if vm.group != name:
                raise UnknownResource(what="group", name=name, hint=f" It is a VM. Its group is {shown(vm.group)}.")
        return self.group(name)

    def members(self, group: str) -> tuple[str, ...]:
        """Names of the VMs in a group. A VM that is in a group is not a group itself."""
        if group in self.groups:
            return tuple(self._members.get(group, ()))
        return (group,) if self.standalone(group) is not None else ()

    def standalone(self, group: str) -> VM | None:
        """Return the VM whose own group this is, also if a policy was set for it at run time."""
        vm = self.vms.get(group)
        if vm is None or vm.group != group:
            return None
        declared = self.groups.get(group)
        return vm if declared is None or declared.kind == GroupKind.STANDALONE else None

    def generation(self, group: str) -> int | None:
        """Return the newest sequence of history when the group was created; None: there is no such group.

        It tells a group from earlier ones of the same name. Rows up to this one are not about this group.
        """
        if (vm := self.standalone(group)) is not None:
            return vm.generation
        declared = self.groups.get(group)
        return declared.generation if declared is not None else None

    def scope_of(self, vm: VM) -> str:
        """Return the scope of a VM: the VMs of a scope share one document, and no other VM sees it.

        The name is that of the group, like web. The second placement group of a scale set is web.2. If VMs see only
        their own events, each of them is a scope with its own name.
        """
        group = self.groups.get(vm.group)
        if group is not None and group.visibility is Visibility.OWN:
            return vm.name
        return vm.group if vm.placement_group <= 1 else f"{vm.group}.{vm.placement_group}"

    def group_of(self, scope: str) -> Group:
        """Return the group of a scope."""
        return self.group(self._group_name(scope))

    def is_down(self, scope: str) -> bool:
        """Return whether all VMs of a scope are deallocated."""
        return not self._sizes_in(self._group_name(scope)).running[scope]

    def scope_size(self, scope: str) -> int:
        """Number of VMs in a scope."""
        return self._sizes_in(self._group_name(scope)).all[scope]

    def scopes(self, group: str) -> dict[str, int]:
        """The scopes of a group, each with its number of VMs."""
        return {scope: size for scope, size in self._sizes_in(group).all.items() if size}

    def _sizes_in(self, group: str) -> ScopeSizes:
        """Numbers of VMs by scope. Of a declared group, counted on first use: a set can have thousands of VMs."""
        found = self._scope_sizes.get(group)
        if found is None:
            found = ScopeSizes(Counter(), Counter())
            found.add((self.vms[name] for name in self.members(group)), self.scope_of, 1)
            if group in self.groups:
                self._scope_sizes[group] = found
        return found

    def _group_name(self, scope: str) -> str:
        vm = self.vms.get(scope)
        if vm is not None and self.scope_of(vm) == scope:  # it can also have the name of a scope that it is not in
            return vm.group
        if scope in self.groups:
            return scope
        scale_set = scope.rpartition(".")[0]
        return scale_set if scale_set in self.groups else scope

    def host(self, name: str) -> Host:
        """Return the host of that name: a declared one, or the implicit host of a VM."""
        found = self.hosts.get(name)
        if found is not None:
            return found
        if self._tenant(name) is None:
            raise UnknownHost(name=name, hint=nearest(name, self.host_names()))
        return Host(name)

    def host_state(self, name: str) -> HostState:
        """Return the state of a host. An implicit one is in service."""
        found = self.hosts.get(name)
        return HostState.IN_SERVICE if found is None else found.state

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
        # Also what readers add to this fleet meanwhile: a large change is made in a thread.
        for name in ("vms", "groups", "hosts", "_by_address", "_by_listen", "_members", "_on_host", "_scope_sizes"):
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
        self._update_scope_sizes(before, after.values(), {*change.groups_removed, *(one.name for one in change.groups)})
        for index, field in ((self._by_address, "address"), (self._by_listen, "listen")):
            for vm in before:
                index.pop(getattr(vm, field), None)
            index.update((getattr(vm, field), vm) for vm in after.values() if getattr(vm, field))
        members = {group.name: group.name for group in change.groups}
        self._rebuild_index(self._members, self.groups, "group", before, after, members, change.groups_removed)
        tenants = {host.name: host.name.removesuffix(OWN_HOST_SUFFIX) for host in change.hosts}
        self._rebuild_index(self._on_host, self.hosts, "host", before, after, tenants, change.hosts_removed)

    def _update_scope_sizes(self, before: Iterable[VM], after: Iterable[VM], groups: Set[str]) -> None:
        """Update the counts. Those of changed groups are counted again when they are needed."""
        sizes = {name: found for name, found in self._scope_sizes.items() if name not in groups}
        for vms, step in ((before, -1), (after, 1)):
            for vm in vms:
                if vm.group in sizes:
                    if sizes[vm.group] is self._scope_sizes[vm.group]:  # another fleet may use it
                        sizes[vm.group] = ScopeSizes(*(counter.copy() for counter in sizes[vm.group]))
                    sizes[vm.group].add([vm], self.scope_of, step)
        self._scope_sizes = sizes

    def _rebuild_index(
        self,
        lists: dict[str, list[str]],
        declared: Mapping[str, object],
        field: str,
        before: Iterable[VM],
        after: Mapping[str, VM],
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
            stays = vm.name in after and getattr(after[vm.name], field) == getattr(vm, field)
            if getattr(vm, field) in declared and not stays:  # otherwise it keeps its place
                names_of(getattr(vm, field)).pop(vm.name, None)
        for vm in after.values():
            if getattr(vm, field) in declared:
                names_of(getattr(vm, field))[vm.name] = None
        for name in undeclared:
            lists.pop(name, None)
        lists.update((name, list(names)) for name, names in touched.items())


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
    """VMs that are removed or change their group or scope."""
    vacated: frozenset[str] = frozenset()
    """Scopes that no longer have a VM."""
    in_place: bool = False
    """True if only placements and states change, not names, addresses or groups."""

    def __bool__(self) -> bool:
        return any(self)


def difference(before: Fleet, after: Fleet) -> FleetChange:
    """Return the change that turns `before` into `after`."""
    change = FleetChange(
        added=tuple(vm for name, vm in after.vms.items() if name not in before.vms),
        changed=tuple(vm for name, vm in after.vms.items() if name in before.vms and before.vms[name] != vm),
        removed=tuple(vm for name, vm in before.vms.items() if name not in after.vms),
        groups=tuple(group for name, group in after.groups.items() if before.groups.get(name) != group),
        groups_removed=tuple(name for name in before.groups if name not in after.groups),
        hosts=tuple(host for name, host in after.hosts.items() if before.hosts.get(name) != host),
        hosts_removed=tuple(name for name in before.hosts if name not in after.hosts),
    )
    return with_leaving(change, before, after)


def with_leaving(change: FleetChange, before: Fleet, after: Fleet) -> FleetChange:
    """Return the change with the VMs that leave their group or scope, and the scopes that lose their last VM."""
    staying = {vm.name: vm for vm in change.changed}
    for group in change.groups:
        known = before.groups.get(group.name)
        if known is None or known.visibility is not group.visibility:  # this changes the scope of unchanged VMs
            staying.update((name, after.vms[name]) for name in after.members(group.name) if name in before.vms)
    moved = {name for name, vm in staying.items() if _membership(before, before.vms[name]) != _membership(after, vm)}
    leaving = moved.union(vm.name for vm in change.removed)
    left = {before.scope_of(before.vms[name]) for name in leaving} | {*change.groups_removed}
    vacated = frozenset(scope for scope in left if not after.scope_size(scope))
    return change._replace(leaving=frozenset(leaving), vacated=vacated)


def _membership(fleet: Fleet, vm: VM) -> tuple[str, str]:
    return vm.group, fleet.scope_of(vm)


class FleetPlan(NamedTuple):
    """A planned change of the fleet."""

    before: Fleet
    after: Fleet
    change: FleetChange


def apply_declared(declared: Fleet, before: Fleet, destinations: Set[str], sequence: int) -> FleetPlan:
    """Plan to apply a fleet file. `sequence`: the newest row of history."""
    after = keep_runtime_state(before, declared, destinations, sequence)
    return FleetPlan(before, after, difference(before, after))


def keep_runtime_state(
    before: Fleet, declared: Fleet, destinations: Set[str] = frozenset(), sequence: int = 0
) -> Fleet:
    """Return the declared fleet with the runtime state of its VMs, hosts and groups.

    A moved VM stays on its host, unless the file names another host than before or its domains conflict there.
    A spare host stays while VMs are on it or on their way to it. Deallocated VMs stay deallocated, and hosts that are
    out of service stay so. VMs of scale sets keep their placement group, and new ones get one. A policy that was set at
    run time stays if the file has the same policy for this group as before. A group keeps its generation while each
    file has it, and a VM without a group keeps it while it has none.
    """
    moved = still_moved(before, declared)
    numbers = placement_groups(before, declared)
    kept: list[VM] = []
    for name, vm in declared.vms.items():
        alone = vm.group == name and declared.standalone(name) is not None
        after = keep_vm_state(before, vm, numbers.get(name), name in moved, alone, sequence)
        if after is not vm:
            kept.append(after)
    in_place = {vm.host for vm in kept} | destinations
    hosts = []
    for name, host in before.hosts.items():
        if name in declared.hosts:
            if host.state is not HostState.IN_SERVICE:
                hosts.append(host._replace(spare=False))
        elif name in in_place or (host.state is not HostState.IN_SERVICE and _is_own_host(declared, name)):
            hosts.append(host)
    groups = _runtime_policies(before, declared)
    for name, group in declared.groups.items():
        if declared.standalone(name) is None:
            given = groups.get(name, group)
            after_group = keep_group_state(before, given, sequence)
            if after_group is not given:
                groups[name] = after_group
    if not kept and not hosts and not groups:
        return declared
    return declared.changed_by(FleetChange(changed=tuple(kept), hosts=tuple(hosts), groups=tuple(groups.values())))


def keep_vm_state(
    before: Fleet, vm: VM, placement_group: int | None, is_moved: bool, is_alone: bool, sequence: int
) -> VM:
    """Return a declared VM with its runtime state: the same object, if it has none.

    `is_moved`: it stays where it was moved. `is_alone`: it has no group.
    """
    known = before.vms.get(vm.name)
    after = vm if placement_group is None else vm._replace(placement_group=placement_group)
    if known is not None and known.deallocated:
        after = after._replace(deallocated=True)
    if known is not None and is_moved:
        after = after._replace(host=known.host, configured_host=known.configured_host)
    if is_alone:
        generation = known.generation if known is not None and before.standalone(vm.name) is not None else sequence
        if generation:
            after = after._replace(generation=generation)
    return after


def keep_group_state(before: Fleet, group: Group, sequence: int) -> Group:
    """Return a declared group of several VMs with its generation: the one that it has, or `sequence`."""
    known = before.groups.get(group.name)
    is_kept = known is not None and before.standalone(group.name) is None
    generation = known.generation if known is not None and is_kept else sequence
    return group._replace(generation=generation) if generation else group


def keep_policy(known: Group, group: Group) -> Group | None:
    """Return the declared group with the policy that was set at run time; None: the declared policy is in force."""
    if known.file_policy is None or group.kind != known.kind or group.policy != known.file_policy:
        return None
    return group.with_policy(known.policy, known.file_policy)


def _runtime_policies(before: Fleet, declared: Fleet) -> dict[str, Group]:
    """Return the groups that keep the policy that was set at run time."""
    kept = {}
    for name, known in before.groups.items():
        own_group = name in declared.vms and declared.vms[name].group == name
        if known.file_policy is None or not (own_group or name in declared.groups):
            continue
        group = declared.group(name)
        if (with_policy := keep_policy(known, group)) is not None:
            kept[name] = with_policy
            if known.terminate_notice is not None:
                check_no_spot(declared, group)
    return kept


def check_no_spot(fleet: Fleet, group: Group) -> None:
    """Reject a terminate notice of a group with a Spot VM."""
    for name in fleet.members(group.name):
        if fleet.vms[name].priority == SPOT:
            raise SpotTerminateNotice(group=group.name, vm=name)


PLACEMENT_GROUP_SIZE = 100
"""Azure's limit."""


def placement_groups(before: Fleet, declared: Fleet) -> dict[str, int]:
    """Return the placement groups of the VMs that the file assigns to none: their own, or the first with a free place.

    A placement group of a database from before placement groups may have more than its 100 VMs. It keeps them.
    """
    assigned: dict[str, int] = {}
    for group in declared.groups.values():
        if group.kind != GroupKind.SCALE_SET:
            continue
        found, new = {}, []
        was_set = group.name in before.groups and before.groups[group.name].kind == GroupKind.SCALE_SET
        for name in declared.members(group.name):
            number, known = declared.vms[name].placement_group, before.vms.get(name)
            if known is None or known.group != group.name or (number and not was_set):
                new.append(name)
            elif number in (0, known.placement_group):
                assigned[name] = number = known.placement_group
            else:
                raise PlacementGroupFixed(vm=name, number=number, known=known.placement_group)
            found[name] = number
        sizes = Counter(found.values())
        for name in new:
            if found[name] and sizes[found[name]] > PLACEMENT_GROUP_SIZE:
                raise PlacementGroupFull(vm=name, number=found[name], group=group.name, size=PLACEMENT_GROUP_SIZE)
        number = 1
        for name in new:
            if not found[name]:
                while sizes[number] >= PLACEMENT_GROUP_SIZE:
                    number += 1
                sizes[number] += 1
                assigned[name] = number
    return assigned


def _is_own_host(fleet: Fleet, name: str) -> bool:
    return name not in fleet.hosts and any(vm.host == name for vm in fleet.vms.values())


def still_moved(before: Fleet, declared: Fleet) -> set[str]:
    """VMs that stay where they were moved: their host in the file is unchanged, and their domains still fit.

    A fabric can have put VMs of several domains on one host. This is no reason to list them elsewhere.
    """
    moved = {
        name: None  # ordered, so that the result is deterministic
        for name, vm in declared.vms.items()
        if (known := before.vms.get(name)) is not None and known.configured_host and known.configured_host == vm.host
    }
    mixed = _mixed_domains(before, {before.vms[name].host for name in moved})
    while moved:
        taken: dict[tuple[str, str], tuple[int, int]] = {}
        for name, vm in declared.vms.items():
            if name not in moved:
                taken[vm.host, vm.group] = (vm.update_domain, vm.fault_domain)
        in_the_way = set()
        for name in moved:
            vm = declared.vms[name]
            place, domains = (before.vms[name].host, vm.group), (vm.update_domain, vm.fault_domain)
            if taken.setdefault(place, domains) != domains and place not in mixed:
                in_the_way.add(name)
        if not in_the_way:
            break
        # They return to their configured host, which may create new conflicts.
        moved = {name: None for name in moved if name not in in_the_way}
    return set(moved)


def _mixed_domains(fleet: Fleet, hosts: Set[str]) -> set[tuple[str, str]]:
    """Return the hosts among these that hold several domains of a group, each with the group."""
    found: dict[tuple[str, str], set[tuple[int, int]]] = {}
    for host in hosts:
        for vm in (fleet.vms[name] for name in fleet.on_host(host)):
            found.setdefault((host, vm.group), set()).add((vm.update_domain, vm.fault_domain))
    return {place for place, domains in found.items() if len(domains) > 1}
