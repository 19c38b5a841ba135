"""What a rollout would do, and when: the same waves that it walks, with the times they take."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core.durations import whole_second_up
from forewarn.core.requirements import least_notice
from forewarn.core.rollout import Walk, out_of_use
from forewarn.core.windows import next_common
from forewarn.errors import NoCommonWindow

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
    terms = terms.at(course.speed)
    notice = terms.quicken(course.notice if course.notice is not None else least_notice(course.type))
    settle, pause = terms.settle_time(UPDATE), terms.quicken(course.pause)
    gate = max(settle, terms.quicken(course.health_time))
    listens = cache(listens)
    left_out = [(host, why) for host in rollout.waiting if (why := out_of_use(fleet, host))]
    skipped = [*rollout.skipped, *left_out]
    left = {host for host, _ in left_out}
    walk = Walk(fleet, (host for host in rollout.waiting if host not in left))
    waves: list[Wave] = []
    expected = longest = announced = latest_announced = now
    while hosts := walk.next_wave(course.budget):
        parts = {host: Part(fleet, host, listens, keep_windows="windows" not in course.overrides) for host in hosts}
        for host in [host for host, part in parts.items() if not part.can_start(announced, notice)]:
            windowed = ", ".join(group for group in parts.pop(host).groups if fleet.group(group).windows)
            skipped.append((host, str(NoCommonWindow(groups=windowed, host=host))))
        if not parts:
            continue
        starts = max(part.start(announced, notice) for part in parts.values())
        expected = starts + settle
        longest = max(part.start(latest_announced, notice) for part in parts.values()) + gate
        out = sorted((group, min(found)) for host in parts for group, found in fleet.domains_on(host).items())
        vms = sum(len(fleet.on_host(host)) for host in parts)
        waves.append(Wave(tuple(parts), tuple(dict.fromkeys(out)), vms, announced, starts, expected))
        announced, latest_announced = expected + pause, longest + pause
    return Plan(tuple(waves), tuple(skipped), expected, longest)


class Part:
    """One host of a wave: when it would start if nobody approves."""

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
