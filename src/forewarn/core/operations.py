"""Operations: causes (one row each; contract, sections 2 and 4), requests and progress."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import format_exact_duration, parse_duration
from forewarn.core.event_types import EVENT_TYPES, Verb
from forewarn.core.events import Source
from forewarn.core.steps import COMMAND_COST
from forewarn.errors import UnknownCause, nearest

if TYPE_CHECKING:
    from forewarn.core.fleet import Fleet


class CauseTarget(StrEnum):
    """What a cause affects, and how its VMs are divided into operations."""

    VM = "vm"
    """VMs: one operation for each VM."""
    SHARED = "shared"
    """VMs: one operation for each host of theirs."""
    HOST = "host"
    """A host: one operation for all VMs on it."""
    TENANTS = "tenants"
    """A host: one operation for each VM on it, so that none waits for another."""


class Cause(NamedTuple):
    """A reason for an operation, with its event and its work."""

    name: str
    target: CauseTarget
    types: tuple[str, ...]
    """Possible event types, the default first; none: it has no event."""
    source: Source
    description: str
    verb: Verb | None
    """The fabric's verb; None: the verb of the event type, if it has one."""
    settle: timedelta
    """How long the event stays Started: the published medians of July 2025, or an assumption."""
    duration: timedelta | None = None
    notice: timedelta | None = None
    """The default notice; None: the minimum of the event type."""
    auto_approve: str = ""
    """The value in a group's `auto_approve` that approves this cause automatically."""
    routine: bool = False
    """Routine work keeps to the groups' maintenance windows and can be postponed."""
    meaning: str = ""

    @property
    def dangerous(self) -> bool:
        """Whether VMs or their OS disks are lost, or VMs stop, or there is no notice."""
        return self.verb in _DANGEROUS_VERBS or self.notice == _NO_TIME


