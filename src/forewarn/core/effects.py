"""What is true of the fleet after the work: who has moved, who is deallocated, who is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core import records
from forewarn.core.causes import CAUSES, Target
from forewarn.core.fleet import VM, Host, HostState
from forewarn.core.fleet_change import FleetChange
from forewarn.core.ledger import Entry
from forewarn.core.operations import Progress
from forewarn.core.placement import choose_host, spare_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.draft import Draft
    from forewarn.core.operations import Operation
    from forewarn.core.terms import Terms

HOST_STATES = {"degraded-hardware": HostState.DEGRADED, "hardware-failure": HostState.FAILED}
"""What some causes make of their host."""


def choose_destinations(draft: Draft, now: datetime, terms: Terms, operation: Operation) -> Operation:
    """Decide where each VM goes. Where no host fits, a spare one is added if the fabric can; else it gets none."""
    for name in operation.concerned(draft.fleet):
        if operation.verb == "start" and draft.fleet.host(draft.fleet.vm(name).host).state is HostState.IN_USE:
            continue  # it starts where it was
        host = choose_host(draft, draft.fleet.vm(name))
        if host is None and terms.makes_hosts:
            host = spare_name(draft.fleet)
            draft.change_fleet(FleetChange(hosts=(Host(host, spare=True),), in_place=True))
            why = f"{host}: no host in use fits {name}"
            note = Entry(
                now, "spare host added", records.ENGINE, operation=operation.id, vms=(name,), why=why, host=host
            )
            draft.note(note)
        if host is not None:
            operation = operation._replace(moves=(*operation.moves, (name, host)))
            draft.put_operation(operation)  # at once: the next VM must find the place taken
    return operation


def set_host_state(draft: Draft, name: str, state: HostState) -> None:
    """Take a host out of use, or back into it."""
    host = draft.fleet.host(name)
    if host.state is not state and not (host.state is HostState.FAILED and state is HostState.DEGRADED):
        draft.change_fleet(FleetChange(hosts=(host._replace(state=state),), in_place=True))


def after_work(draft: Draft, now: datetime, operation: Operation) -> list[str]:
    """The work is done. Returns the ids of other operations that may be able to go on because of it."""
    if operation.verb in ("freeze", "reboot", "delete"):  # the VM is as it was, or goes when its event does
        return []
    fleet = draft.fleet
    present = [fleet.vms[name] for name in operation.vms if name in fleet.vms]
    if operation.verb == "deallocate":
        return _replace(draft, now, [vm._replace(deallocated=True) for vm in present], "it is deallocated")
    moves = dict(operation.moves)
    if operation.verb == "start":
        started = [_moved(vm, moves.get(vm.name, vm.host))._replace(deallocated=False) for vm in present]
        return _replace(draft, now, started, "it was started")
    moved = [_moved(vm, moves[vm.name]) for vm in present if vm.name in moves]
    return _replace(draft, now, moved, "it is on another host") if moved else []


def after_end(draft: Draft, now: datetime, operation: Operation) -> list[str]:
    """The event has gone. A deleted VM leaves the fleet with it."""
    if operation.verb != "delete":
        return []
    gone = tuple(draft.fleet.vms[name] for name in operation.vms if name in draft.fleet.vms)
    return remove_vms(draft, now, gone, "it is deleted")


def remove_vms(draft: Draft, now: datetime, gone: tuple[VM, ...], why: str) -> list[str]:
    """Take VMs out of the fleet."""
    draft.change_fleet(FleetChange(removed=gone, leaving=frozenset(vm.name for vm in gone)))
    for group in {vm.group for vm in gone}:
        if not draft.fleet.members(group):
            draft.forget_delivery(group)
    return let_go(draft, now, gone, why)


def _moved(vm: VM, host: str) -> VM:
    home = vm.home or vm.host
    return vm._replace(host=host, home="" if host == home else home)


def _replace(draft: Draft, now: datetime, vms: list[VM], why: str) -> list[str]:
    draft.change_fleet(FleetChange(changed=tuple(vms), in_place=True))
    return let_go(draft, now, vms, why)


def let_go(draft: Draft, now: datetime, vms: Iterable[VM], why: str) -> list[str]:
    """Withdraw what is scheduled for VMs to which it does not apply any more.

    What an event names does not change: it stays while there is one VM that it still concerns.
    """
    touched: dict[str, None] = {}
    for vm in vms:
        for operation in draft.operations_on(vm.name):
            if operation.progress is not Progress.PENDING or operation.concerns(draft.fleet, vm.name):
                continue
            touched[operation.id] = None
            # For good: should it come back to this host, it would be hit without having been told.
            operation = operation._replace(vms=tuple(name for name in operation.vms if name != vm.name))
            draft.put_operation(operation)
            for event in records.events_of(draft, operation):
                if not any(name in operation.vms for name in event.resources):
                    records.end_events(draft, now, [event], records.ENGINE, f"{vm.name}: {why}")
    return [operation_id for operation_id in touched if not _withdraw_if_idle(draft, now, operation_id, why)]


def _withdraw_if_idle(draft: Draft, now: datetime, operation_id: str, why: str) -> bool:
    """Whether nothing is left to do for an operation, which then ends. Work on a host remains without its VMs."""
    operation = records.find_operation(draft, operation_id)
    if CAUSES[operation.cause].target is Target.HOST or operation.concerned(draft.fleet):
        return False
    records.cancel(draft, now, operation, records.ENGINE, why)
    return True
