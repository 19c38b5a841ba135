"""What a request must be to be taken: its own values, and the state of what it is aimed at."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.causes import CAUSES, Cause, Target
from forewarn.core.durations import format_duration
from forewarn.core.event import Source, Status
from forewarn.core.kinds import EVENT_TYPES
from forewarn.core.operations import OVERRIDES
from forewarn.core.placement import choose_host
from forewarn.errors import (
    AlreadyComing,
    BadOption,
    NoHostFits,
    NotSpot,
    TooManyPending,
    VMDeallocated,
    VMRunning,
    nearest,
)

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.draft import Draft
    from forewarn.core.fleet import VM
    from forewarn.core.operations import Request
    from forewarn.core.terms import Terms

DELETIONS = tuple(name for name, cause in CAUSES.items() if cause.verb == "delete")
ONCE = ("start", "live-migration", "eviction", "rebalance", *DELETIONS)
"""What makes no sense for a VM to which it is about to happen already."""
LONGEST_PAUSE = timedelta(hours=1)
"""Nobody calls it a freeze after that."""


def least_notice(event_type: str) -> timedelta:
    return EVENT_TYPES[event_type].least_notice if event_type else timedelta(0)


def fill_in(asked: Request, cause: Cause, now: datetime) -> Request:
    """The request with what it leaves to the cause, or an error that says what would be right."""
    _check_target(asked, cause)
    asked = asked._replace(type=_type(asked, cause))
    for name in asked.overrides:
        if name not in OVERRIDES:
            raise BadOption(
                name="overrides",
                value=name,
                problem=f"there is no such override. Known are: {', '.join(OVERRIDES)}.{nearest(name, OVERRIDES)}",
            )
    _check_notice(asked, cause)
    if asked.deadline is not None:
        if not cause.routine:
            raise BadOption(
                name="postpone_until",
                value=_shown(asked.deadline),
                problem=f"{cause.name} cannot be postponed. Leave it out.",
            )
        if asked.deadline <= now and not asked.rollout:  # a long walk may outlast it: then nothing is postponed
            raise BadOption(
                name="postpone_until", value=_shown(asked.deadline), problem=f"it has passed: it is {_shown(now)}."
            )
    return asked._replace(duration=_duration(asked, cause), overrides=_needed(asked, cause))


def _needed(asked: Request, cause: Cause) -> tuple[str, ...]:
    """The overrides that override something: what goes to history should mean something."""
    short = asked.notice is not None and asked.notice < least_notice(asked.type)
    needed = {"notice": short, "windows": cause.routine}
    return tuple(name for name in dict.fromkeys(asked.overrides) if needed[name])


def _check_target(asked: Request, cause: Cause) -> None:
    if cause.target in (Target.HOST, Target.TENANTS):
        if asked.vms or not asked.host:
            raise BadOption(
                name="host", value=asked.host, problem=f"{cause.name} is aimed at a host. Name one, and no VMs."
            )
    elif asked.host:
        raise BadOption(name="host", value=asked.host, problem=f"{cause.name} is aimed at VMs. Name them, and no host.")


def _type(asked: Request, cause: Cause) -> str:
    if not asked.type:
        return cause.types[0] if cause.types else ""
    for known in cause.types:
        if known.lower() == asked.type.lower():
            return known
    makes = " or ".join(cause.types) or "no event"
    raise BadOption(name="type", value=asked.type, problem=f"{cause.name} makes {makes}.")


def _check_notice(asked: Request, cause: Cause) -> None:
    if asked.notice is None:
        return
    value = _length(asked.notice)
    if cause.notice == timedelta(0) or not asked.type or not EVENT_TYPES[asked.type].starts:
        raise BadOption(name="notice", value=value, problem=f"{cause.name} has no notice. Leave it out.")
    if cause.verb == "delete":
        problem = "a deletion has the notice of its scale set. Set terminate_notice there."
        raise BadOption(name="notice", value=value, problem=problem)
    least = least_notice(asked.type)
    if asked.notice < least and "notice" not in asked.overrides:
        problem = f"a {asked.type} is told at least {format_duration(least)} beforehand. Write that or more"
        raise BadOption(name="notice", value=value, problem=f"{problem}, or insist with --override-notice.")


def _duration(asked: Request, cause: Cause) -> timedelta | None:
    if asked.type != "Freeze":
        if asked.duration is not None:
            problem = "only a freeze has a known one. Leave it out."
            raise BadOption(name="duration", value=_length(asked.duration), problem=problem)
        return None
    duration = asked.duration if asked.duration is not None else cause.duration
    if duration is not None and not timedelta(seconds=1) <= duration <= LONGEST_PAUSE:
        problem = f"a freeze lasts from 1s to {format_duration(LONGEST_PAUSE)}."
        raise BadOption(name="duration", value=_length(duration), problem=problem)
    return duration


def _length(length: timedelta) -> str:
    """As it was written, also where it has fractions."""
    whole = format_duration(length)
    return whole if not length.microseconds else f"{length.total_seconds():g}s"


def _shown(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


# --- The state of what it is aimed at -----------------------------------------------------------------


def refuse_unfit(draft: Draft, terms: Terms, asked: Request) -> None:
    """Refuse what cannot happen to these VMs now."""
    cause = CAUSES[asked.cause]
    if cause.target in (Target.HOST, Target.TENANTS):  # what happens to a host asks no VM
        return
    for vm in (draft.fleet.vm(name) for name in asked.vms):
        _refuse_state(cause, vm)
        if asked.type in ("Preempt", "SpotRebalanceRecommendation") and vm.priority != "spot":
            raise NotSpot(vm=vm.name, priority=vm.priority)
        if cause.name in ONCE:
            _refuse_second(draft, vm, cause)
        if cause.source is Source.USER and asked.type:
            _refuse_too_many(draft, terms, vm)
        if cause.verb == "migrate" and not terms.makes_hosts and choose_host(draft, vm) is None:
            raise NoHostFits(vm=vm.name)


def _refuse_state(cause: Cause, vm: VM) -> None:
    if cause.verb == "start":
        if not vm.deallocated:
            raise VMRunning(vm=vm.name)
    elif vm.deallocated and cause.verb != "delete":
        raise VMDeallocated(vm=vm.name)


def _refuse_second(draft: Draft, vm: VM, cause: Cause) -> None:
    for other in draft.operations_on(vm.name):
        same = other.cause == cause.name or (cause.name in DELETIONS and other.cause in DELETIONS)
        if same:
            raise AlreadyComing(vm=vm.name, cause=other.cause, operation_id=other.id)


def _refuse_too_many(draft: Draft, terms: Terms, vm: VM) -> None:
    most = terms.pending_user_operations
    if not most:
        return
    pending = sum(
        event.status is Status.SCHEDULED and event.source is Source.USER for event in draft.events_of(vm.group)
    )
    if pending >= most:
        raise TooManyPending(group=vm.group, most=most)
