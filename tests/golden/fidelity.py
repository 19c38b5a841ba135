"""Generator of docs/explanation/fidelity.md from the golden lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from forewarn.wire.document import render
from forewarn.wire.versions import KNOWN_VERSIONS
from golden.behaviours import BEHAVIOURS
from golden.bodies import BODIES
from golden.cases import ASSUMED, CASES, DOCUMENTED, MARKS, OBSERVED
from golden.responses import ANSWERS
from golden.responses_limits import LIMITS
from golden.rows import LENIENT, STRANGER
from markdown_format import format_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from golden.behaviours import Behaviour
    from golden.bodies import Body
    from golden.cases import Case
    from golden.rows import Row


class Marked(Protocol):
    """A row of any list."""

    @property
    def mark(self) -> str: ...


MarkedRow = TypeVar("MarkedRow", bound=Marked)

REQUESTS = (*ANSWERS, *LIMITS)

SECTION_ANCHORS = {
    2: "2-the-document",
    3: "3-requests-and-responses",
    4: "4-event-lifecycle",
    6: "6-metadatainstance-and-metadataversions",
}
"""Sections of docs/explanation/contract.md: number to the anchor of the heading."""

INTRODUCTION = """\
This page lists what Forewarn returns, row by row, and how each row is known. Tests compare every
row with the service byte for byte. The documents are in `tests/golden/documents`. The last column
links to the section of the [contract](contract.md) with the rule and its source.

`script/fidelity` generates this page from the lists in `tests/golden`. Do not edit it.
"""

DESCRIPTIONS = {
    ASSUMED: "Nobody has published what the real service does here. These rows are Forewarn's choice and may\n"
    "be wrong. If you have seen the real service behave differently, please tell us.",
    OBSERVED: "Users of the real service have published it, or clients of the real service depend on it.",
    DOCUMENTED: "Microsoft documents it.",
}


def page() -> str:
    """Return the whole page."""
    parts = ["# Fidelity\n", _counts(), INTRODUCTION]
    for mark in MARKS:
        parts.append(f"## {mark.capitalize()}\n\n{DESCRIPTIONS[mark]}\n")
        parts.append(_table("Documents", ("case", "rule", "contract"), map(_case, _marked(CASES, mark))))
        columns: tuple[str, ...] = ("request", "rule", "response", "contract")
        parts.append(_table("Requests", columns, map(_row, _marked(REQUESTS, mark))))
        columns = ("operation", "rule", "test", "contract")
        parts.append(_table("Event lifecycle", columns, map(_behaviour, _marked(BEHAVIOURS, mark))))
        columns = ("body", "rule", "result", "contract")
        parts.append(_table("Bodies of approvals", columns, map(_body, _marked(BODIES, mark))))
    return format_markdown("\n".join(part for part in parts if part))


def write_missing_documents() -> list[str]:
    """Write the missing golden documents of a new case or version. Return their names for review."""
    missing = [(case, version) for case in CASES for version in KNOWN_VERSIONS if not case.file(version).exists()]
    for case, version in missing:
        case.file(version).parent.mkdir(parents=True, exist_ok=True)
        case.file(version).write_bytes(render(case.document, KNOWN_VERSIONS[version], case.kind))
    return [f"{case.name}/{version}" for case, version in missing]


def _marked(rows: Iterable[MarkedRow], mark: str) -> list[MarkedRow]:
    return [row for row in rows if row.mark == mark]


def _counts() -> str:
    rows: list[Marked] = [*CASES, *REQUESTS, *BEHAVIOURS, *BODIES]
    numbers = ", ".join(f"{len(_marked(rows, mark))} {mark}" for mark in reversed(MARKS))
    return f"{len(rows)} tested rows: {numbers}.\n"


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"### {title}\n", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|", *lines, ""])


def _section(number: int) -> str:
    return f"[{number}](contract.md#{SECTION_ANCHORS[number]})"


def _case(case: Case) -> tuple[str, ...]:
    published = f" Published at {case.published}." if case.published else ""
    return f"`{case.name}`", case.says + published, _section(2)


def _row(row: Row) -> tuple[str, ...]:
    name = f"{row.name} (by a setting)" if row.rules == LENIENT else row.name
    response = f"{row.status} `{row.answer.decode()}`" if row.status >= 400 else str(row.status)
    is_about_instance = (
        row.target.lower().startswith(("/metadata/instance", "/metadata/versions")) and row.source != STRANGER
    )
    return name, row.says, response, _section(6 if is_about_instance else 3)


def _behaviour(behaviour: Behaviour) -> tuple[str, ...]:
    return behaviour.name, behaviour.says, f"`tests/{behaviour.test}`", _section(4)


def _body(body: Body) -> tuple[str, ...]:
    read_as = f"rejected: {body.outcome}" if isinstance(body.outcome, str) else f"{len(body.outcome)} id"
    read_as += "s" if read_as[0].isdigit() and read_as != "1 id" else ""
    return body.name, body.says, read_as, _section(3)
