"""The work of a request grows in proportion to its VMs, hosts and windows: counted in calls, not in time."""

from __future__ import annotations

import sys
from datetime import timedelta
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from engines import START

from forewarn.core import requests
from forewarn.core.fleet import PLACEMENT_GROUP_SIZE, VM, Fleet, Group, Host, Visibility
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import CauseRequest
from forewarn.core.requests import MAX_VMS
from forewarn.core.rollout_commands import dry_run, match_hosts
from forewarn.core.rollouts import RolloutSettings
from forewarn.core.shell_patterns import MAX_PATTERNS
from forewarn.core.state import Delivery, Draft, ServiceState
from forewarn.core.steps import finish
from forewarn.core.windows import closes_at, parse_window

if TYPE_CHECKING:
    from collections.abc import Callable


LIMITS = OperatorLimits(makes_hosts=True, max_pending_user_operations=2 * MAX_VMS)
WINDOWS = tuple(parse_window(f"daily {hour:02}:{minute:02} 5m") for hour in range(24) for minute in range(0, 60, 10))


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions of Python a piece of work calls. A generator counts at each step."""
    calls = 0

    def on_event(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    before = sys.getprofile()
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def draft_of(fleet: Fleet) -> Draft:
    """Return a draft in which all scopes get notices."""
    state, ids = ServiceState(fleet), count()
    for name in {vm.group for vm in fleet.vms.values()}:
        for scope in fleet.scopes(name):
            state.deliveries[scope] = Delivery(scope, True, 1, 1)
            state.last_seen[scope] = START
    return Draft(state, lambda: f"id-{next(ids)}")


def set_of(vms: int, visibility: Visibility, **fields: Any) -> Fleet:
    """Return a scale set on ten hosts."""
    group = Group(
        "set",
        "scale-set",
        5,
        5,
        terminate_notice=timedelta(minutes=5),
        os_image_notice=timedelta(minutes=15),
        visibility=visibility,
        windows=WINDOWS,
    )
    return Fleet(
        [
            VM(
                f"set_{each}",
                "set",
                f"host-{each % 10}",
                each % 5,
                placement_group=each // PLACEMENT_GROUP_SIZE + 1,
                **fields,
            )
            for each in range(vms)
        ],
        [group],
        [Host(f"host-{number}") for number in range(20)],
    )


@pytest.mark.parametrize("visibility", Visibility)
@pytest.mark.parametrize(
    ("cause", "fields"),
    [
        ("restart", {}),
        ("redeploy", {}),
        ("reimage", {}),
        ("live-migration", {}),
        ("delete", {}),
        ("delete", {"deallocated": True}),
        ("start", {"deallocated": True}),
        ("eviction", {"priority": "spot"}),
    ],
)
def test_an_operation_on_more_vms_does_as_much_for_each(
    visibility: Visibility, cause: str, fields: dict[str, Any]
) -> None:
    def calls(vms: int) -> int:
        fleet = set_of(vms, visibility, **fields)
        draft, wanted = draft_of(fleet), CauseRequest(cause, vms=tuple(fleet.vms))
        return calls_of(lambda: requests.request(draft, START, LIMITS, wanted, "operator"))

    calls(10)  # fills caches of windows
    assert calls(4 * PLACEMENT_GROUP_SIZE) < 5 * calls(PLACEMENT_GROUP_SIZE)


# --- Plans of rollouts ----------------------------------------------------------------------------------


def rollout_calls(hosts: int, windows: int) -> int:
    """Return the work of a plan over hosts, each with a VM of each of four groups with windows."""
    groups = [Group(f"group-{each}", "availability-set", 5, windows=WINDOWS[:windows]) for each in range(4)]
    vms = [
        VM(f"{group.name}-{number}", group.name, f"host-{number:03}", number % 5)
        for group in groups
        for number in range(hosts)
    ]
    fleet = Fleet(vms, groups, [Host(f"host-{number:03}") for number in range(hosts)])
    draft = draft_of(fleet)
    settings = RolloutSettings(max_unavailable=hosts)
    return calls_of(lambda: finish(dry_run(draft, START, LIMITS, ("*",), settings, "operator")))


def test_a_plan_reads_the_windows_of_a_group_once_for_all_hosts() -> None:
    """The work for windows is added to that for hosts, not multiplied with it."""
    rollout_calls(5, 5)
    hosts = rollout_calls(400, 5) - rollout_calls(100, 5)
    with_windows = rollout_calls(400, 100) - rollout_calls(100, 100)
    assert with_windows < 1.5 * hosts


def test_matching_hosts_costs_as_much_as_it_compares() -> None:
    """A slice of the work ends after so many comparisons, however many patterns there are."""
    fleet = Fleet([], [], [Host(f"host-{number:03}") for number in range(100)])
    patterns = ["*", *(f"h*{number}*" for number in range(MAX_PATTERNS - 1))]
    assert sum(match_hosts(fleet, patterns)) >= len(fleet.hosts) * len(patterns)


# --- Windows --------------------------------------------------------------------------------------------


def test_windows_that_never_close_are_not_followed_through_the_year() -> None:
    """All weeks between two clock changes are the same."""
    around_the_clock = [
        parse_window(f"daily {each // 2:02}:{each % 2 * 30:02} 30m Europe/Berlin") for each in range(48)
    ]
    never_closes = [*around_the_clock, parse_window("sun 00:00 4h UTC")]
    assert closes_at(never_closes, START) is None
    openings_of_a_year = 400 * len(around_the_clock)
    assert calls_of(lambda: closes_at(never_closes, START + timedelta(seconds=1))) < openings_of_a_year / 2
