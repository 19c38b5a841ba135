"""VMs that arrive at a host: whatever brings them there, pending work affects them only after a notice of their own.

A VM arrives if it runs on a host where it did not run before the command: it has landed, was started, or was added or
moved by a fleet file. A VM that a fleet file puts into another scope counts, too: its new scope knows nothing yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history, placement, requests
from forewarn.core.fleet import HostState
from forewarn.core.operations import OperationStatus
from forewarn.core.progress import advance_in_steps
from forewarn.core.state import destinations, is_moving_vms
from forewarn.core.steps import COMMAND_COST

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.core.fleet import VM
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps


class Arrival(NamedTuple):
    """A VM that has arrived at a host or in a scope."""

    vm: VM
    at_host: bool
    """False: it has only changed its scope."""


_CAUSES = {state: cause for cause, state in placement.HOST_STATES.items()}


def follow_up(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[None]:
    """Notify VMs that have arrived of the work ahead of them. Then start what may start: not before all are named."""
    for scope in (yield from _newly_down(draft)):
        for event in draft.events_of(scope):
            requests.approve_if_down(draft, now, event)
            draft.to_advance[event.operation] = None
            yield COMMAND_COST
    yield from _notify(draft, now, limits)
    for host in _left_free(draft):
        draft.to_advance.update(dict.fromkeys(operation.id for operation in draft.operations_at(host)))
    while draft.to_advance:
        operation_id = next(iter(draft.to_advance))
        del draft.to_advance[operation_id]
        yield from advance_in_steps(draft, now, limits, operation_id)


def _left_free(draft: Draft) -> dict[str, None]:
    """Return the hosts to which a VM is no longer on its way. It has landed there or elsewhere, or left the fleet."""
    hosts: dict[str, None] = {}
    for operation in draft.changes.operations.values():
        known = draft.operation_before(operation.id)
        if known is not None and is_moving_vms(known):
            left = destinations(operation) if is_moving_vms(operation) else set()
            hosts.update(dict.fromkeys(sorted(destinations(known) - left)))
    return hosts


def _arrivals(draft: Draft) -> Steps[list[Arrival]]:
    """Return the VMs that may be affected by work that is planned already."""
    found: list[Arrival] = []
    before, after = draft.fleet_before, draft.fleet
    ahead: dict[str, bool] = {}
    for vm in _changed(draft):
        yield 1
        if vm.deallocated:
            continue
        known = before.vms.get(vm.name)
        if known is None or known.deallocated or known.host != vm.host:
            if vm.host not in ahead:
                in_service = after.host_state(vm.host) is HostState.IN_SERVICE
                ahead[vm.host] = not in_service or bool(placement.work_on(draft, vm.host))
            if ahead[vm.host] or draft.operations_on(vm.name):
                found.append(Arrival(vm, at_host=True))
        elif before.scope_of(known) != after.scope_of(vm) and draft.operations_on(vm.name):
            found.append(Arrival(vm, at_host=False))
    return found


def _newly_down(draft: Draft) -> Steps[list[str]]:
    """Return the scopes that have no running VM now, because one was deallocated."""
    before = draft.fleet_before.vms
    scopes: dict[str, None] = {}
    for vm in _changed(draft):
        yield 1
        if vm.deallocated and vm.name in before and not before[vm.name].deallocated:
            scopes[draft.fleet.scope_of(vm)] = None
    return [scope for scope in scopes if draft.fleet.is_down(scope)]


def _changed(draft: Draft) -> Iterator[VM]:
    """Yield the VMs that were added or changed, or whose scope may have changed, as they are now."""
    seen: set[str] = set()
    for change in draft.changes.fleet_changes:
        staying = sorted(draft.fleet.vms.keys() & change.leaving)
        for names in ((vm.name for vm in (*change.added, *change.changed)), staying):
            for name in names:
                vm = draft.fleet.vms.get(name)
                if vm is not None and name not in seen:
                    seen.add(name)
                    yield vm


def _notify(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[None]:
    """Add VMs to the work ahead of them: all together, because many can arrive at once."""
    arrivals = yield from _arrivals(draft)
    joining: dict[str, list[str]] = {}
    for vm, at_host in arrivals:
        yield COMMAND_COST
        pending = (one for one in draft.operations_on(vm.name) if one.status is OperationStatus.PENDING)
        ahead = [one for one in pending if not _is_notified(draft, one, vm)]
        if at_host:
            ahead += placement.work_on(draft, vm.host)
        for operation in {one.id: one for one in ahead}.values():
            if operation.status is OperationStatus.PENDING:
                joining.setdefault(operation.id, []).append(vm.name)
            else:  # only a fabric that chooses hosts brings it there
                reason = f"{vm.name} arrived while the work was in progress"
                requests.record_not_notified(draft, now, operation, draft.fleet.scope_of(vm), [vm.name], reason)
    for operation_id, names in joining.items():
        operation = history.find_operation(draft, operation_id)
        if problem := (yield from _domain_problem(draft, operation, names)):
            history.cancel(draft, now, operation, history.ENGINE, problem)
        else:
            requests.add_vms(draft, now, limits, operation, names)
    for vm, at_host in arrivals:
        if at_host and (state := draft.fleet.host_state(vm.host)) in _CAUSES:
            requests.request_for_newcomer(draft, now, limits, _CAUSES[state], vm)
            yield COMMAND_COST


def _domain_problem(draft: Draft, operation: Operation, names: list[str]) -> Steps[str]:
    """Return why a rollout cannot update these VMs, too: it would update two update domains of a group at once."""
    arrived = {vm.group: vm for vm in map(draft.fleet.vm, names)}  # a host has one update domain of a group
    for other in draft.rollout_operations() if operation.request.rollout else ():
        yield len(other.vms)
        for vm in (draft.fleet.vms[name] for name in other.vms if name in draft.fleet.vms):
            new = arrived.get(vm.group)
            if new is not None and other.id != operation.id and vm.update_domain != new.update_domain:
                work = f"operation {other.id} affects update domain {vm.update_domain} of {vm.group}"
                return f"{new.name} has arrived, and {work}"
    return ""


def _is_notified(draft: Draft, operation: Operation, vm: VM) -> bool:
    """Return whether the current scope of the VM has an event for it, or was found not to get one."""
    scope, before = draft.fleet.scope_of(vm), draft.fleet_before
    known = before.vms.get(vm.name)
    has_same_scope = known is not None and before.scope_of(known) == scope
    if not operation.type or (has_same_scope and scope in dict(operation.not_notified)):
        return True
    events = (draft.event(event_id) for event_id in operation.events)
    return any(event is not None and event.scope == scope and vm.name in event.resources for event in events)
