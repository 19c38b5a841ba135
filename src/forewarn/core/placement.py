"""Placement of VMs on hosts and in domains, and the effects of operations on it."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count, cycle, islice
from typing import TYPE_CHECKING

from forewarn.core import history
from forewarn.core.event_types import Verb
from forewarn.core.fleet import VM, FleetChange, Host, HostState
from forewarn.core.operations import CAUSES, CauseTarget, OperationStatus
from forewarn.core.state import HistoryEntry

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from datetime import datetime

    from forewarn.core.fleet import VM, Fleet, Group
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft


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


def spread_domains(vms: Sequence[VM], groups: Mapping[str, Group]) -> list[VM]:
    """Return the VMs with both domains assigned. A VM without a declared group gets domain 0."""
    update_domains = _in_turn(
        [(vm.group, vm.host, vm.update_domain) for vm in vms],
        {group.name: group.update_domains for group in groups.values()},
    )
    fault_domains = _in_turn(
        [(vm.group, vm.host, vm.fault_domain) for vm in vms],
        {group.name: group.fault_domains for group in groups.values()},
    )
    return [
        vm._replace(update_domain=update_domain, fault_domain=fault_domain)
        for vm, update_domain, fault_domain in zip(vms, update_domains, fault_domains, strict=True)
    ]


def _in_turn(wishes: Sequence[tuple[str, str, int]], counts: Mapping[str, int]) -> list[int]:
    """Return a domain for each (group, host, domain or UNPLACED): the given one, the host's, or the next in turn."""
    of_host: dict[tuple[str, str], int] = {}
    for group, host, given in wishes:
        # First all given domains: a VM may depend on a domain that is given later in the file.
        if given != UNPLACED:
            of_host.setdefault((group, host), given)
    turns: dict[str, int] = {}
    domains = []
    for group, host, given in wishes:
        domain = given if given != UNPLACED else of_host.get((group, host))
        if domain is None:
            turn = turns.get(group, 0)
            turns[group] = turn + 1
            domain = of_host[group, host] = turn % counts.get(group, 1)
        domains.append(domain)
    return domains


