"""Plan a rollout; commands to start, step, pause, resume and cancel it."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history
from forewarn.core.durations import format_duration, round_up_to_second
from forewarn.core.enabling import reason_not_notified
from forewarn.core.operations import CAUSES, CauseRequest, Health, Operation, OperationStatus
from forewarn.core.requests import check_notified, fill_in, minimum_notice, request_in_steps
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus, WaveQueue, in_order, skip_reason
from forewarn.core.shell_patterns import check_patterns, glob_matcher, is_pattern
from forewarn.core.state import HistoryEntry
from forewarn.core.steps import at_once
from forewarn.core.waits import arrivals_at
from forewarn.core.windows import Calendar, first_common
from forewarn.errors import (
    BadOption,
    ForewarnError,
    LimitExceeded,
    NoCommonWindow,
    NoHostInService,
    NoMatchingHost,
    RolloutOverlaps,
    UnknownResource,
    WrongRolloutStatus,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.steps import Steps


UPDATE = "host-update"


class Wave(NamedTuple):
    """Hosts that are updated together."""

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, int], ...]
    """Groups, each with the update domain that is updated."""
    vms: int
    scheduled_at: datetime
    starts_at: datetime
    """When it starts without approvals."""
    ends_at: datetime


class RolloutPlan(NamedTuple):
    """The remaining waves of a rollout, for the current fleet."""

    waves: tuple[Wave, ...]
    skipped: tuple[tuple[str, str], ...]
    expected_end: datetime
    """Without approvals and failures."""
    latest_end: datetime
    """If every health check takes its maximum time. Manual pauses and postponements are not included."""


def plan(
    fleet: Fleet, limits: OperatorLimits, rollout: Rollout, now: datetime, events_enabled: Callable[[str], bool]
) -> Steps[RolloutPlan]:
    """Plan the remaining waves for a fleet. `events_enabled` returns whether a scope gets notices."""
    settings = rollout.settings
    limits = limits.at(settings.speed)
    notice = limits.quicken(settings.notice if settings.notice is not None else minimum_notice(settings.type))
    settle, pause = limits.settle_time(UPDATE), limits.quicken(settings.pause)
    health_timeout = max(settle, limits.quicken(settings.health_timeout))
    events_enabled = cache(events_enabled)
    calendars = None if "windows" in settings.overrides else Calendars(fleet, now)
    skipped, queue = list(rollout.skipped), WaveQueue(fleet)
    for host in rollout.pending:
        if reason := skip_reason(fleet, host):
            skipped.append((host, reason))
        else:
            queue.add(host)
        yield 1 + len(fleet.on_host(host) if not reason else ())
    waves: list[Wave] = []
    expected = latest = scheduled_at = latest_scheduled_at = now
    while hosts := (yield from queue.take_wave(settings.max_unavailable)):
        domains: dict[tuple[str, int], None] = {}
        starts, latest_starts, vms, updated = scheduled_at, latest_scheduled_at, 0, []
        for host in hosts:
            part = PlannedHost(fleet, host, events_enabled, calendars)
            yield 1 + len(fleet.on_host(host))
            start = yield from part.start(scheduled_at, notice)
            if start is None:
                skipped.append((host, str(NoCommonWindow(groups=", ".join(part.windowed), host=host))))
                continue
            starts = max(starts, start)
            latest_start = yield from part.start(latest_scheduled_at, notice)
            latest_starts = max(latest_starts, latest_start or round_up_to_second(latest_scheduled_at + notice))
            updated.append(host)
            vms += len(fleet.on_host(host))
            domains.update(dict.fromkeys((group, min(found)) for group, found in fleet.domains_on(host).items()))
        if not updated:
            continue
        expected, latest = starts + settle, latest_starts + health_timeout
        waves.append(Wave(tuple(updated), tuple(sorted(domains)), vms, scheduled_at, starts, expected))
        scheduled_at, latest_scheduled_at = expected + pause, latest + pause
    return RolloutPlan(tuple(waves), tuple(skipped), expected, latest)


class Calendars:
    """The open times of groups, each computed once for all hosts and waves of a plan."""

    def __init__(self, fleet: Fleet, now: datetime) -> None:
        self._fleet = fleet
        self._now = now
        self._of_group: dict[str, Calendar] = {}

    def of(self, group: str) -> Calendar | None:
        """Return the open times of a group; None: it has no windows."""
        if group not in self._of_group and (windows := self._fleet.group(group).windows):
            self._of_group[group] = Calendar(windows, self._now)
        return self._of_group.get(group)


class PlannedHost:
    """A host of a planned wave: when its update starts if no VM approves."""

    def __init__(
        self, fleet: Fleet, host: str, events_enabled: Callable[[str], bool], calendars: Calendars | None
    ) -> None:
        """Without calendars, its update does not keep to the windows of its groups."""
        vms = [vm for name in fleet.on_host(host) if not (vm := fleet.vms[name]).deallocated]
        self._has_notice = any(map(events_enabled, map(fleet.scope_of, vms)))
        groups = dict.fromkeys(vm.group for vm in vms) if calendars is not None else ()
        found = {group: calendar for group in groups if calendars and (calendar := calendars.of(group)) is not None}
        self.windowed = list(found)
        """Its groups that have windows."""
        self._calendars = list(found.values())

    def start(self, scheduled_at: datetime, notice: timedelta) -> Steps[datetime | None]:
        """Return the start: immediately without notices and windows, otherwise after the notice and in the windows.

        None if the windows of its groups do not overlap.
        """
        if not self._has_notice and not self._calendars:
            return scheduled_at
        earliest = round_up_to_second(scheduled_at + notice)
        return (yield from first_common(self._calendars, earliest)) if self._calendars else earliest


# --- Commands -------------------------------------------------------------------------------------


MAX_HOSTS = 10_000
MAX_NAMED_HOSTS = 100
"""Maximum number of names and patterns of hosts in a request."""
MAX_UNAVAILABLE = 1000
HEALTH_CHECK_GRACE = timedelta(minutes=5)
"""Additional time for the last health check."""


def start_in_steps(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    patterns: Sequence[str],
    settings: RolloutSettings,
    by: str,
    hosts: Sequence[str] | None = None,
) -> Steps[Rollout]:
    """Start a rollout over the hosts that match the patterns. `hosts`: what `match_hosts` has found for them."""
    rollout = yield from prepare(draft, now, patterns, settings, by, hosts)
    yield from check_notice(draft, now, limits, rollout)
    draft.put_rollout(rollout)
    what = f"{len(rollout.pending)} hosts, at most {settings.max_unavailable} at once, {rollout.settings.type}"
    _record_rollout(draft, now, "rollout-started", by, rollout, f"{', '.join(patterns)}: {what}")
    yield from step(draft, now, limits, rollout.id)
    return draft.changes.rollouts[rollout.id]


start = at_once(start_in_steps)


def prepare(
    draft: Draft,
    now: datetime,
    patterns: Sequence[str],
    settings: RolloutSettings,
    by: str,
    hosts: Sequence[str] | None = None,
) -> Steps[Rollout]:
    """Return the new rollout. Raises an error if the request is invalid."""
    fleet = draft.fleet
    settings = _fill_in(settings, now)
    if hosts is None:
        hosts = yield from match_hosts(fleet, patterns)
    for other in draft.live_rollouts():
        if shared := sorted({*hosts} & {*other.hosts}):
            raise RolloutOverlaps(hosts=", ".join(shared[:5]), rollout_id=other.id)
    skipped, pending = [], []
    for host in hosts:
        if reason := skip_reason(fleet, host):
            skipped.append((host, reason))
        else:
            pending.append(host)
        yield 1
    if not pending:
        raise NoHostInService(patterns=", ".join(patterns))
    return Rollout(
        id=draft.new_id(),
        patterns=tuple(patterns),
        settings=settings,
        requested_by=by,
        requested_at=now,
        pending=tuple(in_order(fleet, pending)),
        skipped=tuple(skipped),
    )


def dry_run(
    draft: Draft, now: datetime, limits: OperatorLimits, patterns: Sequence[str], settings: RolloutSettings, by: str
) -> Steps[tuple[Rollout, RolloutPlan, dict[str, str]]]:
    """Return the rollout that would start, its plan, and the scopes that would get no notice, each with the reason."""
    hosts = yield from match_hosts(draft.fleet, patterns)
    rollout = yield from prepare(draft, now, patterns, settings, by, hosts)
    yield from check_notice(draft, now, limits, rollout)
    return (yield from plan_with_notices(draft, now, limits, rollout))


def plan_with_notices(
    draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout
) -> Steps[tuple[Rollout, RolloutPlan, dict[str, str]]]:
    """Return a rollout, its plan, and the scopes that would get no notice now, each with the reason."""

    def events_enabled(scope: str) -> bool:
        return not reason_not_notified(draft, scope, now, limits)

    found = yield from plan(draft.fleet, limits, rollout, now, events_enabled)
    return rollout, found, (yield from not_notified(draft, now, limits, rollout))


def check_hosts(patterns: Sequence[str]) -> None:
    """Reject names and patterns of hosts that are too many, empty, or too much work."""
    if len(patterns) > MAX_NAMED_HOSTS:
        raise LimitExceeded(
            count=len(patterns),
            things="hosts",
            what="rollout",
            maximum=MAX_NAMED_HOSTS,
            remedy="Use fewer, wider patterns.",
        )
    if not patterns or not all(patterns):
        raise BadOption(name="hosts", value=", ".join(patterns), problem="name hosts, or a pattern like 'rack-1-*'.")
    check_patterns(patterns)


def match_hosts(fleet: Fleet, patterns: Sequence[str]) -> Steps[list[str]]:
    """Return the hosts that match the patterns, and fill the fleet's cache of what is on them."""
    check_hosts(patterns)
    names = fleet.host_names()
    known = frozenset(names)
    globs = {pattern: glob_matcher(pattern) for pattern in patterns if pattern not in known and is_pattern(pattern)}
    exact, matched, hosts = known.intersection(patterns), set[str](), list[str]()
    for name in names:
        fitting = [pattern for pattern, matches in globs.items() if matches(name)]
        matched.update(fitting)
        if fitting or name in exact:
            hosts.append(name)
        yield 1 + len(globs)
    for pattern in patterns:
        if pattern not in exact and pattern not in matched:
            raise NoMatchingHost(pattern=pattern, hint=nearest(pattern, names))
    if len(hosts) > MAX_HOSTS:
        raise LimitExceeded(
            count=len(hosts), things="hosts", what="rollout", maximum=MAX_HOSTS, remedy="Use a narrower pattern."
        )
    for host in hosts:
        fleet.domains_on(host)
        yield 1 + len(fleet.on_host(host))
    return hosts


