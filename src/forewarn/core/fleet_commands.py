"""Commands that change the fleet: apply a fleet file, return a host to service, change the policy of a group."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import access, history, placement
from forewarn.core.fleet import TERMINATE_NOTICE_KINDS, FleetChange, GroupKind, GroupPolicy, HostState, check_no_spot
from forewarn.core.operations import OperationStatus
from forewarn.core.placement import can_share_host
from forewarn.core.state import HistoryEntry, destinations
from forewarn.core.steps import at_once
from forewarn.core.waits import coupled_deletions
from forewarn.errors import DestinationConflict, NoTerminateNotice, NotScaleSet, VMHasLiveEvent

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime, timedelta

    from forewarn.core.events import Event
    from forewarn.core.fleet import VM, Fleet, Group
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps
    from forewarn.core.windows import Window


def apply_fleet(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    fleet: Fleet,
    change: FleetChange,
    by: str,
    *,
    force: bool,
    reason: str,
) -> Steps[list[str]]:
    """Replace the fleet. A VM with an active event may leave or change its group or scope only with `force`.

    Returns the names of the tokens that this revokes, because their groups were removed.
    """
    # The caller computes the difference in another thread, because that is slow for a large fleet.
    leaving = change.leaving
    events = draft.live_events() if leaving else ()
    touched = [event for event in events if not leaving.isdisjoint(event.resources)]
    if touched and not force:
        vms = sorted({name for event in touched for name in event.resources if name in leaving})
        raise VMHasLiveEvent(vms=", ".join(vms), events=", ".join(event.id for event in touched))
    _check_domain_conflicts(draft, fleet, change)
    for event in touched:
        _end_touched(draft, now, event, by)
    for declared in change.groups:
        before = draft.fleet.groups.get(declared.name)
        if before is not None and before.kind != declared.kind and draft.events_of(declared.name):
            draft.count_change(declared.name)  # the document writes names differently for some kinds
    before_vms = draft.fleet.vms
    _put_fleet(draft, fleet, change)
    with_work = draft.vms_with_work()
    removed = [vm for vm in change.removed if vm.name in with_work]
    placement.cancel_obsolete(draft, now, removed, "the VM left the fleet")
    yield from _check_hosts(draft, fleet, before_vms, change)
    for scope in draft.deliveries_among(change.vacated):
        draft.forget_delivery(scope)
        yield 1
    moved = [vm for vm in change.changed if vm.name in with_work and before_vms[vm.name].host != vm.host]
    moved.sort(key=lambda vm: vm.name)
    placement.cancel_obsolete(draft, now, moved, "the fleet file puts the VM on another host")
    for event in touched:  # deletions that waited for a cancelled one
        draft.to_advance.update(dict.fromkeys(other.operation for other in coupled_deletions(draft, event)))
    revoked = access.revoke_without_group(draft, now, by)
    summary = f"{len(change.added)} added, {len(change.changed)} changed, {len(change.removed)} removed"
    text = f"{reason}: {summary}" if reason else summary
    draft.record(HistoryEntry(time=now, kind="fleet-applied", by=by, reason=text))
    return revoked


def _put_fleet(draft: Draft, fleet: Fleet, change: FleetChange) -> None:
    """Replace the fleet. A group that takes the name of a removed one begins after the rows about that one."""
    before = draft.fleet
    draft.put_fleet(fleet, change)
    vms = [vm for name in change.groups_removed if (vm := fleet.standalone(name)) and not before.standalone(name)]
    groups = [group for group in change.groups if before.standalone(group.name) and not fleet.standalone(group.name)]
    if vms or groups:
        sequence = draft.sequence
        taken = FleetChange(
            changed=tuple(vm._replace(generation=sequence) for vm in vms),
            groups=tuple(group._replace(generation=sequence) for group in groups),
            in_place=True,
        )
        draft.change_fleet(taken)


def _end_touched(draft: Draft, now: datetime, event: Event, by: str) -> None:
    """End an event whose VM leaves, and its operation. Work in progress goes on for other VMs, and on its host."""
    operation, reason = history.find_operation(draft, event.operation), "its VM left the fleet"
    if not operation.status.live:
        return
    started = operation.status is OperationStatus.STARTED
    if started and operation.executed_at is None:
        history.end_events(draft, now, [event], by, reason)
    else:
        status = OperationStatus.DONE if started else OperationStatus.CANCELLED
        history.end(draft, now, operation, status, by, reason)


def _check_domain_conflicts(draft: Draft, fleet: Fleet, change: FleetChange) -> None:
    """Reject a change after which a VM that is being moved would conflict with another on its destination."""
    arriving = {vm.host for vm in (*change.added, *change.changed)}
    if change.changed:
        with_work = draft.vms_with_work()
        operations = (one for vm in change.changed if vm.name in with_work for one in draft.operations_on(vm.name))
        arriving = arriving.union(*map(destinations, operations))
    for host in sorted(arriving & draft.destinations()):
        tenants = [fleet.vms[name] for name in fleet.on_host(host)] if host in fleet.hosts else []
        for operation in draft.operations_bound_for(host):
            for name in [name for name, target in operation.moves if target == host and name in fleet.vms]:
                for tenant in tenants:
                    if not can_share_host(fleet.vms[name], tenant):
                        raise DestinationConflict(vm=name, host=host, tenant=tenant.name, operation_id=operation.id)
                tenants.append(fleet.vms[name])


def _check_hosts(draft: Draft, fleet: Fleet, before: Mapping[str, VM], change: FleetChange) -> Steps[None]:
    """Reject a file that puts a new or moved VM on a host that is out of service, or that is being worked on.

    If the file leaves the choice, a new VM gets another of its hosts: one that may receive VMs, if there is one.
    """
    available: dict[str, bool] = {}
    in_turn = placement.HostsInTurn(draft)
    for vm in chain(change.added, change.changed):
        yield 1
        if vm.name in before and before[vm.name].host == vm.host:
            continue
        if vm.host not in available:
            available[vm.host] = placement.may_receive(draft, vm.host)
        if available[vm.host]:
            continue
        choices = fleet.host_choices.get(vm.name, ()) if vm.name not in before else ()
        if not in_turn.place(vm, choices):
            placement.check_can_arrive(draft, vm.name, vm.host)
    if in_turn.placed:
        draft.change_fleet(FleetChange(changed=tuple(chain.from_iterable(in_turn.placed.values())), in_place=True))


def return_host_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, name: str, by: str
) -> Steps[list[Operation]]:
    """Return a host to service and cancel the pending moves away from it. Returns the cancelled operations."""
    if not placement.set_host_state(draft, now, name, HostState.IN_SERVICE, by):
        return []
    cancelled = []
    for operation in draft.operations_at(name):
        if operation.cause == "degraded-hardware" and operation.status is OperationStatus.PENDING:
            reason = f"{name} was returned to service"
            cancelled.append((yield from history.cancel_in_steps(draft, now, operation, by, reason)))
    return cancelled


return_host = at_once(return_host_in_steps)


def _check_terminate_notice(fleet: Fleet, group: Group) -> None:
    """Reject a terminate notice for a group that cannot have one."""
    if group.kind not in TERMINATE_NOTICE_KINDS:
        raise NoTerminateNotice(group=group.name, kind=group.kind)
    check_no_spot(fleet, group)


class PolicyUpdate(NamedTuple):
    """A change of a group's policy; None: unchanged."""

    auto_approve: tuple[str, ...] | None = None
    terminate_notice: timedelta | None = None
    no_terminate_notice: bool = False
    windows: tuple[Window, ...] | None = None
    os_image_notice: timedelta | None = None
    no_os_image_notice: bool = False
    approve_when_down: bool | None = None


