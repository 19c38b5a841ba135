"""Planning a rollout, and commands about rollouts: start, step, pause, resume, cancel."""

from __future__ import annotations

from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history
from forewarn.core.durations import format_duration, whole_second_up
from forewarn.core.operations import CAUSES, Health, Operation, OperationStatus, Request
from forewarn.core.requests import fill_in, least_notice, request
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus, WaveQueue, in_order, matching, out_of_use
from forewarn.core.state import HistoryEntry
from forewarn.core.windows import next_common
from forewarn.errors import (
    BadOption,
    ForewarnError,
    NoCommonWindow,
    NoSuchHosts,
    NothingToWalk,
    RolloutNotSo,
    RolloutOverlaps,
    TooMany,
    Unknown,
    nearest,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from forewarn.core.fleet import Fleet
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft
    from forewarn.core.windows import Window


UPDATE = "host-update"


class Wave(NamedTuple):
    """Hosts that are updated together."""

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, int], ...]
    """Groups, each with the update domain that is updated."""
    vms: int
    scheduled_at: datetime
    starts_at: datetime
    """When it starts if nobody approves."""
    ends_at: datetime


class RolloutPlan(NamedTuple):
    """The remaining waves of a rollout, for the current fleet."""

    waves: tuple[Wave, ...]
    skipped: tuple[tuple[str, str], ...]
    expected_end: datetime
    """If nobody approves early and all is well."""
    latest_end: datetime
    """If moreover every health gate takes all the time it has. Pauses by hand and postponements come on top."""


def plan(
    fleet: Fleet, limits: OperatorLimits, rollout: Rollout, now: datetime, listens: Callable[[str], bool]
) -> RolloutPlan:
    """Plan the remaining waves for the current fleet."""
    settings = rollout.settings
    limits = limits.at(settings.speed)
    notice = limits.quicken(settings.notice if settings.notice is not None else least_notice(settings.type))
    settle, pause = limits.settle_time(UPDATE), limits.quicken(settings.pause)
    gate = max(settle, limits.quicken(settings.health_timeout))
    listens = cache(listens)
    left_out = [(host, why) for host in rollout.pending if (why := out_of_use(fleet, host))]
    skipped = [*rollout.skipped, *left_out]
    left = {host for host, _ in left_out}
    queue = WaveQueue(fleet, (host for host in rollout.pending if host not in left))
    waves: list[Wave] = []
    expected = latest = announced = latest_announced = now
    while hosts := queue.next_wave(settings.max_unavailable):
        parts = {
            host: PlannedHost(fleet, host, listens, keep_windows="windows" not in settings.overrides) for host in hosts
        }
        for host in [host for host, part in parts.items() if not part.can_start(announced, notice)]:
            windowed = ", ".join(group for group in parts.pop(host).groups if fleet.group(group).windows)
            skipped.append((host, str(NoCommonWindow(groups=windowed, host=host))))
        if not parts:
            continue
        starts = max(part.start(announced, notice) for part in parts.values())
        expected = starts + settle
        latest = max(part.start(latest_announced, notice) for part in parts.values()) + gate
        out = sorted((group, min(found)) for host in parts for group, found in fleet.domains_on(host).items())
        vms = sum(len(fleet.on_host(host)) for host in parts)
        waves.append(Wave(tuple(parts), tuple(dict.fromkeys(out)), vms, announced, starts, expected))
        announced, latest_announced = expected + pause, latest + pause
    return RolloutPlan(tuple(waves), tuple(skipped), expected, latest)


