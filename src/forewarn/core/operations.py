"""What was asked for, and how far it has come."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.causes import CAUSES
from forewarn.core.kinds import EVENT_TYPES

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from forewarn.core.fleet import Fleet

OVERRIDES = {
    "notice": "a notice below the least of its type",
    "windows": "a start outside the maintenance windows",
}
"""What an operator can insist on. Each use is written to history."""


class Request(NamedTuple):
    """What is asked for. Of `vms` and `host` the one that the cause is aimed at."""

    cause: str
    vms: tuple[str, ...] = ()
    host: str = ""
    type: str = ""
    """The type of event; empty: the cause's usual one."""
    duration: timedelta | None = None
    """How long the interruption lasts; None: what the cause says."""
    notice: timedelta | None = None
    """How long beforehand it is told; None: what the cause says."""
    deadline: datetime | None = None
    """Up to when it may be postponed; None: what the house says."""
    overrides: tuple[str, ...] = ()
    rollout: str = ""
    health_time: timedelta | None = None
    """In a rollout: how long after its start its VMs may take to be well."""
    speed: float = 1.0
    """Its notice and settle time are this many times shorter, beyond what the house says: for runs of scenarios."""


class Progress(StrEnum):
    """Where an operation is."""

    PENDING = "pending"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        return self is Progress.PENDING or self is Progress.STARTED


class Health(StrEnum):
    """What the fabric said of the VMs afterwards; it is asked in rollouts only."""

    UNKNOWN = ""
    GOOD = "good"
    BAD = "bad"


class Operation(NamedTuple):
    """A cause at work on some VMs. Makes one event per group that listens; starts when all of them may."""

    id: str
    request: Request
    vms: tuple[str, ...]
    requested_by: str
    requested_at: datetime
    progress: Progress = Progress.PENDING
    events: tuple[str, ...] = ()
    unnoticed: tuple[tuple[str, str], ...] = ()
    """Groups that get no notice, each with the reason."""
    started_at: datetime | None = None
    carried_out_at: datetime | None = None
    settles_at: datetime | None = None
    ended_at: datetime | None = None
    moves: tuple[tuple[str, str], ...] = ()
    """Where VMs go, each with its host: decided when the operation starts."""
    holds_until: datetime | None = None
    """Until when it must not start for the sake of groups that are not told: the next of their windows."""
    health: Health = Health.UNKNOWN
    outcome: str = ""
    """Why it failed or was cancelled."""

    @property
    def cause(self) -> str:
        return self.request.cause

    @property
    def type(self) -> str:
        """The type of its events; empty: it makes none."""
        return self.request.type

    @property
    def host(self) -> str:
        return self.request.host

    @property
    def verb(self) -> str:
        """What the fabric is told to do; empty: nothing."""
        verb = CAUSES[self.cause].verb
        return verb or (EVENT_TYPES[self.type].verb if self.type else "")

    @property
    def needs_fabric(self) -> bool:
        """Whether the fabric has still something to do for it, or to say of it."""
        if self.progress is not Progress.STARTED:
            return False
        unchecked = bool(self.request.rollout) and self.health is Health.UNKNOWN
        return self.carried_out_at is None or unchecked

    @property
    def moves_vms(self) -> bool:
        """Whether its VMs are on another host afterwards."""
        return self.verb in ("migrate", "redeploy")

    def concerns(self, fleet: Fleet, name: str) -> bool:
        """Whether there is still something to be done to this VM: it may have gone, or gone elsewhere, since."""
        vm = fleet.vms.get(name)
        if vm is None or (self.host and vm.host != self.host):
            return False
        return not vm.deallocated or self.verb in ("delete", "start")

    def concerned(self, fleet: Fleet) -> tuple[str, ...]:
        """The VMs to which there is still something to be done."""
        return tuple(name for name in self.vms if self.concerns(fleet, name))