def set_policy(draft: Draft, now: datetime, limits: OperatorLimits, name: str, policy: PolicyUpdate, by: str) -> Group:
    """Change a group's policy. It applies to new operations; windows also apply to pending ones."""
    group = draft.fleet.known_group(name)
    if policy.terminate_notice is not None:
        _check_terminate_notice(draft.fleet, group)
    if policy.os_image_notice is not None and group.kind != GroupKind.SCALE_SET:
        raise NotScaleSet(group=name, kind=group.kind)
    changed = GroupPolicy(
        auto_approve=group.auto_approve if policy.auto_approve is None else policy.auto_approve,
        terminate_notice=None if policy.no_terminate_notice else policy.terminate_notice or group.terminate_notice,
        windows=group.windows if policy.windows is None else policy.windows,
        os_image_notice=None if policy.no_os_image_notice else policy.os_image_notice or group.os_image_notice,
        approve_when_down=group.approve_when_down if policy.approve_when_down is None else policy.approve_when_down,
    )
    after = group.with_policy(changed, group.policy if group.file_policy is None else group.file_policy)
    if after != group:
        draft.change_fleet(FleetChange(groups=(after,)))
        which = ", ".join(field for field in changed._fields if getattr(group, field) != getattr(after, field))
        draft.record(HistoryEntry(time=now, kind="policy-changed", by=by, group=name, reason=which))
    return after
