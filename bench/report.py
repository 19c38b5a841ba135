"""What is measured, as rows of a table."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Row(NamedTuple):
    """One line: what was measured, against what, and whether that is good enough."""

    what: str
    forewarn: str
    against: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None

    @property
    def verdict(self) -> str:
        return {True: "met", False: "NOT MET", None: ""}[self.met]


class Outcome(NamedTuple):
    """The rows of one measurement, and the raw figures behind them."""

    rows: list[Row]
    raw: dict[str, Any]


HEADINGS = ("measured", "Forewarn", "against", "ratio", "goal", "")


def at_least(what: str, forewarn: str, against: str, ratio: float, goal: float) -> Row:
    """A ratio that should reach the goal."""
    return Row(what, forewarn, against, f"{ratio:.2f}", f">= {goal:g}", ratio >= goal)


def at_most(what: str, forewarn: str, against: str, ratio: float, goal: float) -> Row:
    """A ratio that should not exceed the goal."""
    return Row(what, forewarn, against, f"{ratio:.2f}", f"<= {goal:g}", ratio <= goal)


def below(what: str, value: float, unit: str, goal: float, against: str = "") -> Row:
    """A value that should stay below the goal."""
    return Row(what, f"{value:,.3g} {unit}", against, "", f"< {goal:g} {unit}", value < goal)


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of some rounds, and how far they lay apart."""
    return {"median": median(values), "least": min(values), "most": max(values)}


def table(rows: Iterable[Row]) -> str:
    """The rows in columns."""
    lines = [HEADINGS, *((row.what, row.forewarn, row.against, row.ratio, row.goal, row.verdict) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    texts = [
        "  ".join(
            cell.ljust(width) if column in (0, 5) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([texts[0], "-" * (sum(widths) + 2 * len(widths)), *texts[1:]])