_DANGEROUS_VERBS = (Verb.DEALLOCATE, Verb.DELETE, Verb.REIMAGE)
_TEN_MINUTES = timedelta(minutes=10)
_ONE_MINUTE = timedelta(minutes=1)
_NO_TIME = timedelta(0)

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
            "reimage",
            CauseTarget.VM,
            ("Reboot",),
            Source.USER,
            "",
            Verb.REIMAGE,
            settle=_TEN_MINUTES,
            meaning="A user replaces the OS disk of the VM with a new copy of its image.",
        ),
        Cause(
            "image-upgrade",
            CauseTarget.VM,
            ("Reboot",),
            Source.PLATFORM,
            "",
            Verb.REIMAGE,
            settle=_TEN_MINUTES,
            meaning="A scale set replaces the OS disk of this VM with its newest image.",
        ),
        Cause(
            "start",
            CauseTarget.VM,
            (),
            Source.USER,
            "",
            Verb.START,
            settle=_NO_TIME,
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
            ("Freeze", "Redeploy"),
            Source.PLATFORM,
            "",
            Verb.REDEPLOY,
            settle=_TEN_MINUTES,
            duration=timedelta(seconds=5),
            notice=timedelta(days=7),
            routine=True,
            meaning="The host is expected to fail. Each VM is live-migrated, or redeployed if no host can take it.",
        ),
        Cause(
            "hardware-failure",
            CauseTarget.HOST,
            ("Reboot", "Redeploy"),
            Source.PLATFORM,
            "Virtual machine has encountered a failure.",
            Verb.REDEPLOY,
            settle=_TEN_MINUTES,
            notice=_NO_TIME,
            meaning="The host has failed. Its VMs start on other hosts immediately.",
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
            meaning="The platform needs the capacity of a Spot VM, and deallocates or deletes it.",
        ),
        Cause(
            "rebalance",
            CauseTarget.VM,
            ("SpotRebalanceRecommendation",),
            Source.PLATFORM,
            "",
            None,
            settle=_NO_TIME,
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

AUTO_APPROVE_VALUES = tuple(cause.auto_approve for cause in CAUSES.values() if cause.auto_approve)


def cause_named(name: str) -> Cause:
    """Return the cause of that name. The error for an unknown name lists all causes."""
    if name not in CAUSES:
        raise UnknownCause(name=name, known=", ".join(CAUSES), hint=nearest(name, CAUSES))
    return CAUSES[name]


# --- Requests and operations ----------------------------------------------------------------------


OVERRIDES = {
    "notice": "a notice shorter than the minimum of its type",
    "windows": "a start outside the maintenance windows",
}
"""Rules that an operator can override. Each use is recorded in history."""

UNKNOWN_DURATION = timedelta(seconds=-1)
"""The duration of an interruption that nobody can predict. The document shows it as -1."""
UNKNOWN = "unknown"
"""How people write it."""


def parse_interruption(text: str) -> timedelta:
    """Read the duration of an interruption: `9s`, `0s` for none, or `unknown`."""
    return UNKNOWN_DURATION if text.strip().lower() == UNKNOWN else parse_duration(text)


def format_interruption(duration: timedelta) -> str:
    """Format a duration as `parse_interruption` reads it."""
    return UNKNOWN if duration == UNKNOWN_DURATION else format_exact_duration(duration)


class CauseRequest(NamedTuple):
    """A request for operations of a cause, on `vms` or on `host`, depending on the cause."""

    cause: str
    vms: tuple[str, ...] = ()
    host: str = ""
    type: str = ""
    """The event type; empty: the default of the cause."""
    duration: timedelta | None = None
    """How long the interruption lasts, or UNKNOWN_DURATION; None: the default of the cause."""
    notice: timedelta | None = None
    """How long before its start the groups are notified; None: the default of the cause."""
    postpone_deadline: datetime | None = None
    """The latest time to which it can be postponed; None: from the settings of the service."""
    overrides: tuple[str, ...] = ()
    rollout: str = ""
    health_timeout: timedelta | None = None
    """In a rollout: how long after the start its VMs may take to become healthy."""
    speed: float = 1.0
    """Additional speed factor for the notice and the settle time, used by scenario runs."""
    description: str | None = None
    """The description of its events; None: the default of the cause."""
    verb: str = ""
    """The fabric's verb, if the state of the VM decides it; empty: the verb of the cause or of the event type."""
    require_notice: bool = False
    """Whether the request is rejected if a scope would get no notice."""

    @property
    def known_duration(self) -> timedelta | None:
        """How long the interruption lasts; None: unknown or not applicable."""
        return None if self.duration == UNKNOWN_DURATION else self.duration


class OperationStatus(StrEnum):
    """The status of an operation."""

    PENDING = "pending"
    STARTED = "started"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        return self is OperationStatus.PENDING or self is OperationStatus.STARTED


class Health(StrEnum):
    """Health of the VMs after the work, as the fabric reports it. Only rollouts check it."""

    UNKNOWN = ""
    GOOD = "good"
    BAD = "bad"


class Operation(NamedTuple):
    """Work of a cause on some VMs. Has one event for each notified group, and starts when all events may start."""

    id: str
    request: CauseRequest
    vms: tuple[str, ...]
    requested_by: str
    requested_at: datetime
    status: OperationStatus = OperationStatus.PENDING
    events: tuple[str, ...] = ()
    not_notified: tuple[tuple[str, str], ...] = ()
    """Scopes that are not notified, each with the reason."""
    started_at: datetime | None = None
    executed_at: datetime | None = None
    settles_at: datetime | None = None
    ended_at: datetime | None = None
    moves: tuple[tuple[str, str], ...] = ()
    """Destinations of VMs that are moved or started, chosen when the operation starts."""
    holds_until: datetime | None = None
    """The operation must not start before this time: the next window of groups that get no notice."""
    health: Health = Health.UNKNOWN
    reason: str = ""
    """Why it failed or was cancelled."""

    @property
    def cause(self) -> str:
        return self.request.cause

    @property
    def type(self) -> str:
        """The type of its events; empty: it has none."""
        return self.request.type

    @property
    def host(self) -> str:
        return self.request.host

    @property
    def verb(self) -> Verb | None:
        """The fabric's verb; None: no work."""
        if self.request.verb:
            return Verb(self.request.verb)
        verb = CAUSES[self.cause].verb
        return verb or (EVENT_TYPES[self.type].verb if self.type else None)

    @property
    def cost(self) -> int:
        """The cost of a step (core/steps.py) that changes the operation and its events."""
        return COMMAND_COST * max(len(self.vms), 1)

    @property
    def needs_fabric(self) -> bool:
        """Whether the fabric still has to do the work or to report the health."""
        if self.status is not OperationStatus.STARTED:
            return False
        unchecked = bool(self.request.rollout) and self.health is Health.UNKNOWN
        return self.executed_at is None or unchecked

    @property
    def is_on_host(self) -> bool:
        """Whether the work is on a host itself, and affects all VMs that run there. A failure has happened already."""
        cause = CAUSES[self.cause]
        return cause.target is CauseTarget.HOST and cause.notice != _NO_TIME

    @property
    def moves_vms(self) -> bool:
        """Whether it moves its VMs to another host."""
        return self.verb in (Verb.MIGRATE, Verb.REDEPLOY)

    def concerns(self, fleet: Fleet, name: str) -> bool:
        """Return whether the operation still applies to this VM, which may have been deleted or moved."""
        vm = fleet.vms.get(name)
        if vm is None or (self.host and vm.host != self.host):
            return False
        return not vm.deallocated or self.verb in (Verb.DELETE, Verb.START)

    def concerned(self, fleet: Fleet) -> tuple[str, ...]:
        """Return the VMs that the operation still applies to."""
        return tuple(name for name in self.vms if self.concerns(fleet, name))


class FailedAttempt(NamedTuple):
    """A failed attempt of the fabric, which will be retried."""

    failures: int
    """Number of consecutive failed attempts."""
    problem: str
    """The error of the last attempt."""
    next_at: datetime | None
    """When the next attempt starts; None: it is in progress."""
