"""A run of a scenario: who plays it, and how far it has come."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.scenario import Scenario


class RunState(StrEnum):
    """Where a run is."""

    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    STOPPED = "stopped"


class StepState(StrEnum):
    """Where a step is."""

    WAITING = "waiting"
    RUNNING = "running"
    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"
    """It came too late, because an application has approved early; or the run has ended before it."""


class Casting(NamedTuple):
    """Who plays a scenario, and how."""

    vms: tuple[str, ...] = ()
    """None: those that fit, if it is clear which."""
    group: str = ""
    speed: float | None = None
    """None: a virtual clock goes as fast as it can, the system's as it goes."""
    enable: bool = False
    """Whether groups that do not listen count as listening."""
    seen_by: tuple[str, ...] = ()
    """VMs that must have seen a change before a virtual clock moves on."""


class Played(NamedTuple):
    """A step of a run."""

    what: str
    state: StepState = StepState.WAITING
    since: datetime | None = None
    """When it began, by the service's clock."""
    ended_at: datetime | None = None
    problem: str = ""
    """What was expected, and what came; or why it was skipped."""


class Run(NamedTuple):
    """One run, at one moment."""

    id: str
    scenario: Scenario
    vms: tuple[str, ...]
    speed: float | None
    by: str
    started_at: datetime
    steps: tuple[Played, ...]
    state: RunState = RunState.RUNNING
    ended_at: datetime | None = None
    operations: tuple[str, ...] = ()
    """What it has asked for."""

    def with_step(self, index: int, step: Played) -> Run:
        return self._replace(steps=(*self.steps[:index], step, *self.steps[index + 1 :]))