def not_notified(draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout) -> Steps[dict[str, str]]:
    """Return the scopes on the pending hosts that would get no notice now, each with the reason."""
    fleet = draft.fleet
    scopes: dict[str, str] = {}
    for host in rollout.pending:
        names = fleet.on_host(host) if fleet.has_host(host) else ()
        for vm in map(fleet.vms.__getitem__, names):
            if not vm.deallocated and (scope := fleet.scope_of(vm)) not in scopes:
                scopes[scope] = reason_not_notified(draft, scope, now, limits)
        yield 1 + len(names)
    return {scope: reason for scope, reason in scopes.items() if reason}


def check_notice(draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout) -> Steps[None]:
    """Reject a rollout that requires notice if a scope would get none now. Later waves skip such hosts."""
    if rollout.settings.require_notice:
        check_notified((yield from not_notified(draft, now, limits, rollout)), CAUSES[UPDATE])


def _fill_in(settings: RolloutSettings, now: datetime) -> RolloutSettings:
    if not 1 <= settings.max_unavailable <= MAX_UNAVAILABLE:
        raise BadOption(
            name="max_unavailable",
            value=str(settings.max_unavailable),
            problem=f"write a number from 1 to {MAX_UNAVAILABLE:,}.",
        )
    if settings.health_timeout <= timedelta(0):
        value = format_duration(settings.health_timeout)
        raise BadOption(
            name="health_timeout", value=value, problem="the VMs need time to come back. Write a duration like 15m."
        )
    filled_in = fill_in(_request(settings, host="a host"), CAUSES[UPDATE], now)
    return settings._replace(type=filled_in.type, duration=filled_in.duration)


