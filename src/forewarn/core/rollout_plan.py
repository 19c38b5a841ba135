"""What a rollout would do, and when: the same waves that it walks, with the times they take."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import whole_second_up
from forewarn.core.requirements import least_notice
from forewarn.core.rollout import Walk
from forewarn.core.windows import next_common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime, timedelta

    from forewarn.core.fleet import Fleet
    from forewarn.core.rollout import Rollout
    from forewarn.core.terms import Terms
    from forewarn.core.windows import Window

UPDATE = "host-update"


class Wave(NamedTuple):
    """Hosts that are out together."""

    hosts: tuple[str, ...]
    domains: tuple[tuple[str, int], ...]
    """Groups, each with the update domain that is out."""
    vms: int
    announced_at: datetime
    starts_at: datetime
    """When it starts if nobody approves."""
    ends_at: datetime


class Plan(NamedTuple):
    """A rollout as it would go now."""

    waves: tuple[Wave, ...]
    skipped: tuple[tuple[str, str], ...]
    expected_end: datetime
    """If nobody approves early and all is well."""
    longest_end: datetime
    """If moreover every health gate takes all the time it has. Pauses by hand and postponements come on top."""


def plan(fleet: Fleet, terms: Terms, rollout: Rollout, now: datetime, listens: Callable[[str], bool]) -> Plan:
    """The waves to come, as the fleet is now."""
    course = rollout.course
    notice = terms.quicken(course.notice if course.notice is not None else least_notice(course.type))
    settle, pause = terms.settle_time(UPDATE), terms.quicken(course.pause)
    gate = max(settle, terms.quicken(course.health_time))
    listens = cache(listens)
    walk = Walk(fleet, rollout.waiting)
    waves: list[Wave] = []
    expected = longest = now
    announced, latest_announced = now, now
    while hosts := walk.next_wave(course.budget):
        vms = [name for host in hosts for name in fleet.on_host(host)]
        groups = {fleet.vms[name].group for name in vms}
        told = any(listens(group) for group in groups)
        sets = () if "windows" in course.overrides else _windows(fleet, groups)
        starts = _start(announced, notice, sets, told=told)
        latest = _start(latest_announced, notice, sets, told=told)
        expected, longest = starts + settle, latest + gate
        out = sorted((group, min(found)) for host in hosts for group, found in fleet.domains_on(host).items())
        waves.append(Wave(tuple(hosts), tuple(dict.fromkeys(out)), len(vms), announced, starts, expected))
        announced, latest_announced = expected + pause, longest + pause
    return Plan(tuple(waves), rollout.skipped, expected, longest)


def _windows(fleet: Fleet, groups: set[str]) -> tuple[Sequence[Window], ...]:
    return tuple({windows for group in groups if (windows := fleet.group(group).windows)})


def _start(announced: datetime, notice: timedelta, sets: Sequence[Sequence[Window]], *, told: bool) -> datetime:
    """When a wave starts if nobody approves; at once where nobody is told."""
    if not told and not sets:
        return announced
    moment = whole_second_up(announced + notice)
    return (next_common(sets, moment) or moment) if sets else moment
