"""CAUSES: one row per thing that can happen to VMs, and what each one tells and does (contract, sections 2 and 4)."""

from __future__ import annotations

from datetime import timedelta
from enum import StrEnum
from typing import NamedTuple

from forewarn.core.event import Source
from forewarn.errors import UnknownCause, nearest


class Target(StrEnum):
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
    target: Target
    types: tuple[str, ...]
    """The types of event it can make, the usual one first; none: it makes no event."""
    source: Source
    description: str
    verb: str
    """What the fabric is told to do; empty: what the event's type says, or nothing where that says nothing."""
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
            Target.VM,
            ("Reboot",),
            Source.USER,
            "Virtual machine is going to be restarted as requested by authorized user.",
            "reboot",
            settle=_TEN_MINUTES,
            auto_approve="reboot",
            meaning="A user restarts the VM.",
        ),
        Cause(
            "redeploy",
            Target.VM,
            ("Redeploy",),
            Source.USER,
            "Virtual machine is going to be redeployed as requested by authorized user.",
            "redeploy",
            settle=_TEN_MINUTES,
            auto_approve="redeploy",
            meaning="A user has the VM moved to another host.",
        ),
        Cause(
            "start",
            Target.VM,
            (),
            Source.USER,
            "",
            "start",
            settle=_AT_ONCE,
            meaning="A user starts a VM that was deallocated. Nobody is told.",
        ),
        Cause(
            "host-update",
            Target.HOST,
            ("Freeze", "Reboot"),
            Source.PLATFORM,
            "Host server is undergoing maintenance.",
            "",
            settle=_TEN_MINUTES,
            duration=timedelta(seconds=9),
            routine=True,
            meaning="The host is updated: its VMs are frozen for a moment, or rebooted.",
        ),
        Cause(
            "live-migration",
            Target.SHARED,
            ("Freeze",),
            Source.PLATFORM,
            "Virtual machine is being paused because of a memory-preserving Live Migration operation.",
            "migrate",
            settle=timedelta(minutes=5),
            duration=timedelta(seconds=5),
            routine=True,
            meaning="The VM is moved to another host while it runs.",
        ),
        Cause(
            "degraded-hardware",
            Target.TENANTS,
            ("Redeploy",),
            Source.PLATFORM,
            "",
            "redeploy",
            settle=_TEN_MINUTES,
            notice=timedelta(days=7),
            routine=True,
            meaning="The host is expected to fail: its VMs are moved away, each when it is due or approved.",
        ),
        Cause(
            "hardware-failure",
            Target.HOST,
            ("Redeploy", "Reboot"),
            Source.PLATFORM,
            "Virtual machine has encountered a failure.",
            "",
            settle=_TEN_MINUTES,
            notice=_AT_ONCE,
            meaning="The host has failed: its VMs are started elsewhere, or rebooted, at once.",
        ),
        Cause(
            "emergency-repair",
            Target.HOST,
            ("Reboot",),
            Source.PLATFORM,
            "Host server is undergoing an emergency repair.",
            "",
            settle=_TEN_MINUTES,
            meaning="The host cannot wait for a window: its VMs are rebooted after the least notice.",
        ),
        Cause(
            "eviction",
            Target.VM,
            ("Preempt",),
            Source.PLATFORM,
            "",
            "deallocate",
            settle=_ONE_MINUTE,
            meaning="The room of a Spot VM is needed: it is deallocated.",
        ),
        Cause(
            "rebalance",
            Target.VM,
            ("SpotRebalanceRecommendation",),
            Source.PLATFORM,
            "",
            "",
            settle=_AT_ONCE,
            meaning="A Spot VM is advised to move on. It never starts; it ends when withdrawn, or evicted.",
        ),
        Cause(
            "delete",
            Target.VM,
            ("Terminate",),
            Source.USER,
            "",
            "delete",
            settle=_ONE_MINUTE,
            meaning="A user deletes the VM.",
        ),
        Cause(
            "scale-in",
            Target.VM,
            ("Terminate",),
            Source.PLATFORM,
            "",
            "delete",
            settle=_ONE_MINUTE,
            meaning="A scale set grows smaller by this VM.",
        ),
        Cause(
            "instance-repair",
            Target.VM,
            ("Terminate",),
            Source.PLATFORM,
            "",
            "delete",
            settle=_ONE_MINUTE,
            meaning="A scale set replaces this VM because it is ill.",
        ),
    )
}

AUTO_APPROVE_WORDS = tuple(cause.auto_approve for cause in CAUSES.values() if cause.auto_approve)


def cause_named(name: str) -> Cause:
    """The row of that name, or an error that lists them."""
    if name not in CAUSES:
        raise UnknownCause(name=name, known=", ".join(CAUSES), hint=nearest(name, CAUSES))
    return CAUSES[name]
