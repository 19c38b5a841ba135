"""Hook commands that do not end, print too much, or are killed by a signal."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from forewarn.verify.check import CheckSkipped
from forewarn.verify.session import HookCommands

if TYPE_CHECKING:
    from pathlib import Path


def skip_reason(hooks: HookCommands, **variables: str) -> str:
    """Run the schedule command. Return why the check is skipped."""
    with pytest.raises(CheckSkipped) as skip:
        hooks.run(hooks.schedule, **variables)
    return str(skip.value)


def test_a_command_that_times_out_is_not_run_again_for_that_type(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    command = f"echo $FOREWARN_EVENT_TYPE >>{tmp_path}/calls; cat {tmp_path}/never"
    hooks = HookCommands(command, timeout_seconds=0.5)
    for _ in range(3):
        for event_type in ("Reboot", "Freeze"):
            expected = skip_reason(hooks, FOREWARN_EVENT_TYPE=event_type, FOREWARN_VM="web-0")
            assert f"did not end within 0.5 s and is not run again (FOREWARN_EVENT_TYPE={event_type}" in expected
    assert (tmp_path / "calls").read_text().split() == ["Reboot", "Freeze"]


def test_a_timeout_does_not_affect_other_commands(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "never")
    hooks = HookCommands(f'[ -n "$FOREWARN_SECONDS" ] || cat {tmp_path}/never', timeout_seconds=0.5)
    skip_reason(hooks, FOREWARN_EVENT_ID="x")
    hooks.run(hooks.schedule, FOREWARN_SECONDS="60")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "exit code 3"),
        ("echo first; echo last; exit 3", "last"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("echo tried; kill -15 $$", "killed by SIGTERM: tried"),
        ("sh -c 'kill -9 $$' 2>&-; exit $?", "exit code 137, as after SIGKILL"),
    ],
)
def test_the_reason_of_a_failed_command(command: str, reason: str) -> None:
    assert skip_reason(HookCommands(command)) == f"the command failed (): {reason}"


def test_only_the_end_of_a_long_output_is_read() -> None:
    much = "head -c 5000000 /dev/zero | tr '\\0' x"
    assert skip_reason(HookCommands(f"{much}; echo; echo so; exit 1")).endswith(": so")
    assert len(skip_reason(HookCommands(f"{much}; exit 1"))) < 5000
