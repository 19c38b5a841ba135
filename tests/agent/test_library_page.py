"""The programs of docs/reference/agent-library.md run as printed, and the page is complete."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import forewarn.agent
from forewarn import errors
from forewarn.agent import Client, Event
from forewarn.agent.changes import CHANGE_KINDS, Change
from project.test_examples import PYTEST, run

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "agent-library.md").read_text()


def files_of_the_page() -> dict[str, str]:
    blocks = re.findall(r"^```python\n(# (\S+)\n.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return {name: text for text, name in blocks}


def test_the_programs_of_the_page_work_as_described(tmp_path: Path) -> None:
    files = files_of_the_page()
    assert len(files) == PAGE.count("```") / 2
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        assert name.startswith("test_") or f'"{name}"' in files["test_programs.py"]
    done = run(tmp_path, *PYTEST, "test_programs.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_library_is_used_in_three_lines() -> None:
    lines = files_of_the_page()["approve.py"].splitlines()
    assert len([line for line in lines if line and not line.startswith("#")]) == 3


def test_every_kind_of_error_is_on_the_page() -> None:
    kinds = {found.kind for found in all_troubles(errors.EndpointError)}
    rows = [line.split(" | ")[0] for line in PAGE.partition("## Errors")[2].splitlines() if line.startswith("| `")]
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == kinds


def all_troubles(family: type[errors.EndpointError]) -> set[type[errors.EndpointError]]:
    return {found for one in family.__subclasses__() for found in {one, *all_troubles(one)}}


def test_every_public_name_is_on_the_page() -> None:
    for name in vars(Client):
        assert (
            name.startswith("_")
            or name in {"poll_changes", "send_approval", "connections", "closed", "known", "rejected_version"}
            or f"client.{name}" in PAGE
        )
    for name in ("waits", "cancelled", "over", "approve", *Change._fields):
        assert f"`change.{name}" in PAGE
    for name in (*CHANGE_KINDS, *Event._fields):
        assert f"`{name}`" in PAGE


def test_the_library_loads_its_names_on_demand(tmp_path: Path) -> None:
    for name in forewarn.agent.__all__:
        assert getattr(forewarn.agent, name) is not None
    code = "import sys, forewarn.agent; assert not {'http.client', 'asyncio', 'json'} & set(sys.modules)"
    assert run(tmp_path, sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}").returncode == 0
    code = "from forewarn.agent import Client; assert not {'asyncio', 'inspect', 'dataclasses'} & set(sys.modules)"
    done = run(tmp_path, sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}")
    assert done.returncode == 0, done.stderr
