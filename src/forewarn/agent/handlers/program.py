"""Runs one program for a handler: with a timeout, with its output in the log, and never two at once.

A lock on disk guarantees that even if the agent that started the program was killed.
"""

from __future__ import annotations

import os
import re
import signal
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple, cast

from forewarn.agent.clock import pause, real_seconds
from forewarn.errors import HandlerFailed
from forewarn.system.child_process import GO, ChildProcess
from forewarn.system.processes import GRACE_SECONDS, end_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path
    from selectors import BaseSelector
    from subprocess import Popen
    from typing import IO

    from forewarn.agent.handlers.handler import Job


# --- The output -----------------------------------------------------------------------------------


MAX_LINES = 200
MAX_LINE_LENGTH = 2_000
_MAX_BUFFERED_LINE = 65_536
"""For `on_line`: a FOREWARN_MEMO line may be longer than a line of the log."""
_LAST_LINES = 5


class ProgramOutput:
    """Splits the output of a program into lines and logs them."""

    def __init__(self, job: Job, on_line: Callable[[str], bool]) -> None:
        self._job = job
        self._on_line = on_line
        self._partial = bytearray()
        self._logged = 0
        self._omitted = 0
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, data: bytes) -> None:
        """Add output, which may end within a line."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._end_line()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._partial += part[: max(0, _MAX_BUFFERED_LINE - len(self._partial))]

    def _end_line(self) -> None:
        line = self._partial.decode(errors="replace").rstrip("\r")
        self._partial.clear()
        if self._on_line(line):
            return
        short = line if len(line) <= MAX_LINE_LENGTH else line[:MAX_LINE_LENGTH] + "…"
        if short.strip():
            self.last.append(short)
        if self._logged < MAX_LINES:
            self._logged += 1
            self._job.info(short)
        else:
            self._omitted += 1

    def end(self) -> None:
        """Finish the last line."""
        if self._partial:
            self._end_line()
        if self._omitted:
            self._job.warning(f"{self._omitted} more lines of output are not logged", omitted=self._omitted)


# --- The lock -------------------------------------------------------------------------------------


_LOCK_POLL_SECONDS = 0.1


def _resume(job: Job, child: ChildProcess) -> bool:
    """Wait for a program of this run that a killed agent has started. Return whether it succeeded.

    If it failed, or its exit code is unknown, it must run again.
    """
    try:
        left = child.process()
        if not job.run or child.facts().get("run") != job.run or left is None:
            return False
        if left.lives:
            job.info(f"waiting for process {left.pid}, which the previous agent started", pid=left.pid)
        while left.lives:
            if job.wait(_LOCK_POLL_SECONDS) or job.seconds_left() <= 0:
                return False
        return child.exit_code(job.run) == 0
    except OSError:
        return False


def _take_lock(job: Job, child: ChildProcess, run: str) -> int:
    """Take the lock of the job's handler. If an earlier program of this handler is still running, it is ended first.

    `run` is the id of a run that a later agent may resume; empty: it may not.
    """
    try:
        _folder_of(job).mkdir(mode=0o700, parents=True, exist_ok=True)
        if child.is_held():
            _end_earlier(job, child)
        return child.take_lock({"limit": job.seconds_left(), "run": run})
    except OSError as error:
        raise HandlerFailed(problem=f"cannot lock {error.filename or job.folder}: {error.strerror}.") from error


def _folder_of(job: Job) -> Path:
    return job.folder.absolute() / "run"


def _child_of(job: Job) -> ChildProcess:
    # A handler's name may have any character: encode those that are not safe in a file name.
    name = re.sub(r"[^A-Za-z0-9_-]", lambda found: f"%{ord(found[0]):X}", job.handler)
    return ChildProcess(_folder_of(job) / f"{name}.lock", _folder_of(job) / f"{name}.end")


def _end_earlier(job: Job, child: ChildProcess) -> None:
    """End an earlier program of the handler."""
    left = child.process()
    if left is None:
        _wait_for_lock(job, child)
    elif left.lives:
        job.warning(f"ending process {left.pid} of an earlier run", pid=left.pid)
        end_group(left.pid, pause)
        if left.lives:
            raise HandlerFailed(problem=f"process {left.pid} of an earlier run cannot be ended.")


def _wait_for_lock(job: Job, child: ChildProcess) -> None:
    """Wait for a process whose id was not recorded before a kill. It was not allowed to start, and ends by itself."""
    limit = child.facts().get("limit")
    deadline = real_seconds() + (limit if isinstance(limit, (int, float)) else 0.0)
    while child.is_held():
        if job.seconds_left() <= 0:
            raise HandlerFailed(problem="an earlier run did not end before the timeout.")
        if job.wait(_LOCK_POLL_SECONDS):
            raise HandlerFailed(problem="was stopped while an earlier run had not ended.")
        if real_seconds() >= deadline:
            return


# --- The program ----------------------------------------------------------------------------------


_POLL_SECONDS = 0.2
_READ_SIZE = 65_536
_MAX_PIPE_SIZE = 1_048_576


class ProgramResult(NamedTuple):
    """The exit status and last output of a program."""

    name: str
    status: int
    """The exit code; negative: the signal that ended the program."""
    last_lines: tuple[str, ...]

    @property
    def error(self) -> HandlerFailed:
        """An error with the exit status and the last output."""
        how = f"exit code {self.status}" if self.status >= 0 else f"signal {_signal_name(-self.status)}"
        return HandlerFailed(problem=f"{self.name} ended with {how}{_last_lines_text(self.last_lines)}")


def run_program(
    job: Job,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    text: str = "",
    directory: str = "",
    on_line: Callable[[str], bool] = lambda _: False,
    resumable: bool = False,
) -> ProgramResult:
    """Run a program and wait for its end. `text` is its input. `on_line` gets each line; True: do not log the line.

    `resumable`: if the agent was killed while the program ran, and the program succeeded, do not run it again. Use it
    only for handlers that run a single program and do not need its output.
    Raise HandlerFailed if the program cannot start, does not end before the timeout, or is stopped.
    """
    import subprocess  # imported here: an idle agent runs no programs

    variables = {**os.environ, **(environment or {})}
    place = os.path.abspath(directory or job.folder)  # noqa: PTH100
    program = find_program(argv[0], variables, place)
    child = _child_of(job)
    if resumable and _resume(job, child):
        return ProgramResult(argv[0], 0, ())
    if job.seconds_left() <= 0:
        raise HandlerFailed(problem=f"{argv[0]} was not started: the timeout has passed.")
    run = job.run if resumable else ""
    lock = _take_lock(job, child, run)
    try:
        process = child.start(
            lock,
            [program, *argv[1:]],
            run=run,
            survives_signals=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=variables,
            cwd=place,
        )
    except (OSError, ValueError) as error:
        raise HandlerFailed(problem=f"cannot start {argv[0]}: {error}.") from error
    output = ProgramOutput(job, on_line)
    try:
        problem = _RunningProgram(job, process, output, GO + text.encode()).run()
    finally:
        _clean_up(process)
        output.end()
    if problem:
        raise HandlerFailed(problem=f"{argv[0]} {problem}{_last_lines_text(tuple(output.last))}")
    return ProgramResult(argv[0], process.returncode, tuple(output.last))


def find_program(name: str, variables: Mapping[str, str], directory: str) -> str:
    """Return the path of a program, or raise HandlerFailed with the reason."""
    if not os.path.isdir(directory):  # noqa: PTH112 - no Path needed
        raise HandlerFailed(problem=f"there is no folder {directory} to run {name} in.")
    # Like execvp: search PATH only for a name without a slash.
    places = [""] if "/" in name else variables.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(directory, place, name) for place in places]  # noqa: PTH118
    for path in paths:
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    if "/" not in name:
        problem = "it is not in PATH."
    elif os.path.isdir(paths[0]):  # noqa: PTH112
        problem = "it is a folder."
    else:
        problem = "it is not executable." if os.path.exists(paths[0]) else "there is no such file."  # noqa: PTH110
    raise HandlerFailed(problem=f"cannot run {name}: {problem}")


def missing_programs(argvs: Iterable[Sequence[str]], variables: Mapping[str, str], directory: str) -> Iterator[str]:
    """Yield why a program cannot be run, for each that cannot."""
    for argv in argvs:
        try:
            if argv:
                find_program(argv[0], variables, directory or "/")
        except HandlerFailed as error:  # noqa: PERF203 - check the others too
            yield str(error)


class _RunningProgram:
    """A program that runs: writes its input, reads its output, and ends it at the timeout."""

    def __init__(self, job: Job, process: Popen[bytes], output: ProgramOutput, text: bytes) -> None:
        self._job = job
        self._process = process
        self._output = output
        self._text = text
        self._input_pipe, self._output_pipe = (cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout))
        for pipe in (self._input_pipe, self._output_pipe):
            os.set_blocking(pipe.fileno(), False)

    def run(self) -> str:
        """Wait for the end of the program. Return why it was ended early, or an empty string."""
        import selectors  # imported here: an idle agent runs no programs

        with selectors.DefaultSelector() as selector, _wake_at_exit(self._process, selector):
            selector.register(self._input_pipe, selectors.EVENT_WRITE)
            selector.register(self._output_pipe, selectors.EVENT_READ)
            while self._process.poll() is None and not (problem := self._stop_reason()):
                ready = {key.fileobj for key, _ in selector.select(min(_POLL_SECONDS, self._job.seconds_left()))}
                if self._input_pipe in ready and self._write_input():
                    selector.unregister(self._input_pipe)
                    self._input_pipe.close()
                if self._output_pipe in ready and self._read_output() == 0:
                    selector.unregister(self._output_pipe)
            if self._process.returncode is not None:
                problem = ""
        if problem:
            end_group(self._process.pid, pause)
        self._read_remaining_output()
        return problem

    def _stop_reason(self) -> str:
        if self._job.seconds_left() <= 0:
            return "was ended at its timeout"
        return "was ended because it is no longer needed" if self._job.wait(0) else ""

    def _write_input(self) -> bool:
        """Write as much input as possible. Return whether to stop: all is written, or the program does not read it."""
        try:
            self._text = self._text[os.write(self._input_pipe.fileno(), self._text) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._text

    def _read_output(self) -> int | None:
        """Read available output. Return its size, 0 at the end, None if there is nothing now."""
        try:
            data = os.read(self._output_pipe.fileno(), _READ_SIZE)
        except BlockingIOError:
            return None
        self._output.take(data)
        return len(data)

    def _read_remaining_output(self) -> None:
        """Read what is left in the pipe, at most its size: a daemon of the program may keep writing."""
        size = 0
        while size < _MAX_PIPE_SIZE and (more := self._read_output()):
            size += more


@contextmanager
def _wake_at_exit(process: Popen[bytes], selector: BaseSelector) -> Iterator[None]:
    """Wake the selector when the process ends, if the system supports it."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        yield
        return
    try:
        selector.register(descriptor, 1)  # EVENT_READ
        yield
    finally:
        os.close(descriptor)


def _clean_up(process: Popen[bytes]) -> None:
    """End the process and close its pipes, also after an exception."""
    import subprocess  # imported here, as above

    if process.poll() is None:
        end_group(process.pid, pause)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _last_lines_text(lines: tuple[str, ...]) -> str:
    return f": {' / '.join(lines)}" if lines else "."