def _request(settings: RolloutSettings, host: str, rollout: str = "") -> CauseRequest:
    return CauseRequest(
        UPDATE,
        host=host,
        type=settings.type,
        duration=settings.duration,
        notice=settings.notice,
        postpone_deadline=settings.postpone_deadline,
        overrides=settings.overrides,
        rollout=rollout,
        health_timeout=settings.health_timeout,
        speed=settings.speed,
        description=settings.description,
        require_notice=settings.require_notice,
    )


# --- Steps ----------------------------------------------------------------------------------------------


def step_all(draft: Draft, now: datetime, limits: OperatorLimits) -> Steps[None]:
    """Step the rollouts whose operations have changed, and those that wait for hosts if some may be free now."""
    for rollout_id in list(draft.rollouts_to_step):
        yield from step(draft, now, limits, rollout_id)
    waiting = [rollout for rollout in draft.live_rollouts() if rollout.waits_for_hosts]
    if waiting and _may_free_hosts(draft):
        for rollout in sorted(waiting, key=lambda rollout: rollout.requested_at):
            yield from step(draft, now, limits, rollout.id)


def _may_free_hosts(draft: Draft) -> bool:
    """Return whether this draft ends work on a host or a move of VMs, or applies another fleet."""
    for operation in draft.changes.operations.values():
        if not operation.status.live and (operation.host or operation.moves):
            return True
        if operation.moves and operation.executed_at is not None:
            return True
    return not all(change.in_place for change in draft.changes.fleet_changes)


