"""docs/fidelity.md, made from the golden lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from forewarn.wire.document import render
from forewarn.wire.versions import KNOWN_VERSIONS
from golden.answers import ANSWERS
from golden.answers_limits import LIMITS
from golden.behaviours import BEHAVIOURS
from golden.bodies import BODIES
from golden.cases import ASSUMED, CASES, DOCUMENTED, MARKS, OBSERVED
from golden.rows import LENIENT, STRANGER
from markdown_format import format_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from golden.behaviours import Behaviour
    from golden.bodies import Body
    from golden.cases import Case
    from golden.rows import Row


class Marked(Protocol):
    """A line of any of the lists."""

    @property
    def mark(self) -> str: ...


Line = TypeVar("Line", bound=Marked)

REQUESTS = (*ANSWERS, *LIMITS)

SECTION_ANCHORS = {
    2: "2-the-document",
    3: "3-requests-and-answers",
    4: "4-life-of-an-event",
    6: "6-metadatainstance-and-metadataversions",
}
"""The sections of docs/contract.md that lines belong to, by the anchors of their headings."""

INTRODUCTION = """# Fidelity

What Forewarn answers, line by line, and how each line is known. The suite holds the service to every one of
them, to the byte; the documents themselves are in `tests/golden/documents`.

The last column links to the section of the [contract](contract.md) that has the rule, with its source.

This page is made by `script/fidelity` from the lists in `tests/golden`. Do not edit it.
"""

ABOUT = {
    ASSUMED: "Nobody has published what the real service does here: these lines are ours to choose, and may be wrong. "
    "If you have seen it do otherwise, please tell us.",
    OBSERVED: "Published by users of the real service, or read from clients that run against it.",
    DOCUMENTED: "In Microsoft's documents.",
}


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, _counts()]
    for mark in MARKS:
        parts.append(f"## {mark.capitalize()}\n\n{ABOUT[mark]}\n")
        parts.append(_table("Documents", ("case", "what it says", "contract"), map(_case, _marked(CASES, mark))))
        columns: tuple[str, ...] = ("request", "what it says", "answer", "contract")
        parts.append(_table("Requests", columns, map(_row, _marked(REQUESTS, mark))))
        columns = ("what", "what it says", "held by", "contract")
        parts.append(_table("Courses of events", columns, map(_behaviour, _marked(BEHAVIOURS, mark))))
        columns = ("body", "what it says", "read as", "contract")
        parts.append(_table("Bodies of approvals", columns, map(_body, _marked(BODIES, mark))))
    return format_markdown("\n".join(part for part in parts if part))


def write_missing_documents() -> list[str]:
    """Golden documents that are not there yet, for a new case or version; to be read before they are kept."""
    missing = [(case, version) for case in CASES for version in KNOWN_VERSIONS if not case.file(version).exists()]
    for case, version in missing:
        case.file(version).parent.mkdir(parents=True, exist_ok=True)
        case.file(version).write_bytes(render(case.document, KNOWN_VERSIONS[version], case.kind))
    return [f"{case.name}/{version}" for case, version in missing]


def _marked(lines: Iterable[Line], mark: str) -> list[Line]:
    return [line for line in lines if line.mark == mark]


def _counts() -> str:
    lines: list[Marked] = [*CASES, *REQUESTS, *BEHAVIOURS, *BODIES]
    cells = [f"{len(_marked(lines, mark))} {mark}" for mark in MARKS]
    return f"{len(lines)} lines: {', '.join(cells)}.\n"


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
    answer = f"{row.status} `{row.answer.decode()}`" if row.status >= 400 else str(row.status)
    is_about_instance = (
        row.target.lower().startswith(("/metadata/instance", "/metadata/versions")) and row.source != STRANGER
    )
    return name, row.says, answer, _section(6 if is_about_instance else 3)


def _behaviour(behaviour: Behaviour) -> tuple[str, ...]:
    return behaviour.name, behaviour.says, f"`tests/{behaviour.test}`", _section(4)


def _body(body: Body) -> tuple[str, ...]:
    read_as = f"refused: {body.outcome}" if isinstance(body.outcome, str) else f"{len(body.outcome)} id"
    read_as += "s" if read_as[0].isdigit() and read_as != "1 id" else ""
    return body.name, body.says, read_as, _section(3)
