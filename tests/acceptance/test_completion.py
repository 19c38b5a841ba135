"""Real shells complete commands, options and values with the script of `forewarn completion`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from programs import need

if TYPE_CHECKING:
    from collections.abc import Sequence

BIN = Path(sys.executable).parent

# Each reads the script from standard input, completes the words in "$@", and prints one completion per line.
BASH = """
eval "$(cat)"
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"
complete -p forewarn >/dev/null && _forewarn_completion forewarn "${@: -1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
# compdef, compadd and _describe exist only while zsh completes a line. These print what they get.
ZSH = """
compdef() { :; }
compadd() { print -l -- $completions; }
_describe() { print -l -- ${completions_with_descriptions%%:*}; }
_path_files() { print -l -- ${words[CURRENT]}*; }
eval "$(cat)"
words=("$@"); CURRENT=$#
_forewarn_completion
"""
FISH = """
source
complete -C "$argv" | cut -f1
"""
SHELLS = {
    "bash": ["bash", "--norc", "-c", BASH, "-"],
    "zsh": ["zsh", "-f", "-c", ZSH, "-"],
    "fish": ["fish", "-N", "-c", FISH],
}


class Shell:
    """A shell that has loaded the script."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self._environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder)}
        self.script = self._run(["forewarn", "completion", name], "")

    def complete(self, *words: str) -> list[str]:
        typed: Sequence[str] = ["--", " ".join(words)] if self.name == "fish" else words
        return self._run([*SHELLS[self.name], *typed], self.script).split("\n")[:-1]

    def _run(self, command: Sequence[str], text: str) -> str:
        done = subprocess.run(
            command,
            input=text,
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.stderr, done.returncode) == ("", 0)
        return done.stdout


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    need(request.param)
    (tmp_path / "fleet.toml").touch()
    (tmp_path / "state").mkdir()
    return Shell(request.param, tmp_path)


def test_it_completes_commands_and_options(shell: Shell) -> None:
    assert shell.complete("forewarn", "ve") == ["verify"]
    assert {"restart", "redeploy", "list"} <= set(shell.complete("forewarn", "vm", ""))
    assert shell.complete("forewarn", "vm", "restart", "--dry") == ["--dry-run"]


def test_it_completes_values_and_files(shell: Shell) -> None:
    assert shell.complete("forewarn", "up", "--clock", "v") == ["virtual"]
    assert shell.complete("forewarn", "completion", "z") == ["zsh"]
    if shell.name != "bash":  # bash completes names of files itself, with `compopt`
        assert shell.complete("forewarn", "up", "--fleet", "fl") == ["fleet.toml"]


def test_it_completes_the_commands_and_options_of_the_agent(shell: Shell) -> None:
    assert shell.complete("forewarn", "agent", "sta") == ["status"]
    assert shell.complete("forewarn", "agent", "run", "--dr") == ["--dry-run"]
    assert "--state" in shell.complete("forewarn", "agent", "run", "--dry-run", "--")
    if shell.name != "bash":
        assert shell.complete("forewarn", "agent", "run", "--config", "fl") == ["fleet.toml"]


def test_a_wrong_line_prints_no_error(shell: Shell) -> None:
    assert "restart" not in shell.complete("forewarn", "vmm", "")
    assert shell.complete("forewarn", "agent", "runn", "--") in ([], [""])