class PlannedHost:
    """A host of a planned wave: when its update starts if no VM approves."""

    def __init__(self, fleet: Fleet, host: str, listens: Callable[[str], bool], *, keep_windows: bool) -> None:
        vms = (fleet.vms[name] for name in fleet.on_host(host))
        self.groups = list(dict.fromkeys(vm.group for vm in vms if not vm.deallocated))
        self._told = any(map(listens, self.groups))
        windows = {found for group in self.groups if (found := fleet.group(group).windows)} if keep_windows else set()
        self._windows: tuple[Sequence[Window], ...] = tuple(windows)

    def can_start(self, announced: datetime, notice: timedelta) -> bool:
        """Whether the windows of its groups have a moment in common."""
        return not self._windows or next_common(self._windows, whole_second_up(announced + notice)) is not None

    def start(self, announced: datetime, notice: timedelta) -> datetime:
        """At once where nobody is told; else after the notice, in the windows."""
        if not self._told and not self._windows:
            return announced
        moment = whole_second_up(announced + notice)
        return (next_common(self._windows, moment) or moment) if self._windows else moment


# --- Commands -------------------------------------------------------------------------------------


MOST_HOSTS = 10_000
MOST_PATTERNS = 100
MAX_UNAVAILABLE = 1000
LAST_LOOK = timedelta(minutes=5)
"""How long a last look at VMs may take."""
LOOK_AGAIN = timedelta(minutes=1)
"""When all hosts that wait are busy with something else, how long it is until they are looked at again."""


def start(
    draft: Draft, now: datetime, limits: OperatorLimits, patterns: Sequence[str], settings: RolloutSettings, by: str
) -> Rollout:
    """Start a rollout over the hosts that match the patterns."""
    rollout = prepare(draft, now, patterns, settings, by)
    draft.put_rollout(rollout)
    what = f"{len(rollout.pending)} hosts, {settings.max_unavailable} at once, {rollout.settings.type}"
    _note(draft, now, "rollout-started", by, rollout, f"{', '.join(patterns)}: {what}")
    step(draft, now, limits, rollout.id)
    return draft.changes.rollouts[rollout.id]


def prepare(draft: Draft, now: datetime, patterns: Sequence[str], settings: RolloutSettings, by: str) -> Rollout:
    """The rollout as it would begin, or an error that says what would be right."""
    fleet = draft.fleet
    settings = _fill_in(settings, now)
    if not patterns or not all(patterns):
        raise BadOption(name="hosts", value=", ".join(patterns), problem="name hosts, or a pattern like 'rack-1-*'.")
    if len(patterns) > MOST_PATTERNS:
        raise TooMany(
            count=len(patterns),
            things="patterns",
            what="rollout",
            most=MOST_PATTERNS,
            remedy="Write fewer, wider ones.",
        )
    names = fleet.host_names()
    for pattern in patterns:
        if not matching(names, [pattern]):
            raise NoSuchHosts(pattern=pattern, hint=nearest(pattern, names))
    hosts = matching(names, patterns)
    if len(hosts) > MOST_HOSTS:
        raise TooMany(
            count=len(hosts), things="hosts", what="rollout", most=MOST_HOSTS, remedy="Choose a narrower pattern."
        )
    for other in draft.live_rollouts():
        if shared := sorted({*hosts} & {*other.hosts}):
            raise RolloutOverlaps(hosts=", ".join(shared[:5]), rollout_id=other.id)
    skipped = [(host, why) for host in hosts if (why := out_of_use(fleet, host))]
    left_out = {host for host, _ in skipped}
    pending = in_order(fleet, (host for host in hosts if host not in left_out))
    if not pending:
        raise NothingToWalk(patterns=", ".join(patterns))
    return Rollout(
        id=draft.new_id(),
        patterns=tuple(patterns),
        settings=settings,
        requested_by=by,
        requested_at=now,
        pending=tuple(pending),
        skipped=tuple(skipped),
    )


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
            name="health_timeout", value=value, problem="the VMs need some time to come back. Write 15m, say."
        )
    asked = fill_in(_request(settings, host="a host"), CAUSES[UPDATE], now)
    return settings._replace(type=asked.type, duration=asked.duration)


def _request(settings: RolloutSettings, host: str, rollout: str = "") -> Request:
    return Request(
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
    )


# --- Steps -------------------------------------------------------------------------------------------


