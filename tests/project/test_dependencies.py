"""pyproject.toml declares what Forewarn imports, in the form that script/oldest reads."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
OWN = {
    "forewarn",
    "tools",
    *(path.stem for folder in ("tests", "tests/unit") for path in (ROOT / folder).iterdir()),
}
LOADED_BY_PYTEST = ROOT / "src" / "forewarn" / "pytest_plugin.py"
OPTIONAL = PROJECT["optional-dependencies"]["postgresql"]
NEVER_IMPORTED = {"tzdata"}
"""Data that Python's zoneinfo reads."""


def declared(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^a-z0-9-]", requirement, maxsplit=1)[0] for requirement in requirements}


def imported(*files: Path) -> dict[str, str]:
    """The distributions that the files import, each with a place where it is imported."""
    distributions = packages_distributions()
    found = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.append(node.module)
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - OWN:
                distribution = distributions.get(name, [name])[0].lower().replace("_", "-")
                found[distribution] = f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
    return found


def test_forewarn_declares_what_it_imports_and_nothing_else() -> None:
    files = [file for file in (ROOT / "src").rglob("*.py") if file != LOADED_BY_PYTEST]
    found = imported(*files)
    assert found, "there is something to check"
    assert found.keys() >= declared(OPTIONAL), "declared as optional and not imported"
    found = {name: place for name, place in found.items() if name not in declared(OPTIONAL)}
    known = declared(PROJECT["dependencies"])
    assert {name: place for name, place in found.items() if name not in known} == {}, "imported and not declared"
    assert known - found.keys() == NEVER_IMPORTED, "declared and not imported"


def test_the_pytest_plugin_imports_pytest_alone() -> None:
    assert imported(LOADED_BY_PYTEST).keys() == {"pytest"}


def test_the_tests_declare_what_they_import() -> None:
    known = declared([*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["test"]])
    found = imported(*(ROOT / "tests").rglob("*.py"), *(ROOT / "tools" / "bench").rglob("*.py"))
    assert {name: place for name, place in found.items() if name not in known} == {}


def test_every_dependency_has_the_form_that_the_script_reads() -> None:
    form = re.compile(r"[a-z-]+(\[[a-z]+\])?>=[0-9.]+(,<[0-9.]+)?")
    assert [
        requirement for requirement in [*PROJECT["dependencies"], *OPTIONAL] if not form.fullmatch(requirement)
    ] == []
