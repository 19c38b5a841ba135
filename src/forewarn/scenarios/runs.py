"""The runs of scenarios. In memory only: a stop of the service ends them, and what they caused goes on."""

from __future__ import annotations

import asyncio
import logging
import secrets
from contextlib import ExitStack
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.core.enabling import why_no_notice
from forewarn.core.scenarios import Run, RunStatus, StepResult, select_vms
from forewarn.errors import EventsNotEnabled, FaultsNotAllowed, RunEnded, RunInProgress, UnknownResource, nearest
from forewarn.scenarios.expectations import EventObserver
from forewarn.scenarios.pace import Pace
from forewarn.scenarios.run import ScenarioRun

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from forewarn.core.scenarios import RunOptions, Scenario
    from forewarn.engine.engine import Engine, Published
    from forewarn.engine.faults import Faults
    from forewarn.ports import ClockBarrier
    from forewarn.wire.versions import ApiVersion

    Gather = Callable[[Sequence[str]], AbstractContextManager[ClockBarrier]]


logger = logging.getLogger(__name__)

FIRST_NUMBER = 1000
REMEMBERED = 100
"""Of runs that are over, the newest so many are remembered."""


class ScenarioRuns:
    """Starts runs, and knows how they went."""

    def __init__(self, engine: Engine, faults: Faults, barrier: Gather, version: ApiVersion) -> None:
        """`barrier` gathers VMs that are to be waited for; documents are judged as this `version` shows them."""
        self._engine = engine
        self._faults = faults
        self._barrier = barrier
        self._version = version
        self._runs: dict[str, ScenarioRun] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._moves: set[asyncio.Task[None]] = set()
        """Moves of the clock whose run was stopped meanwhile."""
        # Unlike those before a restart: somebody may still ask for one of them.
        self._count = FIRST_NUMBER + secrets.randbelow(9 * FIRST_NUMBER)
        engine.subscribe(self._on_published)

    async def start(self, scenario: Scenario, options: RunOptions, by: str) -> Run:
        """Begin a run; an error if it cannot be played as asked."""
        engine = self._engine
        vms = select_vms(engine.fleet, scenario, options)
        if any(step.fault is not None for step in scenario.steps) and not self._faults.allowed:
            raise FaultsNotAllowed
        self._refuse_second()
        with ExitStack() as stack:
            barrier = stack.enter_context(self._barrier(options.seen_by)) if options.seen_by else None
            if barrier is not None:  # they are there before anything happens
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
        groups = list(dict.fromkeys(engine.fleet.vm(name).group for name in vms))
        await self._have_them_listen(groups, by, enable=options.enable)
        self._refuse_second()  # another may have come in between
        self._count += 1
        run = Run(
            id=f"r{self._count}",
            scenario=scenario,
            vms=vms,
            speed=options.speed,
            started_by=by,
            started_at=engine.clock.now(),
            steps=tuple(StepResult(step.in_words()) for step in scenario.steps),
        )
        pace = Pace(engine, options, groups, barrier)
        scenario_run = ScenarioRun(run, engine, self._faults, pace, EventObserver(engine, self._version, groups))
        self._runs[run.id] = scenario_run
        self._tasks[run.id] = task = asyncio.create_task(scenario_run.run_to_end())
        kept = stack.pop_all()  # the barrier stays as long as the run
        task.add_done_callback(lambda _: self._ended(scenario_run, kept))
        return run

    def _refuse_second(self) -> None:
        for other in self._runs.values():
            if other.pace.virtual and other.run.status is RunStatus.RUNNING:
                raise RunInProgress(run_id=other.run.id, scenario=other.run.scenario.name)

    async def _have_them_listen(self, groups: list[str], by: str, *, enable: bool) -> None:
        engine = self._engine
        if enable:
            for group in groups:
                await engine.enable(group, by)
            engine.polled.update(groups)
        engine.last_seen.record_polls()
        draft, now = engine.draft(), engine.clock.now()
        for group in groups:
            if why := why_no_notice(draft, group, now, engine.limits):
                raise EventsNotEnabled(why=why)

    def _ended(self, scenario_run: ScenarioRun, kept: ExitStack) -> None:
        kept.close()
        self._tasks.pop(scenario_run.run.id, None)
        if (moving := scenario_run.pace.moving) is not None and not moving.done():
            self._moves.add(moving)
            moving.add_done_callback(self._moved)
        over = [run_id for run_id, other in self._runs.items() if other.run.status is not RunStatus.RUNNING]
        for run_id in over[:-REMEMBERED]:
            del self._runs[run_id]

    def _moved(self, moving: asyncio.Task[None]) -> None:
        self._moves.discard(moving)
        if not moving.cancelled() and (error := moving.exception()) is not None:
            logger.warning("The clock was not moved as far as a run that was stopped had wanted: %s", error)

    def _on_published(self, published: Published) -> None:
        for run_id in self._tasks:
            self._runs[run_id].look(published.groups)

    def runs(self) -> list[Run]:
        """All that are known, the newest first."""
        return [scenario_run.run for scenario_run in reversed(self._runs.values())]

    def run(self, run_id: str) -> Run:
        return self._find(run_id).run

    def _find(self, run_id: str) -> ScenarioRun:
        found = self._runs.get(run_id.lower())
        if found is None:
            raise UnknownResource(what="run", name=run_id, hint=nearest(run_id, self._runs))
        return found

    async def finished(self, run_id: str) -> Run:
        """The run, once it is over."""
        scenario_run = self._find(run_id)
        if (task := self._tasks.get(scenario_run.run.id)) is not None:
            await asyncio.wait({task})
        return scenario_run.run

    async def stop_run(self, run_id: str) -> Run:
        """End a run before its end. What it caused and is only scheduled is withdrawn."""
        scenario_run = self._find(run_id)
        task = self._tasks.get(scenario_run.run.id)
        if task is None:
            raise RunEnded(run_id=scenario_run.run.id, state=scenario_run.run.status.value)
        scenario_run.pace.stop()
        return await self.finished(run_id)

    async def stop(self) -> None:
        """The service stops. What runs have caused goes on when it is back."""
        under_way = [*self._tasks.values(), *self._moves]
        under_way += [each.pace.moving for each in self._runs.values() if each.pace.moving is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
