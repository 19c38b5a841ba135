"""Results as a Markdown table, ready for docs/explanation/performance.md."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date


class Row(NamedTuple):
    """One line of the table: a figure, the figure to compare it with, and whether it meets its goal."""

    name: str
    forewarn: str
    baseline: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    @property
    def result(self) -> str:
        return {True: "met", False: "**not met**", None: ""}[self.met]


class Outcome(NamedTuple):
    """The rows of one measurement, and the raw figures behind them."""

    rows: list[Row]
    raw: dict[str, Any]


HEADINGS = ("measured", "Forewarn", "compared with", "ratio", "goal", "result")
ALIGNMENT = ("--", "-:", "-:", "-:", "-:", "--")


def at_least(name: str, forewarn: str, baseline: str, ratio: float, goal: float) -> Row:
    """Return a row whose ratio must reach the goal."""
    return Row(name, forewarn, baseline, f"{ratio:.2f}", f"≥ {goal:g}", ratio >= goal)


def at_most(name: str, forewarn: str, baseline: str, ratio: float, goal: float) -> Row:
    """Return a row whose ratio must not exceed the goal."""
    return Row(name, forewarn, baseline, f"{ratio:.2f}", f"≤ {goal:g}", ratio <= goal)


def below(name: str, value: float, unit: str, goal: float, baseline: str = "") -> Row:
    """Return a row whose value must be below the goal."""
    return Row(name, f"{value:,.3g} {unit}", baseline, "", f"< {goal:g} {unit}", value < goal)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum."""
    return {"median": median(values), "minimum": min(values), "maximum": max(values)}


def section(rows: Iterable[Row], machine: Mapping[str, str], rounds: int, day: date) -> str:
    """Return the text of the section "Results": date, machine and table."""
    introduction = (
        f"Measured on {day.isoformat()}, {rounds} {'round' if rounds == 1 else 'rounds'} each. "
        f"{machine['cores']} cores of {machine['processor']}, {machine['kernel']}, "
        f"Python {machine['python']}, SQLite {machine['sqlite']}, nginx {machine['nginx']}, "
        f"wrk {machine['wrk']}."
    )
    return f"{introduction}\n\n{table(rows)}"


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a Markdown table, formatted as by script/format."""
    cells = ((row.name, row.forewarn, row.baseline, row.ratio, row.goal, row.result) for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADINGS, ALIGNMENT, *cells))
