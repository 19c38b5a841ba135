"""Placement of VMs on hosts and in domains, and the effects of operations on it."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain, count, cycle, islice
from typing import TYPE_CHECKING

from forewarn.core import history
from forewarn.core.durations import format_time
from forewarn.core.event_types import Verb
from forewarn.core.fleet import VM, FleetChange, Host, HostState
from forewarn.core.operations import OperationStatus
from forewarn.core.state import HistoryEntry
from forewarn.core.steps import COMMAND_COST
from forewarn.core.waits import first_names
from forewarn.errors import HostOutOfService, HostWorkStarted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from forewarn.core.fleet import VM, Fleet, Group
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft, ServiceState
    from forewarn.core.steps import Steps


UNPLACED = -1
"""Domain of a VM without an assigned one, until `spread_domains` has run."""


def spread_hosts(hosts: Sequence[str], count: int) -> list[str]:
    """Assign hosts to VMs in turn."""
    return list(islice(cycle(hosts), count))


def find_clashes(vms: Iterable[VM]) -> Iterator[tuple[int, int]]:
    """Return the positions of VMs of a group that share a host but have different update domains, in pairs.

    A host goes down as a whole, so it may hold at most one update domain of a group.
    """
    given: dict[tuple[str, str], tuple[int, int]] = {}
    for position, vm in enumerate(vms):
        if vm.update_domain == UNPLACED:
            continue
        domain, other = given.setdefault((vm.group, vm.host), (vm.update_domain, position))
        if domain != vm.update_domain:
            yield other, position


def spread_domains(
    vms: Sequence[VM], groups: Mapping[str, Group], members: Mapping[str, int] | None = None
) -> list[VM]:
    """Return the VMs with both domains assigned. A VM without a declared group gets domain 0.

    `members`: how many VMs a group has already.
    """
    update_domains = _in_turn(
        [(vm.group, vm.host, vm.update_domain) for vm in vms],
        {group.name: group.update_domains for group in groups.values()},
        members or {},
    )
    fault_domains = _in_turn(
        [(vm.group, vm.host, vm.fault_domain) for vm in vms],
        {group.name: group.fault_domains for group in groups.values()},
        members or {},
    )
    return [
        vm._replace(update_domain=update_domain, fault_domain=fault_domain)
        for vm, update_domain, fault_domain in zip(vms, update_domains, fault_domains, strict=True)
    ]


def _in_turn(
    wishes: Sequence[tuple[str, str, int]], counts: Mapping[str, int], members: Mapping[str, int]
) -> list[int]:
    """Return a domain for each (group, host, domain or UNPLACED): the given one, the host's, or the next in turn."""
    of_host: dict[tuple[str, str], int] = {}
    for group, host, given in wishes:
        # First all given domains: a VM may depend on a domain that is given later in the file.
        if given != UNPLACED:
            of_host.setdefault((group, host), given)
    turns = dict(members)
    domains = []
    for group, host, given in wishes:
        domain = given if given != UNPLACED else of_host.get((group, host))
        if domain is None:
            turn = turns.get(group, 0)
            turns[group] = turn + 1
            domain = of_host[group, host] = turn % counts.get(group, 1)
        domains.append(domain)
    return domains


class Tenants:
    """The VMs of a host, as far as they decide whether it can take another one (`can_share_host`)."""

    def __init__(self, vms: Iterable[VM]) -> None:
        self.count = 0
        self._zones: set[str] = set()
        self._domains: dict[str, set[tuple[int, int]]] = {}
        for vm in vms:
            self.add(vm)

    def add(self, vm: VM) -> None:
        self.count += 1
        self._zones.add(vm.zone)
        self._domains.setdefault(vm.group, set()).add((vm.update_domain, vm.fault_domain))

    def can_take(self, vm: VM) -> bool:
        own = {(vm.update_domain, vm.fault_domain)}
        return self._zones <= {vm.zone} and self._domains.get(vm.group, own) == own


