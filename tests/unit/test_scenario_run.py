"""Runs of scenarios: how they pass, fail, skip steps, are stopped and rejected."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self

import pytest
from engines import cancel, make_engine, request_operation, running_engine

from forewarn.core import rollout_commands
from forewarn.core.events import EventStatus
from forewarn.core.faults import FaultSpec
from forewarn.core.operations import OperationStatus
from forewarn.core.scenarios import RunOptions, RunStatus, StepStatus
from forewarn.engine.faults import Faults
from forewarn.errors import EventsNotEnabled, FaultsNotAllowed, RunEnded, RunInProgress, UnknownResource
from forewarn.files.fleet_file import parse_fleet
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library
from forewarn.scenarios.runs import MAX_ENDED_RUNS, ScenarioRuns
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from forewarn.core.scenarios import Run
    from forewarn.engine.engine import Engine, Published

pytestmark = pytest.mark.anyio
MINUTE = timedelta(minutes=1)
TIMEOUT_SECONDS = 20
VERSIONS = available_versions(preview=True)
HEAD = 'title = "mine"\n[needs]\nvms = 1\n'
RESTART = '[[step]]\ndo = "restart"\n'
TO_ITS_END = '[[step]]\nuntil = "Started"\nwithin = "15m"\n[[step]]\nuntil = "gone"\nwithin = "10m"\n'


class Blind:
    """VMs that have seen what was there before the run, and see nothing more."""

    scopes: ClassVar[set[str]] = set()

    def __init__(self, engine: Engine, vms: Sequence[str]) -> None:
        self._engine = engine
        self._vms = list(vms)
        self._behind = False
        self.waited_for = asyncio.Event()
        self.left = False

    def missing(self) -> list[str]:
        self._behind = self._behind or bool(self._engine.live_events())
        return self._vms if self._behind else []

    async def wait(self) -> None:
        self.waited_for.set()
        await asyncio.Event().wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.left = True


class Stage:
    """An engine with scenario runs over it."""

    def __init__(self, engine: Engine, *, faults: bool = False) -> None:
        self.engine = engine
        self.faults = Faults(engine, allowed=faults)
        self.barrier = Blind(engine, ["db-0"])
        self.scenario_runs = ScenarioRuns(engine, self.faults, lambda _: self.barrier, VERSIONS[max(VERSIONS)])

    async def start(self, text: str, *vms: str, name: str = "mine", **options: Any) -> Run:
        return await self.scenario_runs.start(parse_scenario(text, name, name), RunOptions(vms, **options), "tester")

    async def run_scenario(self, text: str, *vms: str, **options: Any) -> Run:
        run = await self.start(text, *vms, **options)
        return await self.scenario_runs.finished(run.id)


@asynccontextmanager
async def running_stage(fleet: str = "", *, faults: bool = False, **options: Any) -> AsyncIterator[Stage]:
    if fleet:
        options["fleet"] = parse_fleet(fleet, "fleet.toml")
    async with running_engine(**options) as engine:
        stage = Stage(engine, faults=faults)
        try:
            yield stage
        finally:
            await stage.scenario_runs.stop()


def states(run: Run) -> list[str]:
    return [step.status.value for step in run.steps]


def approve_everything(engine: Engine) -> None:
    """An application that approves an event as soon as it sees it."""

    def on_published(published: Published) -> None:
        for group in published.scopes:
            open_ = [
                e.id for e in engine.document(group).events if e.status is EventStatus.SCHEDULED and not e.approved_at
            ]
            if open_:
                engine.approve_with_callback(open_, "app", group, lambda _, error: None)

    engine.subscribe(on_published)


@pytest.mark.parametrize("name", library.names())
@pytest.mark.parametrize("eager", [False, True], ids=["waits", "approves at once"])
async def test_every_shipped_one_passes_whether_the_application_waits_or_approves_at_once(
    name: str, eager: bool
) -> None:
    text = library.text(name)
    async with running_stage(parse_scenario(text, name, name).fleet, enable_groups=False) as stage:
        if eager:
            approve_everything(stage.engine)
        group = "workers" if name == "scale-in" else ""
        run = await stage.run_scenario(text, name=name, group=group, enable=True)
        assert run.status is RunStatus.PASSED, run
        late = eager and name == "cancelled-maintenance"
        assert set(states(run)) == ({"passed", "skipped"} if late else {"passed"})
        assert run.ended_at is not None
        length = run.ended_at - run.started_at
        assert length <= run.scenario.max_duration
        assert not stage.engine.live_operations()


async def test_a_run_takes_exactly_the_published_medians() -> None:
    for name, minutes in (("live-migration", 20), ("host-maintenance", 25), ("user-redeploy", 25)):
        async with running_stage() as stage:
            run = await stage.run_scenario(library.text(name), "db-0", name=name)
            assert run.ended_at == run.started_at + minutes * MINUTE
            assert run.steps[0].ended_at == run.started_at


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ('type = "Freeze"', "db-0: expected type 'Freeze', got 'Reboot'"),
        ('status = "Started"', "db-0: expected status Started, got Scheduled"),
        ('source = "Platform"', "db-0: expected source 'Platform', got 'User'"),
        ('description = ""', "db-0: expected description '', got 'Virtual machine is going to be restarted"),
        ("duration = 5", "db-0: expected duration 5, got -1"),
        ('notice = "15m1s"', "db-0: expected a notice of at least 15m1s, got 15m"),
        ("vms = 2", "db-0: expected vms 2, got 1"),
        ("notified = false", "db-0: expected no event, got one"),
        ('vm = "moved"', "db-0: expected VM state moved, got running on host-a"),
        ('vm = "deleted"', "db-0: expected VM state deleted, got running on host-a"),
    ],
)
async def test_a_false_expectation_fails_with_the_actual_value_and_leaves_nothing_behind(
    wrong: str, problem: str
) -> None:
    async with running_stage() as stage:
        run = await stage.run_scenario(HEAD + RESTART + f"expect = {{ {wrong} }}\n" + TO_ITS_END, "db-0")
        assert (run.status, states(run)) == (RunStatus.FAILED, ["failed", "waiting", "waiting"])
        assert run.steps[0].error.startswith(problem)
        assert not stage.engine.live_events()
        (withdrawn,) = await stage.engine.records.operations_by_prefix(run.operations[0])
        assert withdrawn.reason == f"run {run.id} of mine failed"


@pytest.mark.parametrize(
    "right",
    [
        'type = "Reboot"',
        'notice = "15m"',
        "duration = -1",
        "vms = 1",
        "notified = true",
        'vm = "running"',
        'source = "User"',
    ],
)
async def test_the_same_when_it_is_true(right: str) -> None:
    async with running_stage() as stage:
        run = await stage.run_scenario(HEAD + RESTART + f"expect = {{ {right} }}\n" + TO_ITS_END, "db-0")
        assert run.status is RunStatus.PASSED, run


ADVICE_THEN_EVICTION = """
title = "advice, then an eviction without notice"
fleet = '''
[[vm]]
name = "spot"
priority = "spot"
'''
[needs]
vms = 1
priority = "spot"
[[step]]
do = "rebalance"
expect = { type = "SpotRebalanceRecommendation", status = "Advisory" }
[[step]]
do = "eviction"
notice = "0s"
overrides = ["notice"]
expect = { type = "Preempt", status = "Started" }
[[step]]
until = "gone"
within = "1m"
expect = { vm = "evicted" }
"""


async def test_advice_is_expected_as_an_advisory_and_an_eviction_needs_no_notice() -> None:
    async with running_stage(parse_scenario(ADVICE_THEN_EVICTION, "mine", "mine").fleet) as stage:
        run = await stage.run_scenario(ADVICE_THEN_EVICTION, "spot")
        assert run.status is RunStatus.PASSED, run
        wrong = ADVICE_THEN_EVICTION.replace('"Advisory"', '"Scheduled"')
    async with running_stage(parse_scenario(wrong, "mine", "mine").fleet) as stage:
        run = await stage.run_scenario(wrong, "spot")
        assert run.steps[0].error == "spot: expected status Scheduled, got Advisory"


async def test_what_is_refused_fails_in_the_words_of_the_refusal() -> None:
    async with running_stage() as stage:
        run = await stage.run_scenario(HEAD + '[[step]]\ndo = "start"\n', "db-0")
        assert (run.status, run.steps[0].error) == (
            RunStatus.FAILED,
            "db-0 is running. Only a deallocated VM can be started.",
        )


async def test_a_cause_without_notice_is_reported() -> None:
    async with running_stage() as stage:
        text = HEAD + '[[step]]\ndo = "delete"\nexpect = { type = "Terminate", status = "Scheduled" }\n'
        run = await stage.run_scenario(text, "db-0")
        assert run.steps[0].error == "db-0: expected Terminate Scheduled, got no event"


async def test_events_of_other_operations_do_not_count() -> None:
    async with running_stage() as stage:
        await request_operation(stage.engine, "redeploy", "db-0")
        text = HEAD + '[[step]]\ndo = "live-migration"\nexpect = { type = "Redeploy" }\n'
        run = await stage.run_scenario(text, "db-0")
        assert run.steps[0].error == "db-0: expected type 'Redeploy', got 'Freeze'"
        assert [operation.cause for operation in stage.engine.live_operations()] == ["redeploy"]


async def test_a_step_that_takes_too_long_fails() -> None:
    async with running_stage() as stage:
        run = await stage.run_scenario(HEAD + RESTART + '[[step]]\nuntil = "Started"\nwithin = "14m"\n', "db-0")
        assert run.steps[1].error == "expected a Started event for db-0 within 14m"
        text = HEAD + '[[step]]\ndo = "hardware-failure"\n[[step]]\nuntil = "gone"\nwithin = "9m"\n'
        run = await stage.run_scenario(text, "db-0")
        assert run.steps[1].error == "expected all events to end within 9m"
        assert [operation.status for operation in stage.engine.live_operations()] == [OperationStatus.STARTED]


async def test_an_event_that_is_cancelled_before_its_start_fails_the_step() -> None:
    cancel = '[[step]]\ndo = "cancel"\nexpect = { notified = false }\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(HEAD + RESTART + cancel + TO_ITS_END, "db-0")
        assert states(run) == ["passed", "passed", "failed", "waiting"]
        assert run.steps[2].error == "db-0: expected a Started event, but it ended before it started"


async def test_a_run_postpones_and_approves_its_events() -> None:
    postponed = '[[step]]\ndo = "postpone"\nby = "30m"\n[[step]]\nwait = "44m"\nexpect = { status = "Scheduled" }\n'
    text = HEAD + '[[step]]\ndo = "live-migration"\n' + postponed
    text += '[[step]]\ndo = "approve"\nexpect = { status = "Started" }\n[[step]]\nuntil = "gone"\nwithin = "5m"\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "db-0")
        assert states(run) == ["passed"] * 5
        assert run.ended_at == run.started_at + 49 * MINUTE


async def test_an_operation_of_several_groups_is_postponed_once() -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "host-update"\n'
    text += '[[step]]\ndo = "postpone"\nby = "10m"\n[[step]]\nuntil = "Started"\nwithin = "25m"\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "web-0", "db-0")  # both on one host
        assert (run.status, run.ended_at) == (RunStatus.PASSED, run.started_at + 25 * MINUTE)


@pytest.mark.parametrize("answer", ['do = "approve"', 'do = "cancel"', 'do = "postpone"\nby = "5m"'])
async def test_an_action_that_is_too_late_is_skipped_with_its_expectation(answer: str) -> None:
    text = HEAD + '[[step]]\ndo = "host-update"\n[[step]]\nuntil = "Started"\nwithin = "15m"\n'
    text += f"[[step]]\n{answer}\nexpect = {{ notified = false }}\n" + '[[step]]\nuntil = "gone"\nwithin = "10m"\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "web-1")
        assert (run.status, states(run)) == (RunStatus.FAILED, ["passed", "passed", "failed", "waiting"])
        assert "all events of the run have started or ended" in run.steps[2].error, (
            "there is no approval, so the scenario is wrong"
        )
    async with running_stage() as stage:
        approve_everything(stage.engine)
        run = await stage.run_scenario(text, "web-1")
        assert (run.status, states(run)) == (RunStatus.PASSED, ["passed", "passed", "skipped", "passed"])
        assert "was approved before" in run.steps[2].error


async def test_an_action_applies_to_the_event_of_an_earlier_step() -> None:
    text = (
        'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "restart"\nvms = [1]\n[[step]]\ndo = "redeploy"\nvms = [2]\n'
    )
    text += '[[step]]\ndo = "cancel"\nvms = [1]\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "web-0", "db-0")
        assert states(run) == ["passed", "passed", "passed"]
        assert [event.type for event in stage.engine.live_events()] == ["Redeploy"]


async def test_a_cancellation_from_outside_fails_the_run() -> None:
    async with running_stage() as stage:
        told = asyncio.Event()
        stage.engine.subscribe(lambda _: told.set())
        run = await stage.start(HEAD + RESTART + '[[step]]\nuntil = "gone"\nwithin = "25m"\n', "db-0", speed=1)
        await told.wait()
        await cancel(stage.engine, stage.engine.live_events()[0].id)
        run = await stage.scenario_runs.finished(run.id)
        assert (run.status, states(run)) == (RunStatus.FAILED, ["passed", "failed"])
        assert "but it was cancelled" in run.steps[1].error


async def test_a_rollout_that_an_operator_ends_is_not_completed() -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\nupdate_domains = 2\n[[step]]\ndo = "rollout"\ntype = "Freeze"\n'
    async with running_stage() as stage:
        told = asyncio.Event()
        stage.engine.subscribe(lambda _: told.set())
        run = await stage.start(text + '[[step]]\nuntil = "gone"\nwithin = "2h"\n', "web-0", "web-1", speed=1)
        await told.wait()
        (rollout,) = stage.engine.live_rollouts()
        await stage.engine.execute(rollout_commands.cancel, rollout.id, "somebody")
        run = await stage.scenario_runs.finished(run.id)
        assert (run.status, states(run)[-1]) == (RunStatus.FAILED, "failed")


async def test_only_some_of_the_vms() -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "restart"\nvms = [2]\n' + TO_ITS_END
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "web-0", "web-1")
        assert run.status is RunStatus.PASSED
        (operation_id,) = run.operations
        rows = await stage.engine.records.operations_by_prefix(operation_id)
        assert [row.vms for row in rows] == [("web-1",)]


async def test_two_started_domains_at_once_fail_the_step() -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\nupdate_domains = 2\n[[step]]\ndo = "rollout"\n'
    text += '[[step]]\nuntil = "gone"\nwithin = "50m"\nexpect = { domains_at_once = 1 }\n'
    async with running_stage() as stage:
        assert (await stage.run_scenario(text, "web-0", "web-1")).status is RunStatus.PASSED
        # Two host updates that know nothing of each other: no rollout keeps them apart.
        run = await stage.run_scenario(text.replace("rollout", "host-update"), "web-0", "web-1")
        assert run.steps[1].error == "expected at most 1 of a group's update domains Started at once, got 2"


async def test_domains_that_other_operations_stop_do_not_count() -> None:
    text = HEAD + '[[step]]\ndo = "hardware-failure"\n'
    text += '[[step]]\nuntil = "gone"\nwithin = "10m"\nexpect = { domains_at_once = 1 }\n'
    async with running_stage() as stage:
        await request_operation(stage.engine, "hardware-failure", host="host-b")
        assert len(stage.engine.document("web").events) == 1
        assert (await stage.run_scenario(text, "web-0")).status is RunStatus.PASSED


# --- Time ---------------------------------------------------------------------------------------------


async def test_groups_do_not_fall_silent_while_a_run_moves_the_clock() -> None:
    async with running_stage() as stage:
        run = await stage.run_scenario(library.text("degraded-hardware"), "db-0", name="degraded-hardware")
        assert run.status is RunStatus.PASSED
        assert stage.engine.document("db-0").enabled
        assert not stage.engine.document("web").enabled  # nobody spoke for it


async def test_a_pace_moves_the_clock_as_real_time_passes() -> None:
    text = HEAD + '[[step]]\nwait = "100s"\n'
    async with running_stage() as stage:
        run = await stage.run_scenario(text, "db-0", speed=10_000)
        assert run.ended_at == run.started_at + timedelta(seconds=100)


# --- Stopping, and requirements of a run --------------------------------------------------------------------------


async def test_a_stopped_run_cancels_scheduled_events_and_leaves_started_ones() -> None:
    text = HEAD + '[[step]]\ndo = "hardware-failure"\n' + RESTART + '[[step]]\nwait = "1m"\n'
    async with running_stage() as stage:
        run = await stage.start(text, "db-0", speed=0.001)
        waiting = asyncio.Event()

        def seen(_: Published) -> None:
            if len(stage.engine.live_operations()) == 2:
                waiting.set()

        stage.engine.subscribe(seen)
        await waiting.wait()
        stopped = await stage.scenario_runs.stop_run(run.id.upper())
        assert (stopped.status, states(stopped)[:2]) == (RunStatus.STOPPED, ["passed", "passed"])
        assert StepStatus.FAILED not in states(stopped)
        assert [operation.cause for operation in stage.engine.live_operations()] == ["hardware-failure"]
        with pytest.raises(RunEnded, match="has ended \\(stopped\\)"):
            await stage.scenario_runs.stop_run(run.id)
        with pytest.raises(UnknownResource, match="Unknown run 'r7'"):
            await stage.scenario_runs.stop_run("r7")


async def test_a_run_that_waits_for_vms_can_be_stopped() -> None:
    async with running_stage() as stage:
        run = await stage.start(HEAD + RESTART + TO_ITS_END, "db-0", seen_by=("db-0",))
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await stage.barrier.waited_for.wait()
        assert not stage.barrier.left
        stopped = await stage.scenario_runs.stop_run(run.id)
        assert (stopped.status, states(stopped)) == (RunStatus.STOPPED, ["passed", "skipped", "waiting"])
        async with asyncio.timeout(TIMEOUT_SECONDS):
            await stage.engine.advance(MINUTE)  # the clock is free again
        assert stage.barrier.left


async def test_only_one_run_moves_a_virtual_clock() -> None:
    async with running_stage() as stage:
        first = await stage.start(HEAD + '[[step]]\nwait = "1m"\n', "db-0", speed=0.001)
        with pytest.raises(RunInProgress, match=f"forewarn scenario stop {first.id}"):
            await stage.start(HEAD + RESTART, "web-0")
        await stage.scenario_runs.stop_run(first.id)
        assert (await stage.run_scenario(HEAD + RESTART, "web-0")).status is RunStatus.PASSED


async def test_only_one_of_two_simultaneous_runs_starts() -> None:
    async with running_stage(enable_groups=False) as stage:
        text = HEAD + '[[step]]\nwait = "1m"\n'
        both = [stage.start(text, vm, enable=True, speed=0.001) for vm in ("db-0", "web-0")]
        outcomes = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Run", "RunInProgress"]


async def test_a_group_without_events_enabled_is_an_error_that_says_what_to_do() -> None:
    async with running_stage(enable_groups=False) as stage:
        with pytest.raises(EventsNotEnabled) as caught:
            await stage.start(HEAD + RESTART, "db-0")
        assert str(caught.value).startswith("db-0 has never polled. The run would send the group no events.")
        assert "--enable" in str(caught.value)
        assert stage.scenario_runs.runs() == []
        run = await stage.run_scenario(HEAD + RESTART + TO_ITS_END, "db-0", enable=True)
        assert run.status is RunStatus.PASSED


async def test_a_group_that_has_not_polled_for_a_day_is_an_error_too() -> None:
    async with running_stage() as stage:
        await stage.engine.advance(timedelta(hours=25))
        with pytest.raises(EventsNotEnabled, match="has not polled for 1d1h"):
            await stage.start(HEAD + RESTART, "db-0")
        assert (await stage.run_scenario(HEAD + RESTART + TO_ITS_END, "db-0", enable=True)).status is RunStatus.PASSED


async def test_runs_are_listed_newest_first_and_the_oldest_forgotten() -> None:
    async with running_stage() as stage:
        for _ in range(MAX_ENDED_RUNS + 3):
            await stage.run_scenario(HEAD + '[[step]]\nwait = "1s"\n', "db-0")
        numbers = [int(run.id.removeprefix("r")) for run in stage.scenario_runs.runs()]
        assert numbers == list(range(numbers[0], numbers[0] - MAX_ENDED_RUNS, -1))


async def test_a_stop_of_the_service_leaves_the_operations_of_a_run() -> None:
    engine, _ = make_engine()
    await engine.start()
    await engine.apply_fleet(parse_fleet('[[vm]]\nname = "a"\n', "f"), by="test")
    stage = Stage(engine)
    await stage.start(HEAD + RESTART + '[[step]]\nwait = "1m"\n', "a", enable=True, speed=0.001)
    told = asyncio.Event()
    engine.subscribe(lambda _: told.set())
    await told.wait()
    await stage.scenario_runs.stop()
    assert [event.type for event in engine.live_events()] == ["Reboot"]
    await engine.stop()


# --- Faults --------------------------------------------------------------------------------------------


async def test_a_step_can_add_a_fault_which_ends_with_the_run() -> None:
    text = HEAD + '[[step]]\nfault = { kind = "500", count = 3 }\n' + RESTART + TO_ITS_END
    async with running_stage(faults=True) as stage:
        added: list[FaultSpec] = []
        stage.engine.subscribe(lambda _: added.extend(fault.spec for fault in stage.faults.list()))
        run = await stage.run_scenario(text, "db-0")
        assert run.status is RunStatus.PASSED
        assert added[0] == FaultSpec("500", vm="db-0", count=3)
        assert stage.faults.list() == []


async def test_without_allow_faults_a_run_with_faults_is_rejected() -> None:
    text = HEAD + RESTART + '[[step]]\nfault = { kind = "500" }\n'
    async with running_stage() as stage:
        with pytest.raises(FaultsNotAllowed):
            await stage.start(text, "db-0")
        assert not stage.engine.live_events()
