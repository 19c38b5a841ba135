"""Rollouts: a host update that walks hosts, wave by wave. Which hosts next, given domains and a budget; pure.

A wave is out as a whole: it is announced, carried out, looked at, and only then comes the next. In a
wave there is at most one update domain of any group, and no more hosts than the budget allows. So two
domains of a group are never out at once, whoever approves early or late.
"""

from __future__ import annotations

from collections import deque
from datetime import timedelta
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.fleet import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from forewarn.core.fleet import Fleet

LOOK_AHEAD = 200
"""How many hosts are looked at to fill a wave: enough to fill it where it can be, few enough to plan quickly."""


class Stage(StrEnum):
    """Where a rollout is."""

    WALKING = "walking"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        return self is Stage.WALKING or self is Stage.PAUSED


class Course(NamedTuple):
    """What a rollout does to each host, and how it walks."""

    type: str = ""
    duration: timedelta | None = None
    notice: timedelta | None = None
    deadline: datetime | None = None
    overrides: tuple[str, ...] = ()
    budget: int = 5
    """How many hosts are out at once, at most."""
    pause: timedelta = timedelta(0)
    """Between one wave and the next."""
    health_time: timedelta = timedelta(minutes=15)
    """How long after the start the VMs of a host may take to be well: then they count as bad."""


class Rollout(NamedTuple):
    """A walk over hosts, and how far it has come."""

    id: str
    patterns: tuple[str, ...]
    course: Course
    requested_by: str
    requested_at: datetime
    stage: Stage = Stage.WALKING
    wave: int = 0
    waiting: tuple[str, ...] = ()
    under_way: tuple[tuple[str, str], ...] = ()
    """Hosts that are out, each with its operation."""
    done: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Hosts that are left out, each with the reason."""
    next_at: datetime | None = None
    """When the next wave may be announced."""
    outcome: str = ""
    ended_at: datetime | None = None

    @property
    def hosts(self) -> list[str]:
        """All that are still to be, or being, walked."""
        return [*self.waiting, *(host for host, _ in self.under_way)]


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns fits, as in a shell: * ? [abc]."""
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def out_of_use(fleet: Fleet, host: str) -> str:
    """Why a rollout leaves this host out; empty: it does not."""
    state = fleet.host(host).state
    return "" if state is HostState.IN_USE else f"it is {state}"


def domains_on(fleet: Fleet, host: str) -> dict[str, frozenset[int]]:
    """What of each declared group goes out with this host: its update domains, by rights one."""
    found: dict[str, frozenset[int]] = {}
    for name in fleet.on_host(host):
        vm = fleet.vms[name]
        if vm.group in fleet.groups:
            found[vm.group] = found.get(vm.group, frozenset()) | {vm.update_domain}
    return found


def in_order(fleet: Fleet, hosts: Iterable[str]) -> list[str]:
    """Hosts as they are walked: domain after domain, so that those which can go together stand together."""

    def key(host: str) -> tuple[int, str]:
        return min((min(domains) for domains in domains_on(fleet, host).values()), default=0), host

    return sorted(hosts, key=key)


class Walk:
    """The hosts that wait, and how waves are taken from them."""

    def __init__(self, hosts: Iterable[str], domains: Callable[[str], Mapping[str, frozenset[int]]]) -> None:
        self.waiting = deque(hosts)
        self._domains = domains

    def next_wave(self, budget: int, busy: Callable[[str], bool] = lambda _: False) -> list[str]:
        """Take the next wave: compatible hosts in their order, within the budget. Busy hosts keep their place."""
        wave: list[str] = []
        out: dict[str, frozenset[int]] = {}
        passed: list[str] = []
        while self.waiting and len(wave) < budget and len(passed) < LOOK_AHEAD:
            host = self.waiting.popleft()
            domains = self._domains(host)
            if busy(host) or (wave and not _can_join(out, domains)):
                passed.append(host)
            else:
                wave.append(host)
                out.update(domains)
        self.waiting.extendleft(reversed(passed))
        return wave


def _can_join(out: Mapping[str, frozenset[int]], domains: Mapping[str, frozenset[int]]) -> bool:
    """Whether no group would have two update domains out."""
    for group, mine in domains.items():
        theirs = out.get(group)
        if theirs is not None and (theirs != mine or len(mine) > 1):
            return False
    return True
