"""Generator of docs/explanation/fidelity.md and statements.md from the golden lists."""

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
from golden.statements import AREAS, PAGES, STATEMENTS, StatementStatus
from markdown_format import format_markdown

if TYPE_CHECKING:
    from collections.abc import Iterable

    from golden.behaviours import Behaviour
    from golden.bodies import Body
    from golden.cases import Case
    from golden.rows import Row
    from golden.statements import Statement


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
This page has two parts. The first part goes through the statements of Microsoft's documents, and says
whether they hold for Forewarn. The second part lists what Forewarn returns, row by row, and how each
row is known. Tests compare every row with the service byte for byte. The documents are in
`tests/golden/documents`. The last column links to the [contract](contract.md) with the rule and its
source.

`script/fidelity` generates this page from the lists in `tests/golden`. Do not edit it.
"""

STATEMENTS_INTRODUCTION = """\
This page lists the statements of Microsoft's documents about Scheduled Events, in our own words. Each
row has the page that makes the statement, the rules of the [contract](contract.md), and what shows it:
a golden request, a golden document, or a test. [Fidelity](fidelity.md) explains the statements that do
not hold. The Windows page of Scheduled Events makes the same statements as the Linux page.

`script/fidelity` generates this page from `tests/golden/statements.py`. Do not edit it.
"""

DESCRIPTIONS = {
    ASSUMED: "Nobody has published what the real service does here. These rows are Forewarn's choice and may\n"
    "be wrong. If you have seen the real service behave differently, please tell us.",
    OBSERVED: "Users of the real service have published it, or clients of the real service depend on it.",
    DOCUMENTED: "Microsoft documents it.",
}


def pages() -> dict[str, str]:
    """Return the text of each page in docs/explanation, by its name."""
    return {"fidelity.md": fidelity_page(), "statements.md": statements_page()}


def fidelity_page() -> str:
    parts = ["# Fidelity\n", INTRODUCTION, *_statements_summary(), "## What Forewarn returns\n", _counts()]
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


def statements_page() -> str:
    parts = ["# Statements of Microsoft's documents\n", _statement_counts(), STATEMENTS_INTRODUCTION]
    columns: tuple[str, ...] = ("name", "document", "version")
    parts.append(_table("Pages", columns, ((name, f"`{page.path}`", page.version) for name, page in PAGES.items())))
    parts.append("Paths of pages are below `articles/` in MicrosoftDocs/azure-compute-docs.\n")
    columns = ("statement", "page", "contract", "status", "shown by")
    parts += [_table(area, columns, map(_statement, statements)) for area, statements in AREAS.items()]
    return format_markdown("\n".join(parts).replace("\n### ", "\n## "))


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


def _statements_summary() -> list[str]:
    """Return the section about the statements: the counts of each area, then the exceptions."""
    columns: tuple[str, ...] = ("area", "statements", "hold", "differ", "not applicable", "assumed reading")
    total = _statement_numbers("all", STATEMENTS)
    areas = [_statement_numbers(area, statements) for area, statements in AREAS.items()]
    exceptions = [
        ("They differ", "reason", StatementStatus.DIFFERS),
        ("They do not apply", "reason", StatementStatus.NOT_APPLICABLE),
        ("They hold as we read them", "reading", StatementStatus.HOLDS),
    ]
    parts = ["## Statements of Microsoft's documents\n", _statement_counts()]
    parts.append("[Statements](statements.md) lists all of them, with the page and the test of each.\n")
    parts.append(_table("By area", columns, [*areas, total]))
    for title, field, status in exceptions:
        rows = [
            (area, statement.says, statement.page, text, _rules(statement))
            for area, statements in AREAS.items()
            for statement in statements
            if statement.status is status and (text := getattr(statement, field))
        ]
        parts.append(_table(title, ("area", "statement", "page", field, "contract"), rows))
    return parts


def _statement_numbers(area: str, statements: tuple[Statement, ...]) -> tuple[str, ...]:
    counts = [sum(statement.status is status for statement in statements) for status in StatementStatus]
    readings = sum(bool(statement.reading) for statement in statements)
    return area, *map(str, (len(statements), *counts, readings))


def _statement_counts() -> str:
    _, total, hold, differ, not_applicable, readings = _statement_numbers("", STATEMENTS)
    return (
        f"{total} statements: {hold} hold, {differ} differ, {not_applicable} are not applicable. "
        f"{readings} of those that hold depend on a reading that we assume.\n"
    )


def _statement(statement: Statement) -> tuple[str, ...]:
    shown_by = ", ".join(_shown(name) for name in statement.shown_by)
    return statement.says, statement.page, _rules(statement), statement.status, shown_by


def _shown(name: str) -> str:
    kind, colon, row = name.partition(": ")
    return f"{kind} `{row}`" if colon else f"`tests/{name}`"


def _rules(statement: Statement) -> str:
    return ", ".join(f"[{rule}](contract.md#{rule})" for rule in statement.rules)


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
