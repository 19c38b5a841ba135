"""The commands that the person who verifies gives: they make events, withdraw them, and move the server's time."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from threading import current_thread, main_thread
from typing import IO, Any, Self

from forewarn.verify.check import Skip

_TAIL = 4096
"""How many bytes of what a command has printed are looked at, the last ones."""
_SHELL_ADDS = 128
"""A shell whose command was ended by a signal exits with this and the signal's number."""


@dataclass(frozen=True)
class Hooks:
    """What the shell is given; empty: there is no such command."""

    schedule: str = ""
    cancel: str = ""
    advance: str = ""
    longest_seconds: float = 120.0
    stuck: dict[tuple[str, ...], str] = field(default_factory=dict)
    """Why a command is not run again: it did not end in time. By what it is for, and the type of event."""

    def run(self, command: str, **variables: str) -> None:
        """Have the shell run a command; unless it exits with 0, what it said last is why something cannot be made."""
        what = " ".join(f"{name}={value}" for name, value in variables.items())
        use = (*variables, variables.get("FOREWARN_EVENT_TYPE", ""))
        if use in self.stuck:
            raise Skip(self.stuck[use])
        # A file, not a pipe: what the command leaves running in the background may keep it open.
        with TemporaryFile() as output, _Deferred() as deferred:
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
                deferred.take()
                code = process.wait(self.longest_seconds)
            except subprocess.TimeoutExpired:
                _end(process)
                reason = f"the command did not end within {self.longest_seconds:g} s ({what}), and is not run again"
                self.stuck[use] = reason
                raise Skip(reason) from None
            except BaseException:
                _end(process)
                raise
            if code:
                raise Skip(f"the command cannot ({what}): {_reason(code, output)}")


class _Deferred:
    """Signals that come while a command is being started are taken once it is known: else nobody could end it."""

    def __init__(self) -> None:
        self._came: list[int] = []
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if current_thread() is main_thread():  # no other may, and no other is interrupted
            for number in (signal.SIGINT, signal.SIGTERM):
                if callable(handler := signal.getsignal(number)):
                    self._before[number] = handler
                    signal.signal(number, lambda came, _: self._came.append(came))
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def take(self) -> None:
        """From now on they are taken at once."""
        self._restore()
        if self._came:
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _reason(code: int, output: IO[bytes]) -> str:
    """Why a command has failed: what it said last, and which signal ended it."""
    output.seek(max(output.seek(0, os.SEEK_END) - _TAIL, 0))
    said = output.read(_TAIL).decode("utf-8", "backslashreplace")
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = "".join(filter(str.isprintable, lines[-1])) if lines else ""
    names = {known.value: known.name for known in signal.Signals}
    ended = ""
    if -code in names:
        ended = f"ended by {names[-code]}"
    elif code - _SHELL_ADDS in names:
        ended = f"exit code {code}, as after {names[code - _SHELL_ADDS]}"
    return ": ".join(filter(None, (ended, last))) or f"exit code {code}"