def step(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str) -> None:
    """Take stock of the wave that is out; stop if a gate fails, announce the next if it is over."""
    rollout = draft.rollout(rollout_id)
    if rollout is None:
        return
    after, bad = _take_stock(draft, now, limits, rollout)
    if after is not rollout:
        draft.put_rollout(after)
    rollout = after
    if bad:
        _stop(draft, now, rollout, RolloutStatus.STOPPED, history.ENGINE, bad)
        return
    while rollout.status is RolloutStatus.WALKING and not rollout.in_progress:
        if not rollout.pending:
            _stop(draft, now, rollout, RolloutStatus.DONE, history.ENGINE, "")
            return
        if rollout.next_wave_at is not None and now < rollout.next_wave_at:
            return
        rollout = _announce(draft, now, limits, rollout)
        draft.put_rollout(rollout)


def _take_stock(draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout) -> tuple[Rollout, str]:
    """The rollout without the hosts that are over; and what is wrong with one of them, if anything is."""
    if not rollout.in_progress:
        return rollout, ""
    still, done, skipped, bad = [], list(rollout.done), list(rollout.skipped), ""
    for host, operation_id in rollout.in_progress:
        operation = draft.operation(operation_id)
        problem = _problem(draft, now, limits, operation) if operation is not None else ""
        if problem:
            bad = bad or f"{host}: {problem}"
        if operation is not None and operation.status.live:
            still.append((host, operation_id))
        elif operation is not None and operation.status is OperationStatus.CANCELLED:
            skipped.append((host, operation.reason or "its update was cancelled"))
        elif not problem:
            done.append(host)
    if len(still) == len(rollout.in_progress):
        return rollout, bad
    rollout = rollout._replace(in_progress=tuple(still), done=tuple(done), skipped=tuple(skipped))
    if not still:
        rollout = rollout._replace(next_wave_at=now + limits.at(rollout.settings.speed).quicken(rollout.settings.pause))
    return rollout, bad


def _problem(draft: Draft, now: datetime, limits: OperatorLimits, operation: Operation) -> str:
    """Why the gate of this host has failed; empty: it has not, so far."""
    if operation.health is Health.BAD:
        return operation.reason or "it failed"
    overdue = overdue_at(limits, operation)
    if overdue is None or now < overdue:
        return ""
    why = f"not over {format_duration(now - (operation.started_at or now))} after its start"
    history.note_operation(draft, now, "unhealthy", history.ENGINE, operation, why)
    draft.put_operation(operation._replace(health=Health.BAD, reason=why))
    return why


def gate_closes_at(limits: OperatorLimits, operation: Operation) -> datetime | None:
    """Until when an operation of a rollout must be well; None: that is settled, or it has not started."""
    health_timeout = operation.request.health_timeout
    if (
        operation.status is not OperationStatus.STARTED
        or operation.health is not Health.UNKNOWN
        or health_timeout is None
    ):
        return None
    quickened = limits.at(operation.request.speed).quicken(health_timeout)
    return operation.started_at + quickened if operation.started_at else None


def overdue_at(limits: OperatorLimits, operation: Operation) -> datetime | None:
    """When nobody is asked any more. Who looks after the VMs speaks at the last moment, and is waited for."""
    closes_at = gate_closes_at(limits, operation)
    if closes_at is None or operation.executed_at is None:
        return closes_at
    return closes_at + limits.at(operation.request.speed).quicken(LAST_LOOK)


def when_due(rollout: Rollout) -> datetime | None:
    """When time alone moves a rollout on."""
    return rollout.next_wave_at if rollout.status is RolloutStatus.WALKING else None