class HostSelector:
    """Selects hosts in service with the fewest VMs, including VMs that are on their way to them.

    For VMs of one zone and domain, a heap whose counts may be outdated. Counts only grow while the fleet is unchanged,
    so an entry with a higher current count is pushed back, and a host that cannot take such a VM is removed. The draft
    drops the selector when VMs are no longer on their way.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._heaps: dict[tuple[str, str, int, int], list[tuple[int, str]]] = {}
        self._tenants: dict[str, Tenants] = {}

    def choose(self, vm: VM) -> str | None:
        """Return the suitable host with the fewest VMs."""
        kind = (vm.zone, vm.group, vm.update_domain, vm.fault_domain)
        if kind not in self._heaps:
            self._heaps[kind] = self._draft.fleet.hosts_by_load().copy()  # sorted, and so a heap
        heap, passed, chosen = self._heaps[kind], list[tuple[int, str]](), None
        while heap and chosen is None:
            known, host = heappop(heap)
            tenants = self._tenants_of(host)
            if not tenants.can_take(vm):
                continue
            if tenants.count > known:
                heappush(heap, (tenants.count, host))
                continue
            passed.append((known, host))
            if host != vm.host and may_receive(self._draft, host):
                chosen = host
        for place in passed:
            heappush(heap, place)
        return chosen

    def take(self, vm: VM, host: str) -> None:
        """Count a VM that will be on its way to this host, before the draft has its operation."""
        self._tenants_of(host).add(vm)

    def _tenants_of(self, host: str) -> Tenants:
        if host not in self._tenants:
            self._tenants[host] = Tenants(_tenants(self._draft, host))
        return self._tenants[host]


def _selector(draft: Draft) -> HostSelector:
    if draft.host_selector is None:
        draft.host_selector = HostSelector(draft)
    return draft.host_selector


def choose_host(draft: Draft, vm: VM) -> str | None:
    """Return the best destination for a VM: in service, without pending work, with the fewest VMs; or None.

    A host holds at most one update domain and one fault domain of a group, and VMs of only one zone.
    """
    return _selector(draft).choose(vm)


def may_receive(draft: Draft, host: str) -> bool:
    """Return whether VMs may be sent to this host: it is in service, and no work on it is pending or started."""
    return draft.fleet.host_state(host) is HostState.IN_SERVICE and not draft.operations_at(host)


def work_on(draft: Draft | ServiceState, host: str) -> list[Operation]:
    """Return the operations whose work on this host itself is not done: it affects all VMs that run there."""
    return [one for one in draft.operations_at(host) if one.is_on_host and one.executed_at is None]


def check_can_arrive(draft: Draft, vm: str, host: str) -> None:
    """Reject to place a VM on a host that is out of service, or that is being worked on."""
    state = draft.fleet.host_state(host)
    if state is not HostState.IN_SERVICE:
        raise HostOutOfService(vm=vm, host=host, state=state)
    for operation in work_on(draft, host):
        if operation.started_at is not None:
            started_at = format_time(operation.started_at)
            raise HostWorkStarted(
                vm=vm, host=host, operation_id=operation.id, cause=operation.cause, started_at=started_at
            )


class HostsInTurn:
    """Chooses hosts for new VMs for which the fleet file names several: in turn, those that may receive VMs."""

    def __init__(self, draft: Draft) -> None:
        self.placed: dict[str, list[VM]] = {}
        """The VMs that are not in the draft yet, by their host."""
        self._draft = draft
        self._free: dict[tuple[str, ...], list[str]] = {}
        """Of the hosts that a file names, those that may receive VMs. The next one in turn is first."""

    def place(self, vm: VM, hosts: tuple[str, ...]) -> bool:
        """Place a VM on one of these hosts. Returns False if none can take it."""
        if hosts not in self._free:
            self._free[hosts] = [host for host in hosts if may_receive(self._draft, host)]
        free = self._free[hosts]
        for position, host in enumerate(free):
            tenants = chain(_tenants(self._draft, host), self.placed.get(host, ()))
            if all(can_share_host(vm, one) for one in tenants):
                self.placed.setdefault(host, []).append(moved(vm, host))
                free[:] = free[position + 1 :] + free[: position + 1]
                return True
        return False


def has_destination(draft: Draft, limits: OperatorLimits, vm: VM) -> bool:
    """Return whether a host can take the VM now, or the fabric can add one."""
    return limits.makes_hosts or choose_host(draft, vm) is not None


def spare_name(fleet: Fleet) -> str:
    """Return an unused name for a spare host."""
    return next(name for number in count(1) if (name := f"spare-{number}") not in fleet.hosts)


def _tenants(draft: Draft, host: str) -> Iterator[VM]:
    """VMs on a host, and VMs that are being moved to it."""
    fleet = draft.fleet
    yield from (fleet.vms[name] for name in fleet.on_host(host))
    for operation in draft.operations_bound_for(host):
        yield from (fleet.vms[name] for name, target in operation.moves if target == host and name in fleet.vms)


def can_share_host(vm: VM, tenant: VM) -> bool:
    """Return whether two VMs may be on one host."""
    if vm.zone != tenant.zone:
        return False
    return vm.group != tenant.group or (vm.update_domain, vm.fault_domain) == (
        tenant.update_domain,
        tenant.fault_domain,
    )


# --- Effects of operations -----------------------------------------------------------------------


HOST_STATES = {"degraded-hardware": HostState.DEGRADED, "hardware-failure": HostState.FAILED}
"""Host states that some causes set."""


def choose_destinations(draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation) -> Steps[Operation]:
    """Choose a destination for each VM. If no host is suitable, add a spare host if the fabric can.

    A VM starts on its own host if nothing is planned there. If no other host can take it, it starts there anyway: it
    is notified of the pending work when it arrives.
    """
    starts, moves = operation.verb is Verb.START, list(operation.moves)
    for name in operation.concerned(draft.fleet):
        vm = draft.fleet.vm(name)
        own = vm.host
        if starts and draft.fleet.host_state(own) is HostState.IN_SERVICE and not work_on(draft, own):
            host: str | None = own
        else:
            host = choose_host(draft, vm)
        if host is None and limits.makes_hosts:
            # First the moves so far, because a changed fleet needs a new selector.
            operation = operation._replace(moves=tuple(moves))
            draft.put_operation(operation)
            host = spare_name(draft.fleet)
            draft.change_fleet(FleetChange(hosts=(Host(host, spare=True),), in_place=True))
            reason = f"{host}: no host in service can take {name}"
            entry = history.operation_entry(now, "spare-host-added", history.ENGINE, operation)
            draft.record(entry._replace(vms=(name,), reason=reason, host=host))
        if host is None and starts:
            check_can_arrive(draft, name, own)
            host = own
        if host is not None:
            moves.append((name, host))
            _selector(draft).take(vm, host)  # the choice for the next VM depends on it
        yield COMMAND_COST
    operation = operation._replace(moves=tuple(moves))
    draft.put_operation(operation)
    return operation


def set_host_state(draft: Draft, now: datetime, name: str, state: HostState, by: str) -> bool:
    """Set the state of a host, and return whether it has changed. A failed host does not become degraded."""
    host = draft.fleet.host(name)
    if host.state is state or (host.state is HostState.FAILED and state is HostState.DEGRADED):
        return False
    draft.change_fleet(FleetChange(hosts=(host._replace(state=state),), in_place=True))
    draft.record(HistoryEntry(now, history.HOST_STATE_KINDS[state], by, reason=name, host=name))
    return True


def placed_problem(draft: Draft, operation: Operation, vm: str, host: str) -> str:
    """Return why an operation cannot have put this VM on this host, or an empty string."""
    if not operation.moves_vms and operation.verb is not Verb.START:
        return f"{operation.cause} brings no VM to another host"
    if vm not in operation.vms or vm not in draft.fleet.vms:
        return f"{vm} is not a VM of operation {operation.id}"
    known = host in draft.fleet.hosts or host == draft.fleet.vms[vm].host
    return "" if known else f"the fleet has no host {host}"


def after_work(draft: Draft, now: datetime, operation: Operation) -> None:
    """Apply the effect of finished work."""
    if operation.verb in (
        Verb.FREEZE,
        Verb.REBOOT,
        Verb.REIMAGE,
        Verb.DELETE,
    ):  # no change, or the VM is removed when the event ends
        return
    fleet = draft.fleet
    present = [fleet.vms[name] for name in operation.vms if name in fleet.vms]
    moves = dict(operation.moves)
    if operation.verb is Verb.DEALLOCATE:
        _replace(draft, now, [vm._replace(deallocated=True) for vm in present], "the VM was deallocated")
    elif operation.verb is Verb.START:
        started = [moved(vm, moves.get(vm.name, vm.host))._replace(deallocated=False) for vm in present]
        _replace(draft, now, started, "the VM was started")
    elif arrived := [moved(vm, moves[vm.name]) for vm in present if vm.name in moves]:
        _replace(draft, now, arrived, "the VM was moved to another host")


def after_end(draft: Draft, now: datetime, operation: Operation) -> None:
    """Remove deleted VMs from the fleet, when their operation has ended."""
    if operation.verb is Verb.DELETE:
        gone = tuple(draft.fleet.vms[name] for name in operation.vms if name in draft.fleet.vms)
        remove_vms(draft, now, gone, "the VM was deleted")


def remove_vms(draft: Draft, now: datetime, gone: tuple[VM, ...], reason: str) -> None:
    """Remove VMs from the fleet."""
    scopes = {draft.fleet.scope_of(vm) for vm in gone}
    policies = tuple(vm.name for vm in gone if vm.name in draft.fleet.groups and draft.fleet.standalone(vm.name))
    draft.change_fleet(FleetChange(removed=gone, groups_removed=policies, leaving=frozenset(vm.name for vm in gone)))
    for scope in scopes:
        if not draft.fleet.scope_size(scope):
            draft.forget_delivery(scope)
    cancel_obsolete(draft, now, gone, reason)


def moved(vm: VM, host: str) -> VM:
    """Return the VM on another host than the fleet file names, or on this one again."""
    configured = vm.configured_host or vm.host
    return vm._replace(host=host, configured_host="" if host == configured else configured)


def _replace(draft: Draft, now: datetime, vms: list[VM], reason: str) -> None:
    draft.change_fleet(FleetChange(changed=tuple(vms), in_place=True))
    cancel_obsolete(draft, now, vms, reason)


def cancel_obsolete(draft: Draft, now: datetime, vms: Iterable[VM], reason: str) -> None:
    """Cancel pending work that no longer applies to these VMs. What remains may be able to start.

    The resources of an event do not change: the event stays while it applies to at least one of its VMs. Work in
    progress goes on, but not for VMs that have left the fleet: one that gets the name later is another VM.
    """
    names = dict.fromkeys(vm.name for vm in vms)
    for operation_id in dict.fromkeys(one.id for name in names for one in draft.operations_on(name)):
        operation = history.find_operation(draft, operation_id)
        pending = operation.status is OperationStatus.PENDING
        applies = {*operation.concerned(draft.fleet)} if pending else draft.fleet.vms
        gone = {name for name in operation.vms if name in names and name not in applies}
        if not gone:
            continue
        # Permanently: if a VM returned to this host, it would be affected without a notice.
        operation = operation._replace(
            vms=tuple(name for name in operation.vms if name not in gone),
            moves=tuple((name, host) for name, host in operation.moves if name not in gone),
        )
        draft.put_operation(operation)
        for event in history.events_of(draft, operation) if pending else ():
            if {*operation.vms}.isdisjoint(event.resources):
                found = first_names([name for name in event.resources if name in gone])
                history.end_events(draft, now, [event], history.ENGINE, f"{found}: {reason}")
        if not _end_if_idle(draft, now, operation, reason):
            draft.to_advance[operation.id] = None


def _end_if_idle(draft: Draft, now: datetime, operation: Operation, reason: str) -> bool:
    """End an operation that applies to no VM, and return whether it did. Work on a host remains without VMs."""
    pending = operation.status is OperationStatus.PENDING
    if operation.is_on_host or (operation.concerned(draft.fleet) if pending else operation.vms):
        return False
    if pending:
        history.cancel(draft, now, operation, history.ENGINE, reason)
    else:
        history.end(draft, now, operation, OperationStatus.DONE, history.ENGINE, reason)
    return True
