"""process: stops a process that is not a systemd unit, and starts it again."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.handler import COMMON, PREPARE, Handler
from forewarn.agent.handlers.options import read_argv, read_path
from forewarn.agent.handlers.program import find_program, missing_programs
from forewarn.agent.machine import boot_id
from forewarn.errors import HandlerFailed
from forewarn.system.files import write_atomically
from forewarn.system.processes import Process, find_process, started_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- Starting a program ---------------------------------------------------------------------------


_WATCHED_SECONDS = 0.5
_START_POLL_SECONDS = 0.05


def start_detached(job: Job, argv: Sequence[str], directory: str, log: str) -> int:
    """Start a program in its own session and return its process id. Raise HandlerFailed if it exits at once."""
    import subprocess  # imported here: an idle agent runs no programs

    place = directory or "/"
    program = find_program(argv[0], os.environ, place)
    with ExitStack() as files:
        try:
            output = os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            files.callback(os.close, output)
            process = subprocess.Popen(  # noqa: S603 - the policy names the program
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=place,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise HandlerFailed(problem=f"cannot start {argv[0]}: {error}.") from error
    # Reap the process when it ends, to avoid a zombie.
    threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
    deadline = real_seconds() + _WATCHED_SECONDS
    while process.returncode is None and real_seconds() < deadline and not job.wait(_START_POLL_SECONDS):
        pass
    if process.returncode:
        raise HandlerFailed(problem=f"{argv[0]} exited at once with {process.returncode}.")
    job.info(f"started {argv[0]} as process {process.pid}", pid=process.pid)
    return process.pid


# --- The handler ----------------------------------------------------------------------------------


_SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "WINCH", "KILL")
_POLL_SECONDS = 0.1
_CLOCK_SLACK_SECONDS = 5.0
"""Start times have a resolution of a second, and clocks are adjusted in small steps."""


class ProcessHandler(Handler):
    """Stops and starts the process whose id is in a pid file."""

    def __init__(self, options: TomlTable) -> None:
        known = {"pid_file", "signal", "kill_after", "start", "directory", "log", "write_pid"}
        options.reject_unknown({*known, *COMMON})
        options.required_text("pid_file", 'Write it like "/run/worker.pid".')
        self._pid_file = read_path(options, "pid_file")
        self._signal = options.choice("signal", _SIGNALS, "TERM")
        self._kill_after = options.duration("kill_after")
        self._directory = read_path(options, "directory")
        self._start = read_argv(options, "start")
        self._log = read_path(options, "log")
        self._write_pid = bool(options.flag("write_pid"))
        for key in ("directory", "log", "write_pid"):
            if key in options and not self._start and options.is_right("start"):
                options.report("Is only used with start. Give start, or remove it.", key)

    def describe(self, action: str) -> str:
        if action == PREPARE:
            return f"send {self._signal} to the process of {self._pid_file} and wait until it ends"
        return f"run {shlex.join(self._start)}, if it was running" if self._start else ""

    def problems_here(self) -> Iterable[str]:
        return missing_programs((self._start,), os.environ, self._directory)

    def prepare(self, job: Job) -> None:
        if "pid" in job.memo and job.memo.get("boot") == boot_id():
            # A second run after a kill: the pid file may be gone while the process still runs.
            process = Process(job.memo["pid"], job.memo["started"])
        else:
            found = self._find()
            if found is None:
                job.info(f"nothing to stop: the process of {self._pid_file} is not running")
                return
            process = found
            job.remember(pid=process.pid, started=process.started, boot=boot_id())
        self._stop(job, process)

    def undo(self, job: Job) -> None:
        if not self._start or "pid" not in job.memo:
            return
        running = self._read_pid_file()
        same_pid = running is not None and running.pid == job.memo["pid"]
        same = same_pid and (running, boot_id()) == (
            Process(job.memo["pid"], job.memo["started"]),
            job.memo.get("boot"),
        )
        # If the file still has the old process id, another process may have that id now.
        if running is not None and (same or not same_pid):
            job.info(f"process {running.pid} is already running")
            return
        pid = start_detached(job, self._start, self._directory, self._log)
        if self._write_pid:
            try:
                write_atomically(Path(self._pid_file), f"{pid}\n".encode(), 0o644)
            except OSError as error:
                raise HandlerFailed(problem=f"cannot write {self._pid_file}: {error.strerror}.") from error

    def _read_pid_file(self) -> Process | None:
        """Return the process whose id is in the file, even if it is another program."""
        try:
            text = Path(self._pid_file).read_text(errors="replace").split()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HandlerFailed(problem=f"cannot read {self._pid_file}: {error.strerror}.") from error
        if not text:
            return None
        if not text[0].isdecimal() or not 1 < int(text[0]) < 1 << 31:
            raise HandlerFailed(problem=f"{self._pid_file} contains {text[0][:40]!r}, which is not a process id.")
        return find_process(int(text[0]))

    def _find(self) -> Process | None:
        process = self._read_pid_file()
        if process is None:
            return None
        if process.pid == os.getpid():
            raise HandlerFailed(problem=f"{self._pid_file} contains the process id of the agent itself.")
        begun = started_at(process)
        if begun is not None and begun > Path(self._pid_file).stat().st_mtime + _CLOCK_SLACK_SECONDS:
            # A process starts before it writes its id. This one has reused the id of an ended process.
            problem = f"process {process.pid} is newer than {self._pid_file}: it is another program."
            raise HandlerFailed(problem=f"{problem} Remove the file if the right process has ended.")
        return process

    def _stop(self, job: Job, process: Process) -> None:
        _send(process, self._signal)
        begun, killed = real_seconds(), self._signal == "KILL"
        while process.lives:
            if job.seconds_left() <= 0:
                raise HandlerFailed(problem=f"process {process.pid} did not end before the timeout.")
            if self._kill_after is not None and not killed:
                killed = real_seconds() - begun >= self._kill_after.total_seconds()
                if killed:
                    job.warning(f"killing process {process.pid}, which did not end", pid=process.pid)
                    _send(process, "KILL")
            if job.wait(_POLL_SECONDS):
                raise HandlerFailed(problem=f"was stopped before process {process.pid} ended.")


def _send(process: Process, name: str) -> None:
    """Send a signal to this process only, even if its id is reused meanwhile."""
    with suppress(ProcessLookupError):
        try:
            descriptor = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return
        except (OSError, AttributeError):
            descriptor = -1
        try:
            if process.lives:
                number = signal.Signals[f"SIG{name}"]
                if descriptor >= 0:
                    signal.pidfd_send_signal(descriptor, number)
                else:
                    os.kill(process.pid, number)
        except PermissionError as error:
            raise HandlerFailed(problem=f"no permission to send {name} to process {process.pid}.") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)


KIND = ProcessHandler
