"""The commands that `forewarn verify` is given: ones that never end, say too much, or are ended by a signal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forewarn.verify.check import Skip
from forewarn.verify.session import Hooks

if TYPE_CHECKING:
    from pathlib import Path


def why(hooks: Hooks, **variables: str) -> str:
    """Why the command could not."""
    with pytest.raises(Skip) as skip:
        hooks.run(hooks.schedule, **variables)
    return str(skip.value)


def test_a_command_that_does_not_end_is_not_run_again_for_that_type(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    command = f"echo $FOREWARN_EVENT_TYPE >>{tmp_path}/calls; cat {tmp_path}/never"
    hooks = Hooks(command, longest_seconds=0.5)
    for _ in range(3):
        for event_type in ("Reboot", "Freeze"):
            said = why(hooks, FOREWARN_EVENT_TYPE=event_type, FOREWARN_VM="web-0")
            assert f"did not end within 0.5 s (FOREWARN_EVENT_TYPE={event_type}" in said
    assert (tmp_path / "calls").read_text().split() == ["Reboot", "Freeze"]


def test_a_command_that_does_not_end_does_not_keep_others_from_being_run(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    hooks = Hooks(f'[ -n "$FOREWARN_SECONDS" ] || cat {tmp_path}/never', longest_seconds=0.5)
    why(hooks, FOREWARN_EVENT_ID="x")
    hooks.run(hooks.schedule, FOREWARN_SECONDS="60")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "exit code 3"),
        ("echo first; echo last; exit 3", "last"),
        ("kill -9 $$", "ended by SIGKILL"),
        ("echo tried; kill -15 $$", "ended by SIGTERM: tried"),
        ("sh -c 'kill -9 $$' 2>&-; exit $?", "exit code 137, as after SIGKILL"),
    ],
)
def test_why_a_command_could_not_is_said(command: str, reason: str) -> None:
    assert why(Hooks(command)) == f"the command cannot (): {reason}"


def test_of_a_command_that_says_too_much_the_end_is_read() -> None:
    much = "head -c 5000000 /dev/zero | tr '\\0' x"
    assert why(Hooks(f"{much}; echo; echo so; exit 1")).endswith(": so")
    assert len(why(Hooks(f"{much}; exit 1"))) < 5000
