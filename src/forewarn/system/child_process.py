"""Child processes that may outlive their parent. A later process can find them, wait for them, or end them.

Two files describe a child. The program and its children hold a lock on the first file, which contains the process id.
The second file has the exit code.
"""

from __future__ import annotations

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
"""First line of the input, which starts the program."""
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

The program starts only when its parent writes to the pipe, after the parent has recorded the process. If the parent is
killed before that, its end of the pipe is closed, and the program does not start. The arguments stay where they are,
because a variable could be one of the environment of the program. A subshell redirects errors, because a shell may
write its own messages, like "Killed", to the error file of a command.
"""


class ChildProcess:
    """The files of one child process."""

    def __init__(self, lock: Path, end: Path) -> None:
        self._lock = lock
        self._end = end

    def is_held(self) -> bool:
        """Return whether the program or one of its children holds the lock."""
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        import fcntl  # here: Windows has none, and can still check a policy that names programs

        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    def facts(self) -> dict[str, Any]:
        """Return the facts of the newest run; empty if they cannot be read."""
        with suppress(FileNotFoundError, ValueError):
            facts = json.loads(self._lock.read_bytes())
            if isinstance(facts, dict):
                return facts
        return {}

    def process(self) -> Process | None:
        """Return the process of the newest run, alive or not. None: it was not recorded, and has not started."""
        facts = self.facts()
        pid, started = facts.get("pid"), facts.get("started")
        return Process(pid, started) if isinstance(pid, int) and isinstance(started, int) else None

    def exit_code(self, run: str = "") -> int | None:
        """Return the exit code of this run; None: it is running, was killed with its shell, or is another run."""
        with suppress(FileNotFoundError, ValueError):  # a crash of the machine can leave the file empty
            text = self._end.read_text("utf-8")
            *found, code = text.split()
            return int(code) if found == run.split() and text.endswith("\n") else None
        return None

    def take_lock(self, facts: Mapping[str, Any]) -> int:
        """Record a new run, and return the descriptor of its lock. Raises OSError if the files cannot be written.

        The lock is a new file that replaces the old one, because a daemon may hold the old lock forever.
        """
        import fcntl

        new = self._lock.with_suffix(".new")
        # A killed parent may have left one. No program has it open, because programs start after the rename.
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
        import subprocess  # saves memory in an idle agent

        files = (str(self._end), run, str(input_file or ""), str(errors_file or ""), "yes" if survives_signals else "")
        command = [_SHELL, "-c", _WRAPPER, argv[0], *files, *argv]
        try:
            process = subprocess.Popen(  # noqa: S603 - the caller chooses the command
                command, stdin=subprocess.PIPE, start_new_session=True, pass_fds=(lock,), **options
            )
            try:
                found = find_process(process.pid)
                if found is not None:
                    # Longer than the old content, so a single write replaces it.
                    os.pwrite(lock, json.dumps(self.facts() | found._asdict()).encode(), 0)
            except BaseException:
                process.communicate()  # closes its input, so it exits without doing anything
                raise
            if input_file and process.stdin:
                with suppress(BrokenPipeError), process.stdin as gate:
                    gate.write(GO)
        finally:
            os.close(lock)
        return process
