"""Runs one program for a handler: within its time limit, with its output in the log, and never two at once.

A lock on disk holds that even when the agent that started the program was killed.
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
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path
    from selectors import BaseSelector
    from subprocess import Popen
    from typing import IO

    from forewarn.agent.handlers.handler import Job


# --- The output -----------------------------------------------------------------------------------


MOST_LINES = 200
LONGEST_LINE = 2_000
_LONGEST_KEPT = 65_536
"""Of one line, for who reads it: a program may say a fact that is longer than what is worth a line of the log."""
_LAST_LINES = 5


class Output:
    """The output of one program."""

    def __init__(self, job: Job, on_line: Callable[[str], bool]) -> None:
        self._job = job
        self._on_line = on_line
        self._begun = bytearray()
        self._said = 0
        self._left_out = 0
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, data: bytes) -> None:
        """Some more of it, not always whole lines."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._end_line()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._begun += part[: max(0, _LONGEST_KEPT - len(self._begun))]

    def _end_line(self) -> None:
        line = self._begun.decode(errors="replace").rstrip("\r")
        self._begun.clear()
        if self._on_line(line):
            return
        short = line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
        if short.strip():
            self.last.append(short)
        if self._said < MOST_LINES:
            self._said += 1
            self._job.say(short)
        else:
            self._left_out += 1

    def end(self) -> None:
        """Nothing more comes."""
        if self._begun:
            self._end_line()
        if self._left_out:
            self._job.warn(f"{self._left_out} more lines of output were left out", left_out=self._left_out)


# --- The lock -------------------------------------------------------------------------------------


_LOCK_LOOK_SECONDS = 0.1


def _taken_up(job: Job, child: ChildProcess) -> bool:
    """Whether the program of this very run, which an agent has begun that was killed, has done its work.

    It is waited for while it goes on. One that has failed, or whose end nobody has seen, is to be run again.
    """
    try:
        left = child.process()
        if not job.run or child.facts().get("run") != job.run or left is None:
            return False
        if left.lives:
            job.say(f"process {left.pid}, of the agent before, goes on and is waited for", pid=left.pid)
        while left.lives:
            if job.wait(_LOCK_LOOK_SECONDS) or job.seconds_left() <= 0:
                return False
        return child.exit_code(job.run) == 0
    except OSError:
        return False


def _take_lock(job: Job, child: ChildProcess, run: str) -> int:
    """Take the lock of the job's handler, once an earlier program of it has ended or was ended.

    `run` is the run that a later agent may take up; empty: none may.
    """
    try:
        _folder_of(job).mkdir(mode=0o700, parents=True, exist_ok=True)
        if child.is_held():
            _see_off(job, child)
        return child.take_lock({"limit": job.seconds_left(), "run": run})
    except OSError as error:
        raise HandlerFailed(problem=f"cannot lock {error.filename or job.folder}: {error.strerror}.") from error


def _folder_of(job: Job) -> Path:
    return job.folder.absolute() / "run"


def _child_of(job: Job) -> ChildProcess:
    # A name of the config may hold anything; what is no plain character is written by its number.
    name = re.sub(r"[^A-Za-z0-9_-]", lambda found: f"%{ord(found[0]):X}", job.handler)
    return ChildProcess(_folder_of(job) / f"{name}.lock", _folder_of(job) / f"{name}.end")


def _see_off(job: Job, child: ChildProcess) -> None:
    """See to it that an earlier program does nothing any more."""
    left = child.process()
    if left is None:
        _wait_until_free(job, child)
    elif left.lives:
        job.warn(f"process {left.pid} of an earlier run is still there, and is ended", pid=left.pid)
        end_group(left.pid, pause)
        if left.lives:
            raise HandlerFailed(problem=f"process {left.pid} of an earlier run cannot be ended.")


def _wait_until_free(job: Job, child: ChildProcess) -> None:
    """The agent was killed before it wrote down which process it is. That one was not let begin, and ends by itself."""
    limit = child.facts().get("limit")
    until = real_seconds() + (limit if isinstance(limit, (int, float)) else 0.0)
    while child.is_held():
        if job.seconds_left() <= 0:
            raise HandlerFailed(problem="an earlier run has not ended within the time limit.")
        if job.wait(_LOCK_LOOK_SECONDS):
            raise HandlerFailed(problem="was told to stop while an earlier run had not ended.")
        if real_seconds() >= until:
            return


# --- The program ----------------------------------------------------------------------------------


_LOOK_SECONDS = 0.2
_MOST_AT_ONCE = 65_536
_MOST_IN_A_PIPE = 1_048_576


class Ended(NamedTuple):
    """How a program has ended."""

    name: str
    status: int
    """Its exit code, or below 0 the signal that ended it."""
    last_lines: tuple[str, ...]

    @property
    def failed(self) -> HandlerFailed:
        """The error that says how."""
        how = f"exit code {self.status}" if self.status >= 0 else f"signal {_signal_name(-self.status)}"
        return HandlerFailed(problem=f"{self.name} ended with {how}{_said(self.last_lines)}")


