"""The hosts of a rollout: waves, plan, and rejected requests."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from engines import FLEET, MINUTE, START, running_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from test_placement import fleets

from depth import amount
from forewarn.core import rollout_commands
from forewarn.core.fleet import VM, Fleet, Group, Host, HostState, Visibility
from forewarn.core.limits import OperatorLimits
from forewarn.core.rollout_commands import MAX_HOSTS, MAX_UNAVAILABLE, plan, start
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus, WaveQueue, in_order
from forewarn.core.shell_patterns import matching
from forewarn.core.state import Changes, Draft, ServiceState
from forewarn.core.steps import at_once, finish
from forewarn.core.windows import parse_window
from forewarn.errors import BadOption, LimitExceeded, NoHostInService, NoMatchingHost, RolloutOverlaps
from forewarn.ports import ListFilter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.operations import Operation

prepare = at_once(rollout_commands.prepare)

WINDOWS = [
    (),
    (parse_window("daily 02:00 4h"),),
    (parse_window("sat,sun 03:00 2h"),),
    (parse_window("daily 00:00 24h"),),
]


def two_domains_of_a_group(fleet: Fleet, wave: Iterable[str]) -> bool:
    """Whether more goes out of a group than one domain; more than one on a single host cannot be helped."""
    out: dict[str, dict[str, set[int]]] = {}
    for vm in fleet.vms.values():
        if vm.host in wave and vm.group in fleet.groups:
            out.setdefault(vm.group, {}).setdefault(vm.host, set()).add(vm.update_domain)
    return any(len(found) > 1 and len(set[int]().union(*found.values())) > 1 for found in out.values())


# --- Waves ----------------------------------------------------------------------------------------------


def fleet_of(hosts: list[set[tuple[str, int]]]) -> Fleet:
    """Hosts, each with the domains that are on it: also with several of one group, which is against the rules."""
    vms = [
        VM(f"{group}-{number}-{domain}", group, f"host-{number:03}", domain)
        for number, found in enumerate(hosts)
        for group, domain in sorted(found)
    ]
    groups = [Group(group, "availability-set", 3) for group in sorted({vm.group for vm in vms})]
    return Fleet(vms, groups, [Host(f"host-{number:03}") for number in range(len(hosts))])


@settings(max_examples=amount(200))
@given(
    hosts=st.lists(st.sets(st.tuples(st.sampled_from("rgb"), st.integers(0, 2)), max_size=3), max_size=15),
    max_unavailable=st.integers(1, 6),
    busy=st.sets(st.integers(0, 15)),
    eased=st.lists(st.integers(0, 15)),
)
def test_each_host_is_in_one_wave_with_one_domain_of_a_group(
    hosts: list[set[tuple[str, int]]], max_unavailable: int, busy: set[int], eased: list[int]
) -> None:
    fleet = fleet_of(hosts)
    queue = WaveQueue(fleet, fleet.hosts)
    taken: list[str] = []
    while wave := finish(queue.take_wave(max_unavailable, lambda host: int(host[-3:]) in busy)):
        assert len(wave) <= max_unavailable
        assert not busy & {int(host[-3:]) for host in wave}, "a busy host was taken"
        assert not two_domains_of_a_group(fleet, wave)
        taken += wave
        if eased:
            busy.discard(eased.pop())
    assert len(taken) == len({*taken}), "a host was taken twice"
    assert [*queue.pending] == [host for host in fleet.hosts if host not in taken], "others keep their place"
    assert all(int(host[-3:]) in busy for host in queue.pending), "a host was left out"


def test_a_wave_is_as_large_as_it_can_be() -> None:
    fleet = fleet_of([{("web", number % 3)} for number in range(9)])
    queue = WaveQueue(fleet, fleet.hosts)
    assert finish(queue.take_wave(2)) == ["host-000", "host-003"]
    assert finish(queue.take_wave(5)) == ["host-001", "host-004", "host-007"]
    assert finish(queue.take_wave(5)) == ["host-002", "host-005", "host-008"]
    assert finish(queue.take_wave(5)) == ["host-006"]
    assert finish(queue.take_wave(5)) == []


def test_hosts_are_updated_domain_after_domain() -> None:
    fleet = fleet_of([*({("web", number % 2)} for number in range(6)), set()])
    order = in_order(fleet, fleet.hosts)
    assert [int(host[-3:]) for host in order] == [0, 2, 4, 6, 1, 3, 5]
    queue = WaveQueue(fleet, order)
    assert [len(finish(queue.take_wave(10))) for _ in range(3)] == [4, 3, 0]


def test_waves_of_one_host_each_take_all_hosts() -> None:
    fleet = fleet_of([{("web", number)} for number in range(600)])
    queue = WaveQueue(fleet, fleet.hosts)
    assert [finish(queue.take_wave(5)) for _ in range(601)] == [*([host] for host in fleet.hosts), []]


# --- The plan -------------------------------------------------------------------------------------------


def drafted(fleet: Fleet, *rollouts: Rollout) -> Draft:
    state = ServiceState(fleet)
    state.absorb(Changes(rollouts={rollout.id: rollout for rollout in rollouts}))
    return Draft(state, lambda: "new")


@st.composite
def rollout_settings(draw: st.DrawFn) -> RolloutSettings:
    return RolloutSettings(
        max_unavailable=draw(st.integers(1, 6)),
        pause=draw(st.sampled_from([timedelta(0), MINUTE, timedelta(hours=1)])),
        health_timeout=draw(st.sampled_from([MINUTE, 15 * MINUTE, timedelta(hours=2)])),
        notice=draw(st.sampled_from([None, 15 * MINUTE, timedelta(hours=3)])),
        overrides=draw(st.sampled_from([(), (), ("windows",)])),
    )


@settings(max_examples=amount(250))
@given(
    fleet=fleets(),
    settings=rollout_settings(),
    windows=st.tuples(*[st.sampled_from(WINDOWS)] * 3),
    deaf=st.sets(st.sampled_from(["red", "green", "vm-0", "vm-1"])),
    speed=st.sampled_from([1.0, 60.0, 7.0]),
    patterns=st.sampled_from([["*"], ["host-*"], ["host-[01]"], ["host-0", "host-?"]]),
)
def test_a_plan_has_every_host_once_in_the_order_of_time(
    fleet: Fleet,
    settings: RolloutSettings,
    windows: tuple[Any, ...],
    deaf: set[str],
    speed: float,
    patterns: list[str],
) -> None:
    groups = [group._replace(windows=found) for group, found in zip(fleet.groups.values(), windows, strict=True)]
    fleet = Fleet(fleet.vms.values(), groups, fleet.hosts.values())
    matched = matching(fleet.host_names(), patterns)
    useless = {
        host: f"the host is {fleet.host(host).state}" for host in matched if fleet.host(host).state != "in-service"
    }
    if len(useless) == len({*matched}):
        with pytest.raises((NoHostInService, NoMatchingHost)):
            prepare(drafted(fleet), START, patterns, settings, "test")
        return
    rollout = prepare(drafted(fleet), START, patterns, settings, "test")
    limits = OperatorLimits(speed=speed)
    made = finish(plan(fleet, limits, rollout, START, lambda scope: scope not in deaf))

    assert dict(made.skipped) == useless
    updated = [host for wave in made.waves for host in wave.hosts]
    assert sorted(updated) == sorted({*matched} - {*useless})
    for wave in made.waves:
        assert 1 <= len(wave.hosts) <= settings.max_unavailable
        assert not two_domains_of_a_group(fleet, wave.hosts)
        assert len(wave.domains) == len(dict(wave.domains)), "a group with two domains in a wave"
        assert wave.vms == sum(len(fleet.on_host(host)) for host in wave.hosts)
        assert wave.scheduled_at <= wave.starts_at <= wave.ends_at
        assert wave.ends_at == wave.starts_at + limits.settle_time("host-update")
    for earlier, later in pairwise(made.waves):
        assert later.scheduled_at == earlier.ends_at + limits.quicken(settings.pause)
    assert made.waves[0].scheduled_at == START
    assert made.waves[-1].ends_at == made.expected_end <= made.latest_end


@settings(max_examples=amount(100))
@given(
    fleet=fleets(vms=(3, 9), states=st.just(HostState.IN_SERVICE), zones=("",)),
    windows=st.tuples(*[st.sampled_from([*WINDOWS, (parse_window("mon 10:00 2h"),)])] * 3),
    deaf=st.sets(st.sampled_from(["red", "vm-0", "vm-1"])),
    visibility=st.tuples(*[st.sampled_from(Visibility)] * 3),
    settings=rollout_settings(),
)
def test_a_rollout_runs_as_planned(
    fleet: Fleet,
    windows: tuple[Any, ...],
    deaf: set[str],
    visibility: tuple[Visibility, ...],
    settings: RolloutSettings,
) -> None:
    groups = [
        group._replace(kind="scale-set", windows=found, visibility=visible)
        for group, found, visible in zip(fleet.groups.values(), windows, visibility, strict=True)
    ]
    fleet = Fleet(fleet.vms.values(), groups, fleet.hosts.values())
    limits = OperatorLimits(inactivity_timeout=timedelta(days=3650))

    async def run() -> None:
        async with running_engine(fleet=fleet, enable_groups=False, limits=limits) as engine:
            for scope in {*map(fleet.scope_of, fleet.vms.values())} - deaf:
                await engine.enable(scope, by="test")
            prepared = prepare(engine.draft(), START, ["*"], settings, "test")
            made = finish(plan(fleet, limits, prepared, START, lambda scope: scope not in deaf))
            await engine.execute(start, ["*"], settings, "test")
            await engine.advance(timedelta(days=90))
            out: dict[datetime, list[Operation]] = {}
            for _, one in reversed(await engine.records.operations(ListFilter(live=False))):
                out.setdefault(one.requested_at, []).append(one)
            updated = [
                (
                    at,
                    {one.host for one in wave},
                    max(filter(None, (one.started_at for one in wave))),
                    max(filter(None, (one.ended_at for one in wave))),
                )
                for at, wave in sorted(out.items())
            ]
            assert updated == [(wave.scheduled_at, {*wave.hosts}, wave.starts_at, wave.ends_at) for wave in made.waves]
            ((_, rollout),) = await engine.records.rollouts(ListFilter(live=False))
            assert rollout.status is RolloutStatus.DONE
            assert {host for host, _ in rollout.skipped} == {host for host, _ in made.skipped}

    asyncio.run(run())


@pytest.mark.parametrize("deaf", [{"web_0"}, {"web_1"}, {"web_0", "web_1"}, {"web"}])
def test_a_plan_knows_which_scopes_of_a_set_get_a_notice(deaf: set[str]) -> None:
    fleet = Fleet(
        [VM(f"web_{number}", "web", f"host-{number}") for number in range(2)],
        [Group("web", "scale-set", visibility=Visibility.OWN)],
        [Host("host-0"), Host("host-1")],
    )
    rollout = prepare(drafted(fleet), START, ["*"], RolloutSettings(max_unavailable=1), "test")
    made = finish(plan(fleet, OperatorLimits(), rollout, START, lambda scope: scope not in deaf))
    notices = {wave.hosts: wave.starts_at - wave.scheduled_at for wave in made.waves}
    assert notices == {
        (f"host-{number}",): timedelta(0) if f"web_{number}" in deaf else 15 * MINUTE for number in range(2)
    }


async def test_a_rollout_ends_though_its_later_waves_cannot_be_postponed_any_more() -> None:
    async with running_engine() as engine:
        await engine.execute(
            start, ["*"], RolloutSettings(max_unavailable=1, postpone_deadline=START + 30 * MINUTE), "test"
        )
        await engine.advance(timedelta(hours=3))
        assert not engine.live_rollouts()
        assert not engine.live_events()


# --- What is refused, and what would be right -----------------------------------------------------------


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["*"], ["rack-1-a", "rack-1-b", "rack-2-a", "Rack-1-c"]),
        (["rack-1-*"], ["rack-1-a", "rack-1-b"]),
        (["rack-?-a"], ["rack-1-a", "rack-2-a"]),
        (["rack-[!1]-*"], ["rack-2-a"]),
        (["rack-1-b", "rack-1-*"], ["rack-1-a", "rack-1-b"]),
        (["rack-1"], []),
        (["RACK-1-A"], []),
        ([], []),
    ],
)
def test_patterns_match_whole_names_as_in_a_shell(patterns: list[str], expected: list[str]) -> None:
    assert matching(["rack-1-a", "rack-1-b", "rack-2-a", "Rack-1-c"], patterns) == expected


DEGRADED = Fleet(FLEET.vms.values(), FLEET.groups.values(), [Host("host-a", HostState.DEGRADED), Host("host-b")])
MANY = Fleet(hosts=[Host(f"h{number}") for number in range(MAX_HOSTS + 1)])
LIVE = Rollout("live-1", ("host-b",), RolloutSettings(), "test", START, in_progress=(("host-b", "op"),))
PAUSED = LIVE._replace(status=RolloutStatus.PAUSED, in_progress=(), pending=("host-b",))

REFUSED: dict[str, tuple[Draft, list[str], RolloutSettings, type[Exception], str]] = {
    "no host matches": (drafted(FLEET), ["rack-*"], RolloutSettings(), NoMatchingHost, "No host matches 'rack-*'"),
    "a slip": (drafted(FLEET), ["hst-a"], RolloutSettings(), NoMatchingHost, "Did you mean 'host-a'?"),
    "one of two": (drafted(FLEET), ["host-a", "hots-b"], RolloutSettings(), NoMatchingHost, "No host matches 'hots-b'"),
    "no pattern": (drafted(FLEET), [], RolloutSettings(), BadOption, "hosts"),
    "an empty pattern": (drafted(FLEET), ["host-a", ""], RolloutSettings(), BadOption, "'rack-1-*'"),
    "no max_unavailable": (drafted(FLEET), ["*"], RolloutSettings(max_unavailable=0), BadOption, "from 1 to 1,000"),
    "a max_unavailable below": (
        drafted(FLEET),
        ["*"],
        RolloutSettings(max_unavailable=-1),
        BadOption,
        "max_unavailable '-1'",
    ),
    "too large": (
        drafted(FLEET),
        ["*"],
        RolloutSettings(max_unavailable=MAX_UNAVAILABLE + 1),
        BadOption,
        "max_unavailable '1001'",
    ),
    "no health time": (
        drafted(FLEET),
        ["*"],
        RolloutSettings(health_timeout=timedelta(0)),
        BadOption,
        "health_timeout",
    ),
    "a duration below a second": (
        drafted(FLEET),
        ["*"],
        RolloutSettings(duration=timedelta(milliseconds=500)),
        BadOption,
        "a Freeze lasts from 1s to 1h",
    ),
    "too long": (drafted(FLEET), ["*"], RolloutSettings(duration=timedelta(hours=2)), BadOption, "duration '2h'"),
    "of a reboot": (drafted(FLEET), ["*"], RolloutSettings(type="reboot", duration=MINUTE), BadOption, "only a Freeze"),
    "another type": (drafted(FLEET), ["*"], RolloutSettings(type="Redeploy"), BadOption, "Freeze or Reboot"),
    "a short notice": (drafted(FLEET), ["*"], RolloutSettings(notice=MINUTE), BadOption, "minimum for Freeze is 15m"),
    "an override": (
        drafted(FLEET),
        ["*"],
        RolloutSettings(overrides=("window",)),
        BadOption,
        "Did you mean 'windows'?",
    ),
    "a deadline": (drafted(FLEET), ["*"], RolloutSettings(postpone_deadline=START), BadOption, "this time has passed"),
    "out of use": (drafted(DEGRADED), ["host-a"], RolloutSettings(), NoHostInService, "is in service"),
    "overlap": (
        drafted(FLEET, LIVE),
        ["*"],
        RolloutSettings(),
        RolloutOverlaps,
        "live-1 already includes host-b",
    ),
    "a paused one": (drafted(FLEET, PAUSED), ["*-b"], RolloutSettings(), RolloutOverlaps, "live-1"),
    "too many": (drafted(MANY), ["*"], RolloutSettings(), LimitExceeded, "Too many hosts for one rollout: 10,001"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_invalid_request_is_rejected_with_the_allowed_values_and_changes_nothing(case: str) -> None:
    draft, patterns, settings, error, words = REFUSED[case]
    with pytest.raises(error) as caught:
        prepare(draft, START, patterns, settings, "test")
    assert words in str(caught.value)
    assert not draft.changes


def test_defaults_are_set_and_hosts_out_of_service_are_skipped() -> None:
    rollout = prepare(drafted(DEGRADED), START, ["host-*"], RolloutSettings(notice=MINUTE, overrides=("notice",)), "me")
    assert (rollout.settings.type, rollout.settings.duration) == ("Freeze", timedelta(seconds=9))
    assert (rollout.pending, rollout.skipped) == (("host-b",), (("host-a", "the host is degraded"),))
    other = prepare(drafted(FLEET, LIVE), START, ["host-a"], RolloutSettings(type="reboot"), "me")
    assert (other.settings.type, other.settings.duration, other.pending) == ("Reboot", None, ("host-a",))
    over = LIVE._replace(status=RolloutStatus.CANCELLED)
    assert prepare(drafted(FLEET, over), START, ["*"], RolloutSettings(), "me").pending == ("host-a", "host-b")
