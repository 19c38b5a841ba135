"""The causes of events, and which events each one makes."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import whole_second_up
from forewarn.core.event import Event, Source, Status
from forewarn.core.kinds import EVENT_TYPES
from forewarn.errors import UnknownCause, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime

    from forewarn.core.fleet import Fleet


class Cause(NamedTuple):
    """What an operation of this cause tells, and does."""

    name: str
    event_type: str
    source: Source
    description: str
    settle: timedelta
    """How long the event stays Started: the published medians of July 2025 (contract, section 4)."""
    duration: timedelta | None = None
    auto_approve: str = ""
    """The word in a group's `auto_approve` that lets this cause start at once."""


CAUSES = {
    row.name: row
    for row in (
        Cause(
            "restart",
            "Reboot",
            Source.USER,
            "Virtual machine is going to be restarted as requested by authorized user.",
            settle=timedelta(minutes=10),
            auto_approve="reboot",
        ),
        Cause(
            "redeploy",
            "Redeploy",
            Source.USER,
            "Virtual machine is going to be redeployed as requested by authorized user.",
            settle=timedelta(minutes=10),
            auto_approve="redeploy",
        ),
        Cause(
            "host-update",
            "Freeze",
            Source.PLATFORM,
            "Host server is undergoing maintenance.",
            settle=timedelta(minutes=10),
            duration=timedelta(seconds=9),
        ),
    )
}

AUTO_APPROVE_WORDS = tuple(cause.auto_approve for cause in CAUSES.values() if cause.auto_approve)


def cause_named(name: str) -> Cause:
    """The row of that name, or an error that lists them."""
    if name not in CAUSES:
        raise UnknownCause(name=name, known=", ".join(CAUSES), hint=nearest(name, CAUSES))
    return CAUSES[name]


class Progress(StrEnum):
    """Where an operation is."""

    PENDING = "pending"
    STARTED = "started"
    DONE = "done"
    CANCELLED = "cancelled"

    @property
    def live(self) -> bool:
        return self is Progress.PENDING or self is Progress.STARTED


class Operation(NamedTuple):
    """A cause at work on some VMs. Makes one event per group that listens; starts when all of them may."""

    id: str
    cause: str
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


def plan_events(
    operation: Operation,
    fleet: Fleet,
    listening: Iterable[str],
    now: datetime,
    speed: float,
    new_id: Callable[[], str],
) -> list[Event]:
    """One event per listening group: the smallest set that must be hit together, told once."""
    cause = CAUSES[operation.cause]
    notice = EVENT_TYPES[cause.event_type].least_notice / speed
    by_group: dict[str, list[str]] = {group: [] for group in listening}
    for name in operation.vms:
        group = fleet.vm(name).group
        if group in by_group:
            by_group[group].append(name)
    return [
        Event(
            id=new_id(),
            operation=operation.id,
            group=group,
            type=cause.event_type,
            status=Status.SCHEDULED,
            resources=tuple(names),
            not_before=whole_second_up(now + notice),
            description=cause.description,
            source=cause.source,
            duration=cause.duration,
            created_at=now,
        )
        for group, names in by_group.items()
    ]


def approved_from_the_start(operation: Operation, fleet: Fleet, group: str) -> bool:
    """Whether the group's policy lets this operation begin without asking."""
    word = CAUSES[operation.cause].auto_approve
    return bool(word) and word in fleet.group(group).auto_approve
