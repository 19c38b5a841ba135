"""Results as a Markdown table, ready for docs/explanation/performance.md."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from datetime import date


class Row(NamedTuple):
    """One line of the table: a figure, what it is compared with, and whether it meets its goal."""

    what: str
    forewarn: str
    against: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        return {True: "met", False: "**not met**", None: ""}[self.met]


class Outcome(NamedTuple):
    """The rows of one measurement, and the raw figures behind them."""

    rows: list[Row]
    raw: dict[str, Any]


HEADINGS = ("measured", "Forewarn", "compared with", "ratio", "goal", "result")
ALIGNMENT = ("--", "-:", "-:", "-:", "-:", "--")


def at_least(what: str, forewarn: str, against: str, ratio: float, goal: float) -> Row:
    """A ratio that should reach the goal."""
    return Row(what, forewarn, against, f"{ratio:.2f}", f"≥ {goal:g}", ratio >= goal)


def at_most(what: str, forewarn: str, against: str, ratio: float, goal: float) -> Row:
    """A ratio that should not exceed the goal."""
    return Row(what, forewarn, against, f"{ratio:.2f}", f"≤ {goal:g}", ratio <= goal)


def below(what: str, value: float, unit: str, goal: float, against: str = "") -> Row:
    """A value that should stay below the goal."""
    return Row(what, f"{value:,.3g} {unit}", against, "", f"< {goal:g} {unit}", value < goal)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of the rounds, with the smallest and the largest value."""
    return {"median": median(values), "minimum": min(values), "maximum": max(values)}


def section(rows: Iterable[Row], machine: Mapping[str, str], rounds: int, day: date) -> str:
    """The section "Results" of the page, to paste there: date, machine and table."""
    about = (
        f"Measured on {day.isoformat()}, {rounds} rounds each. {machine['cores']} cores of {machine['processor']}, "
        f"{machine['kernel']}, Python {machine['python']}, SQLite {machine['sqlite']}, nginx {machine['nginx']}, "
        f"wrk {machine['wrk']}."
    )
    return f"{about}\n\n{table(rows)}"


def table(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table, in the form that script/format gives it."""
    cells = ((row.what, row.forewarn, row.against, row.ratio, row.goal, row.verdict) for row in rows)
    return "\n".join(f"| {' | '.join(line)} |" for line in (HEADINGS, ALIGNMENT, *cells))
