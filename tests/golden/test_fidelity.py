"""docs/explanation/fidelity.md and statements.md are generated from the golden lists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

from golden.behaviours import BEHAVIOURS
from golden.cases import CASES
from golden.fidelity import REQUESTS, pages
from golden.statements import AREAS, PAGES, STATEMENTS, Statement, StatementStatus

ROOT = Path(__file__).parents[2]
EXPLANATION = ROOT / "docs" / "explanation"
WORDS_OF_A_SENTENCE = 25


def test_the_pages_are_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "script" / "fidelity"), "--print"]
    made = subprocess.run(script, capture_output=True, timeout=60, check=True, env={"PYTHONIOENCODING": "utf-8"})
    written = b"".join((EXPLANATION / name).read_bytes() for name in pages())
    assert written == made.stdout, "run: .venv/bin/python script/fidelity"


def test_every_behaviour_names_an_existing_test() -> None:
    assert all((ROOT / "tests" / behaviour.test).exists() for behaviour in BEHAVIOURS)


# --- Statements -----------------------------------------------------------------------------------------


@cache
def functions_in(file: str) -> frozenset[str]:
    """Return the names of the test functions in a file below tests/."""
    path = ROOT / "tests" / file
    body = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    functions = (part.name for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(name for name in functions if name.startswith("test_"))


def exists(shown_by: str) -> bool:
    kind, colon, name = shown_by.partition(": ")
    if colon:
        return name in {"request": REQUEST_NAMES, "document": DOCUMENT_NAMES}[kind]
    file, _, function = shown_by.partition("::")
    return function in functions_in(file)


REQUEST_NAMES = {row.name for row in REQUESTS}
DOCUMENT_NAMES = {case.name for case in CASES}


def test_what_shows_a_statement_exists() -> None:
    missing = {name for statement in STATEMENTS for name in statement.shown_by if not exists(name)}
    assert not missing, "no golden row or test has this name"


def test_the_pages_and_rules_of_a_statement_exist() -> None:
    contract = (EXPLANATION / "contract.md").read_text(encoding="utf-8")
    rules = set(re.findall(r'<a id="([0-9.]+)"></a>', contract))
    assert {rule for statement in STATEMENTS for rule in statement.rules} <= rules
    assert all(statement.rules for statement in STATEMENTS)
    assert {statement.page for statement in STATEMENTS} == PAGES.keys()


def test_a_statement_that_holds_is_shown_and_another_one_has_a_reason() -> None:
    def is_complete(statement: Statement) -> bool:
        if statement.status is StatementStatus.HOLDS:
            return bool(statement.shown_by) and not statement.reason
        return bool(statement.reason) and not statement.reading

    assert [statement.says for statement in STATEMENTS if not is_complete(statement)] == []


def test_a_golden_document_alone_does_not_show_that_a_statement_holds() -> None:
    """It shows how an event is written, not what the service puts into the event."""
    alone = {
        statement.says
        for statement in STATEMENTS
        if statement.status is StatementStatus.HOLDS
        and all(shown.startswith("document: ") for shown in statement.shown_by)
    }
    assert not alone, "name a test of the behaviour, or a golden request"


def test_a_statement_is_one_short_sentence_and_is_listed_once() -> None:
    assert all(len(statement.says.split()) <= WORDS_OF_A_SENTENCE for statement in STATEMENTS)
    listed = [(area, statement.says) for area, statements in AREAS.items() for statement in statements]
    assert len(listed) == len(set(listed))
