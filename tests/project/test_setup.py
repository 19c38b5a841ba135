"""script/setup: what it creates, what it installs, and what it leaves alone.

The folder is a copy of the project with a stand-in for Python, which records its arguments and installs nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from doc_pages import README, blocks

ROOT = Path(__file__).parents[2]
PYTHON = """#!/bin/sh
case "$*" in
-) cat >/dev/null ;;
-VV) echo "Python 3.99" ;;
"-m venv "*)
  [ -z "$BROKEN" ] || exit 1
  mkdir -p "$3/bin"
  for name in python forewarn ruff mdformat mypy pytest; do cp "$0" "$3/bin/$name"; done ;;
*"pip install"*) echo "$*" >>installed ;;
*) echo "${0##*/} $*" ;;
esac
"""


class Project:
    """A clone of the project in which nothing was set up yet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "script").mkdir()
        for name in ("setup", "server", "test", "format"):
            shutil.copy(ROOT / "script" / name, folder / "script" / name)
        shutil.copy(ROOT / "pyproject.toml", folder / "pyproject.toml")
        (folder / "python").write_text(PYTHON)
        (folder / "python").chmod(0o755)

    def setup(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return self.run("setup", *arguments, **variables)

    def run(self, script: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHON": str(self.folder / "python"), **variables}
        command = [str(self.folder / "script" / script), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    @property
    def installed(self) -> list[str]:
        """The arguments of pip."""
        installed = self.folder / "installed"
        return [line.split()[-1] for line in installed.read_text().splitlines()] if installed.exists() else []


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_it_prints_the_folder_of_the_environment_and_installs_once(project: Project) -> None:
    assert [project.setup().stdout, project.setup().stdout] == [".venv\n", ".venv\n"]
    assert project.installed == ["."]


def test_it_installs_test_dependencies_only_on_request(project: Project) -> None:
    for extra in ((), ("test",), (), ("test",)):
        assert project.setup(*extra).returncode == 0
    assert project.installed == [".", ".[test]"]


def test_the_server_needs_only_the_product(project: Project) -> None:
    done = project.run("server", "--speed", "60")
    assert done.stdout == "forewarn up --fleet examples/demo.toml --speed 60\n"
    assert project.installed == ["."]


def test_the_first_commands_of_the_readme_do_all_their_own_set_up(project: Project) -> None:
    """Each of them runs in a new clone, and without an activated environment."""
    commands = [line.partition("#")[0].split() for line in blocks(README)[0].text.splitlines()]
    assert [path for path, *_ in commands] == ["script/server", "script/test"]
    last = []
    for path, *arguments in commands:
        shutil.rmtree(project.folder / ".venv", ignore_errors=True)
        done = project.run(path.removeprefix("script/"), *arguments)
        assert done.returncode == 0, done.stderr
        last.append(done.stdout.splitlines()[-1].split()[0])
    assert last == ["forewarn", "pytest"]
    assert project.installed == [".", ".[test]"]


def test_it_installs_again_after_a_change_of_the_dependencies(project: Project) -> None:
    project.setup()
    with (project.folder / "pyproject.toml").open("a") as file:
        file.write("# changed\n")
    project.setup()
    assert project.installed == [".", "."]


def test_it_leaves_an_environment_alone_that_it_did_not_create(project: Project) -> None:
    mine = project.folder / ".venv" / "mine"
    mine.parent.mkdir()
    mine.touch()
    done = project.setup("test")
    assert done.stdout == ".venv-forewarn\n"
    assert "did not create .venv" in done.stderr
    assert list(mine.parent.iterdir()) == [mine]
    assert project.setup("test").stdout == ".venv-forewarn\n"
    assert project.installed == [".[test]"]


def test_it_reports_that_both_folders_are_not_its_own(project: Project) -> None:
    for name in (".venv", ".venv-forewarn"):
        (project.folder / name).mkdir()
    done = project.setup()
    assert (done.returncode, done.stdout) == (1, "")
    assert "Move one of the two away" in done.stderr


def test_it_creates_its_own_again_for_another_python_or_after_it_was_interrupted(project: Project) -> None:
    assert project.setup(BROKEN="yes").returncode == 1
    assert project.setup().stdout == ".venv\n"
    (project.folder / ".venv" / "old").touch()
    python = project.folder / "python"
    python.write_text(PYTHON.replace("3.99", "3.100"))
    assert project.setup().stdout == ".venv\n"
    assert not (project.folder / ".venv" / "old").exists()


def test_it_knows_the_extras_of_the_project(project: Project) -> None:
    done = project.setup("tset")
    assert (done.returncode, project.installed) == (2, [])
    assert 'no optional dependencies called "tset"' in done.stderr


def test_it_uses_another_folder_only_if_it_creates_or_created_it(project: Project) -> None:
    for _ in range(2):
        assert project.setup("test", ".venv-oldest").stdout == ".venv-oldest\n"
    assert project.installed == [".[test]"]
    mine = project.folder / "mine" / "file"
    mine.parent.mkdir()
    mine.touch()
    done = project.setup("test", "mine")
    assert (done.returncode, done.stdout) == (1, "")
    assert "did not create mine" in done.stderr
    assert list(mine.parent.iterdir()) == [mine]
    assert not (project.folder / ".venv").exists()