class HostSelector:
    """Selects hosts in service with the fewest VMs, including VMs that are on their way to them.

    A heap whose counts may be outdated. Counts only grow while the fleet is unchanged, so an entry with a
    higher current count is pushed back.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._heap = draft.fleet.hosts_by_load().copy()  # sorted, and so a heap

    def choose(self, vm: VM) -> str | None:
        """Return the suitable host with the fewest VMs."""
        passed: list[tuple[int, str]] = []
        chosen = None
        while self._heap and chosen is None:
            known, host = heappop(self._heap)
            tenants = list(_tenants(self._draft, host))
            if len(tenants) > known:
                heappush(self._heap, (len(tenants), host))
                continue
            passed.append((known, host))
            if (
                host != vm.host
                and not self._draft.operations_at(host)
                and all(can_share_host(vm, one) for one in tenants)
            ):
                chosen = host
        for place in passed:
            heappush(self._heap, place)
        return chosen


def choose_host(draft: Draft, vm: VM) -> str | None:
    """Return the best destination for a VM: in service, without pending work, with the fewest VMs; or None.

    A host holds at most one update domain and one fault domain of a group, and VMs of only one zone.
    """
    if draft.host_selector is None:
        draft.host_selector = HostSelector(draft)
    return draft.host_selector.choose(vm)


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


def choose_destinations(draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation) -> Operation:
    """Choose a destination for each VM. If no host is suitable, add a spare host if the fabric can."""
    for name in operation.concerned(draft.fleet):
        if operation.verb is Verb.START and draft.fleet.host(draft.fleet.vm(name).host).state is HostState.IN_SERVICE:
            continue  # it starts on its host
        host = choose_host(draft, draft.fleet.vm(name))
        if host is None and limits.makes_hosts:
            host = spare_name(draft.fleet)
            draft.change_fleet(FleetChange(hosts=(Host(host, spare=True),), in_place=True))
            reason = f"{host}: no host in service can take {name}"
            entry = history.operation_entry(now, "spare-host-added", history.ENGINE, operation)
            draft.record(entry._replace(vms=(name,), reason=reason, host=host))
        if host is not None:
            operation = operation._replace(moves=(*operation.moves, (name, host)))
            draft.put_operation(operation)  # now, because the choice for the next VM depends on it
    return operation


def set_host_state(draft: Draft, now: datetime, name: str, state: HostState, by: str) -> bool:
    """Set the state of a host, and return whether it has changed. A failed host does not become degraded."""
    host = draft.fleet.host(name)
    if host.state is state or (host.state is HostState.FAILED and state is HostState.DEGRADED):
        return False
    draft.change_fleet(FleetChange(hosts=(host._replace(state=state),), in_place=True))
    draft.record(HistoryEntry(now, history.HOST_STATE_KINDS[state], by, reason=name, host=name))
    return True


def after_work(draft: Draft, now: datetime, operation: Operation) -> list[str]:
    """Apply the effect of finished work. Returns ids of other operations that may now be able to start."""
    if operation.verb in (
        Verb.FREEZE,
        Verb.REBOOT,
        Verb.REIMAGE,
        Verb.DELETE,
    ):  # no change, or the VM is removed when the event ends
        return []
    fleet = draft.fleet
    present = [fleet.vms[name] for name in operation.vms if name in fleet.vms]
    if operation.verb is Verb.DEALLOCATE:
        return _replace(draft, now, [vm._replace(deallocated=True) for vm in present], "the VM was deallocated")
    moves = dict(operation.moves)
    if operation.verb is Verb.START:
        started = [_moved(vm, moves.get(vm.name, vm.host))._replace(deallocated=False) for vm in present]
        return _replace(draft, now, started, "the VM was started")
    moved = [_moved(vm, moves[vm.name]) for vm in present if vm.name in moves]
    return _replace(draft, now, moved, "the VM was moved to another host") if moved else []


def after_end(draft: Draft, now: datetime, operation: Operation) -> list[str]:
    """Remove deleted VMs from the fleet, when their operation has ended."""
    if operation.verb is not Verb.DELETE:
        return []
    gone = tuple(draft.fleet.vms[name] for name in operation.vms if name in draft.fleet.vms)
    return remove_vms(draft, now, gone, "the VM was deleted")


def remove_vms(draft: Draft, now: datetime, gone: tuple[VM, ...], reason: str) -> list[str]:
    """Remove VMs from the fleet."""
    scopes = {draft.fleet.scope_of(vm) for vm in gone}
    draft.change_fleet(FleetChange(removed=gone, leaving=frozenset(vm.name for vm in gone)))
    for scope in scopes:
        if not draft.fleet.scope_size(scope):
            draft.forget_delivery(scope)
    return cancel_obsolete(draft, now, gone, reason)


def _moved(vm: VM, host: str) -> VM:
    configured = vm.configured_host or vm.host
    return vm._replace(host=host, configured_host="" if host == configured else configured)


def _replace(draft: Draft, now: datetime, vms: list[VM], reason: str) -> list[str]:
    draft.change_fleet(FleetChange(changed=tuple(vms), in_place=True))
    return cancel_obsolete(draft, now, vms, reason)


def cancel_obsolete(draft: Draft, now: datetime, vms: Iterable[VM], reason: str) -> list[str]:
    """Cancel pending work that no longer applies to these VMs.

    The resources of an event do not change: the event stays while it applies to at least one of its VMs.
    """
    touched: dict[str, None] = {}
    for vm in vms:
        for operation in draft.operations_on(vm.name):
            if operation.status is not OperationStatus.PENDING or operation.concerns(draft.fleet, vm.name):
                continue
            touched[operation.id] = None
            # Permanently: if the VM returned to this host, it would be affected without a notice.
            operation = operation._replace(vms=tuple(name for name in operation.vms if name != vm.name))
            draft.put_operation(operation)
            for event in history.events_of(draft, operation):
                if not any(name in operation.vms for name in event.resources):
                    history.end_events(draft, now, [event], history.ENGINE, f"{vm.name}: {reason}")
    return [operation_id for operation_id in touched if not _cancel_if_idle(draft, now, operation_id, reason)]


def _cancel_if_idle(draft: Draft, now: datetime, operation_id: str, reason: str) -> bool:
    """Cancel an operation that applies to no VM, and return whether it did. Work on a host remains without VMs."""
    operation = history.find_operation(draft, operation_id)
    if CAUSES[operation.cause].target is CauseTarget.HOST or operation.concerned(draft.fleet):
        return False
    history.cancel(draft, now, operation, history.ENGINE, reason)
    return True
