"""Scenarios in a test: what it says when one does not go as expected."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.scenarios import RunState

if TYPE_CHECKING:
    from forewarn.core.scenarios import Run


class ScenarioFailed(AssertionError):
    """A scenario did not go as it says. `run` has every step."""

    def __init__(self, run: Run) -> None:
        self.run = run
        lines = [f"{run.scenario.name} {run.state}:"]
        for step in run.steps:
            said = f": {step.problem}" if step.problem else ""
            lines.append(f"  {step.state:<8}{step.what}{said}")
        super().__init__("\n".join(lines))


def check(run: Run) -> Run:
    """The run, if it has passed."""
    if run.state is not RunState.PASSED:
        raise ScenarioFailed(run)
    return run