def step(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str) -> Steps[None]:
    """Check the current wave. Stop if a health check failed; schedule the next wave if this one is finished."""
    rollout = draft.rollout(rollout_id)
    if rollout is None:
        return
    after, failure = yield from _update_progress(draft, now, limits, rollout)
    if after is not rollout:
        draft.put_rollout(after)
    rollout = after
    if failure:
        yield from _stop(draft, now, rollout, RolloutStatus.STOPPED, history.ENGINE, failure)
        return
    while rollout.status is RolloutStatus.RUNNING and not rollout.in_progress:
        if not rollout.pending:
            yield from _stop(draft, now, rollout, RolloutStatus.DONE, history.ENGINE, "")
            return
        if rollout.next_wave_at is not None and now < rollout.next_wave_at:
            return
        after = yield from _schedule_wave(draft, now, limits, rollout)
        if after == rollout:  # it waits for its hosts
            return
        rollout = after
        draft.put_rollout(rollout)


def _update_progress(
    draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout
) -> Steps[tuple[Rollout, str]]:
    """Return the rollout without its finished hosts, and the first failure, if any."""
    if not rollout.in_progress:
        return rollout, ""
    in_progress, done, skipped, failure = [], list(rollout.done), list(rollout.skipped), ""
    for host, operation_id in rollout.in_progress:
        yield 1
        operation = draft.operation(operation_id)
        problem = _problem(draft, now, limits, operation) if operation is not None else ""
        if problem:
            failure = failure or f"{host}: {problem}"
        if operation is not None and operation.status.live:
            in_progress.append((host, operation_id))
        elif operation is not None and operation.status is OperationStatus.CANCELLED:
            skipped.append((host, operation.reason or "the update was cancelled"))
        elif not problem:
            done.append(host)
    if len(in_progress) == len(rollout.in_progress):
        return rollout, failure
    rollout = rollout._replace(in_progress=tuple(in_progress), done=tuple(done), skipped=tuple(skipped))
    if not in_progress:
        rollout = rollout._replace(next_wave_at=now + limits.at(rollout.settings.speed).quicken(rollout.settings.pause))
    return rollout, failure


