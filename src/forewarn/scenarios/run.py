"""A run of a scenario: what each step does, and the run from its first step to its end."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import approvals, progress, rollout_commands
from forewarn.core.durations import format_duration
from forewarn.core.events import EventStatus, was_approved_late
from forewarn.core.fleet_commands import return_host
from forewarn.core.operations import CAUSES, CauseRequest, CauseTarget, OperationStatus
from forewarn.core.requests import request
from forewarn.core.rollouts import RolloutSettings, RolloutStatus
from forewarn.core.scenarios import (
    APPROVE,
    CANCEL,
    EVENT_ACTIONS,
    RETURN_HOST,
    ROLLOUT,
    Run,
    RunStatus,
    StepStatus,
    WaitCondition,
)
from forewarn.errors import ForewarnError, NotFound
from forewarn.scenarios.expectations import check_events, check_vm
from forewarn.scenarios.pace import GRACE, RunStopped
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import Operation
    from forewarn.core.scenarios import Expectation, ScenarioStep, StepOptions
    from forewarn.core.state import Draft
    from forewarn.engine.engine import Engine
    from forewarn.engine.faults import Faults
    from forewarn.scenarios.expectations import EventObserver
    from forewarn.scenarios.pace import Pace


class RequestedWork:
    """Operations or a rollout that a run has requested, and the VMs that they affect."""

    def __init__(self, vms: Sequence[str], causes: Sequence[str] = ()) -> None:
        self.vms = tuple(vms)
        self.causes = tuple(causes)
        """Ids of the operations, or of the rollout."""

    def operations(self, draft: Draft) -> list[Operation]:
        """Return the live operations."""
        found = [operation for cause in self.causes if (operation := draft.operation(cause)) is not None]
        for cause in self.causes:
            if (rollout := draft.rollout(cause)) is not None:
                in_progress = (draft.operation(operation_id) for _, operation_id in rollout.in_progress)
                found += [operation for operation in in_progress if operation is not None]
        return found

    def is_live(self, draft: Draft) -> bool:
        return bool(self.operations(draft)) or any(draft.rollout(cause) is not None for cause in self.causes)


def request_work(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    cause: str,
    vms: Sequence[str],
    options: StepOptions,
    speed: float,
    by: str,
) -> list[str]:
    """Request operations with this cause, or a rollout, for the VMs. Return their ids."""
    hosts = list(dict.fromkeys(draft.fleet.vm(name).host for name in vms))
    if cause == ROLLOUT:
        return [rollout_commands.start(draft, now, limits, hosts, _settings(options, speed), by).id]
    template = CauseRequest(
        cause,
        type=options.type,
        duration=options.duration,
        notice=options.notice,
        overrides=options.overrides,
        speed=speed,
        description=options.description,
    )
    if CAUSES[cause].target in (CauseTarget.HOST, CauseTarget.TENANTS):
        requests = [template._replace(host=host) for host in hosts]
    else:
        requests = [template._replace(vms=tuple(vms))]
    return [operation.id for each in requests for operation in request(draft, now, limits, each, by)]


def _settings(options: StepOptions, speed: float) -> RolloutSettings:
    defaults = RolloutSettings()
    return RolloutSettings(
        type=options.type,
        duration=options.duration,
        notice=options.notice,
        overrides=options.overrides,
        max_unavailable=options.max_unavailable or defaults.max_unavailable,
        pause=options.pause or defaults.pause,
        # Health checks need real time, at any speed.
        health_timeout=max(defaults.health_timeout, GRACE * speed) if speed != 1 else defaults.health_timeout,
        speed=speed,
        description=options.description,
    )


class EventAction(NamedTuple):
    """An action on the events of a run: approve, cancel or postpone."""

    kind: str
    vms: Collection[str]
    by: str
    reason: str
    delay: timedelta


def act_on_events(
    draft: Draft, now: datetime, limits: OperatorLimits, work: RequestedWork, action: EventAction
) -> bool:
    """Approve, cancel or postpone the events of these VMs. Return False if it is too late."""
    if action.kind == CANCEL:
        return _cancel(draft, now, limits, work, action)
    events = [event for event in _events(draft, work, action.vms) if event.status is EventStatus.SCHEDULED]
    if action.kind == APPROVE:
        approvals.approve(draft, now, limits, [event.id for event in events], action.by)
        return bool(events)
    # One event of each operation: a postponement applies to the whole operation.
    open_ = {event.operation: event for event in events if event.approved_at is None}
    for event in open_.values():
        approvals.postpone(draft, now, limits, event.id, action.by, event.not_before + action.delay)
    return bool(open_)


def _approved_by_others(event: Event, by: str) -> bool:
    return event.approved_at is not None and event.approved_by != by and not was_approved_late(event)


def _events(draft: Draft, work: RequestedWork, vms: Collection[str]) -> list[Event]:
    found = [draft.event(event_id) for operation in work.operations(draft) for event_id in operation.events]
    return [event for event in found if event is not None and set(event.resources) & set(vms)]


def _cancel(draft: Draft, now: datetime, limits: OperatorLimits, work: RequestedWork, action: EventAction) -> bool:
    done = False
    for cause in work.causes:
        if draft.rollout(cause) is not None:
            rollout_commands.cancel(draft, now, limits, cause, action.by)
            done = True
    for operation in work.operations(draft):
        if operation.status is OperationStatus.PENDING and set(operation.vms) & set(action.vms):
            approvals.cancel_operation(draft, now, limits, operation.id, action.by, action.reason)
            done = True
    return done


def cancel_work(
    draft: Draft, now: datetime, limits: OperatorLimits, all_work: Sequence[RequestedWork], by: str, reason: str
) -> None:
    """Cancel everything that a run has requested and that has not started."""
    for work in all_work:
        _cancel(draft, now, limits, work, EventAction(CANCEL, work.vms, by, reason, timedelta(0)))


def return_hosts(draft: Draft, now: datetime, limits: OperatorLimits, hosts: Sequence[str], by: str) -> None:
    """Return hosts to service."""
    for host in hosts:
        if draft.fleet.has_host(host):
            return_host(draft, now, limits, host, by)


# --- The run --------------------------------------------------------------------------------------


_log = get_logger(__name__)


class StepFailed(Exception):
    """The actual result is not the expected one. The message has both."""


class StepSkipped(Exception):
    """The step came too late. The message says why."""


class ScenarioRun:
    """A run that is in progress."""

    def __init__(
        self,
        run: Run,
        engine: Engine,
        faults: Faults,
        pace: Pace,
        observer: EventObserver,
        on_change: Callable[[str], None],
    ) -> None:
        """`on_change` is called with the id of the run after each change of it."""
        self._on_change = on_change
        self.run = run
        self.pace = pace
        self.observer = observer
        self._engine = engine
        self._faults = faults
        self._old_hosts = {name: engine.fleet.vm(name).host for name in run.vms}
        """The host of each VM at the start of the run."""
        self._last_work = RequestedWork(run.vms)
        self._all_work: list[RequestedWork] = []
        self._fault_ids: list[str] = []
        self._has_cancelled = False
        """Whether a step of the run has cancelled something."""

    @property
    def run(self) -> Run:
        """The run and its progress."""
        return self._run

    @run.setter
    def run(self, run: Run) -> None:
        self._run = run
        self._on_change(run.id)

    def on_documents_changed(self, scopes: frozenset[str]) -> None:
        """Record the changed documents, and continue the run."""
        if scopes & self.observer.scopes:
            self.observer.update(scopes)
            self.pace.changed.set()

    async def run_to_end(self) -> None:
        """Execute all steps, and set the final status."""
        try:
            status = await self._execute_steps()
        except RunStopped:
            status = RunStatus.STOPPED
        except Exception:  # noqa: BLE001 - the run fails, and the log has the trace
            _log.exception(
                "run_crashed", "Unexpected error in a run.", run=self.run.id, scenario=self.run.scenario.name
            )
            self._mark(StepStatus.FAILED, "Unexpected error in Forewarn; see the service's log.")
            status = RunStatus.FAILED
        await self._end(status)

    async def _execute_steps(self) -> RunStatus:
        for index, step in enumerate(self.run.scenario.steps):
            self.pace.raise_if_stopped()
            result = self.run.steps[index]._replace(status=StepStatus.RUNNING, started_at=self._engine.clock.now())
            self.run = self.run.with_step(index, result)
            try:
                await self._execute(step)
                self._check(step.expect)
            except StepSkipped as reason:
                self._mark(StepStatus.SKIPPED, str(reason))
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
                ended = result._replace(status=status, error=error, ended_at=self._engine.clock.now())
                self.run = self.run.with_step(index, ended)

    async def _end(self, status: RunStatus) -> None:
        """Clear the run's faults, and cancel its pending work unless the run has passed."""
        try:
            for fault_id in self._fault_ids:
                with suppress(NotFound):  # it has expired
                    await self._faults.clear(fault_id, self.run.started_by)
            if status is not RunStatus.PASSED:
                ended = "failed" if status is RunStatus.FAILED else "was stopped"
                reason = f"run {self.run.id} of {self.run.scenario.name} {ended}"
                await self._engine.execute(cancel_work, self._all_work, self.run.started_by, reason)
        except ForewarnError as error:
            _log.warning(
                "run_cleanup_failed",
                "Cannot cancel the pending work of an ended run.",
                run=self.run.id,
                error=str(error),
            )
        finally:
            self._mark(StepStatus.SKIPPED, "the run was stopped")
            self.run = self.run._replace(status=status, ended_at=self._engine.clock.now())

    # --- A step -------------------------------------------------------------------------------------

    async def _execute(self, step: ScenarioStep) -> None:
        if step.fault is not None:
            duration = step.fault.duration
            quick = step.fault._replace(duration=None if duration is None else self.pace.limits.quicken(duration))
            for vm in self.run.vms:
                fault = await self._faults.add(quick._replace(vm=vm), self.run.started_by)
                self._fault_ids.append(fault.id)
        elif step.wait is not None:
            deadline = self._engine.clock.now() + self.pace.limits.quicken(step.wait)
            await self.pace.until(lambda: False, deadline, self._next_due)
        elif step.until is not None:
            await self._wait_until(step.until, step.within)
        elif step.do:
            await self._do(step)

    async def _do(self, step: ScenarioStep) -> None:
        vms = [self.run.vms[place - 1] for place in step.options.vms] or self.run.vms
        if step.do in EVENT_ACTIONS:
            await self._act_on_events(step, vms)
        elif step.do == RETURN_HOST:
            hosts = list(dict.fromkeys(self._old_hosts[vm] for vm in vms))
            await self._engine.execute(return_hosts, hosts, self.run.started_by)
        else:
            speed = self.pace.request_speed
            ids = await self._engine.execute(request_work, step.do, vms, step.options, speed, self.run.started_by)
            self._last_work = RequestedWork(vms, ids)
            self._all_work.append(self._last_work)
            self.run = self.run._replace(operations=(*self.run.operations, *ids))

    async def _act_on_events(self, step: ScenarioStep, vms: Sequence[str]) -> None:
        """Approve, cancel or postpone the events that the run has caused for these VMs."""
        delay = self.pace.limits.quicken(step.options.by or timedelta(0))
        action = EventAction(step.do, vms, self.run.started_by, f"scenario {self.run.scenario.name}", delay)
        causes = [cause for work in self._all_work for cause in work.causes]
        if await self._engine.execute(act_on_events, RequestedWork(vms, causes), action):
            self._has_cancelled |= step.do == CANCEL
            return
        events = await self._events(causes, vms)
        if any(_approved_by_others(event, self.run.started_by) for event in events):
            raise StepSkipped("The event was approved before this step.")
        raise StepFailed(f"cannot {step.do}: all events of the run have started or ended")

    async def _events(self, causes: Sequence[str], vms: Sequence[str]) -> list[Event]:
        found = [await self._engine.records.event(event_id) for event_id in self.observer.events(causes, vms)]
        return [event for event in found if event is not None]

    async def _wait_until(self, condition: WaitCondition, within: timedelta) -> None:
        is_true = self._all_started if condition is WaitCondition.STARTED else self._all_gone
        if not await self.pace.until(is_true, self.pace.deadline(within), self._next_due):
            raise StepFailed(f"{self._expected(condition)} within {format_duration(within)}")
        if condition is WaitCondition.GONE and not self._has_cancelled:
            await self._fail_if_cancelled()

    async def _fail_if_cancelled(self) -> None:
        """Fail the step if something else has cancelled the work of the run."""
        for event in await self._events(self._last_work.causes, self._last_work.vms):
            if event.status is EventStatus.CANCELLED:
                raise StepFailed(
                    f"expected the event of {_shortened(event.resources)} to complete, but it was cancelled"
                )
        for cause in self._last_work.causes:
            for rollout in await self._engine.records.rollouts_by_prefix(cause):
                if rollout.status is not RolloutStatus.DONE:
                    raise StepFailed(f"expected the rollout to complete, but it is {rollout.status}")

    def _expected(self, condition: WaitCondition) -> str:
        if condition is WaitCondition.GONE:
            return "expected all events to end"
        waiting = [vm for vm in self._last_work.vms if not self._has_started(vm)]
        return f"expected a Started event for {_shortened(waiting)}"

    def _all_started(self) -> bool:
        waiting = [vm for vm in self._last_work.vms if not self._has_started(vm)]
        for vm in waiting:
            was_visible = self.observer.observed_events(self._last_work.causes, vm)
            if was_visible and not self.observer.is_visible(self._last_work.causes, vm):
                raise StepFailed(f"{vm}: expected a Started event, but it ended before it started")
        return not waiting

    def _has_started(self, vm: str) -> bool:
        return any(
            EventStatus.STARTED.value in by_status
            for by_status in self.observer.observed_events(self._last_work.causes, vm)
        )

    def _all_gone(self) -> bool:
        return not self._last_work.is_live(self._engine.draft()) and not self.observer.is_visible(
            self._last_work.causes
        )

    def _next_due(self) -> datetime | None:
        """Return when the next step of the run's operations and rollouts is due."""
        draft = self._engine.draft()
        times = [progress.when_due(draft, operation) for work in self._all_work for operation in work.operations(draft)]
        rollouts = (draft.rollout(cause) for work in self._all_work for cause in work.causes)
        times += [rollout_commands.when_due(rollout) for rollout in rollouts if rollout is not None]
        return min((time for time in times if time is not None), default=None)

    # --- Expectations -------------------------------------------------------------------------------

    def _check(self, expected: Expectation | None) -> None:
        if expected is None:
            return
        for vm in self._last_work.vms:
            problem = self._problem(expected, vm)
            if problem:
                raise StepFailed(problem)
        maximum = expected.domains_at_once
        actual = self.observer.domains_at_once(self._last_work.causes)
        if maximum is not None and actual > maximum:
            raise StepFailed(f"expected at most {maximum} of a group's update domains Started at once, got {actual}")

    def _problem(self, expected: Expectation, vm: str) -> str:
        causes = self._last_work.causes
        if expected.notified is not None and expected.notified != self.observer.is_visible(causes, vm):
            return f"{vm}: expected {'an event, got none' if expected.notified else 'no event, got one'}"
        if expected.about_event:
            events = self.observer.observed_events(causes, vm)
            if problem := check_events(expected, vm, events, self.pace.limits.quicken):
                return problem
        if expected.vm is not None:
            return check_vm(expected.vm, vm, self._engine.fleet.vms.get(vm), self._old_hosts[vm])
        return ""


def _shortened(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
