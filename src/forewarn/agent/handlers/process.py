"""process: stops a process that is no unit of systemd, and starts it again."""

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
from forewarn.agent.handlers.program import find_program
from forewarn.agent.machine import boot_id
from forewarn.errors import HandlerFailed
from forewarn.system.files import write_atomically
from forewarn.system.processes import Process, find_process, started_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forewarn.agent.handlers.handler import Job
    from forewarn.files.toml_reader import TomlTable


# --- Starting a program ---------------------------------------------------------------------------


_WATCHED_SECONDS = 0.5
_START_LOOK_SECONDS = 0.05


def start_detached(job: Job, argv: Sequence[str], directory: str, log: str) -> int:
    """Start a program in a session of its own; its number. It has failed if it fails at once."""
    import subprocess  # an agent at rest runs no programs

    place = directory or "/"
    program = find_program(argv[0], os.environ, place)
    with ExitStack() as files:
        try:
            output = os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            files.callback(os.close, output)
            process = subprocess.Popen(  # noqa: S603 - the config says what is run
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=place,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise HandlerFailed(problem=f"{argv[0]} could not be started: {error}.") from error
    # Whoever started it must collect it when it ends, however much later that is.
    threading.Thread(target=process.wait, name=f"collects {process.pid}", daemon=True).start()
    until = real_seconds() + _WATCHED_SECONDS
    while process.returncode is None and real_seconds() < until and not job.wait(_START_LOOK_SECONDS):
        pass
    if process.returncode:
        raise HandlerFailed(problem=f"{argv[0]} was started, and ended at once with {process.returncode}.")
    job.say(f"{argv[0]} was started as process {process.pid}", pid=process.pid)
    return process.pid


# --- The handler ----------------------------------------------------------------------------------


_SIGNALS = ("TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "WINCH", "KILL")
_LOOK_SECONDS = 0.1
_CLOCK_SLACK_SECONDS = 5.0
"""The start of a process is known to a second, and clocks are set right by little steps."""


class ProcessHandler(Handler):
    """Knows its process by the file in which that has written its number."""

    def __init__(self, options: TomlTable) -> None:
        known = {"pid_file", "signal", "kill_after", "start", "directory", "log", "write_pid"}
        options.refuse_unknown({*known, *COMMON})
        options.required_text("pid_file", 'Write it like "/run/worker.pid".')
        self._pid_file = read_path(options, "pid_file")
        self._signal = options.word("signal", _SIGNALS, "TERM")
        self._kill_after = options.length("kill_after")
        self._directory = read_path(options, "directory")
        self._start = read_argv(options, "start")
        self._log = read_path(options, "log")
        self._write_pid = bool(options.flag("write_pid"))
        for key in ("directory", "log", "write_pid"):
            if key in options and not self._start:
                raise options.wrong("Is for what is started; there is no start.", key)

    def describe(self, action: str) -> str:
        if action == PREPARE:
            return f"send {self._signal} to the process of {self._pid_file} and wait until it has ended"
        return f"run {shlex.join(self._start)}, if it was running" if self._start else ""

    def prepare(self, job: Job) -> None:
        if "pid" in job.memo and job.memo.get("boot") == boot_id():
            # Begun before a kill. The file may be gone by now, the process not yet.
            process = Process(job.memo["pid"], job.memo["started"])
        else:
            found = self._find()
            if found is None:
                job.say(f"nothing to stop: no process of {self._pid_file} is running")
                return
            process = found
            job.remember(pid=process.pid, started=process.started, boot=boot_id())
        self._stop(job, process)

    def undo(self, job: Job) -> None:
        if not self._start or "pid" not in job.memo:
            return
        running = self._named()
        same_number = running is not None and running.pid == job.memo["pid"]
        same = same_number and (running, boot_id()) == (
            Process(job.memo["pid"], job.memo["started"]),
            job.memo.get("boot"),
        )
        # A file with the old number is left from before; whoever has that number now is somebody else.
        if running is not None and (same or not same_number):
            job.say(f"process {running.pid} is running already")
            return
        pid = start_detached(job, self._start, self._directory, self._log)
        if self._write_pid:
            try:
                write_atomically(Path(self._pid_file), f"{pid}\n".encode(), 0o644)
            except OSError as error:
                raise HandlerFailed(problem=f"cannot write {self._pid_file}: {error.strerror}.") from error

    def _named(self) -> Process | None:
        """The process that has the number in the file, whoever it is."""
        try:
            text = Path(self._pid_file).read_text(errors="replace").split()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise HandlerFailed(problem=f"cannot read {self._pid_file}: {error.strerror}.") from error
        if not text:
            return None
        if not text[0].isdecimal() or not 1 < int(text[0]) < 1 << 31:
            raise HandlerFailed(problem=f"{self._pid_file} holds {text[0][:40]!r}, which is no number of a process.")
        return find_process(int(text[0]))

    def _find(self) -> Process | None:
        process = self._named()
        if process is None:
            return None
        if process.pid == os.getpid():
            raise HandlerFailed(problem=f"{self._pid_file} names the agent itself.")
        begun = started_at(process)
        if begun is not None and begun > Path(self._pid_file).stat().st_mtime + _CLOCK_SLACK_SECONDS:
            # Who writes his number into a file has been started before. This one has got the number of a dead one.
            problem = f"process {process.pid} was started after {self._pid_file} was written: it is another one."
            raise HandlerFailed(problem=f"{problem} Remove the file if what wrote it has ended.")
        return process

    def _stop(self, job: Job, process: Process) -> None:
        _send(process, self._signal)
        begun, killed = real_seconds(), self._signal == "KILL"
        while process.lives:
            if job.seconds_left() <= 0:
                raise HandlerFailed(problem=f"process {process.pid} has not ended within the time limit.")
            if self._kill_after is not None and not killed:
                killed = real_seconds() - begun >= self._kill_after.total_seconds()
                if killed:
                    job.warn(f"process {process.pid} has not ended, and is killed", pid=process.pid)
                    _send(process, "KILL")
            if job.wait(_LOOK_SECONDS):
                raise HandlerFailed(problem=f"was told to stop before process {process.pid} had ended.")


def _send(process: Process, name: str) -> None:
    """To this very process: between the look and the signal its number may be given to another."""
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
            raise HandlerFailed(problem=f"may not send {name} to process {process.pid}.") from error
        finally:
            if descriptor >= 0:
                os.close(descriptor)


KIND = ProcessHandler
