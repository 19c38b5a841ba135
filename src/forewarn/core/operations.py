"""Operations: the causes (one row each, contract, sections 2 and 4), what was requested, and how far it has come."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.event_types import EVENT_TYPES, Verb
from forewarn.core.events import Source
from forewarn.errors import UnknownCause, nearest

if TYPE_CHECKING:
    from forewarn.core.fleet import Fleet


class CauseTarget(StrEnum):
    """What a cause is aimed at, and so what happens together."""

    VM = "vm"
    """Each VM by itself: one operation for each."""
    SHARED = "shared"
    """VMs, together where they are on one host: one operation for each host."""
    HOST = "host"
    """A host with all VMs on it: one operation."""
    TENANTS = "tenants"
    """A host, but each VM on it by itself: none has to wait for another."""


class Cause(NamedTuple):
    """What an operation of this cause tells, and does."""

    name: str
    target: CauseTarget
    types: tuple[str, ...]
    """The types of event it can make, the usual one first; none: it makes no event."""
    source: Source
    description: str
    verb: Verb | None
    """What the fabric does; None: what the event's type says, or nothing where that says nothing."""
    settle: timedelta
    """How long the event stays Started: the published medians of July 2025, else assumed."""
    duration: timedelta | None = None
    notice: timedelta | None = None
    """How long beforehand it is told; None: the least that its type allows."""
    auto_approve: str = ""
    """The word in a group's `auto_approve` that lets this cause start at once."""
    routine: bool = False
    """Work that can wait: it keeps to the groups' maintenance windows, and may be postponed."""
    meaning: str = ""


_TEN_MINUTES = timedelta(minutes=10)
_ONE_MINUTE = timedelta(minutes=1)
_AT_ONCE = timedelta(0)

CAUSES = {
    row.name: row
    for row in (
        Cause(
            "restart",
            CauseTarget.VM,
            ("Reboot",),
            Source.USER,
            "Virtual machine is going to be restarted as requested by authorized user.",
            Verb.REBOOT,
            settle=_TEN_MINUTES,
            auto_approve="reboot",
            meaning="A user restarts the VM.",
        ),
        Cause(
            "redeploy",
            CauseTarget.VM,
            ("Redeploy",),
            Source.USER,
            "Virtual machine is going to be redeployed as requested by authorized user.",
            Verb.REDEPLOY,
            settle=_TEN_MINUTES,
            auto_approve="redeploy",
            meaning="A user redeploys the VM to another host.",
        ),
        Cause(
            "start",
            CauseTarget.VM,
            (),
            Source.USER,
            "",
            Verb.START,
            settle=_AT_ONCE,
            meaning="A user starts a deallocated VM. There is no event.",
        ),
        Cause(
            "host-update",
            CauseTarget.HOST,
            ("Freeze", "Reboot"),
            Source.PLATFORM,
            "Host server is undergoing maintenance.",
            None,
            settle=_TEN_MINUTES,
            duration=timedelta(seconds=9),
            routine=True,
            meaning="The platform updates the host. Its VMs are paused for a few seconds, or rebooted.",
        ),
        Cause(
            "live-migration",
            CauseTarget.SHARED,
            ("Freeze",),
            Source.PLATFORM,
            "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
            Verb.MIGRATE,
            settle=timedelta(minutes=5),
            duration=timedelta(seconds=5),
            routine=True,
            meaning="The platform moves the running VM to another host.",
        ),
        Cause(
            "degraded-hardware",
            CauseTarget.TENANTS,
            ("Redeploy",),
            Source.PLATFORM,
            "",
            Verb.REDEPLOY,
            settle=_TEN_MINUTES,
            notice=timedelta(days=7),
            routine=True,
            meaning="The host is expected to fail. Each of its VMs is redeployed when it is due or approved.",
        ),
        Cause(
            "hardware-failure",
            CauseTarget.HOST,
            ("Redeploy", "Reboot"),
            Source.PLATFORM,
            "Virtual machine has encountered a failure.",
            None,
            settle=_TEN_MINUTES,
            notice=_AT_ONCE,
            meaning="The host has failed. Its VMs are redeployed or rebooted immediately.",
        ),
        Cause(
            "emergency-repair",
            CauseTarget.HOST,
            ("Reboot",),
            Source.PLATFORM,
            "Host server is undergoing an emergency repair.",
            None,
            settle=_TEN_MINUTES,
            meaning="The host needs an urgent repair. Its VMs are rebooted after the minimum notice.",
        ),
        Cause(
            "eviction",
            CauseTarget.VM,
            ("Preempt",),
            Source.PLATFORM,
            "",
            Verb.DEALLOCATE,
            settle=_ONE_MINUTE,
            meaning="The platform needs the capacity of a Spot VM and deallocates it.",
        ),
        Cause(
            "rebalance",
            CauseTarget.VM,
            ("SpotRebalanceRecommendation",),
            Source.PLATFORM,
            "",
            None,
            settle=_AT_ONCE,
            meaning="The platform recommends moving a Spot VM. The event never starts.",
        ),
        Cause(
            "delete",
            CauseTarget.VM,
            ("Terminate",),
            Source.USER,
            "",
            Verb.DELETE,
            settle=_ONE_MINUTE,
            meaning="A user deletes the VM.",
        ),
        Cause(
            "scale-in",
            CauseTarget.VM,
            ("Terminate",),
            Source.PLATFORM,
            "",
            Verb.DELETE,
            settle=_ONE_MINUTE,
            meaning="A scale set removes this VM to scale in.",
        ),
        Cause(
            "instance-repair",
            CauseTarget.VM,
            ("Terminate",),
            Source.PLATFORM,
            "",
            Verb.DELETE,
            settle=_ONE_MINUTE,
            meaning="A scale set replaces this unhealthy VM.",
        ),
    )
}

AUTO_APPROVE_WORDS = tuple(cause.auto_approve for cause in CAUSES.values() if cause.auto_approve)


def cause_named(name: str) -> Cause:
    """The row of that name, or an error that lists them."""
    if name not in CAUSES:
        raise UnknownCause(name=name, known=", ".join(CAUSES), hint=nearest(name, CAUSES))
    return CAUSES[name]


# --- Requests and operations ----------------------------------------------------------------------


OVERRIDES = {
    "notice": "a notice shorter than the minimum of its type",
    "windows": "a start outside the maintenance windows",
}
"""What an operator can insist on. Each use is written to history."""


class CauseRequest(NamedTuple):
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
    request: CauseRequest
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
    def verb(self) -> Verb | None:
        """What the fabric does; None: nothing."""
        verb = CAUSES[self.cause].verb
        return verb or (EVENT_TYPES[self.type].verb if self.type else None)

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
        return self.verb in (Verb.MIGRATE, Verb.REDEPLOY)

    def concerns(self, fleet: Fleet, name: str) -> bool:
        """Whether there is still something to be done to this VM: it may have gone, or gone elsewhere, since."""
        vm = fleet.vms.get(name)
        if vm is None or (self.host and vm.host != self.host):
            return False
        return not vm.deallocated or self.verb in (Verb.DELETE, Verb.START)

    def concerned(self, fleet: Fleet) -> tuple[str, ...]:
        """The VMs to which there is still something to be done."""
        return tuple(name for name in self.vms if self.concerns(fleet, name))


class FailedAttempt(NamedTuple):
    """The fabric could not carry out an operation. It is tried again."""

    failures: int
    """How many attempts have failed in a row."""
    problem: str
    """Why the last one did."""
    next_at: datetime | None
    """When the next attempt begins; None: it is under way."""
