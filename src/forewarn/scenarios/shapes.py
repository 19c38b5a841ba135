"""Scenarios and their runs as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self, TypeAlias

from msgspec import UNSET, Meta, Struct, UnsetType

from forewarn.core.durations import format_duration, to_text, to_text_if_any
from forewarn.core.faults import describe
from forewarn.core.scenarios import Expectation, RunState, StepOptions, StepState

if TYPE_CHECKING:
    from datetime import timedelta

    from forewarn.core.scenarios import Needs, Run, Scenario, ScenarioStep, StepResult


Count: TypeAlias = Annotated[int, Meta(ge=0)]
Moment: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class NeedsShape(Struct, forbid_unknown_fields=True):
    """What a scenario needs of a fleet."""

    words: str
    vms: Count
    group: str | None
    priority: str | None
    update_domains: Count | None
    terminate_notice: bool

    @classmethod
    def of(cls, needs: Needs) -> Self:
        return cls(
            words=needs.in_words(),
            vms=needs.vms,
            group=needs.group or None,
            priority=needs.priority or None,
            update_domains=needs.update_domains or None,
            terminate_notice=needs.terminate_notice,
        )


class ScenarioStepShape(Struct, forbid_unknown_fields=True):
    """A step of a scenario, and what is expected of it."""

    what: str
    how: str
    expects: list[str]


class ScenarioShape(Struct, forbid_unknown_fields=True):
    """A scenario; by itself also with its steps, its fleet and its text."""

    name: str
    title: str
    about: str
    source: str
    needs: NeedsShape
    longest_seconds: float
    steps: list[ScenarioStepShape] | UnsetType = UNSET
    fleet: str | UnsetType | None = UNSET
    text: str | UnsetType = UNSET

    @classmethod
    def of(cls, scenario: Scenario, text: str = "") -> Self:
        shape = cls(
            name=scenario.name,
            title=scenario.title,
            about=scenario.about,
            source=scenario.source,
            needs=NeedsShape.of(scenario.needs),
            longest_seconds=scenario.longest.total_seconds(),
        )
        if text:
            shape.steps = [ScenarioStepShape(step.in_words(), _how(step), _expects(step)) for step in scenario.steps]
            shape.fleet = scenario.fleet or None
            shape.text = text
        return shape


def _how(step: ScenarioStep) -> str:
    """What a step does, with its options, whatever its title says."""
    if step.fault is not None:
        return f"fault {describe(step.fault)}"
    plain = step._replace(title="").in_words()
    return ", ".join([plain, *_pairs(step.options, StepOptions())])


def _expects(step: ScenarioStep) -> list[str]:
    return _pairs(step.expect, Expectation()) if step.expect is not None else []


def _pairs(value: StepOptions | Expectation, usual: StepOptions | Expectation) -> list[str]:
    """What is said, each with its name."""
    given = value._asdict().items()
    return [f"{name} {_word(each)}" for name, each in given if each != getattr(usual, name)]


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if hasattr(value, "total_seconds"):
        length: timedelta = value
        return format_duration(length)
    return str(value) or '""'


class RunStepShape(Struct, forbid_unknown_fields=True):
    """A step of a run, and what came of it."""

    what: str
    state: Annotated[str, Meta(extra_json_schema={"enum": [state.value for state in StepState]})]
    since: Moment | None
    ended_at: Moment | None
    expects: list[str]
    problem: str | None

    @classmethod
    def of(cls, result: StepResult, step: ScenarioStep) -> Self:
        return cls(
            what=result.what,
            state=result.state.value,
            since=to_text_if_any(result.since),
            ended_at=to_text_if_any(result.ended_at),
            expects=_expects(step),
            problem=result.problem or None,
        )


class RunShape(Struct, forbid_unknown_fields=True):
    """A run, and how far it has come."""

    id: str
    scenario: str
    title: str
    vms: list[str]
    speed: float | None
    by: str
    state: Annotated[str, Meta(extra_json_schema={"enum": [state.value for state in RunState]})]
    started_at: Moment
    ended_at: Moment | None
    operations: list[str]
    steps: list[RunStepShape]

    @classmethod
    def of(cls, run: Run) -> Self:
        return cls(
            id=run.id,
            scenario=run.scenario.name,
            title=run.scenario.title,
            vms=list(run.vms),
            speed=run.speed,
            by=run.by,
            state=run.state.value,
            started_at=to_text(run.started_at),
            ended_at=to_text_if_any(run.ended_at),
            operations=list(run.operations),
            steps=[RunStepShape.of(result, step) for result, step in zip(run.steps, run.scenario.steps, strict=True)],
        )
