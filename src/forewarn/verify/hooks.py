"""The commands that the person who verifies gives: they make events, withdraw them, and move the server's time."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from tempfile import TemporaryFile

from forewarn.verify.check import Skip

_LONGEST_SECONDS = 120


@dataclass(frozen=True)
class Hooks:
    """What the shell is given; empty: there is no such command."""

    schedule: str = ""
    cancel: str = ""
    advance: str = ""


def run(command: str, **variables: str) -> None:
    """Have the shell run a command; unless it exits with 0, what it said last is why something cannot be made."""
    what = " ".join(f"{name}={value}" for name, value in variables.items())
    # A file, not a pipe: what the command leaves running in the background may keep it open.
    with TemporaryFile() as output:
        # Whoever verifies gives the command, for the shell; a session of its own, so that all of it can be ended.
        process = subprocess.Popen(  # noqa: S602
            command,
            shell=True,
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(_LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise Skip(f"the command did not end within {_LONGEST_SECONDS} s ({what})") from None
        if code:
            output.seek(0)
            said = output.read().decode("utf-8", "backslashreplace")
            lines = [line.strip() for line in said.splitlines() if line.strip()]
            reason = "".join(filter(str.isprintable, lines[-1])) if lines else f"exit code {code}"
            raise Skip(f"the command cannot ({what}): {reason}")
