"""Rollouts: updates of many hosts, in waves.

A wave is scheduled, executed and checked before the next one is scheduled. A wave contains at most one update domain
of any group, and a limited number of hosts. So two update domains of a group are never down at the same time, even if
approvals come early or late.
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
    """Status of a rollout."""

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
    """Maximum number of hosts that are updated at the same time."""
    pause: timedelta = timedelta(0)
    """Between one wave and the next."""
    health_time: timedelta = timedelta(minutes=15)
    """How long after the start the VMs of a host may take to become healthy."""
    speed: float = 1.0
    """Additional speed factor for all durations, used by scenario runs."""


class Rollout(NamedTuple):
    """A rollout and its progress."""

    id: str
    patterns: tuple[str, ...]
    course: Course
    requested_by: str
    requested_at: datetime
    stage: Stage = Stage.WALKING
    wave: int = 0
    waiting: tuple[str, ...] = ()
    under_way: tuple[tuple[str, str], ...] = ()
    """Hosts of the current wave, each with its operation."""
    done: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Skipped hosts, each with the reason."""
    next_at: datetime | None = None
    """When the next wave may be scheduled."""
    outcome: str = ""
    ended_at: datetime | None = None

    @property
    def hosts(self) -> list[str]:
        """Hosts that are pending or in progress."""
        return [*self.waiting, *(host for host, _ in self.under_way)]


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """Return the names that match a shell pattern: * ? [abc]."""
    plain = {pattern for pattern in patterns if not any(sign in pattern for sign in "*?[")}
    forms = "|".join(translate(pattern) for pattern in patterns if pattern not in plain)
    fits = re.compile(forms).match if forms else lambda _: None
    return [name for name in names if name in plain or fits(name)]


def out_of_use(fleet: Fleet, host: str) -> str:
    """Return why a rollout skips this host, or an empty string."""
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
