"""A program that may outlive the process that starts it: a later process finds it, waits for it, or ends it.

Two files describe it. The program and all that it starts hold a lock on the first, which says which process it is. The
second has its exit code, once it has ended.
"""

from __future__ import annotations

import fcntl
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forewarn.system.processes import Process, find_process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

GO = b"go\n"
"""The first line of its input: the program begins."""
_SHELL = "/bin/sh"
_WRAPPER = """
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
    """The two files of one program."""

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

    def take_lock(self, facts: Mapping[str, Any]) -> int:
        """Record a new run, and return the descriptor of its lock. OSError: the files cannot be written.

        The lock is a new file in the place of the old: a daemon may hold the old one's lock for ever.
        """
        new = self._lock.with_suffix(".new")
        # A killed parent may have left one. Nobody has it open: no program is started before it has its place.
        new.unlink(missing_ok=True)
        lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.pwrite(lock, json.dumps(facts).encode(), 0)
            new.rename(self._lock)
            self._end.unlink(missing_ok=True)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def start(
        self,
        lock: int,
        argv: Sequence[str],
        *,
        run: str = "",
        input_file: Path | None = None,
        errors_file: Path | None = None,
        survives_signals: bool,
        **options: Any,
    ) -> Popen[bytes]:
        """Start a program in a session of its own, hand it the lock, and record its process.

        Without an `input_file` it waits for GO, and its input is what follows that. With `survives_signals` the shell
        around it, whose process is recorded, stays until the program has tidied up after a signal to the group. The
        options are Popen's.
        """
        import subprocess  # an agent at rest runs no programs

        files = (str(self._end), run, str(input_file or ""), str(errors_file or ""), "yes" if survives_signals else "")
        command = [_SHELL, "-c", _WRAPPER, argv[0], *files, *argv]
        try:
            process = subprocess.Popen(  # noqa: S603 - the caller says what is run
                command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=(lock,), **options
            )
            try:
                found = find_process(process.pid)
                if found is not None:
                    # Longer than what is there, so one write over it is enough, and there is never half of it.
                    os.pwrite(lock, json.dumps(self.facts() | found._asdict()).encode(), 0)
            except BaseException:
                process.communicate()  # closes the gate: it ends, and has done nothing
                raise
            if input_file and process.stdin:
                with suppress(BrokenPipeError), process.stdin as gate:
                    gate.write(GO)
        finally:
            os.close(lock)
        return process
