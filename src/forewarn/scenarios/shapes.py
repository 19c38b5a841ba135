"""Scenarios and their runs as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from msgspec import UNSET, Struct, UnsetType

from forewarn.core import faults
from forewarn.core.durations import format_duration, to_text, to_text_if_any
from forewarn.core.operations import UNKNOWN, UNKNOWN_DURATION
from forewarn.core.scenarios import Expectation, StepOptions

if TYPE_CHECKING:
    from datetime import timedelta

    from forewarn.core.scenarios import Needs, Run, Scenario, ScenarioStep, StepResult


class NeedsShape(Struct):
    """Requirements of a scenario for its VMs."""

    text: str
    vms: int
    group: str | None
    priority: str | None
    update_domains: int | None
    terminate_notice: bool

    @classmethod
    def of(cls, needs: Needs) -> Self:
        return cls(
            text=needs.text(),
            vms=needs.vms,
            group=needs.group or None,
            priority=needs.priority or None,
            update_domains=needs.update_domains or None,
            terminate_notice=needs.terminate_notice,
        )


class ScenarioStepShape(Struct):
    """A step of a scenario and its expectations."""

    title: str
    action: str
    expects: list[str]


class ScenarioShape(Struct):
    """A scenario. Only `scenario show` has steps, fleet and text."""

    name: str
    title: str
    description: str
    source: str
    needs: NeedsShape
    max_duration_seconds: float
    steps: list[ScenarioStepShape] | UnsetType = UNSET
    fleet: str | UnsetType | None = UNSET
    text: str | UnsetType = UNSET

    @classmethod
    def of(cls, scenario: Scenario, text: str = "") -> Self:
        shape = cls(
            name=scenario.name,
            title=scenario.title,
            description=scenario.description,
            source=scenario.source,
            needs=NeedsShape.of(scenario.needs),
            max_duration_seconds=scenario.max_duration.total_seconds(),
        )
        if text:
            shape.steps = [ScenarioStepShape(step.describe(), _action(step), _expects(step)) for step in scenario.steps]
            shape.fleet = scenario.fleet or None
            shape.text = text
        return shape


def _action(step: ScenarioStep) -> str:
    """Return the action of a step with its options."""
    if step.fault is not None:
        return f"fault {faults.describe(step.fault)}"
    action = step._replace(title="").describe()
    return ", ".join([action, *_named_values(step.options, StepOptions())])


def _expects(step: ScenarioStep) -> list[str]:
    return _named_values(step.expect, Expectation()) if step.expect is not None else []


def _named_values(value: StepOptions | Expectation, defaults: StepOptions | Expectation) -> list[str]:
    """Return the values that are not defaults, each with its name."""
    given = value._asdict().items()
    return [f"{name} {_format(each)}" for name, each in given if each != getattr(defaults, name)]


def _format(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if hasattr(value, "total_seconds"):
        duration: timedelta = value
        return UNKNOWN if duration == UNKNOWN_DURATION else format_duration(duration)
    return str(value) or '""'


class RunStepShape(Struct):
    """A step of a run and its result."""

    title: str
    status: str
    started_at: str | None
    ended_at: str | None
    expects: list[str]
    error: str | None

    @classmethod
    def of(cls, result: StepResult, step: ScenarioStep) -> Self:
        return cls(
            title=result.title,
            status=result.status.value,
            started_at=to_text_if_any(result.started_at),
            ended_at=to_text_if_any(result.ended_at),
            expects=_expects(step),
            error=result.error or None,
        )


class RunShape(Struct):
    """A run and its progress."""

    scenario: str
    title: str
    vms: list[str]
    speed: float | None
    started_by: str
    status: str
    started_at: str
    ended_at: str | None
    operations: list[str]
    steps: list[RunStepShape]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(
            scenario=run.scenario.name,
            title=run.scenario.title,
            vms=list(run.vms),
            speed=run.speed,
            started_by=run.started_by,
            status=run.status.value,
            started_at=to_text(run.started_at),
            ended_at=to_text_if_any(run.ended_at),
            operations=list(run.operations),
            steps=[RunStepShape.of(result, step) for result, step in zip(run.steps, run.scenario.steps, strict=True)],
        )