def run_program(
    job: Job,
    argv: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    text: str = "",
    directory: str = "",
    on_line: Callable[[str], bool] = lambda _: False,
    takes_up: bool = False,
) -> Ended:
    """Run a program to its end. `text` is its input; `on_line` sees each line of output, and may keep it to itself.

    With `takes_up` it is not run a second time if an agent was killed while it ran, and it came to a good end all the
    same. That is for handlers that run one program only, and can do without what it has said.
    Raises HandlerFailed when it could not be started, has not ended in time, or was to stop.
    """
    import subprocess  # an agent at rest runs no programs

    variables = {**os.environ, **(environment or {})}
    place = os.path.abspath(directory or job.folder)  # noqa: PTH100
    program = find_program(argv[0], variables, place)
    child = _child_of(job)
    if takes_up and _taken_up(job, child):
        return Ended(argv[0], 0, ())
    if job.seconds_left() <= 0:
        raise HandlerFailed(problem=f"{argv[0]} was not started: the time limit has passed.")
    run = job.run if takes_up else ""
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
        raise HandlerFailed(problem=f"{argv[0]} could not be started: {error}.") from error
    output = Output(job, on_line)
    try:
        problem = _Attendance(job, process, output, GO + text.encode()).attend()
    finally:
        _clear(process)
        output.end()
    if problem:
        raise HandlerFailed(problem=f"{argv[0]} {problem}{_said(tuple(output.last))}")
    return Ended(argv[0], process.returncode, tuple(output.last))


def find_program(name: str, variables: Mapping[str, str], directory: str) -> str:
    """Where a program is, or an error that says why it cannot be run."""
    if not os.path.isdir(directory):  # noqa: PTH112 - the text is what it is about
        raise HandlerFailed(problem=f"there is no folder {directory} to run {name} in.")
    # As the system does it: a name alone is looked for, one with a folder is taken as it is.
    places = [""] if "/" in name else variables.get("PATH", os.defpath).split(os.pathsep)
    paths = [os.path.join(directory, place, name) for place in places]  # noqa: PTH118
    for path in paths:
        if os.path.isfile(path) and os.access(path, os.X_OK):  # noqa: PTH113
            return path
    if "/" not in name:
        problem = "there is none in PATH."
    elif os.path.isdir(paths[0]):  # noqa: PTH112
        problem = "that is a folder."
    else:
        problem = "it is not executable." if os.path.exists(paths[0]) else "there is no such file."  # noqa: PTH110
    raise HandlerFailed(problem=f"cannot run {name}: {problem}")


class _Attendance:
    """Being there while it runs: it is fed, listened to, and ended when its time is over."""

    def __init__(self, job: Job, process: Popen[bytes], output: Output, text: bytes) -> None:
        self._job = job
        self._process = process
        self._output = output
        self._text = text
        self._input, self._heard = (cast("IO[bytes]", pipe) for pipe in (process.stdin, process.stdout))
        for pipe in (self._input, self._heard):
            os.set_blocking(pipe.fileno(), False)

    def attend(self) -> str:
        """To its end. What went wrong, or nothing."""
        import selectors  # an agent at rest runs no programs

        with selectors.DefaultSelector() as selector, _noticing_the_end(self._process, selector):
            selector.register(self._input, selectors.EVENT_WRITE)
            selector.register(self._heard, selectors.EVENT_READ)
            while self._process.poll() is None and not (problem := self._over()):
                ready = {key.fileobj for key, _ in selector.select(min(_LOOK_SECONDS, self._job.seconds_left()))}
                if self._input in ready and self._feed():
                    selector.unregister(self._input)
                    self._input.close()
                if self._heard in ready and self._listen() == 0:
                    selector.unregister(self._heard)
            if self._process.returncode is not None:
                problem = ""
        if problem:
            end_group(self._process.pid, pause)
        self._hear_the_rest()
        return problem

    def _over(self) -> str:
        if self._job.seconds_left() <= 0:
            return "was ended because its time limit has passed"
        return "was ended because it is not wanted any more" if self._job.wait(0) else ""

    def _feed(self) -> bool:
        """Write what fits. Whether all is written; a program need not read its input."""
        try:
            self._text = self._text[os.write(self._input.fileno(), self._text) :]
        except BlockingIOError:
            return False
        except OSError:
            return True
        return not self._text

    def _listen(self) -> int | None:
        """Read what there is: how much, 0 at the end of it, None when there is nothing just now."""
        try:
            data = os.read(self._heard.fileno(), _MOST_AT_ONCE)
        except BlockingIOError:
            return None
        self._output.take(data)
        return len(data)

    def _hear_the_rest(self) -> None:
        """What is still in the pipe, and no more: a daemon that it has left may go on talking for ever."""
        heard = 0
        while heard < _MOST_IN_A_PIPE and (more := self._listen()):
            heard += more


@contextmanager
def _noticing_the_end(process: Popen[bytes], selector: BaseSelector) -> Iterator[None]:
    """Let the selector wake up when the process ends, where the system can tell."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (OSError, AttributeError):
        yield
        return
    try:
        selector.register(descriptor, 1)  # to be read
        yield
    finally:
        os.close(descriptor)


def _clear(process: Popen[bytes]) -> None:
    """Leave nothing behind, also when something else went wrong meanwhile."""
    import subprocess  # see above

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


def _said(lines: tuple[str, ...]) -> str:
    return f": {' / '.join(lines)}" if lines else "."
