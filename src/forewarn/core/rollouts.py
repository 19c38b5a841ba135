"""Rollouts: a host update on many hosts, wave by wave, and the choice of hosts for each wave.

The next wave is scheduled when all hosts of the current wave are updated and healthy. A wave has at most one update
domain of any group and at most `max_unavailable` hosts. A host waits while another rollout has an operation on another
update domain of one of its groups. So rollouts never interrupt two update domains of a group at once, whenever VMs
approve.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.fleet import HostState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from forewarn.core.fleet import Fleet
    from forewarn.core.steps import Steps


class RolloutStatus(StrEnum):
    """The status of a rollout."""

    RUNNING = "running"
    PAUSED = "paused"
    DONE = "done"
    STOPPED = "stopped"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        return self is RolloutStatus.RUNNING or self is RolloutStatus.PAUSED


class RolloutSettings(NamedTuple):
    """What a rollout does to each host, and how it proceeds."""

    type: str = ""
    duration: timedelta | None = None
    notice: timedelta | None = None
    postpone_deadline: datetime | None = None
    overrides: tuple[str, ...] = ()
    max_unavailable: int = 5
    """Maximum number of hosts that are updated at once."""
    pause: timedelta = timedelta(0)
    """Time between two waves."""
    health_timeout: timedelta = timedelta(minutes=15)
    """How long after the start the VMs of a host may take to become healthy. Later they count as unhealthy."""
    speed: float = 1.0
    """All its durations are divided by this, in addition to the service's speed: for runs of scenarios."""
    description: str | None = None
    """The description of its events; None: the default of the cause."""
    require_notice: bool = False
    """Whether hosts with a scope that would get no notice are skipped. At the start, the rollout is rejected."""


class Rollout(NamedTuple):
    """A rollout and its progress."""

    id: str
    patterns: tuple[str, ...]
    settings: RolloutSettings
    requested_by: str
    requested_at: datetime
    status: RolloutStatus = RolloutStatus.RUNNING
    wave: int = 0
    pending: tuple[str, ...] = ()
    in_progress: tuple[tuple[str, str], ...] = ()
    """Hosts that are being updated, each with its operation."""
    done: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()
    """Hosts that are skipped, each with the reason."""
    next_wave_at: datetime | None = None
    """When the next wave can be scheduled."""
    reason: str = ""
    ended_at: datetime | None = None

    @property
    def hosts(self) -> list[str]:
        """Hosts that are pending or in progress."""
        return [*self.pending, *(host for host, _ in self.in_progress)]

    @property
    def waits_for_hosts(self) -> bool:
        """Whether it could schedule a wave, but other operations occupied all its pending hosts at its last step."""
        idle = not self.in_progress and self.next_wave_at is None
        return self.status is RolloutStatus.RUNNING and idle and bool(self.pending)


def skip_reason(fleet: Fleet, host: str) -> str:
    """Return why a rollout skips this host, or an empty string."""
    if not fleet.has_host(host):
        return "the host left the fleet"
    state = fleet.host(host).state
    return "" if state is HostState.IN_SERVICE else f"the host is {state}"


def in_order(fleet: Fleet, hosts: Iterable[str]) -> list[str]:
    """Sort hosts by update domain, so that hosts that fit into one wave are next to each other."""

    def key(host: str) -> tuple[int, str]:
        return min((min(domains) for domains in fleet.domains_on(host).values()), default=0), host

    return sorted(hosts, key=key)


class WaveQueue:
    """The pending hosts in their order. Waves are taken from it.

    Sets of hosts are integers with one bit per host: one operation finds all hosts that conflict with another.
    So a plan of thousands of hosts takes a fraction of a second.
    """

    def __init__(self, fleet: Fleet, hosts: Iterable[str] = ()) -> None:
        self._fleet = fleet
        self._hosts: list[str] = []
        self._pending = 0
        self._domains: list[dict[str, frozenset[int]]] = []
        self._with_group: dict[str, int] = {}
        self._with_domain: dict[tuple[str, frozenset[int]], int] = {}
        for host in hosts:
            self.add(host)

    def add(self, host: str) -> None:
        """Add a host at the end."""
        bit, found = 1 << len(self._hosts), self._fleet.domains_on(host)
        self._hosts.append(host)
        self._domains.append(found)
        self._pending |= bit
        for part in found.items():
            self._with_group[part[0]] = self._with_group.get(part[0], 0) | bit
            self._with_domain[part] = self._with_domain.get(part, 0) | bit

    @property
    def pending(self) -> list[str]:
        return [host for position, host in enumerate(self._hosts) if self._pending >> position & 1]

    def take_wave(self, max_unavailable: int, busy: Callable[[str], bool] = lambda _: False) -> Steps[list[str]]:
        """Take the next wave: compatible hosts in their order. Busy hosts keep their place."""
        wave: list[str] = []
        can_join = self._pending
        while can_join and len(wave) < max_unavailable:
            first = can_join & -can_join
            position = first.bit_length() - 1
            can_join ^= first
            if busy(self._hosts[position]):
                continue
            wave.append(self._hosts[position])
            self._pending ^= first
            for part in self._domains[position].items():
                # One update domain of a group at a time. A host with several domains of a group is a wave of its own.
                same_domain = self._with_domain[part] if len(part[1]) == 1 else 0
                can_join &= ~self._with_group[part[0]] | same_domain
            yield 1 + len(self._domains[position])
        return wave
