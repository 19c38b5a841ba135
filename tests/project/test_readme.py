"""Every command of the README runs, in its order, as a newcomer would type it.

In a network namespace of its own, so that its fixed ports and 169.254.169.254 meet nobody else's.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from namespace import IN_NAMESPACE

ROOT = Path(__file__).parents[2]
ACTIVATE = ". .venv/bin/activate"
"""A contributor's own .venv is not the project's: what is activated here is what script/setup says."""


class Section(NamedTuple):
    """A chapter: which service it starts, and what is typed while it runs."""

    title: str
    commands: list[str]


def sections() -> list[Section]:
    found: list[Section] = []
    title, inside = "start", False
    commands: list[str] = []
    for line in (ROOT / "README.md").read_text().splitlines():
        if line.startswith("## "):
            found.append(Section(title, commands))
            title, commands = line.removeprefix("## "), []
        elif line.startswith("```"):
            inside = line == "```sh"
        elif inside:
            commands.append(line)
    return [section for section in [*found, Section(title, commands)] if section.commands]


def is_service(command: str) -> bool:
    return command.startswith(("script/server", "forewarn up"))


@pytest.mark.parametrize("section", sections(), ids=lambda section: section.title[:30])
def test_every_command_runs(section: Section, tmp_path: Path) -> None:
    environment = subprocess.run([ROOT / "script" / "setup"], capture_output=True, text=True, check=True).stdout.strip()
    before = [command for command in section.commands if not is_service(command)]
    service = [command for command in section.commands if is_service(command)]
    assert len(service) == 1, "one service a chapter"
    first = section.commands.index(service[0])
    script = "\n".join(
        [
            "set -euo pipefail",
            f"cd {ROOT}",
            ACTIVATE.replace(".venv", environment),
            f"{sys.executable} {ROOT / 'tests' / 'namespace.py'}",
            *(command for command in before[:first] if command != ACTIVATE),
            f"{service[0]} >{tmp_path}/service.log 2>&1 &",
            "service=$!",
            "trap 'kill $service' EXIT",
            f"grep -q '^Try in another' <(tail -n +1 -F --pid=$service {tmp_path}/service.log)",
            *(command for command in before[first:] if command != ACTIVATE),
        ]
    )
    result = subprocess.run(
        [*IN_NAMESPACE, "bash", "-c", script],
        env={**os.environ, "HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "share")},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    log = (tmp_path / "service.log").read_text() if (tmp_path / "service.log").exists() else ""
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}\n{log}"
    assert "Traceback" not in result.stdout + result.stderr + log