def _problem(draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation) -> str:
    """Return why the health check of this host failed, or an empty string."""
    if operation.health is Health.BAD:
        return operation.reason or "the update failed"
    fails_at = overdue_at(limits, operation)
    if fails_at is None or now < fails_at:
        return ""
    reason = f"not finished {format_duration(now - (operation.started_at or now))} after its start"
    history.record_operation(draft, now, "unhealthy", history.ENGINE, operation, reason)
    draft.put_operation(operation._replace(health=Health.BAD, reason=reason))
    return reason


def health_deadline(limits: OperatorLimits, operation: Operation) -> datetime | None:
    """Return when an operation must be healthy; None: the health is known, or it has not started."""
    health_timeout = operation.request.health_timeout
    if (
        operation.status is not OperationStatus.STARTED
        or operation.health is not Health.UNKNOWN
        or health_timeout is None
    ):
        return None
    duration = limits.at(operation.request.speed).quicken(health_timeout)
    return operation.started_at + duration if operation.started_at else None


def overdue_at(limits: OperatorLimits, operation: Operation) -> datetime | None:
    """Return when the health check fails. A check that starts just before the end gets some more time."""
    deadline = health_deadline(limits, operation)
    if deadline is None or operation.executed_at is None:
        return deadline
    return deadline + limits.at(operation.request.speed).quicken(HEALTH_CHECK_GRACE)


def when_due(rollout: Rollout) -> datetime | None:
    """Return when the next wave may be scheduled."""
    return rollout.next_wave_at if rollout.status is RolloutStatus.RUNNING else None


def _schedule_wave(draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout) -> Steps[Rollout]:
    """Schedule the next wave. Hosts that cannot be updated are skipped; hosts with an obstacle stay pending."""
    fleet = draft.fleet
    skipped = list(rollout.skipped)
    queue = WaveQueue(fleet)
    for host in rollout.pending:
        if reason := skip_reason(fleet, host):
            skipped.append((host, reason))
        else:
            queue.add(host)
        yield 1
    obstacles = Obstacles(draft, rollout.id)
    wave = yield from queue.take_wave(rollout.settings.max_unavailable, lambda host: obstacles.of(host) is not None)
    rollout = rollout._replace(pending=tuple(queue.pending), skipped=tuple(skipped), next_wave_at=None)
    if not wave:
        return rollout
    in_progress = []
    for host in wave:
        try:
            wanted = _request(rollout.settings, host, rollout.id)
            (operation,) = yield from request_in_steps(draft, now, limits, wanted, rollout.requested_by)
        except ForewarnError as error:  # the other hosts are updated anyway
            skipped.append((host, str(error)))
        else:
            in_progress.append((host, operation.id))
    rollout = rollout._replace(wave=rollout.wave + 1, in_progress=tuple(in_progress), skipped=tuple(skipped))
    _record_rollout(draft, now, "wave-scheduled", history.ENGINE, rollout, f"wave {rollout.wave}: {', '.join(wave)}")
    return rollout


class Obstacle(NamedTuple):
    """An active operation that must end before a rollout updates a host."""

    operation: Operation
    group: str = ""
    """The group whose other update domain a rollout updates; empty: the operation is on the host itself."""
    update_domain: int = 0


