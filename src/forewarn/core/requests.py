"""Request operations: validate the request, schedule events, and compute the earliest start."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core import history, placement
from forewarn.core.durations import format_duration, format_exact_duration, format_time, round_up_to_second, to_text
from forewarn.core.enabling import reason_not_notified
from forewarn.core.event_types import EVENT_TYPES, Verb
from forewarn.core.events import Event, EventStatus, Source, Trigger, due, first_status, step
from forewarn.core.fleet import DELETE, SPOT, eviction_policy
from forewarn.core.operations import (
    CAUSES,
    OVERRIDES,
    UNKNOWN,
    UNKNOWN_DURATION,
    Cause,
    CauseRequest,
    CauseTarget,
    Operation,
    cause_named,
    format_interruption,
)
from forewarn.core.placement import has_destination
from forewarn.core.progress import advance_in_steps
from forewarn.core.state import UP_AT
from forewarn.core.steps import COMMAND_COST, at_once, finish
from forewarn.core.waits import TERMINATE, first_names, keeps_to_windows
from forewarn.core.windows import next_common
from forewarn.errors import (
    BadOption,
    LimitExceeded,
    NoCommonWindow,
    NoHostAvailable,
    NoticeRequired,
    NotSpot,
    NoVMNamed,
    OperationAlreadyPending,
    TooManyPendingOperations,
    VMDeallocated,
    VMRunning,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from forewarn.core.fleet import VM, Fleet, Group
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps


DEGRADED, FAILURE, EVICTION, REDEPLOY = "degraded-hardware", "hardware-failure", "eviction", "Redeploy"
DELETIONS = tuple(name for name, cause in CAUSES.items() if cause.verb is Verb.DELETE)
IMAGE_CHANGES = tuple(name for name, cause in CAUSES.items() if cause.verb is Verb.REIMAGE)
MAX_FREEZE = timedelta(hours=1)
"""A longer interruption is not a freeze."""
MAX_DESCRIPTION = 256
"""Maximum length of the description of an event."""


def minimum_notice(event_type: str) -> timedelta:
    return EVENT_TYPES[event_type].min_notice if event_type else timedelta(0)


def fill_in(cause_request: CauseRequest, cause: Cause, now: datetime) -> CauseRequest:
    """Return the request with the defaults of the cause filled in. Raises an error if it is invalid."""
    _check_target(cause_request, cause)
    cause_request = cause_request._replace(type=_type(cause_request, cause))
    for name in cause_request.overrides:
        if name not in OVERRIDES:
            raise BadOption(
                name="overrides",
                value=name,
                problem=f"unknown override. Overrides: {', '.join(OVERRIDES)}.{nearest(name, OVERRIDES)}",
            )
    _check_notice(cause_request, cause)
    _check_description(cause_request, cause)
    if cause_request.postpone_deadline is not None:
        if not cause.routine:
            raise BadOption(
                name="postpone_deadline",
                value=format_time(cause_request.postpone_deadline),
                problem=f"{cause.name} cannot be postponed. Omit the deadline.",
            )
        if (
            cause_request.postpone_deadline <= now and not cause_request.rollout
        ):  # a long rollout may outlast it, and is then not postponed
            raise BadOption(
                name="postpone_deadline",
                value=format_time(cause_request.postpone_deadline),
                problem=f"this time has passed. It is {format_time(now)}.",
            )
    return cause_request._replace(duration=_duration(cause_request, cause), overrides=_needed(cause_request, cause))


def _needed(cause_request: CauseRequest, cause: Cause) -> tuple[str, ...]:
    """Return the overrides that have an effect, so that history records only those."""
    short = cause_request.notice is not None and cause_request.notice < minimum_notice(cause_request.type)
    needed = {"notice": short, "windows": cause.routine}
    return tuple(name for name in dict.fromkeys(cause_request.overrides) if needed[name])


def _check_target(cause_request: CauseRequest, cause: Cause) -> None:
    if cause.target in (CauseTarget.HOST, CauseTarget.TENANTS):
        if cause_request.vms or not cause_request.host:
            raise BadOption(
                name="host", value=cause_request.host, problem=f"{cause.name} affects a host. Name one host and no VMs."
            )
    elif cause_request.host:
        raise BadOption(
            name="host", value=cause_request.host, problem=f"{cause.name} affects VMs. Name VMs and no host."
        )


def _type(cause_request: CauseRequest, cause: Cause) -> str:
    if not cause_request.type:
        return cause.types[0] if cause.types else ""
    for known in cause.types:
        if known.lower() == cause_request.type.lower():
            return known
    types = " or ".join(cause.types)
    problem = f"{cause.name} needs {types}." if types else f"{cause.name} creates no event. Omit the type."
    raise BadOption(name="type", value=cause_request.type, problem=problem)


def _check_notice(cause_request: CauseRequest, cause: Cause) -> None:
    no_notice = cause.notice == timedelta(0) or not cause_request.type or not EVENT_TYPES[cause_request.type].starts
    if cause_request.require_notice and no_notice:
        raise BadOption(name="require_notice", value="true", problem=f"{cause.name} has no notice. Omit it.")
    if cause_request.notice is None:
        return
    value = format_exact_duration(cause_request.notice)
    if no_notice:
        raise BadOption(name="notice", value=value, problem=f"{cause.name} has no notice. Omit it.")
    if cause.verb is Verb.DELETE:
        problem = "a deletion uses the terminate_notice of its scale set or VM. Set it there."
        raise BadOption(name="notice", value=value, problem=problem)
    if cause.verb is Verb.REIMAGE:
        problem = "a change of the OS image uses the os_image_notice of its scale set. Set it there."
        raise BadOption(name="notice", value=value, problem=problem)
    minimum = minimum_notice(cause_request.type)
    if cause_request.notice < minimum and "notice" not in cause_request.overrides:
        bound = f"the minimum for {cause_request.type} is {format_duration(minimum)}"
        problem = f"{bound}. Use a longer one, or override the minimum (--override-notice)."
        raise BadOption(name="notice", value=value, problem=problem)


def _duration(cause_request: CauseRequest, cause: Cause) -> timedelta | None:
    if cause_request.type != "Freeze":
        if cause_request.duration is not None:
            problem = "only a Freeze has a duration. Omit it."
            raise BadOption(name="duration", value=format_interruption(cause_request.duration), problem=problem)
        return None
    duration = cause_request.duration if cause_request.duration is not None else cause.duration
    if duration is None or duration in (UNKNOWN_DURATION, timedelta(0)):
        return duration
    if timedelta(seconds=1) <= duration <= MAX_FREEZE:
        return duration
    problem = f"a Freeze lasts from 1s to {format_duration(MAX_FREEZE)}. Or write 0s (no interruption) or {UNKNOWN}."
    raise BadOption(name="duration", value=format_interruption(duration), problem=problem)


def _check_description(cause_request: CauseRequest, cause: Cause) -> None:
    text = cause_request.description
    if text is None:
        return
    problem = description_problem(text)
    if cause.source is Source.USER:
        problem = f"a user requests a {cause.name}, and Azure describes such operations itself. Omit it."
    if problem:
        raise BadOption(name="description", value=text, problem=problem)


def description_problem(text: str) -> str:
    """Return why a text cannot be the description of an event, or an empty string."""
    if len(text) > MAX_DESCRIPTION:
        return f"it has {len(text)} characters. Write at most {MAX_DESCRIPTION}."
    if not text.isprintable():
        return "it contains control characters. Write plain text in one line."
    return ""


# --- Current state of the VMs --------------------------------------------------------------------------


def check_vms(draft: Draft, limits: OperatorLimits, cause_request: CauseRequest) -> None:
    """Reject a request that is not possible in the current state of its VMs."""
    cause = CAUSES[cause_request.cause]
    if cause.target is CauseTarget.HOST:  # host work does not depend on the state of VMs
        _check_no_duplicate(cause_request, cause_request.host, draft.operations_at(cause_request.host))
        return
    for vm in (draft.fleet.vm(name) for name in cause_request.vms):
        _check_state(cause, vm)
        if cause_request.type in ("Preempt", "SpotRebalanceRecommendation") and vm.priority != SPOT:
            raise NotSpot(vm=vm.name, priority=vm.priority)
        _check_no_duplicate(cause_request, vm.name, draft.operations_on(vm.name))
        if cause.source is Source.USER and cause_request.type:
            _check_pending_limit(draft, limits, vm)
        if Verb.MIGRATE in (cause.verb, cause_request.verb) and not has_destination(draft, limits, vm):
            raise NoHostAvailable(vm=vm.name)


def _check_state(cause: Cause, vm: VM) -> None:
    if cause.verb is Verb.START:
        if not vm.deallocated:
            raise VMRunning(vm=vm.name)
    elif vm.deallocated and cause.verb is not Verb.DELETE:
        raise VMDeallocated(vm=vm.name)


def _check_no_duplicate(cause_request: CauseRequest, name: str, operations: list[Operation]) -> None:
    """Reject a second operation of a cause while the work of the first is not done."""
    for other in operations:
        if _repeats(cause_request, other):
            raise OperationAlreadyPending(name=name, status=other.status, cause=other.cause, operation_id=other.id)


def _repeats(cause_request: CauseRequest, other: Operation) -> bool:
    """Return whether the request would repeat this operation. All deletions do the same, all new images too.

    A VM can still be in an operation of the host that it has left.
    """
    cause = CAUSES[cause_request.cause]
    if cause.target in (CauseTarget.HOST, CauseTarget.TENANTS) and other.host != cause_request.host:
        return False
    alike = any(cause.name in causes and other.cause in causes for causes in (DELETIONS, IMAGE_CHANGES))
    if other.cause != cause.name and not alike:
        return False
    return other.executed_at is None or other.verb is Verb.DELETE  # a deleted VM stays until its event ends


def _check_pending_limit(draft: Draft, limits: OperatorLimits, vm: VM) -> None:
    maximum = limits.max_pending_user_operations
    if maximum and draft.pending_by_users(vm.group) >= maximum:
        raise TooManyPendingOperations(group=vm.group, maximum=maximum)


# --- Requesting -----------------------------------------------------------------------------------


MAX_VMS = 1000
"""For more VMs, use a rollout."""


def request_in_steps(
    draft: Draft, now: datetime, limits: OperatorLimits, cause_request: CauseRequest, by: str
) -> Steps[list[Operation]]:
    """Create the operations of a request, schedule events for enabled groups, and start what need not wait."""
    cause = cause_named(cause_request.cause)
    type_given = bool(cause_request.type)
    cause_request = fill_in(cause_request, cause, now)
    parts = _parts(draft, now, limits, cause, cause_request)
    if cause_request.require_notice:
        vms = dict.fromkeys(name for part in parts for name in part.vms)
        check_notified(_not_notified(draft, now, limits, cause_request, _by_scope(draft.fleet, vms)), cause)
    if (state := placement.HOST_STATES.get(cause.name)) is not None:
        placement.set_host_state(draft, now, cause_request.host, state, by)
    operations = []
    for part in parts:
        decided = _decide_work(draft, limits, part, type_given=type_given)
        check_vms(draft, limits, decided)  # one by one, because each counts towards the limits of the next
        operations.append((yield from _begin(draft, now, limits, decided, by)))
        yield operations[-1].cost
    return operations


request = at_once(request_in_steps)


def _decide_work(
    draft: Draft, limits: OperatorLimits, cause_request: CauseRequest, *, type_given: bool
) -> CauseRequest:
    """Return the request with the work that the state of its VM decides."""
    if cause_request.cause == DEGRADED and cause_request.type == "Freeze":
        if type_given or has_destination(draft, limits, draft.fleet.vm(*cause_request.vms)):
            return cause_request._replace(verb=Verb.MIGRATE.value)
        return cause_request._replace(type=REDEPLOY, duration=None)
    if cause_request.cause == EVICTION:
        vm = draft.fleet.vm(*cause_request.vms)
        if eviction_policy(vm, draft.fleet.group(vm.group)) == DELETE:
            return cause_request._replace(verb=Verb.DELETE.value)
    return cause_request


def redeploy_instead(draft: Draft, now: datetime, limits: OperatorLimits, operation_id: str) -> None:
    """Replace the live migration of a VM on a degraded host that no other host can take: redeploy it.

    The VM has had its notice, so it only gets the minimum notice of the new event type.
    """
    operation = draft.changes.operations[operation_id]
    notice = minimum_notice(REDEPLOY)
    if operation.request.notice is not None:
        notice = min(notice, operation.request.notice)
    replacement = operation.request._replace(
        vms=operation.vms, type=REDEPLOY, duration=None, notice=notice, postpone_deadline=None, verb=""
    )
    finish(_begin(draft, now, limits, replacement, history.ENGINE))


def _parts(
    draft: Draft, now: datetime, limits: OperatorLimits, cause: Cause, cause_request: CauseRequest
) -> list[CauseRequest]:
    """Split the request into one for each operation."""
    fleet = draft.fleet
    if cause.target in (CauseTarget.HOST, CauseTarget.TENANTS):
        running = tuple(name for name in fleet.on_host(cause_request.host) if not fleet.vms[name].deallocated)
        if cause.target is CauseTarget.HOST and cause.notice is None:
            running = tuple(name for name in fleet.on_host(cause_request.host) if _hears(draft, now, limits, name))
        if cause.target is CauseTarget.HOST:
            # Repairs and updates are work on the host itself. A failure only affects its VMs.
            return [cause_request._replace(vms=running)] if running or cause.name != FAILURE else []
        return [cause_request._replace(vms=(name,)) for name in _without_duplicates(draft, cause_request, running)]
    if len(cause_request.vms) > MAX_VMS:
        raise LimitExceeded(
            count=len(cause_request.vms),
            things="VMs",
            what="request",
            maximum=MAX_VMS,
            remedy="Name fewer, or use a rollout over their hosts.",
        )
    names = list(dict.fromkeys(fleet.vm(name).name for name in cause_request.vms))
    if not names:
        raise NoVMNamed
    if cause.target is CauseTarget.VM:
        return [cause_request._replace(vms=(name,)) for name in names]
    by_host: dict[str, list[str]] = {}
    for name in names:
        by_host.setdefault(fleet.vm(name).host, []).append(name)
    return [cause_request._replace(host=host, vms=tuple(names)) for host, names in by_host.items()]


def _hears(draft: Draft, now: datetime, limits: OperatorLimits, name: str) -> bool:
    """Return whether work on its host names the VM: it runs, or its whole scope is down and has events enabled."""
    vm = draft.fleet.vms[name]
    scope = draft.fleet.scope_of(vm)
    return not vm.deallocated or (draft.fleet.is_down(scope) and not reason_not_notified(draft, scope, now, limits))


def _without_duplicates(draft: Draft, cause_request: CauseRequest, names: tuple[str, ...]) -> list[str]:
    """Return the VMs that do not have such an operation yet. If all have one, the error names the first."""
    left = [name for name in names if not any(_repeats(cause_request, other) for other in draft.operations_on(name))]
    if names and not left:
        _check_no_duplicate(cause_request, names[0], draft.operations_on(names[0]))
    return left


def _begin(
    draft: Draft, now: datetime, limits: OperatorLimits, cause_request: CauseRequest, by: str
) -> Steps[Operation]:
    operation = Operation(
        id=draft.new_id(), request=cause_request, vms=cause_request.vms, requested_by=by, requested_at=now
    )
    of_scope = _by_scope(draft.fleet, cause_request.vms)
    not_notified = _not_notified(draft, now, limits, cause_request, of_scope)
    groups = list(dict.fromkeys(draft.fleet.vm(name).group for name in cause_request.vms))
    earliest = _earliest(draft.fleet, now, limits, operation, groups)
    events = []
    for scope, names in of_scope.items():
        if scope not in not_notified and cause_request.type:
            events.append(_event(draft, now, limits, operation, scope, tuple(names), earliest))
            yield COMMAND_COST // 2
    operation = operation._replace(
        request=cause_request._replace(vms=(), postpone_deadline=_deadline(limits, cause_request, earliest)),
        events=tuple(event.id for event in events),
        not_notified=tuple(not_notified.items()),
        holds_until=_holds_until(draft.fleet, operation, list(not_notified), earliest),
    )
    history.record_operation(draft, now, "requested", by, operation, _describe(limits, operation))
    for scope, reason in not_notified.items():
        record_not_notified(draft, now, operation, scope, of_scope[scope], reason)
    yield from _schedule(draft, now, by, operation, events)
    yield from advance_in_steps(draft, now, limits, operation.id)
    return draft.changes.operations[operation.id]


# --- VMs that arrive later ----------------------------------------------------------------------------


def add_vms(draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation, names: Collection[str]) -> None:
    """Add VMs to a pending operation, which waits for their notice. Their scopes get events of their own.

    The other events stay as they are, because a scope may have approved one of them.
    """
    of_scope = _by_scope(draft.fleet, names)
    not_notified = _not_notified(draft, now, limits, operation.request, of_scope)
    if not_notified and operation.request.require_notice:
        scope, reason = next(iter(not_notified.items()))
        problem = f"it requires notice, but {of_scope[scope][0]} has arrived, and {reason}"
        history.cancel(draft, now, operation, history.ENGINE, problem)
        return
    _end_events_of_deallocated(draft, now, operation, names)
    groups = [draft.fleet.group_of(scope).name for scope in of_scope]
    earliest = _earliest_for_newcomers(draft, now, limits, operation, groups)
    holds_until = _holds_until(draft.fleet, operation, list(not_notified), earliest)
    events = [
        _event(draft, now, limits, operation, scope, tuple(found), earliest)
        for scope, found in of_scope.items()
        if scope not in not_notified and operation.type
    ]
    operation = operation._replace(
        vms=tuple(dict.fromkeys((*operation.vms, *names))),
        events=(*operation.events, *(event.id for event in events)),
        not_notified=tuple({**dict(operation.not_notified), **not_notified}.items()),
        holds_until=max((time for time in (operation.holds_until, holds_until) if time), default=None),
    )
    for scope, reason in not_notified.items():
        record_not_notified(draft, now, operation, scope, of_scope[scope], reason)
    finish(_schedule(draft, now, history.ENGINE, operation, events))
    draft.to_advance[operation.id] = None


def _end_events_of_deallocated(draft: Draft, now: datetime, operation: Operation, started: Collection[str]) -> None:
    """End events of the time when these VMs were deallocated, and the service approved for them."""
    if not any(name in operation.vms for name in started):
        return
    others = set(operation.vms).difference(started)
    for event in history.events_of(draft, operation):
        found = [name for name in event.resources if name in started]
        if found and others.isdisjoint(event.resources):
            history.end_events(draft, now, [event], history.ENGINE, f"{first_names(found)} was started")


def _earliest_for_newcomers(
    draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation, groups: list[str]
) -> datetime:
    """Return the NotBefore for VMs that arrive: after the minimum notice, and with the other events if possible."""
    notice, short = minimum_notice(operation.type), operation.request.notice
    if short is not None:
        notice = min(notice, short)  # the operator has overridden the minimum
    earliest = round_up_to_second(now + limits.at(operation.request.speed).quicken(notice))
    unapproved = [event for event in history.events_of(draft, operation) if event.approved_at is None]
    earliest = max([earliest, *(event.not_before for event in unapproved)])
    if not keeps_to_windows(operation):
        return earliest
    groups = list(dict.fromkeys([*(event.group for event in unapproved), *groups]))
    # Windows that do not overlap postpone the start, and cancel it in the end.
    return next_common([draft.fleet.group(group).windows for group in groups], earliest) or earliest


def request_for_newcomer(draft: Draft, now: datetime, limits: OperatorLimits, cause_name: str, vm: VM) -> None:
    """Request the operation of a failed or degraded host for a VM that has arrived there."""
    cause_request = CauseRequest(cause_name, host=vm.host)
    if any(_repeats(cause_request, other) for other in draft.operations_on(vm.name)):
        return
    cause_request = fill_in(cause_request, CAUSES[cause_name], now)._replace(vms=(vm.name,))
    finish(_begin(draft, now, limits, _decide_work(draft, limits, cause_request, type_given=False), history.ENGINE))


def _schedule(draft: Draft, now: datetime, by: str, operation: Operation, events: list[Event]) -> Steps[None]:
    # First, because the row of each event contains what the whole operation waits for.
    draft.put_operation(operation)
    for event in events:
        draft.put_event(event)
    for event in events:
        _notify(draft, now, by, operation, event)
        yield COMMAND_COST


def _notify(draft: Draft, now: datetime, by: str, operation: Operation, event: Event) -> None:
    draft.changes.facts[UP_AT] = to_text(now)
    never_starts = event.status is EventStatus.ADVISORY
    reason = "an advisory, which never starts" if never_starts else f"NotBefore {format_time(event.not_before)}"
    history.record_event(draft, now, "scheduled", by, event, reason)
    value = CAUSES[operation.cause].auto_approve
    if value and value in draft.fleet.group(event.group).auto_approve:
        _approve(draft, now, event, "automatic approval")
    elif all(draft.fleet.vms[name].deallocated for name in event.resources):
        approve_if_down(draft, now, event)


def approve_if_down(draft: Draft, now: datetime, event: Event) -> None:
    """Approve an event if all VMs of its scope are deallocated, and the policy of the group allows it.

    A VM that is being started will be running when the work affects it.
    """
    allowed = draft.fleet.group(event.group).approve_when_down
    if not allowed or due(event) is None or not draft.fleet.is_down(event.scope):
        return
    operations = (one for name in event.resources for one in draft.operations_on(name))
    if not any(one.verb is Verb.START and one.executed_at is None for one in operations):
        _approve(draft, now, event, f"all VMs of {event.scope} are deallocated")


def _approve(draft: Draft, now: datetime, event: Event, reason: str) -> None:
    event = step(event, Trigger.APPROVE, now, by=history.ENGINE)
    draft.put_event(event)
    history.record_event(draft, now, "approved", history.ENGINE, event, reason)


def record_not_notified(
    draft: Draft, now: datetime, operation: Operation, scope: str, vms: Iterable[str], reason: str
) -> None:
    """Add a row to history: an operation affects these VMs of a scope without a notice."""
    group = draft.fleet.group_of(scope).name
    entry = history.operation_entry(now, "not-notified", history.ENGINE, operation)
    draft.record(entry._replace(group=group, vms=tuple(vms), reason=reason))


def _by_scope(fleet: Fleet, vms: Iterable[str]) -> dict[str, list[str]]:
    of_scope: dict[str, list[str]] = {}
    for name in vms:
        of_scope.setdefault(fleet.scope_of(fleet.vm(name)), []).append(name)
    return of_scope


def _not_notified(
    draft: Draft, now: datetime, limits: OperatorLimits, cause_request: CauseRequest, scopes: Iterable[str]
) -> dict[str, str]:
    """Return the scopes that get no notice, each with the reason. Without an event type, nobody is notified."""
    if not cause_request.type:
        return {}
    found = ((scope, _reason_not_notified(draft, now, limits, cause_request, scope)) for scope in scopes)
    return {scope: reason for scope, reason in found if reason}


def _reason_not_notified(
    draft: Draft, now: datetime, limits: OperatorLimits, cause_request: CauseRequest, scope: str
) -> str:
    """Return why the scope gets no notice, or an empty string if it gets one."""
    group = draft.fleet.group_of(scope)
    if cause_request.type == TERMINATE and not has_terminate_notice(group):
        return f"{group.name} has no terminate notice"
    if CAUSES[cause_request.cause].verb is Verb.REIMAGE and group.os_image_notice is None:
        return f"{group.name} has no OS image notice"
    return reason_not_notified(draft, scope, now, limits)


def check_notified(not_notified: Mapping[str, str], cause: Cause) -> None:
    """Reject a request that requires notice if a scope gets none. Takes these scopes, each with the reason."""
    if not_notified:
        remedy = "Let a VM of each group poll once"
        if cause.verb in (Verb.DELETE, Verb.REIMAGE):
            remedy = f"Set the notice with forewarn group policy. {remedy}"
        raise NoticeRequired(reasons=first_names(list(dict.fromkeys(not_notified.values()))), remedy=remedy)


def has_terminate_notice(group: Group) -> bool:
    return group.terminate_notice is not None


# --- Times --------------------------------------------------------------------------------------------


def _notice(limits: OperatorLimits, cause_request: CauseRequest) -> timedelta:
    cause = CAUSES[cause_request.cause]
    notice = cause_request.notice if cause_request.notice is not None else cause.notice
    return limits.at(cause_request.speed).quicken(notice if notice is not None else minimum_notice(cause_request.type))


def _earliest(fleet: Fleet, now: datetime, limits: OperatorLimits, operation: Operation, groups: list[str]) -> datetime:
    """Return the end of the notice. Work that keeps to windows starts in the next common window after that."""
    notice = _notice(limits, operation.request)
    if not notice:  # it has already happened, or is a recommendation
        return now.replace(microsecond=0)
    earliest_start = round_up_to_second(now + notice)
    if not keeps_to_windows(operation):
        return earliest_start
    common = next_common([fleet.group(group).windows for group in groups], earliest_start)
    if common is None:
        windowed = [group for group in groups if fleet.group(group).windows]
        raise NoCommonWindow(groups=", ".join(windowed), host=operation.host)
    return common


def _event(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    operation: Operation,
    scope: str,
    names: tuple[str, ...],
    earliest: datetime,
) -> Event:
    cause, cause_request = CAUSES[operation.cause], operation.request
    group, given = draft.fleet.group_of(scope), cause_request.description
    by_verb = {Verb.DELETE: group.terminate_notice, Verb.REIMAGE: group.os_image_notice}
    if cause.verb is not None and (notice := by_verb.get(cause.verb)) is not None:
        earliest = round_up_to_second(now + limits.at(cause_request.speed).quicken(notice))
    return Event(
        id=draft.new_id(),
        operation=operation.id,
        group=group.name,
        scope=scope,
        type=operation.type,
        status=first_status(operation.type),
        resources=names,
        not_before=earliest,
        description=limits.description_of(cause.name) if given is None else given,
        source=cause.source,
        duration=cause_request.known_duration,
        created_at=now,
        generation=draft.fleet.generation(group.name) or 0,
    )


def _holds_until(fleet: Fleet, operation: Operation, not_notified: list[str], earliest: datetime) -> datetime | None:
    """Return when the windows of scopes without notice allow the start."""
    if keeps_to_windows(operation) and any(fleet.group_of(scope).windows for scope in not_notified):
        return earliest
    return None


def _deadline(limits: OperatorLimits, cause_request: CauseRequest, earliest: datetime) -> datetime | None:
    """Return the time up to which the operation may be postponed."""
    if not CAUSES[cause_request.cause].routine:
        return None
    if cause_request.postpone_deadline is None:
        return earliest + limits.at(cause_request.speed).quicken(limits.max_postponement)
    if cause_request.rollout:
        return max(cause_request.postpone_deadline, earliest)
    if cause_request.postpone_deadline < earliest:
        raise BadOption(
            name="postpone_deadline",
            value=format_time(cause_request.postpone_deadline),
            problem=f"the operation cannot start before {format_time(earliest)}. Use a later time.",
        )
    return cause_request.postpone_deadline


def _describe(limits: OperatorLimits, operation: Operation) -> str:
    """Describe the request for history: cause, host and overrides."""
    cause_request = operation.request
    text = cause_request.cause + (f" of {cause_request.host}" if cause_request.host else "")
    if cause_request.notice is not None:
        text += f", notice {format_duration(_notice(limits, cause_request))}"
    if cause_request.speed != 1:
        text += f", {cause_request.speed:g} times faster"
    return text + "".join(f"; override: {OVERRIDES[name]}" for name in cause_request.overrides)
