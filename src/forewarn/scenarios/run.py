"""One run of a scenario, from its first step to its end, and what each step does."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import approvals, progress, rollout_commands
from forewarn.core.events import EventStatus
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
from forewarn.scenarios.expectations import judge_events, judge_vm
from forewarn.scenarios.pace import GRACE, RunStopped

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
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


class CausedWork:
    """What a run has asked for last: to which VMs, and what came of it."""

    def __init__(self, vms: Sequence[str], causes: Sequence[str] = ()) -> None:
        self.vms = tuple(vms)
        self.causes = tuple(causes)
        """Ids of operations, or of a rollout."""

    def operations(self, draft: Draft) -> list[Operation]:
        """Those that are live."""
        found = [operation for cause in self.causes if (operation := draft.operation(cause)) is not None]
        for cause in self.causes:
            if (rollout := draft.rollout(cause)) is not None:
                under_way = (draft.operation(operation_id) for _, operation_id in rollout.in_progress)
                found += [operation for operation in under_way if operation is not None]
        return found

    def is_live(self, draft: Draft) -> bool:
        return bool(self.operations(draft)) or any(draft.rollout(cause) is not None for cause in self.causes)


def cause_work(
    draft: Draft,
    now: datetime,
    limits: OperatorLimits,
    what: str,
    vms: Sequence[str],
    how: StepOptions,
    speed: float,
    by: str,
) -> list[str]:
    """Have a cause, or a rollout, happen to the VMs; the ids of what comes of it."""
    hosts = list(dict.fromkeys(draft.fleet.vm(name).host for name in vms))
    if what == ROLLOUT:
        return [rollout_commands.start(draft, now, limits, hosts, _settings(how, speed), by).id]
    plain = CauseRequest(
        what, type=how.type, duration=how.duration, notice=how.notice, overrides=how.overrides, speed=speed
    )
    if CAUSES[what].target in (CauseTarget.HOST, CauseTarget.TENANTS):
        wanted = [plain._replace(host=host) for host in hosts]
    else:
        wanted = [plain._replace(vms=tuple(vms))]
    return [operation.id for each in wanted for operation in request(draft, now, limits, each, by)]


def _settings(how: StepOptions, speed: float) -> RolloutSettings:
    usual = RolloutSettings()
    return RolloutSettings(
        type=how.type,
        duration=how.duration,
        notice=how.notice,
        overrides=how.overrides,
        max_unavailable=how.budget or usual.max_unavailable,
        pause=how.pause or usual.pause,
        # However fast it goes, machines are looked at in real time.
        health_timeout=max(usual.health_timeout, GRACE * speed) if speed != 1 else usual.health_timeout,
        speed=speed,
    )


class Intervention(NamedTuple):
    """What is said to events that are there."""

    what: str
    vms: Collection[str]
    by: str
    why: str
    later: timedelta


def intervene(
    draft: Draft, now: datetime, limits: OperatorLimits, work: CausedWork, intervention: Intervention
) -> bool:
    """Approve, cancel or postpone what is still to come for these VMs; False when it is too late for that."""
    if intervention.what == CANCEL:
        return _cancel(draft, now, limits, work, intervention)
    events = [event for event in _events(draft, work, intervention.vms) if event.status is EventStatus.SCHEDULED]
    if intervention.what == APPROVE:
        approvals.approve(draft, now, limits, [event.id for event in events], intervention.by)
        return bool(events)
    # One of each operation: it is put off for all whom it touches.
    open_ = {event.operation: event for event in events if event.approved_at is None}
    for event in open_.values():
        approvals.postpone(draft, now, limits, event.id, intervention.by, event.not_before + intervention.later)
    return bool(open_)


def _events(draft: Draft, work: CausedWork, vms: Collection[str]) -> list[Event]:
    found = [draft.event(event_id) for operation in work.operations(draft) for event_id in operation.events]
    return [event for event in found if event is not None and set(event.resources) & set(vms)]


def _cancel(draft: Draft, now: datetime, limits: OperatorLimits, work: CausedWork, intervention: Intervention) -> bool:
    done = False
    for cause in work.causes:
        if draft.rollout(cause) is not None:
            rollout_commands.cancel(draft, now, limits, cause, intervention.by)
            done = True
    for operation in work.operations(draft):
        if operation.status is OperationStatus.PENDING and set(operation.vms) & set(intervention.vms):
            approvals.cancel_operation(draft, now, limits, operation.id, intervention.by, intervention.why)
            done = True
    return done


def withdraw(
    draft: Draft, now: datetime, limits: OperatorLimits, all_work: Sequence[CausedWork], by: str, why: str
) -> None:
    """A run ends before its end: what it caused and is only scheduled does not happen."""
    for work in all_work:
        _cancel(draft, now, limits, work, Intervention(CANCEL, work.vms, by, why, timedelta(0)))


def return_hosts(draft: Draft, now: datetime, limits: OperatorLimits, hosts: Sequence[str], by: str) -> None:
    """Take hosts back into use that have failed, or were to."""
    for host in hosts:
        if draft.fleet.has_host(host):
            return_host(draft, now, limits, host, by)


# --- The run --------------------------------------------------------------------------------------


logger = logging.getLogger(__name__)


class StepFailed(Exception):
    """What was expected did not come; the message says both."""


class StepSkipped(Exception):
    """The step came too late; the message says why."""


class ScenarioRun:
    """A run under way."""

    def __init__(self, run: Run, engine: Engine, faults: Faults, pace: Pace, observer: EventObserver) -> None:
        self.run = run
        self.pace = pace
        self.observer = observer
        self._engine = engine
        self._faults = faults
        self._homes = {name: engine.fleet.vm(name).host for name in run.vms}
        """On which host each VM was before."""
        self._last_work = CausedWork(run.vms)
        self._all_work: list[CausedWork] = []
        self._fault_ids: list[str] = []
        self._withdrew = False
        """Whether the run itself has cancelled something."""

    def look(self, groups: frozenset[str]) -> None:
        """Documents have changed."""
        if groups & self.observer.groups:
            self.observer.look(groups)
            self.pace.changed.set()

    async def run_to_end(self) -> None:
        """Take every step; at the end the run says how it went."""
        try:
            status = await self._take_steps()
        except RunStopped:
            status = RunStatus.STOPPED
        except Exception:
            logger.exception("Run %s of %s has failed in itself.", self.run.id, self.run.scenario.name)
            self._mark(StepStatus.FAILED, "Something is wrong in Forewarn itself; the service's log has more.")
            status = RunStatus.FAILED
        await self._end(status)

    async def _take_steps(self) -> RunStatus:
        for index, step in enumerate(self.run.scenario.steps):
            self.pace.refuse_stopped()
            result = self.run.steps[index]._replace(status=StepStatus.RUNNING, started_at=self._engine.clock.now())
            self.run = self.run.with_step(index, result)
            try:
                await self._take(step)
                self._judge(step.expect)
            except StepSkipped as reason:
                self._mark(StepStatus.SKIPPED, str(reason))
            except (StepFailed, ForewarnError) as problem:
                self._mark(StepStatus.FAILED, str(problem))
                return RunStatus.FAILED
            else:
                self._mark(StepStatus.PASSED)
        return RunStatus.PASSED

    def _mark(self, status: StepStatus, error: str = "") -> None:
        """Say how the step under way went."""
        for index, result in enumerate(self.run.steps):
            if result.status is StepStatus.RUNNING:
                ended = result._replace(status=status, error=error, ended_at=self._engine.clock.now())
                self.run = self.run.with_step(index, ended)

    async def _end(self, status: RunStatus) -> None:
        """Leave nothing behind that would still happen, unless the scenario has come to its end."""
        try:
            for fault_id in self._fault_ids:
                with suppress(NotFound):  # it is over
                    await self._faults.clear(fault_id, self.run.started_by)
            if status is not RunStatus.PASSED:
                ended = "has failed" if status is RunStatus.FAILED else "was stopped"
                why = f"run {self.run.id} of {self.run.scenario.name} {ended}"
                await self._engine.execute(withdraw, self._all_work, self.run.started_by, why)
        except ForewarnError as error:
            logger.warning("What run %s has caused could not be withdrawn: %s", self.run.id, error)
        finally:
            self._mark(StepStatus.SKIPPED, "the run was stopped")
            self.run = self.run._replace(status=status, ended_at=self._engine.clock.now())

    # --- A step -------------------------------------------------------------------------------------

    async def _take(self, step: ScenarioStep) -> None:
        if step.fault is not None:
            length = step.fault.duration
            quick = step.fault._replace(duration=None if length is None else self.pace.limits.quicken(length))
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
            await self._answer(step, vms)
        elif step.do == RETURN_HOST:
            hosts = list(dict.fromkeys(self._homes[vm] for vm in vms))
            await self._engine.execute(return_hosts, hosts, self.run.started_by)
        else:
            speed = self.pace.request_speed
            ids = await self._engine.execute(cause_work, step.do, vms, step.options, speed, self.run.started_by)
            self._last_work = CausedWork(vms, ids)
            self._all_work.append(self._last_work)
            self.run = self.run._replace(operations=(*self.run.operations, *ids))

    async def _answer(self, step: ScenarioStep, vms: Sequence[str]) -> None:
        """Say something to all that the run has caused for these VMs and is still to come."""
        later = self.pace.limits.quicken(step.options.by or timedelta(0))
        intervention = Intervention(step.do, vms, self.run.started_by, f"scenario {self.run.scenario.name}", later)
        causes = [cause for work in self._all_work for cause in work.causes]
        if await self._engine.execute(intervene, CausedWork(vms, causes), intervention):
            self._withdrew |= step.do == CANCEL
            return
        events = await self._events(causes, vms)
        if any(event.approved_at is not None and event.approved_by != self.run.started_by for event in events):
            raise StepSkipped("It was approved before that: nothing is left to be said to it.")
        raise StepFailed(f"there is nothing that could be answered by {step.do}: it has started, or is over")

    async def _events(self, causes: Sequence[str], vms: Sequence[str]) -> list[Event]:
        found = [await self._engine.records.event(event_id) for event_id in self.observer.events(causes, vms)]
        return [event for event in found if event is not None]

    async def _wait_until(self, what: WaitCondition, within: timedelta) -> None:
        happened = self._all_started if what is WaitCondition.STARTED else self._all_gone
        if not await self.pace.until(happened, self.pace.deadline(within), self._next_due):
            raise StepFailed(f"{self._late(what)}, and that has taken longer than it may")
        if what is WaitCondition.GONE and not self._withdrew:
            await self._refuse_withdrawn()

    async def _refuse_withdrawn(self) -> None:
        """What somebody else has taken back has not come to its end."""
        for event in await self._events(self._last_work.causes, self._last_work.vms):
            if event.status is EventStatus.CANCELLED:
                raise StepFailed(
                    f"expected it to come to its end, and the event of {_some(event.resources)} was withdrawn"
                )
        for cause in self._last_work.causes:
            for rollout in await self._engine.records.rollouts_by_prefix(cause):
                if rollout.status is not RolloutStatus.DONE:
                    raise StepFailed(f"expected the rollout to come to its end, and it is {rollout.status}")

    def _late(self, what: WaitCondition) -> str:
        if what is WaitCondition.GONE:
            return "expected it to be gone, and it is still under way"
        waiting = [vm for vm in self._last_work.vms if not self._has_started(vm)]
        return f"expected {_some(waiting)} to be told Started"

    def _all_started(self) -> bool:
        waiting = [vm for vm in self._last_work.vms if not self._has_started(vm)]
        for vm in waiting:
            was_told = self.observer.event_forms(self._last_work.causes, vm)
            if was_told and not self.observer.is_told(self._last_work.causes, vm):
                raise StepFailed(f"{vm}: expected Started, and its event is gone without having started")
        return not waiting

    def _has_started(self, vm: str) -> bool:
        return any(
            EventStatus.STARTED.value in forms for forms in self.observer.event_forms(self._last_work.causes, vm)
        )

    def _all_gone(self) -> bool:
        return not self._last_work.is_live(self._engine.draft()) and not self.observer.is_told(self._last_work.causes)

    def _next_due(self) -> datetime | None:
        """When time alone moves something of this run on."""
        draft = self._engine.draft()
        moments = [
            progress.when_due(draft, operation) for work in self._all_work for operation in work.operations(draft)
        ]
        rollouts = (draft.rollout(cause) for work in self._all_work for cause in work.causes)
        moments += [rollout_commands.when_due(rollout) for rollout in rollouts if rollout is not None]
        return min((moment for moment in moments if moment is not None), default=None)

    # --- Expectations -------------------------------------------------------------------------------

    def _judge(self, expected: Expectation | None) -> None:
        if expected is None:
            return
        for vm in self._last_work.vms:
            problem = self._problem(expected, vm)
            if problem:
                raise StepFailed(problem)
        most = expected.domains_at_once
        came = self.observer.domains_at_once(self._last_work.causes)
        if most is not None and came > most:
            raise StepFailed(f"expected at most {most} of a group's update domains out at once, and it was {came}")

    def _problem(self, expected: Expectation, vm: str) -> str:
        causes = self._last_work.causes
        if expected.told is not None and expected.told != self.observer.is_told(causes, vm):
            return f"{vm}: expected to be told {'of it' if expected.told else 'nothing of it'}, and it is not so"
        if expected.about_event:
            event_forms = self.observer.event_forms(causes, vm)
            if problem := judge_events(expected, vm, event_forms, self.pace.limits.quicken):
                return problem
        if expected.vm is not None:
            return judge_vm(expected.vm, vm, self._engine.fleet.vms.get(vm), self._homes[vm])
        return ""


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
