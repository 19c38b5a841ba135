"""A program that may outlive the process that starts it: a later process finds it, waits for it, or ends it.

Two files describe it. The program and all that it starts hold a lock on the first, which says which process it is. The
second has its exit code, once it has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import IO, TYPE_CHECKING, Any

from forewarn.system.processes import Process, find_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

GO = b"go\n"
"""The first line of its input: the program begins."""
_SHELL = "/bin/sh"
_AROUND = """
read -r forewarn_go || exit 1
if [ "$3" ]; then exec <"$3"; fi
if [ "$5" ]; then trap : HUP INT TERM; fi
(if [ "$4" ]; then exec 2>>"$4"; fi; shift 5; exec "$@")
code=$?
trap - HUP INT TERM
echo "$2 $code" >"$1"
[ "$5" ] || exit $code
case $code in 129 | 13[0-9] | 14[0-3]) kill -s $((code - 128)) $$ 2>/dev/null ;; esac
exit $code
"""
"""The shell around the program. $1 is the exit file, $2 the run, $3 the input, $4 the errors, $5 whether the shell
survives signals; the program follows.

The program begins when its parent says so, after it has recorded the process. If the parent is killed before that, its
end of the pipe is closed, and nothing begins. The arguments stay where they are, because a variable could be one of the
environment that the program is to see. Errors are redirected in a shell within the shell: a shell may write its own
words, like "Killed", to where it has just sent those of a command.
"""


class ChildProcess:
    """The two files of one program. Their folder must exist."""

    def __init__(self, lock: Path, end: Path) -> None:
        self._lock = lock
        self._end = end

    def is_held(self) -> bool:
        """Whether the program, or something that it has left running, holds the lock."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def facts(self) -> dict[str, Any]:
        """What was recorded of the newest run; nothing where that cannot be read."""
        with suppress(FileNotFoundError, ValueError):
            facts = json.loads(self._lock.read_bytes())
            if isinstance(facts, dict):
                return facts
        return {}

    def process(self) -> Process | None:
        """The process of the newest run, whether it lives or not. None: it was not recorded, and has not begun."""
        facts = self.facts()
        pid, started = facts.get("pid"), facts.get("started")
        return Process(pid, started) if isinstance(pid, int) and isinstance(started, int) else None

    def exit_code(self, run: str = "") -> int | None:
        """How this run has ended; None where it goes on, was killed together with its shell, or is another one."""
        with suppress(FileNotFoundError, ValueError):  # a machine that dies can leave the file empty
            text = self._end.read_text("utf-8")
            *found, code = text.split()
            return int(code) if found == run.split() and text.endswith("\n") else None
        return None

    def take_lock(self, facts: Mapping[str, Any]) -> StartLock:
        """Begin a new run, of which these facts are recorded. OSError: the files cannot be written.

        The lock is a new file in the place of the old: a daemon may hold the old one's lock for ever.
        """
        new = self._lock.with_suffix(".new")
        # A killed parent may have left one. Nobody has it open: no program is started before it has its place.
        new.unlink(missing_ok=True)
        lock = StartLock(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), self._end)
        try:
            lock.record(facts)
            new.rename(self._lock)
            self._end.unlink(missing_ok=True)
        except BaseException:
            lock.close()
            raise
        return lock


class StartLock:
    """The lock of a run that is to be started. The program takes it over."""

    def __init__(self, descriptor: int, end: Path) -> None:
        self._descriptor = descriptor
        self._end = end
        self._facts: dict[str, Any] = {}
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # nobody else knows this file yet

    def start(
        self,
        argv: Sequence[str],
        *,
        run: str = "",
        input_file: Path | None = None,
        errors_file: Path | None = None,
        output: int | IO[bytes],
        errors: int,
        survives_signals: bool,
        environment: Mapping[str, str] | None = None,
        folder: str | None = None,
        name: str = "",
    ) -> Popen[bytes]:
        """Start it in a session of its own, record its process, and let go of the lock. It waits for GO.

        Without an `input_file` its input is what follows GO. Signals that end processes are meant for the program; with
        `survives_signals` the shell around it, whose number is recorded, stays until the program has tidied up.
        """
        import subprocess  # an agent at rest runs no programs

        files = (str(self._end), run, str(input_file or ""), str(errors_file or ""), "yes" if survives_signals else "")
        try:
            process = subprocess.Popen(  # noqa: S603 - the caller says what is run
                [_SHELL, "-c", _AROUND, name or argv[0], *files, *argv],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=errors,
                env=environment,
                cwd=folder,
                start_new_session=True,
                pass_fds=(self._descriptor,),
            )
            try:
                found = find_process(process.pid)
                if found is not None:
                    self.record(found._asdict())
            except BaseException:
                process.communicate()  # closes the gate: it ends, and has done nothing
                raise
        finally:
            self.close()
        return process

    def close(self) -> None:
        os.close(self._descriptor)

    def record(self, facts: Mapping[str, Any]) -> None:
        """Add facts to those of the run."""
        # Each text is longer than the one before, so one write over it is enough, and there is never half of one.
        self._facts |= facts
        os.pwrite(self._descriptor, json.dumps(self._facts).encode(), 0)


def let_begin(process: Popen[bytes]) -> None:
    """Let a program begin that has an input file."""
    if process.stdin is not None:
        with suppress(BrokenPipeError), process.stdin as gate:
            gate.write(GO)
