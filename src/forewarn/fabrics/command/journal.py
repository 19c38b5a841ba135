"""What is on disk of an order: enough to find its program again after the service was killed.

    order.json  what the program reads; that it is there means that the program may have begun
    lock        held by the program and the shell around it while they run; the kernel lets go of it for them
    output      what the program wrote to standard output
    errors      what the program wrote to standard error
    exit        its exit code, moved into place by that shell when the program has ended

Neither a lock nor an exit code means that the machine died in the middle, or that shell and program were killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.fabrics.command.program import last_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_SHELL = "/bin/sh"
_ERRORS_DESCRIPTOR, _LOCK_DESCRIPTOR = 8, 9
# $0 is the journal. Standard error of the shell itself goes nowhere, so that its "Killed" is not taken for the
# program's last word; descriptor 8 is the program's, given to it in a shell within the shell, because a shell may
# write its own words to where it has just sent those of a command. The lock, descriptor 9, is handed on as it is.
_AROUND = '(exec "$@" 2>&8 8>&-); code=$?; echo "$code" >"$0/exit.new" && mv -f "$0/exit.new" "$0/exit"'
_PYTHON_IGNORES = (signal.SIGPIPE, signal.SIGXFSZ)


class End(NamedTuple):
    """How a run ended; without a code where the shell was killed too."""

    code: int | None
    last_line: str


class Journal:
    """One order's folder. It blocks: a disk is waited for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._order = folder / "order.json"
        self._lock = folder / "lock"

    def at_work(self) -> bool:
        """Whether the program runs. What it leaves running may keep the lock: with an exit code it is over."""
        try:
            lock = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return self._code() is None
        finally:
            os.close(lock)
        return False

    def over(self) -> bool:
        """Whether it has ended so that it is not to be run again. Ask when it is no longer at work."""
        return self._code() not in (None, os.EX_TEMPFAIL)

    def end(self) -> End:
        """How it ended. Ask when it is no longer at work: the exit code is there before the lock is let go of."""
        try:
            with (self._folder / "errors").open("rb") as errors:
                said = last_line(errors)
        except FileNotFoundError:
            said = ""
        return End(self._code(), said)

    def begin(self, command: Sequence[str], order: dict[str, Any]) -> int:
        """Note that it begins, start it, and return its process. What is noted is on disk before it starts."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        again = self._order.exists()
        for left in ("exit", "lock"):  # something that an earlier run left running may still hold the old lock
            (self._folder / left).unlink(missing_ok=True)
        unfinished = self._order.with_suffix(".new")
        with unfinished.open("w", encoding="utf-8") as file:
            file.write(json.dumps(order | {"again": again}) + "\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(self._order)
        for folder in (self._folder, self._folder.parent, self._folder.parent.parent):
            _sync_folder(folder)
        return self._spawn(command)

    def remove(self) -> None:
        """What cannot be removed is in nobody's way."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def remove_if_over(self) -> bool:
        """Whether nothing is left of it. What may be ordered again must then still know that it had begun."""
        if self._order.exists() and not self.over():
            return False
        self.remove()
        return True

    def _code(self) -> int | None:
        with suppress(FileNotFoundError, ValueError):  # a machine that dies can leave the file empty
            return int((self._folder / "exit").read_bytes())
        return None

    def _spawn(self, command: Sequence[str]) -> int:
        """Bare, because asyncio kills the processes that it lets go of; in a session of its own, because Ctrl-C
        in the service's terminal is not meant for it."""
        lock = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        write = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return os.posix_spawn(
                _SHELL,
                [_SHELL, "-c", _AROUND, str(self._folder), *command],
                os.environ,
                file_actions=[
                    # The lock first: it may have any number here, also that of the errors.
                    (os.POSIX_SPAWN_DUP2, lock, _LOCK_DESCRIPTOR),
                    (os.POSIX_SPAWN_OPEN, 0, str(self._order), os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(self._folder / "output"), write, 0o600),
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_OPEN, _ERRORS_DESCRIPTOR, str(self._folder / "errors"), write, 0o600),
                ],
                setsid=True,
                setsigdef=_PYTHON_IGNORES,
            )
        finally:
            os.close(lock)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
