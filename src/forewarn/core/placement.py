"""Where VMs stand: hosts in turn, and the update and fault domains that were not given."""

from __future__ import annotations

from heapq import heappop, heappush
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


class Places:
    """Hosts in use by how many VMs are on them or on their way there, the emptiest first, as far as a draft knows.

    A heap whose counts may be out of date: VMs only come while a fleet is the same, so one that is looked at
    and has more by now goes back to its place.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._heap = draft.fleet.hosts_by_load().copy()  # sorted, and so a heap

    def choose(self, vm: VM) -> str | None:
        """The emptiest host that fits."""
        passed: list[tuple[int, str]] = []
        chosen = None
        while self._heap and chosen is None:
            known, host = heappop(self._heap)
            tenants = list(_tenants(self._draft, host))
            if len(tenants) > known:
                heappush(self._heap, (len(tenants), host))
                continue
            passed.append((known, host))
            if host != vm.host and not self._draft.operations_at(host) and all(get_on(vm, one) for one in tenants):
                chosen = host
        for place in passed:
            heappush(self._heap, place)
        return chosen


def choose_host(draft: Draft, vm: VM) -> str | None:
    """The host to which a VM is best moved: in use, left alone, with the fewest VMs; None when none fits.

    It fits when the domains hold: what a host takes down of a group is one update domain and one fault
    domain. Nor do VMs of different zones share a host.
    """
    if draft.places is None:
        draft.places = Places(draft)
    return draft.places.choose(vm)


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
