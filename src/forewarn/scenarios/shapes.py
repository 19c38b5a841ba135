"""Scenarios and their runs as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.core.durations import format_duration, to_text, to_text_if_any
from forewarn.core.faults import describe
from forewarn.core.scenarios import Expectation, Options

if TYPE_CHECKING:
    from datetime import timedelta

    from forewarn.core.scenarios import Needs, Run, Scenario, Step


def scenario_shape(scenario: Scenario, text: str = "") -> dict[str, Any]:
    """A scenario; with its text also its steps and its fleet."""
    shape = {
        "name": scenario.name,
        "title": scenario.title,
        "about": scenario.about,
        "source": scenario.source,
        "needs": _needs(scenario.needs),
        "longest_seconds": scenario.longest.total_seconds(),
    }
    if text:
        shape["steps"] = [
            {"what": step.in_words(), "how": _how(step), "expects": _expects(step)} for step in scenario.steps
        ]
        shape["fleet"] = scenario.fleet or None
        shape["text"] = text
    return shape


def _needs(needs: Needs) -> dict[str, Any]:
    return {
        "words": needs.in_words(),
        "vms": needs.vms,
        "group": needs.group or None,
        "priority": needs.priority or None,
        "update_domains": needs.update_domains or None,
        "terminate_notice": needs.terminate_notice,
    }


def _how(step: Step) -> str:
    """What a step does, with its options, whatever its title says."""
    if step.fault is not None:
        return f"fault {describe(step.fault)}"
    plain = step._replace(title="").in_words()
    return ", ".join([plain, *_pairs(step.options, Options())])


def _expects(step: Step) -> list[str]:
    return _pairs(step.expect, Expectation()) if step.expect is not None else []


def _pairs(value: Options | Expectation, usual: Options | Expectation) -> list[str]:
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


def run_shape(run: Run) -> dict[str, Any]:
    """A run, and how far it has come."""
    return {
        "id": run.id,
        "scenario": run.scenario.name,
        "title": run.scenario.title,
        "vms": list(run.vms),
        "speed": run.speed,
        "by": run.by,
        "state": run.state.value,
        "started_at": to_text(run.started_at),
        "ended_at": to_text_if_any(run.ended_at),
        "operations": list(run.operations),
        "steps": [
            {
                "what": played.what,
                "state": played.state.value,
                "since": to_text_if_any(played.since),
                "ended_at": to_text_if_any(played.ended_at),
                "expects": _expects(step),
                "problem": played.problem or None,
            }
            for played, step in zip(run.steps, run.scenario.steps, strict=True)
        ],
    }
