"""Runs of scenarios: how they pass, fail, skip steps, are stopped and rejected."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.core.scenarios import RunOptions, RunStatus
from forewarn.errors import Conflict, EventsNotEnabled, FaultsNotAllowed
from forewarn.files.scenario_file import parse_scenario
from forewarn.scenarios import library
from forewarn.scenarios.run import ScenarioRun
from forewarn.testing import Service
from forewarn.testing.client import ControlRequests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from forewarn.core.scenarios import Run

MINUTE = timedelta(minutes=1)
HEAD = 'title = "mine"\n[needs]\nvms = 1\n'
RESTART = '[[step]]\ndo = "restart"\n'
TO_ITS_END = '[[step]]\nuntil = "Started"\nwithin = "15m"\n[[step]]\nuntil = "gone"\nwithin = "10m"\n'
FLEET = """
[[host]]
name = "host-a"
[[host]]
name = "host-b"
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
host = "host-a"
update_domain = 0
[[vm]]
name = "web-1"
group = "web"
host = "host-b"
update_domain = 1
[[vm]]
name = "db-0"
host = "host-a"
"""


class Stage:
    """A service on which scenarios run."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def start(self, text: str, *vms: str, name: str = "mine", **options: Any) -> ScenarioRun:
        on_change: Callable[[Run, datetime], None] = options.pop("on_change", lambda run, now: None)
        scenario = parse_scenario(text, name, name)
        return ScenarioRun(ControlRequests(self.service), scenario, RunOptions(vms, **options), on_change)

    def run_scenario(self, text: str, *vms: str, **options: Any) -> Run:
        return self.start(text, *vms, **options).run_to_end()

    def approve_everything(self, *_: object) -> None:
        """What an application does that approves an event as soon as it sees it."""
        for event in self.service.events:
            if event.status == "Scheduled" and not event.was_approved:
                self.service.vm(event.vms[0]).approve(event)

    def operations(self, *, all_of_them: bool = False) -> list[dict[str, Any]]:
        return self.service.list_all("/v1/operations" + ("?all=true" if all_of_them else ""))


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Service(FLEET) as service:
        yield Stage(service)


def states(run: Run) -> list[str]:
    return [step.status.value for step in run.steps]


@pytest.mark.parametrize("name", library.names())
@pytest.mark.parametrize("eager", [False, True], ids=["waits", "approves at once"])
def test_every_built_in_scenario_passes_whether_the_application_waits_or_approves_at_once(
    name: str, eager: bool
) -> None:
    text = library.text(name)
    with Service(parse_scenario(text, name, name).fleet, enable_groups=False) as service:
        stage = Stage(service)
        on_change = stage.approve_everything if eager else lambda *_: None
        group = "workers" if name == "scale-in" else ""
        run = stage.run_scenario(text, name=name, group=group, enable=True, on_change=on_change)
        assert run.status is RunStatus.PASSED, run
        late = eager and name == "cancelled-maintenance"
        assert set(states(run)) == ({"passed", "skipped"} if late else {"passed"})
        assert run.ended_at is not None
        assert run.ended_at - run.started_at <= run.scenario.max_duration
        assert stage.operations() == []


@pytest.mark.parametrize(("name", "minutes"), [("live-migration", 20), ("host-maintenance", 25), ("user-redeploy", 25)])
def test_a_run_takes_exactly_the_published_medians(stage: Stage, name: str, minutes: int) -> None:
    run = stage.run_scenario(library.text(name), "db-0", name=name)
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
def test_a_false_expectation_fails_with_the_actual_value_and_leaves_nothing_behind(
    stage: Stage, wrong: str, problem: str
) -> None:
    run = stage.run_scenario(HEAD + RESTART + f"expect = {{ {wrong} }}\n" + TO_ITS_END, "db-0")
    assert (run.status, states(run)) == (RunStatus.FAILED, ["failed", "waiting", "waiting"])
    assert run.steps[0].error.startswith(problem)
    assert stage.service.events == []
    assert [operation["status"] for operation in stage.operations(all_of_them=True)] == ["cancelled"]


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
def test_a_true_expectation_passes(stage: Stage, right: str) -> None:
    run = stage.run_scenario(HEAD + RESTART + f"expect = {{ {right} }}\n" + TO_ITS_END, "db-0")
    assert run.status is RunStatus.PASSED, run


