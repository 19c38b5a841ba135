"""Tables of text, and lines on a terminal that are updated in place."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import click

from forewarn.system.printable import printable, unguarded

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

GAP = "  "
MIN_COLUMN_WIDTH = 6


def table_lines(columns: Iterable[str], rows: Iterable[Iterable[str]], width: int | None) -> Iterator[str]:
    """Yield the lines of a table: the headings, a rule and the rows. Wrap cells to fit the width; None: no limit."""
    headings = list(columns)
    cells = [[str(cell) for cell in row] for row in rows]
    widths = [max(_widest_line(row[number]) for row in (headings, *cells)) for number in range(len(headings))]
    if width is not None:
        _shrink(widths, width - len(GAP) * (len(widths) - 1))
    yield from _row_lines(headings, widths)
    rule = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
    yield rule * (sum(widths) + len(GAP) * (len(widths) - 1))
    for row in cells:
        yield from _row_lines(row, widths)


def grid_lines(rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a line for each row, with aligned columns."""
    cells = [list(row) for row in rows]
    widths = [max(map(_width, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield GAP.join(_padded(cell, width) for cell, width in zip(row, widths, strict=True)).rstrip()


def terminal_width() -> int | None:
    """Return the width of the terminal; None if the output goes to a file or a pipe."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def _shrink(widths: list[int], available: int) -> None:
    """Narrow the widest columns until the table fits, or no column can be narrower."""
    while sum(widths) > available and max(widths) > MIN_COLUMN_WIDTH:
        widest = widths.index(max(widths))
        others = max((width for width in widths if width < widths[widest]), default=MIN_COLUMN_WIDTH)
        excess = sum(widths) - available
        equal = widths.count(widths[widest])
        # Down to the next widest column at most; then both shrink in turn.
        step = max(1, min(widths[widest] - max(others, MIN_COLUMN_WIDTH), excess // equal))
        widths[widest] -= step


def _row_lines(row: list[str], widths: list[int]) -> Iterator[str]:
    wrapped = [_wrapped(cell, width) for cell, width in zip(row, widths, strict=True)]
    for number in range(max(map(len, wrapped))):
        parts = (lines[number] if number < len(lines) else "" for lines in wrapped)
        yield GAP.join(_padded(part, width) for part, width in zip(parts, widths, strict=True)).rstrip()


def _wrapped(cell: str, width: int) -> list[str]:
    """Break a cell between words. A word that is too long is broken anywhere."""
    if "\n" not in cell and _width(cell) <= width:
        return [cell]
    lines = []
    for paragraph in cell.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            joined = f"{line} {word}" if line else word
            if line and _width(joined) > width:
                lines.append(line)
                joined = word
            while _width(joined) > width:
                end = _fitting(joined, width)
                lines.append(joined[:end])
                joined = joined[end:]
            line = joined
        lines.append(line)
    return lines


def _fitting(text: str, width: int) -> int:
    """Return how many characters of a text fit into the width; at least one."""
    end = min(len(text), width)
    while end > 1 and _width(text[:end]) > width:
        end -= 1
    return end


def _padded(text: str, width: int) -> str:
    return text + " " * (width - _width(text))


def _widest_line(cell: str) -> int:
    return max(map(_width, cell.split("\n"))) if "\n" in cell else _width(cell)


def _width(text: str) -> int:
    """Return the width of a text on a terminal, where some characters are wide and some have no width."""
    if text.isascii():
        return len(text)
    from unicodedata import combining, east_asian_width

    return sum(0 if combining(letter) else 2 if east_asian_width(letter) in "WF" else 1 for letter in text)


# --- Live display ---------------------------------------------------------------------------------


def can_update_lines() -> bool:
    """Return whether the output is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


class LiveLines:
    """Lines on a terminal. Each update replaces the lines of the last one."""

    def __init__(self) -> None:
        self._shown = 0

    def update(self, lines: Iterable[str]) -> None:
        import shutil

        size = shutil.get_terminal_size()
        found = list(lines)
        # A line that scrolled out of the terminal could not be replaced.
        if len(found) >= size.lines > 1:
            hidden = len(found) - (size.lines - 2)
            found = [*found[: size.lines - 2], f"... and {hidden} more"]
        cut = [line[: _fitting(line, size.columns)] for line in map(printable, found)]
        up = f"\x1b[{self._shown}A" if self._shown else ""
        shown = up + "".join(f"\r\x1b[2K{line}\n" for line in cut) + "\x1b[J"
        click.echo(shown, file=unguarded(sys.stdout), nl=False)  # it has control sequences of our own
        sys.stdout.flush()
        self._shown = len(cut)
