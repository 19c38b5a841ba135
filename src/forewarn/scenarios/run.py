"""A run of a scenario: a client of the control API that executes the steps, lets time pass and checks the results."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forewarn.clock import MAX_STEP
from forewarn.core.access import Role
from forewarn.core.durations import format_duration, from_text, to_text
from forewarn.core.operations import CAUSES, CauseTarget
from forewarn.core.rollouts import RolloutSettings, RolloutStatus
from forewarn.core.scenarios import (
    APPROVE,
    CANCEL,
    EVENT_ACTIONS,
    RETURN_HOST,
    ROLLOUT,
    Run,
    RunStatus,
    StepResult,
    StepStatus,
    WaitCondition,
)
from forewarn.errors import (
    Conflict,
    FaultsNotAllowed,
    ForewarnError,
    InsufficientRole,
    NotFound,
    Unavailable,
)
from forewarn.scenarios.expectations import EventObserver, check_events, check_vm
from forewarn.scenarios.pace import GRACE, NO_TIME, Pace, RunStopped
from forewarn.scenarios.service import find_vm, members, read_vm, select
from forewarn.wire.versions import KNOWN_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime, timedelta

    from forewarn.core.scenarios import Expectation, RunOptions, Scenario, ScenarioStep, StepOptions
    from forewarn.scenarios.service import ControlAPI


class StepFailed(Exception):
    """The actual result is not the expected one. The message has both."""


class StepSkipped(Exception):
    """The step came too late. The message says why."""


class RequestedWork:
    """Operations or a rollout that a run has requested, and the VMs that they affect."""

    def __init__(self, vms: Sequence[str], causes: Sequence[str] = ()) -> None:
        self.vms = tuple(vms)
        self.causes = tuple(causes)
        """Ids of the operations, or of the rollout."""


class ScenarioRun:
    """A run. `pace.stop` ends it soon."""

    def __init__(
        self,
        client: ControlAPI,
        scenario: Scenario,
        options: RunOptions,
        on_change: Callable[[Run, datetime], None] = lambda run, now: None,
    ) -> None:
        """Select the VMs. Raise an error if they or the service do not meet the requirements of the scenario.

        `on_change` is called with the run and the service's time, after each change and while the run waits.
        """
        self._client = client
        self._on_change = on_change
        session = client.get("session")
        if session["role"] not in (Role.OPERATOR, Role.ADMIN):
            raise InsufficientRole(role=session["role"], what="scenario run", needed="operator or admin")
        vms = select(client, scenario, options)
        if any(step.fault is not None for step in scenario.steps) and not session["faults_allowed"]:
            raise FaultsNotAllowed
        self._vms = {vm["name"]: read_vm(vm) for vm in vms}
        """The VMs of the run, as they were at its start."""
        self.pace = Pace(client, options, {vm["name"]: vm["scope"] for vm in vms})
        self._request_speed, self._quicken = self.pace.request_speed, self.pace.quicken
        self._observer = EventObserver(self._vms)
        self._event_types = KNOWN_VERSIONS[max(session["api_versions"])].event_types
        """Types that documents of the newest api-version show."""
        self._rollouts: set[str] = set()
        self._rollout_of: dict[str, str] = {}
        """By the id of an operation; empty: it has none."""
        self._read_rows, self._read_until = 0, self.pace.now
        self._last_work = RequestedWork(tuple(self._vms))
        self._all_work: list[RequestedWork] = []
        self._fault_ids: list[str] = []
        self._has_cancelled = False
        """Whether a step of the run has cancelled something."""
        self.run = Run(
            scenario=scenario,
            vms=tuple(self._vms),
            speed=options.speed,
            started_by=session["name"],
            started_at=self.pace.now,
            steps=tuple(StepResult(step.describe()) for step in scenario.steps),
        )

    def run_to_end(self) -> Run:
        """Execute all steps, clean up, and return the result. An error of the connection is raised."""
        status = RunStatus.STOPPED
        try:
            status = self._execute_steps()
        except RunStopped:
            pass
        finally:
            self._clean_up(status)
        with suppress(Unavailable):
            self.pace.read()
        self._mark(StepStatus.SKIPPED, "the run was stopped")
        self._change(self.run._replace(status=status, ended_at=self.pace.now))
        return self.run

    def operations_in_progress(self) -> list[dict[str, Any]]:
        """Return the live operations of the run."""
        return self._live_operations([cause for work in self._all_work for cause in work.causes])

    def _execute_steps(self) -> RunStatus:
        for index, step in enumerate(self.run.scenario.steps):
            self.pace.raise_if_stopped()
            result = self.run.steps[index]._replace(status=StepStatus.RUNNING, started_at=self.pace.now)
            self._change(self.run.with_step(index, result))
            try:
                self._execute(step)
                self._observe()
                self._check(step.expect)
            except StepSkipped as reason:
                self._mark(StepStatus.SKIPPED, str(reason))
            except Unavailable:
                raise
            except (StepFailed, ForewarnError) as problem:
                self._mark(StepStatus.FAILED, str(problem))
                return RunStatus.FAILED
            else:
                self._mark(StepStatus.PASSED)
        return RunStatus.PASSED

    def _mark(self, status: StepStatus, error: str = "") -> None:
        """Set the result of the running step."""
        for index, result in enumerate(self.run.steps):
            if result.status is StepStatus.RUNNING:
                self._change(
                    self.run.with_step(index, result._replace(status=status, error=error, ended_at=self.pace.now))
                )

    def _change(self, run: Run) -> None:
        self.run = run
        self._on_change(run, self.pace.now)

    def _clean_up(self, status: RunStatus) -> None:
        """Clear the run's faults, and cancel its pending work unless the run has passed."""
        for fault_id in self._fault_ids:
            with suppress(NotFound):  # it has expired
                self._client.delete("faults", fault_id)
        if status is not RunStatus.PASSED:
            for work in self._all_work:
                self._cancel(work.causes, work.vms)

    # --- A step -------------------------------------------------------------------------------------

    def _execute(self, step: ScenarioStep) -> None:
        self.pace.idle_at = None
        if step.fault is not None:
            fault = step.fault
            duration = None if fault.duration is None else self._quicken(fault.duration)
            for vm in self.run.vms:
                body = members(
                    kind=fault.kind, vm=vm, method=fault.method, count=fault.count, duration=duration, delay=fault.delay
                )
                self._fault_ids.append(self._client.post("faults", body=body)["id"])
        elif step.wait is not None:
            self._until(lambda: False, self.pace.now + self._quicken(step.wait))
        elif step.until is not None:
            self._wait_until(step.until, step.within)
        elif step.do:
            vms = [self.run.vms[place - 1] for place in step.options.vms] or self.run.vms
            self._do(step, vms)

    def _do(self, step: ScenarioStep, vms: Sequence[str]) -> None:
        if step.do in EVENT_ACTIONS:
            self._act_on_events(step, vms)
        elif step.do == RETURN_HOST:
            for host in dict.fromkeys(self._vms[vm].host for vm in vms):
                with suppress(NotFound):
                    self._client.post("hosts", host, "return")
        else:
            self._last_work = RequestedWork(vms)
            self._all_work.append(self._last_work)
            for path, body in self._requests(step.do, vms, step.options):
                created = self._client.post(path, body=body)
                ids = [each["id"] for each in created.get("operations", [created])]
                self._rollouts.update(ids if step.do == ROLLOUT else ())
                self._last_work.causes += tuple(ids)
                self._change(self.run._replace(operations=(*self.run.operations, *ids)))

    def _requests(self, do: str, vms: Sequence[str], options: StepOptions) -> list[tuple[str, dict[str, Any]]]:
        """Return the requests for operations of this cause, or for a rollout, each with its path."""
        speed = self._request_speed
        body = members(
            type=options.type or None,
            duration=options.duration,
            notice=options.notice,
            overrides=options.overrides,
            description=options.description,
            speed=speed if speed != 1 else None,
        )
        now = [vm for name in vms if (vm := find_vm(self._client, name)) is not None]
        hosts = list(dict.fromkeys(vm.host for vm in now))
        if do == ROLLOUT:
            # Health checks need real time, at any speed.
            longest = max(RolloutSettings().health_timeout, GRACE * speed) if speed != 1 else None
            more = members(max_unavailable=options.max_unavailable, pause=options.pause, health_timeout=longest)
            return [("rollouts", {"hosts": hosts, **body, **more})]
        body["cause"] = do
        if CAUSES[do].target in (CauseTarget.HOST, CauseTarget.TENANTS):
            return [("operations", {**body, "host": host}) for host in hosts]
        return [("operations", {**body, "vms": list(vms)})]

    def _act_on_events(self, step: ScenarioStep, vms: Sequence[str]) -> None:
        """Approve, cancel or postpone the events that the run has caused for these VMs."""
        causes = [cause for work in self._all_work for cause in work.causes]
        self._observe()
        if step.do == CANCEL:
            done = self._cancel(causes, vms)
            self._has_cancelled |= done
        else:
            done = self._approve_or_postpone(step, causes, vms)
        if done:
            return
        self._observe()
        if any(self._was_approved_by_others(event) for event in self._observer.events_of(causes, vms)):
            raise StepSkipped("The event was approved before this step.")
        raise StepFailed(f"cannot {step.do}: all events of the run have started or ended")

    def _approve_or_postpone(self, step: ScenarioStep, causes: Sequence[str], vms: Sequence[str]) -> bool:
        events = [event for event in self._observer.events_of(causes, vms) if event["status"] == "scheduled"]
        body: dict[str, Any] = {}
        if step.do != APPROVE:
            # One event of each operation: a postponement applies to the whole operation.
            events = list({event["operation"]: event for event in events if event["approved_at"] is None}.values())
            body = members(by=self._quicken(step.options.by or NO_TIME))
        done = False
        for event in events:
            with suppress(Conflict):  # it has just started
                self._client.post("events", event["id"], step.do, body=body)
                done = True
        return done

    def _was_approved_by_others(self, event: dict[str, Any]) -> bool:
        is_late = event["started_at"] is not None and (event["approved_at"] or "") > event["started_at"]
        return event["approved_by"] not in (None, self.run.started_by) and not is_late

    def _cancel(self, causes: Collection[str], vms: Collection[str]) -> bool:
        """Cancel rollouts, and operations on these VMs that have not started. Return whether there was one."""
        done = False
        for cause in causes:
            if self._live_rollout(cause):
                with suppress(Conflict):
                    self._client.post("rollouts", cause, "cancel")
                    done = True
        for operation in self._live_operations(causes):
            if operation["status"] == "pending" and not set(vms).isdisjoint(operation["vms"]):
                with suppress(Conflict):
                    self._client.post("operations", operation["id"], "cancel")
                    done = True
        return done

    def _wait_until(self, condition: WaitCondition, within: timedelta) -> None:
        is_true = self._all_started if condition is WaitCondition.STARTED else self._all_gone
        if not self._until(is_true, self.pace.deadline(within)):
            raise StepFailed(f"{self._expected(condition)} within {format_duration(within)}")
        if condition is WaitCondition.GONE and not self._has_cancelled:
            self._fail_if_cancelled()

    def _fail_if_cancelled(self) -> None:
        """Fail the step if something else has cancelled the work of the run."""
        work = self._last_work
        for event in self._observer.events_of(work.causes, work.vms):
            if event["status"] == "cancelled":
                raise StepFailed(f"expected the event of {_shortened(event['vms'])} to complete, but it was cancelled")
        for cause in self._rollouts.intersection(work.causes):
            status = self._client.get("rollouts", cause)["status"]
            if status != RolloutStatus.DONE:
                raise StepFailed(f"expected the rollout to complete, but it is {status}")

    def _expected(self, condition: WaitCondition) -> str:
        if condition is WaitCondition.GONE:
            return "expected all events to end"
        return f"expected a Started event for {_shortened(self._waiting())}"

    def _waiting(self) -> list[str]:
        """Return the VMs without a Started event."""
        work = self._last_work
        return [
            vm
            for vm in work.vms
            if not any("Started" in by_status for by_status in self._observer.observed_events(work.causes, vm))
        ]

    def _all_started(self) -> bool:
        waiting, causes, all_vms = self._waiting(), self._last_work.causes, self._last_work.vms
        for vm in waiting:
            was_visible = self._observer.observed_events(causes, vm)
            if was_visible and not self._observer.is_visible(causes, all_vms):
                raise StepFailed(f"{vm}: expected a Started event, but it ended before it started")
        return not waiting

    def _all_gone(self) -> bool:
        causes = self._last_work.causes
        if self._observer.is_visible(causes, self.run.vms) or any(map(self._live_rollout, causes)):
            return False
        return not self._live_operations(causes)

    def _live_rollout(self, cause: str) -> bool:
        return cause in self._rollouts and RolloutStatus(self._client.get("rollouts", cause)["status"]).live

    def _live_operations(self, causes: Collection[str]) -> list[dict[str, Any]]:
        if not causes:
            return []
        found = self._client.all("operations")["operations"]
        return [each for each in found if each["id"] in causes or each["rollout"] in causes]

    def _until(self, condition: Callable[[], bool], deadline: datetime) -> bool:
        """Let time pass until the condition is true. Return False if the deadline comes first."""
        while True:
            self._observe()
            if condition():
                return True
            self.pace.raise_if_stopped()
            if self.pace.now >= deadline:
                return False
            self._on_change(self.run, self.pace.now)
            self.pace.pass_time(deadline - self.pace.now)

    # --- Observation and expectations ---------------------------------------------------------------

    def _observe(self) -> None:
        """Read the clock, and the new rows of history. They have every status of every event."""
        self.pace.read()
        since = to_text(self._read_until - MAX_STEP)  # the clock of the next leader can be behind
        for row in self._client.all("history", since=since)["history"]:
            if row["sequence"] <= self._read_rows:
                continue
            self._read_rows, self._read_until = row["sequence"], from_text(row["time"])
            event = row["snapshot"]
            is_shown = event is not None and event["type"] in self._event_types
            if is_shown and (cause := self._cause_of(event["operation"])):
                self._observer.record(event, cause)

    def _cause_of(self, operation: str) -> str:
        """Return the operation if the run has requested it, or its rollout if that is one of the run."""
        if operation in self.run.operations or not self._rollouts:
            return operation if operation in self.run.operations else ""
        if operation not in self._rollout_of:
            self._rollout_of[operation] = self._client.get("operations", operation)["rollout"] or ""
        return self._rollout_of[operation]

    def _check(self, expected: Expectation | None) -> None:
        if expected is None:
            return
        for vm in self._last_work.vms:
            problem = self._problem(expected, vm)
            if problem:
                raise StepFailed(problem)
        maximum = expected.domains_at_once
        actual = self._observer.domains_at_once(self._last_work.causes)
        if maximum is not None and actual > maximum:
            raise StepFailed(f"expected at most {maximum} of a group's update domains Started at once, got {actual}")

    def _problem(self, expected: Expectation, vm: str) -> str:
        causes = self._last_work.causes
        if expected.notified is not None and expected.notified != self._observer.is_visible(causes, [vm]):
            return f"{vm}: expected {'an event, got none' if expected.notified else 'no event, got one'}"
        if expected.about_event:
            events = self._observer.observed_events(causes, vm)
            if problem := check_events(expected, vm, events, self._quicken):
                return problem
        if expected.vm is not None:
            return check_vm(expected.vm, vm, find_vm(self._client, vm), self._vms[vm].host)
        return ""


def _shortened(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