ADVICE_THEN_EVICTION = """
title = "advice, then an eviction without notice"
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


@pytest.mark.parametrize(
    ("preview", "text", "problem"),
    [
        (True, ADVICE_THEN_EVICTION, ""),
        (True, ADVICE_THEN_EVICTION.replace('"Advisory"', '"Scheduled"'), "expected status Scheduled, got Advisory"),
        (True, ADVICE_THEN_EVICTION.replace('"Started"', '"Scheduled"'), "expected status Scheduled, got Started"),
        (False, ADVICE_THEN_EVICTION, "expected SpotRebalanceRecommendation Advisory, got no event"),
    ],
)
def test_only_a_status_that_a_document_has_shown_is_found(preview: bool, text: str, problem: str) -> None:
    with Service('[[vm]]\nname = "spot"\npriority = "spot"\n', preview_versions=preview) as service:
        run = Stage(service).run_scenario(text, "spot")
        assert [step.error for step in run.steps if step.error] == ([f"spot: {problem}"] if problem else [])


def test_an_error_response_fails_the_step_with_its_text(stage: Stage) -> None:
    run = stage.run_scenario(HEAD + '[[step]]\ndo = "start"\n', "db-0")
    assert run.status is RunStatus.FAILED
    assert run.steps[0].error == "db-0 is running. Only a deallocated VM can be started."


def test_a_cause_without_notice_is_reported(stage: Stage) -> None:
    text = HEAD + '[[step]]\ndo = "delete"\nexpect = { type = "Terminate", status = "Scheduled" }\n'
    assert stage.run_scenario(text, "db-0").steps[0].error == "db-0: expected Terminate Scheduled, got no event"


def test_events_of_other_operations_do_not_count(stage: Stage) -> None:
    stage.service.request_operation("redeploy", "db-0")
    text = HEAD + '[[step]]\ndo = "live-migration"\nexpect = { type = "Redeploy" }\n'
    assert stage.run_scenario(text, "db-0").steps[0].error == "db-0: expected type 'Redeploy', got 'Freeze'"
    assert [operation["cause"] for operation in stage.operations()] == ["redeploy"]


def test_a_step_that_takes_too_long_fails(stage: Stage) -> None:
    run = stage.run_scenario(HEAD + RESTART + '[[step]]\nuntil = "Started"\nwithin = "14m"\n', "db-0")
    assert run.steps[1].error == "expected a Started event for db-0 within 14m"
    text = HEAD + '[[step]]\ndo = "hardware-failure"\n[[step]]\nuntil = "gone"\nwithin = "9m"\n'
    run = stage.run_scenario(text, "db-0")
    assert run.steps[1].error == "expected all events to end within 9m"
    assert [operation["status"] for operation in stage.operations()] == ["started"]


def test_an_event_that_is_cancelled_before_its_start_fails_the_step(stage: Stage) -> None:
    cancel = '[[step]]\ndo = "cancel"\nexpect = { notified = false }\n'
    run = stage.run_scenario(HEAD + RESTART + cancel + TO_ITS_END, "db-0")
    assert states(run) == ["passed", "passed", "failed", "waiting"]
    assert run.steps[2].error == "db-0: expected a Started event, but it ended before it started"


def test_a_run_postpones_and_approves_its_events(stage: Stage) -> None:
    postponed = '[[step]]\ndo = "postpone"\nby = "30m"\n[[step]]\nwait = "44m"\nexpect = { status = "Scheduled" }\n'
    text = HEAD + '[[step]]\ndo = "live-migration"\n' + postponed
    text += '[[step]]\ndo = "approve"\nexpect = { status = "Started" }\n[[step]]\nuntil = "gone"\nwithin = "5m"\n'
    run = stage.run_scenario(text, "db-0")
    assert states(run) == ["passed"] * 5
    assert run.ended_at == run.started_at + 49 * MINUTE


def test_an_operation_of_several_groups_is_postponed_once(stage: Stage) -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "host-update"\n'
    text += '[[step]]\ndo = "postpone"\nby = "10m"\n[[step]]\nuntil = "Started"\nwithin = "25m"\n'
    run = stage.run_scenario(text, "web-0", "db-0")  # both on one host
    assert (run.status, run.ended_at) == (RunStatus.PASSED, run.started_at + 25 * MINUTE)


@pytest.mark.parametrize("action", ['do = "approve"', 'do = "cancel"', 'do = "postpone"\nby = "5m"'])
def test_an_action_that_is_too_late_is_skipped_with_its_expectation(stage: Stage, action: str) -> None:
    text = HEAD + '[[step]]\ndo = "host-update"\n[[step]]\nuntil = "Started"\nwithin = "15m"\n'
    text += f"[[step]]\n{action}\nexpect = {{ notified = false }}\n" + '[[step]]\nuntil = "gone"\nwithin = "10m"\n'
    run = stage.run_scenario(text, "web-1", on_change=stage.approve_everything)
    assert (run.status, states(run)) == (RunStatus.PASSED, ["passed", "passed", "skipped", "passed"])
    assert "was approved before" in run.steps[2].error
    run = stage.run_scenario(text, "web-1")  # without an approval, the scenario is wrong
    assert (run.status, states(run)) == (RunStatus.FAILED, ["passed", "passed", "failed", "waiting"])
    assert "all events of the run have started or ended" in run.steps[2].error


def test_an_action_applies_to_the_event_of_an_earlier_step(stage: Stage) -> None:
    text = (
        'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "restart"\nvms = [1]\n[[step]]\ndo = "redeploy"\nvms = [2]\n'
    )
    text += '[[step]]\ndo = "cancel"\nvms = [1]\n'
    assert states(stage.run_scenario(text, "web-0", "db-0")) == ["passed", "passed", "passed"]
    assert [event.type for event in stage.service.events] == ["Redeploy"]


def test_a_cancellation_from_outside_fails_the_run(stage: Stage) -> None:
    def cancel(*_: object) -> None:
        for event in stage.service.events:
            event.cancel()

    text = HEAD + RESTART + '[[step]]\nuntil = "gone"\nwithin = "25m"\n'
    run = stage.run_scenario(text, "db-0", on_change=cancel)
    assert (run.status, states(run)) == (RunStatus.FAILED, ["passed", "failed"])
    assert "but it was cancelled" in run.steps[1].error


def test_a_rollout_that_an_operator_ends_is_not_completed(stage: Stage) -> None:
    def cancel(run: Run, _: object) -> None:
        for rollout in run.operations:
            stage.service.control("POST", f"/v1/rollouts/{rollout}/cancel")

    text = 'title = "mine"\n[needs]\nvms = 2\nupdate_domains = 2\n[[step]]\ndo = "rollout"\ntype = "Freeze"\n'
    text += '[[step]]\nuntil = "gone"\nwithin = "2h"\n'
    run = stage.run_scenario(text, "web-0", "web-1", on_change=cancel)
    assert (run.status, states(run)) == (RunStatus.FAILED, ["passed", "failed"])


def test_only_some_of_the_vms(stage: Stage) -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "restart"\nvms = [2]\n' + TO_ITS_END
    run = stage.run_scenario(text, "web-0", "web-1")
    assert run.status is RunStatus.PASSED
    (operation,) = stage.operations(all_of_them=True)
    assert (operation["id"], operation["vms"]) == (run.operations[0], ["web-1"])


def test_two_started_domains_at_once_fail_the_step(stage: Stage) -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\nupdate_domains = 2\n[[step]]\ndo = "rollout"\n'
    text += '[[step]]\nuntil = "gone"\nwithin = "50m"\nexpect = { domains_at_once = 1 }\n'
    assert stage.run_scenario(text, "web-0", "web-1").status is RunStatus.PASSED
    # Two host updates that know nothing of each other: no rollout keeps them apart.
    run = stage.run_scenario(text.replace("rollout", "host-update"), "web-0", "web-1")
    assert run.steps[1].error == "expected at most 1 of a group's update domains Started at once, got 2"


def test_started_domains_of_other_operations_do_not_count(stage: Stage) -> None:
    text = HEAD + '[[step]]\ndo = "hardware-failure"\n'
    text += '[[step]]\nuntil = "gone"\nwithin = "10m"\nexpect = { domains_at_once = 1 }\n'
    stage.service.request_operation("hardware-failure", host="host-b")
    assert [event.vms for event in stage.service.events] == [("web-1",)]
    assert stage.run_scenario(text, "web-0").status is RunStatus.PASSED


# --- Time, and the end of a run -------------------------------------------------------------------------


def test_groups_stay_enabled_while_a_run_moves_the_clock() -> None:
    with Service(FLEET, inactivity_timeout="1d") as service:
        run = Stage(service).run_scenario(library.text("degraded-hardware"), "db-0", name="degraded-hardware")
        assert run.status is RunStatus.PASSED, run
        assert service.vm("db-0").events_enabled
        assert not service.vm("web-0").events_enabled  # nothing counted it as polled


@pytest.mark.parametrize("clock", ["virtual", "system"])
def test_the_speed_of_a_run_also_applies_to_faults_and_waits(clock: str) -> None:
    text = HEAD + '[[step]]\nfault = { kind = "500", duration = "1000m" }\n[[step]]\nwait = "10m"\n'
    faults: list[dict[str, Any]] = []
    with Service(FLEET, clock=clock) as service:
        run = Stage(service).run_scenario(
            text, "db-0", speed=1200, on_change=lambda *_: faults.extend(service.list_all("/v1/faults"))
        )
        assert run.status is RunStatus.PASSED
        assert run.ended_at is not None
        assert run.ended_at - run.started_at >= (10 * MINUTE if clock == "virtual" else MINUTE / 120)
        assert faults[0]["duration_seconds"] == (60_000 if clock == "virtual" else 50)


def test_a_stopped_run_cancels_what_has_not_started(stage: Stage) -> None:
    text = 'title = "mine"\n[needs]\nvms = 2\n[[step]]\ndo = "hardware-failure"\nvms = [1]\n'
    text += '[[step]]\ndo = "redeploy"\nvms = [2]\n[[step]]\nwait = "1h"\n'

    def stop(now: Run, _: object) -> None:
        if now.steps[2].status == "running":
            run.pace.stop()

    run = stage.start(text, "web-0", "web-1", speed=0.001, on_change=stop)
    stopped = run.run_to_end()
    assert (stopped.status, states(stopped)) == (RunStatus.STOPPED, ["passed", "passed", "skipped"])
    assert [operation["cause"] for operation in stage.operations()] == ["hardware-failure"]
    assert [operation["cause"] for operation in run.operations_in_progress()] == ["hardware-failure"]


def test_a_group_without_events_enabled_is_an_error_that_says_what_to_do() -> None:
    with Service(FLEET, enable_groups=False) as service:
        stage = Stage(service)
        with pytest.raises(EventsNotEnabled) as caught:
            stage.start(HEAD + RESTART, "db-0")
        assert str(caught.value).startswith("db-0 has never polled. The run would send the group no events.")
        assert "--enable" in str(caught.value)
        assert stage.operations(all_of_them=True) == []
        run = stage.run_scenario(HEAD + RESTART + TO_ITS_END, "db-0", enable=True)
        assert run.status is RunStatus.PASSED


def test_a_group_that_does_not_poll_any_more_is_an_error_too() -> None:
    with Service(FLEET, inactivity_timeout="1d") as service:
        stage = Stage(service)
        service.fault("disabled", "web-0")
        with pytest.raises(EventsNotEnabled, match="web was disabled by a fault and has not polled since"):
            stage.start(HEAD + RESTART, "web-0")
        service.advance(hours=25)
        with pytest.raises(EventsNotEnabled, match="db-0 has not polled for 1d1h"):
            stage.start(HEAD + RESTART, "db-0")
        assert stage.run_scenario(HEAD + RESTART + TO_ITS_END, "db-0", enable=True).status is RunStatus.PASSED


def test_only_a_virtual_clock_can_wait_for_vms() -> None:
    with Service(FLEET, clock="system") as service, pytest.raises(Conflict, match="--clock virtual"):
        Stage(service).start(HEAD + RESTART, "db-0", seen_by=("db-0",))


# --- Faults --------------------------------------------------------------------------------------------


def test_a_step_can_add_a_fault_which_ends_with_the_run(stage: Stage) -> None:
    text = HEAD + '[[step]]\nfault = { kind = "500", count = 3 }\n' + RESTART + TO_ITS_END
    added: list[dict[str, Any]] = []
    run = stage.run_scenario(text, "db-0", on_change=lambda *_: added.extend(stage.service.list_all("/v1/faults")))
    assert run.status is RunStatus.PASSED
    assert (added[0]["kind"], added[0]["vm"], added[0]["count"]) == ("500", "db-0", 3)
    assert stage.service.list_all("/v1/faults") == []


def test_without_allow_faults_a_run_with_faults_is_rejected() -> None:
    with Service(FLEET, allow_faults=False) as service:
        stage = Stage(service)
        with pytest.raises(FaultsNotAllowed):
            stage.start(HEAD + RESTART + '[[step]]\nfault = { kind = "500" }\n', "db-0")
        assert service.events == []
