"""Where VMs stand: hosts in turn, and the update and fault domains that were not given."""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from forewarn.core.fleet import VM, Group

UNPLACED = -1
"""The domain of a VM that was given none. It exists only until `spread_domains` has run."""


def spread_hosts(hosts: Sequence[str], count: int) -> list[str]:
    """A host for each of `count` VMs, taken in turn."""
    return list(islice(cycle(hosts), count))


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
