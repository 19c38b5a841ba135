"""All runs of scenarios. They exist only in memory: a stop of the service ends them, but not their operations."""

from __future__ import annotations

import asyncio
import secrets
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.enabling import reason_not_notified
from forewarn.core.scenarios import Run, RunStatus, StepResult, select_vms
from forewarn.errors import EventsNotEnabled, FaultsNotAllowed, RunEnded, RunInProgress, UnknownResource, nearest
from forewarn.scenarios.expectations import EventObserver
from forewarn.scenarios.pace import Pace
from forewarn.scenarios.run import ScenarioRun
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from forewarn.core.scenarios import RunOptions, Scenario
    from forewarn.engine.engine import Engine, Published
    from forewarn.engine.faults import Faults
    from forewarn.ports import ClockBarrier
    from forewarn.wire.versions import ApiVersion

    MakeBarrier = Callable[[Sequence[str]], AbstractContextManager[ClockBarrier]]


_log = get_logger(__name__)

FIRST_NUMBER = 1000
MAX_ENDED_RUNS = 100
"""Maximum number of ended runs that are kept."""


class ScenarioRuns:
    """Starts and stops runs, and keeps their results."""

    def __init__(self, engine: Engine, faults: Faults, make_barrier: MakeBarrier, version: ApiVersion) -> None:
        """`make_barrier` makes the clock wait for VMs. Expectations are checked on documents of this api-version."""
        self._engine = engine
        self._faults = faults
        self._make_barrier = make_barrier
        self._version = version
        self._runs: dict[str, ScenarioRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._moves: set[asyncio.Task[None]] = set()
        """Clock moves in progress whose run was stopped."""
        # A random start, so that a new run does not get the id of a run before a restart.
        self._count = FIRST_NUMBER + secrets.randbelow(9 * FIRST_NUMBER)
        self.on_change: Callable[[str], None] = lambda _: None
        """Called with the id of a run after each change of it."""
        engine.subscribe(self._on_published)

    async def start(self, scenario: Scenario, options: RunOptions, by: str) -> Run:
        """Start a run. Raise an error if the VMs or the service do not meet its requirements."""
        engine = self._engine
        vms = select_vms(engine.fleet, scenario, options)
        if any(step.fault is not None for step in scenario.steps) and not self._faults.allowed:
            raise FaultsNotAllowed
        self._check_no_other_run()
        with ExitStack() as stack:
            barrier = stack.enter_context(self._make_barrier(options.seen_by)) if options.seen_by else None
            if barrier is not None:  # wait until they poll
                await engine.advance(timedelta(0), barrier)
            return await self._begin(scenario, options, vms, by, barrier, stack)

    async def _begin(
        self,
        scenario: Scenario,
        options: RunOptions,
        vms: tuple[str, ...],
        by: str,
        barrier: ClockBarrier | None,
        stack: ExitStack,
    ) -> Run:
        engine = self._engine
        scopes = list(dict.fromkeys(engine.fleet.scope_of(engine.fleet.vm(name)) for name in vms))
        await self._check_scopes_enabled(scopes, by, enable=options.enable)
        self._check_no_other_run()  # another run may have started in between
        self._count += 1
        run = Run(
            id=f"r{self._count}",
            scenario=scenario,
            vms=vms,
            speed=options.speed,
            started_by=by,
            started_at=engine.clock.now(),
            steps=tuple(StepResult(step.describe()) for step in scenario.steps),
        )
        pace = Pace(engine, options, scopes, barrier)
        scenario_run = ScenarioRun(
            run,
            engine,
            self._faults,
            pace,
            EventObserver(engine, self._version, scopes),
            lambda run_id: self.on_change(run_id),
        )
        self._runs[run.id] = scenario_run
        self._tasks[run.id] = task = asyncio.create_task(scenario_run.run_to_end())
        barrier_stack = stack.pop_all()  # the barrier lasts until the end of the run
        task.add_done_callback(lambda _: self._on_ended(scenario_run, barrier_stack))
        return run

    def _check_no_other_run(self) -> None:
        for other in self._runs.values():
            if other.pace.virtual and other.run.status is RunStatus.RUNNING:
                raise RunInProgress(run_id=other.run.id, scenario=other.run.scenario.name)

    async def _check_scopes_enabled(self, scopes: list[str], by: str, *, enable: bool) -> None:
        """Enable the scopes if requested. Raise an error for a scope that gets no notices."""
        engine = self._engine
        if enable:
            for scope in scopes:
                await engine.enable(scope, by)
            engine.polled.update(scopes)
        engine.last_seen.record_polls()
        draft, now = engine.draft(), engine.clock.now()
        for scope in scopes:
            if reason := reason_not_notified(draft, scope, now, engine.limits):
                raise EventsNotEnabled(reason=reason)

    def _on_ended(self, scenario_run: ScenarioRun, barrier_stack: ExitStack) -> None:
        barrier_stack.close()
        self._tasks.pop(scenario_run.run.id, None)
        if (moving := scenario_run.pace.moving) is not None and not moving.done():
            self._moves.add(moving)
            moving.add_done_callback(self._on_moved)
        ended = [run_id for run_id, other in self._runs.items() if other.run.status is not RunStatus.RUNNING]
        for run_id in ended[:-MAX_ENDED_RUNS]:
            del self._runs[run_id]

    def _on_moved(self, moving: asyncio.Task[None]) -> None:
        self._moves.discard(moving)
        if not moving.cancelled() and (error := moving.exception()) is not None:
            _log.warning("clock_move_failed", "The last clock move of a stopped run failed.", error=str(error))

    def _on_published(self, published: Published) -> None:
        for run_id in self._tasks:
            self._runs[run_id].on_documents_changed(published.scopes)

    def runs(self) -> list[Run]:
        """Return all runs, newest first."""
        return [scenario_run.run for scenario_run in reversed(self._runs.values())]

    def run(self, run_id: str) -> Run:
        return self._find(run_id).run

    def _find(self, run_id: str) -> ScenarioRun:
        found = self._runs.get(run_id.lower())
        if found is None:
            raise UnknownResource(what="run", name=run_id, hint=nearest(run_id, self._runs))
        return found

    async def finished(self, run_id: str) -> Run:
        """Wait for the end of a run, and return it."""
        scenario_run = self._find(run_id)
        if (task := self._tasks.get(scenario_run.run.id)) is not None:
            await asyncio.wait({task})
        return scenario_run.run

    async def stop_run(self, run_id: str) -> Run:
        """Stop a run. Cancel its operations that have not started."""
        scenario_run = self._find(run_id)
        task = self._tasks.get(scenario_run.run.id)
        if task is None:
            raise RunEnded(run_id=scenario_run.run.id, state=scenario_run.run.status.value)
        scenario_run.pace.stop()
        return await self.finished(run_id)

    async def stop(self) -> None:
        """Cancel all runs, because the service stops. Their operations continue after a restart."""
        tasks = [*self._tasks.values(), *self._moves]
        tasks += [each.pace.moving for each in self._runs.values() if each.pace.moving is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
