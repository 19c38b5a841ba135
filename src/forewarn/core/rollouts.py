"""Rollouts: a host update that walks hosts, wave by wave. Which hosts next, given domains and a budget; pure.

A wave is out as a whole: it is announced, carried out, looked at, and only then comes the next. In a
wave there is at most one update domain of any group, and no more hosts than the budget allows. So two
domains of a group are never out at once, whoever approves early or late.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from enum import StrEnum
from fnmatch import translate
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.fleet import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from forewarn.core.fleet import Fleet


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
    speed: float = 1.0
    """All its lengths are this many times shorter, beyond what the house says: for runs of scenarios."""


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


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns fits, as in a shell: * ? [abc]."""
    plain = {pattern for pattern in patterns if not any(sign in pattern for sign in "*?[")}
    forms = "|".join(translate(pattern) for pattern in patterns if pattern not in plain)
    fits = re.compile(forms).match if forms else lambda _: None
    return [name for name in names if name in plain or fits(name)]


def out_of_use(fleet: Fleet, host: str) -> str:
    """Why a rollout leaves this host out; empty: it does not."""
    if not fleet.has_host(host):
        return "the host left the fleet"
    state = fleet.host(host).state
    return "" if state is HostState.IN_USE else f"the host is {state}"


def in_order(fleet: Fleet, hosts: Iterable[str]) -> list[str]:
    """Hosts as they are walked: domain after domain, so that those which can go together stand together."""

    def key(host: str) -> tuple[int, str]:
        return min((min(domains) for domains in fleet.domains_on(host).values()), default=0), host

    return sorted(hosts, key=key)


class Walk:
    """The hosts that wait, in their order, and how waves are taken from them.

    Sets of hosts are whole numbers with a bit for each: what a host keeps from going with it is then found
    at once, and a plan over thousands of hosts in a fraction of a second.
    """

    def __init__(self, fleet: Fleet, hosts: Iterable[str]) -> None:
        self._hosts = list(hosts)
        self._waiting = (1 << len(self._hosts)) - 1
        self._domains = [fleet.domains_on(host) for host in self._hosts]
        self._with_group: dict[str, int] = {}
        self._with_domain: dict[tuple[str, frozenset[int]], int] = {}
        for position, found in enumerate(self._domains):
            for part in found.items():
                self._with_group[part[0]] = self._with_group.get(part[0], 0) | 1 << position
                self._with_domain[part] = self._with_domain.get(part, 0) | 1 << position

    @property
    def waiting(self) -> list[str]:
        return [host for position, host in enumerate(self._hosts) if self._waiting >> position & 1]

    def next_wave(self, budget: int, busy: Callable[[str], bool] = lambda _: False) -> list[str]:
        """Take the next wave: compatible hosts in their order, within the budget. Busy hosts keep their place."""
        wave: list[str] = []
        can_join = self._waiting
        while can_join and len(wave) < budget:
            first = can_join & -can_join
            position = first.bit_length() - 1
            can_join ^= first
            if busy(self._hosts[position]):
                continue
            wave.append(self._hosts[position])
            self._waiting ^= first
            for part in self._domains[position].items():
                # One domain of a group at a time; a host with several of one group, against the rules, goes alone.
                together = self._with_domain[part] if len(part[1]) == 1 else 0
                can_join &= ~self._with_group[part[0]] | together
        return wave
