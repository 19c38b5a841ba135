"""Where VMs stand: hosts in turn, and the update and fault domains that were not given."""

from __future__ import annotations

from itertools import count, cycle, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from forewarn.core.draft import Draft
    from forewarn.core.fleet import VM, Fleet, Group

UNPLACED = -1
"""The domain of a VM that was given none. It exists only until `spread_domains` has run."""


def spread_hosts(hosts: Sequence[str], wanted: int) -> list[str]:
    """A host for each of so many VMs, taken in turn."""
    return list(islice(cycle(hosts), wanted))


def find_clash(vms: Iterable[VM]) -> tuple[int, int] | None:
    """The positions of two VMs of a group that share a host but were given different update domains.

    A host goes down as a whole, so it may hold at most one update domain of a group.
    """
    given: dict[tuple[str, str], tuple[int, int]] = {}
    for position, vm in enumerate(vms):
        if vm.update_domain == UNPLACED:
            continue
        domain, other = given.setdefault((vm.group, vm.host), (vm.update_domain, position))
        if domain != vm.update_domain:
            return other, position
    return None


def spread_domains(vms: Sequence[VM], groups: Mapping[str, Group]) -> list[VM]:
    """The same VMs, each with both its domains. A VM whose group is not declared is alone: domain 0."""
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
    """A domain for each (group, host, domain or UNPLACED): the given one, the host's, or the next in turn."""
    of_host: dict[tuple[str, str], int] = {}
    for group, host, given in wishes:
        # All given domains come first: one may stand further down the file than a VM that must follow it.
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


def choose_host(draft: Draft, vm: VM) -> str | None:
    """The host to which a VM is best moved: in use, left alone, with the fewest VMs; None when none fits.

    It fits when the domains hold: what a host takes down of a group is one update domain and one fault
    domain. Nor do VMs of different zones share a host.
    """
    chosen, fewest = None, 0
    for load, host in draft.fleet.hosts_by_load():
        if chosen is not None and load >= fewest:  # and those on their way only add to it
            break
        if host == vm.host or draft.operations_at(host):
            continue
        tenants = list(_tenants(draft, host))
        if (chosen is None or len(tenants) < fewest) and all(get_on(vm, tenant) for tenant in tenants):
            chosen, fewest = host, len(tenants)
    return chosen


def spare_name(fleet: Fleet) -> str:
    """A name for a host that is not there yet."""
    return next(name for number in count(1) if (name := f"spare-{number}") not in fleet.hosts)


def _tenants(draft: Draft, host: str) -> Iterator[VM]:
    """The VMs on a host, and those on their way to it."""
    fleet = draft.fleet
    yield from (fleet.vms[name] for name in fleet.on_host(host))
    for operation in draft.operations_bound_for(host):
        yield from (fleet.vms[name] for name, target in operation.moves if target == host and name in fleet.vms)


def get_on(vm: VM, tenant: VM) -> bool:
    """Whether two VMs may be on one host."""
    if vm.zone != tenant.zone:
        return False
    return vm.group != tenant.group or (vm.update_domain, vm.fault_domain) == (
        tenant.update_domain,
        tenant.fault_domain,
    )