class Obstacles:
    """Active operations that keep a rollout from its hosts.

    They are other work on a host, moves of VMs to it, and operations of other rollouts on another update domain of a
    group on it. A rollout without active operations is no obstacle, so two rollouts cannot wait for each other.
    """

    def __init__(self, draft: Draft, rollout_id: str) -> None:
        self._draft = draft
        self._updated: dict[str, dict[int, Operation]] = {}
        for operation in draft.rollout_operations():
            if operation.request.rollout == rollout_id:
                continue
            for vm in (draft.fleet.vms[name] for name in operation.vms if name in draft.fleet.vms):
                self._updated.setdefault(vm.group, {}).setdefault(vm.update_domain, operation)

    def of(self, host: str) -> Obstacle | None:
        """Return an obstacle to the update of this host."""
        for operation in (*self._draft.operations_at(host), *arrivals_at(self._draft, host)):
            return Obstacle(operation)
        for group, domains in self._draft.fleet.domains_on(host).items():
            for domain, operation in self._updated.get(group, {}).items():
                if domains != {domain}:
                    return Obstacle(operation, group, domain)
        return None


def _stop(draft: Draft, now: datetime, rollout: Rollout, status: RolloutStatus, by: str, reason: str) -> Steps[None]:
    """End a rollout, and cancel its pending operations."""
    rollout = rollout._replace(status=status, reason=reason, ended_at=now, next_wave_at=None)
    draft.put_rollout(rollout)  # first, so that the cancellations do not step the rollout
    for _, operation_id in rollout.in_progress:
        operation = draft.operation(operation_id)
        if operation is not None and operation.status is OperationStatus.PENDING:
            history.cancel(draft, now, operation, by, f"rollout {status}: {reason}" if reason else f"rollout {status}")
            yield operation.cost
    _record_rollout(draft, now, history.ROLLOUT_END_KINDS[status], by, rollout, reason)


# --- Operators ------------------------------------------------------------------------------------------


def find_rollout(draft: Draft, rollout_id: str) -> Rollout:
    rollout = draft.rollout(rollout_id)
    if rollout is None:
        raise UnknownResource(what="active rollout", name=rollout_id, hint="")
    return rollout


def pause(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Steps[Rollout]:
    """Schedule no further wave until it is resumed. The current wave continues."""
    yield 1
    return _change_status(draft, now, find_rollout(draft, rollout_id), RolloutStatus.RUNNING, RolloutStatus.PAUSED, by)


def resume(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Steps[Rollout]:
    """Schedule the next waves again."""
    _change_status(draft, now, find_rollout(draft, rollout_id), RolloutStatus.PAUSED, RolloutStatus.RUNNING, by)
    yield from step(draft, now, limits, rollout_id)
    return draft.changes.rollouts[rollout_id]


def _change_status(
    draft: Draft, now: datetime, rollout: Rollout, before: RolloutStatus, after: RolloutStatus, by: str
) -> Rollout:
    if rollout.status is not before:
        what = "paused" if after is RolloutStatus.PAUSED else "resumed"
        raise WrongRolloutStatus(rollout_id=rollout.id, status=rollout.status, what=what)
    rollout = rollout._replace(status=after)
    draft.put_rollout(rollout)
    _record_rollout(draft, now, "rollout-paused" if after is RolloutStatus.PAUSED else "rollout-resumed", by, rollout)
    return rollout


def cancel_in_steps(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Steps[Rollout]:
    """Cancel a rollout. Started operations continue."""
    yield from _stop(draft, now, find_rollout(draft, rollout_id), RolloutStatus.CANCELLED, by, "")
    return draft.changes.rollouts[rollout_id]


cancel = at_once(cancel_in_steps)


def _record_rollout(draft: Draft, now: datetime, kind: str, by: str, rollout: Rollout, reason: str = "") -> None:
    draft.record(HistoryEntry(time=now, kind=kind, by=by, operation=rollout.id, reason=reason))