def _announce(draft: Draft, now: datetime, limits: OperatorLimits, rollout: Rollout) -> Rollout:
    """Announce the next wave. What cannot be walked any more is skipped."""
    fleet = draft.fleet
    skipped = list(rollout.skipped)
    hosts = []
    for host in rollout.pending:
        if why := out_of_use(fleet, host):
            skipped.append((host, why))
        else:
            hosts.append(host)
    queue = WaveQueue(fleet, hosts)
    wave = queue.next_wave(rollout.settings.max_unavailable, busy=lambda host: _is_busy(draft, host))
    rollout = rollout._replace(pending=tuple(queue.pending), skipped=tuple(skipped), next_wave_at=None)
    if not wave:
        later = now + limits.at(rollout.settings.speed).quicken(LOOK_AGAIN)
        return rollout._replace(next_wave_at=later if rollout.pending else None)
    in_progress = []
    for host in wave:
        try:
            (operation,) = request(
                draft, now, limits, _request(rollout.settings, host, rollout.id), rollout.requested_by
            )
        except ForewarnError as error:  # it does not matter which: the others are still to be walked
            skipped.append((host, str(error)))
        else:
            in_progress.append((host, operation.id))
    rollout = rollout._replace(wave=rollout.wave + 1, in_progress=tuple(in_progress), skipped=tuple(skipped))
    _note(draft, now, "wave-scheduled", history.ENGINE, rollout, f"wave {rollout.wave}: {', '.join(wave)}")
    return rollout


def _is_busy(draft: Draft, host: str) -> bool:
    """Whether other work is done on the host, or VMs are on their way to it: they must not arrive while it is out."""
    return bool(draft.operations_at(host) or draft.operations_bound_for(host))


def _stop(draft: Draft, now: datetime, rollout: Rollout, status: RolloutStatus, by: str, why: str) -> None:
    """End the walk, and withdraw what is only scheduled."""
    rollout = rollout._replace(status=status, reason=why, ended_at=now, next_wave_at=None)
    draft.put_rollout(rollout)  # first, so that what is withdrawn now stirs nothing
    for _, operation_id in rollout.in_progress:
        operation = draft.operation(operation_id)
        if operation is not None and operation.status is OperationStatus.PENDING:
            history.cancel(draft, now, operation, by, f"rollout {status}: {why}" if why else f"rollout {status}")
    _note(draft, now, history.ROLLOUT_END_KINDS[status], by, rollout, why)


# --- By hand --------------------------------------------------------------------------------------------


def find_rollout(draft: Draft, rollout_id: str) -> Rollout:
    rollout = draft.rollout(rollout_id)
    if rollout is None:
        raise Unknown(what="rollout under way", name=rollout_id, hint="")
    return rollout


def pause(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Rollout:
    """Schedule no further wave until it is resumed. The current wave continues."""
    return _turn(draft, now, find_rollout(draft, rollout_id), RolloutStatus.WALKING, RolloutStatus.PAUSED, by)


def resume(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Rollout:
    """Schedule the next waves again."""
    _turn(draft, now, find_rollout(draft, rollout_id), RolloutStatus.PAUSED, RolloutStatus.WALKING, by)
    step(draft, now, limits, rollout_id)
    return draft.changes.rollouts[rollout_id]


def _turn(
    draft: Draft, now: datetime, rollout: Rollout, before: RolloutStatus, after: RolloutStatus, by: str
) -> Rollout:
    if rollout.status is not before:
        what = "paused" if after is RolloutStatus.PAUSED else "resumed"
        raise RolloutNotSo(rollout_id=rollout.id, status=rollout.status, what=what)
    rollout = rollout._replace(status=after)
    draft.put_rollout(rollout)
    _note(draft, now, "rollout-paused" if after is RolloutStatus.PAUSED else "rollout-resumed", by, rollout)
    return rollout


def cancel(draft: Draft, now: datetime, limits: OperatorLimits, rollout_id: str, by: str) -> Rollout:
    """End the walk. What has started goes on to its end."""
    _stop(draft, now, find_rollout(draft, rollout_id), RolloutStatus.CANCELLED, by, "")
    return draft.changes.rollouts[rollout_id]


def _note(draft: Draft, now: datetime, kind: str, by: str, rollout: Rollout, reason: str = "") -> None:
    draft.note(HistoryEntry(time=now, kind=kind, by=by, operation=rollout.id, reason=reason))
