"""Runs one program for a handler: within its time limit, with its output in the log, and never two at once.

A lock on disk holds that even when the agent that started the program was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
from collections import deque
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from forewarn.agent.clock import real_seconds
from forewarn.agent.machine import GRACE_SECONDS, Process, end_group, find_process
from forewarn.errors import HandlerFailed

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
_NUMBERS = ("limit", "pid", "started")


class RunLock:
    """The lock of the one program that runs."""

    def __init__(self, descriptor: int, limit_seconds: float, run: str, end_file: Path) -> None:
        self.descriptor = descriptor
        self.end_file = end_file
        """Where the program's end is written down."""
        self._facts: dict[str, Any] = {"limit": limit_seconds, "run": run}
        self._write()

    def record(self, pid: int) -> None:
        """This process is the one; it does not do anything yet."""
        process = find_process(pid)
        if process is not None:
            self._facts |= {"pid": process.pid, "started": process.started}
            self._write()

    def _write(self) -> None:
        # Each text is longer than the one before, so one write over it is enough, and there is never half of one.
        os.pwrite(self.descriptor, json.dumps(self._facts).encode(), 0)


@contextmanager
def run_lock(job: Job, run: str = "") -> Iterator[RunLock]:
    """Hold the lock of the job's handler, once an earlier program of it has ended or was ended.

    `run` is the run that a later agent may take up; empty: none may.
    """
    try:
        path = _path(job)
        _see_off(job, path)
        descriptor = _fresh(path)
    except OSError as error:
        raise HandlerFailed(problem=f"cannot lock {error.filename or job.folder}: {error.strerror}.") from error
    try:
        yield RunLock(descriptor, job.seconds_left(), run, path.with_suffix(".end"))
    finally:
        os.close(descriptor)


def taken_up(job: Job) -> bool:
    """Whether the program of this very run, which an agent has begun that was killed, has done its work.

    It is waited for while it goes on. One that has failed, or whose end nobody has seen, is to be run again.
    """
    try:
        path = _path(job)
        facts = _facts_in(path)
        if not job.run or facts.get("run") != job.run or "pid" not in facts:
            return False
        left = Process(facts["pid"], facts["started"])
        if left.lives:
            job.say(f"process {left.pid}, of the agent before, goes on and is waited for", pid=left.pid)
        while left.lives:
            if job.wait(_LOCK_LOOK_SECONDS) or job.seconds_left() <= 0:
                return False
        return path.with_suffix(".end").read_text("utf-8").split() == [job.run, "0"]
    except (OSError, UnicodeError):
        return False


def _facts_in(path: Path) -> dict[str, Any]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return _read(descriptor)
    finally:
        os.close(descriptor)


def _path(job: Job) -> Path:
    folder = job.folder.absolute() / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A name of the config may hold anything; what is no plain character is written by its number.
    return folder / (re.sub(r"[^A-Za-z0-9_-]", lambda found: f"%{ord(found[0]):X}", job.handler) + ".lock")


def _fresh(path: Path) -> int:
    """A new file in the place of the old: the old one's lock may be held by a daemon for ever."""
    new = path.with_suffix(".new")
    # One that a killed agent has left: nobody has it open, since no program is started before it has its place.
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _see_off(job: Job, path: Path) -> None:
    """See to it that an earlier program does nothing any more."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if _is_free(descriptor):
            return
        facts = _read(descriptor)
        if "pid" not in facts:
            _wait_until_free(job, descriptor, facts)
            return
        left = Process(facts["pid"], facts["started"])
        if left.lives:
            job.warn(f"process {left.pid} of an earlier run is still there, and is ended", pid=left.pid)
            end_group(left.pid)
            if left.lives:
                raise HandlerFailed(problem=f"process {left.pid} of an earlier run cannot be ended.")
    finally:
        os.close(descriptor)


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read(descriptor: int) -> dict[str, Any]:
    with suppress(ValueError):
        facts = json.loads(os.pread(descriptor, 4096, 0))
        if isinstance(facts, dict) and all(isinstance(facts.get(name, 0), (int, float)) for name in _NUMBERS):
            return facts
    return {}


def _wait_until_free(job: Job, descriptor: int, facts: dict[str, Any]) -> None:
    """The agent was killed before it wrote down which process it is. That one was not let begin, and ends by itself."""
    until = real_seconds() + facts.get("limit", 0.0)
    while not _is_free(descriptor):
        if job.seconds_left() <= 0:
            raise HandlerFailed(problem="an earlier run has not ended within the time limit.")
        if job.wait(_LOCK_LOOK_SECONDS):
            raise HandlerFailed(problem="was told to stop while an earlier run had not ended.")
        if real_seconds() >= until:
            return


# --- The program ----------------------------------------------------------------------------------


_GATE = """
file=$1 run=$2
shift 2
read -r go || exit 1
trap : HUP INT TERM
"$@"
code=$?
trap - HUP INT TERM
echo "$run $code" > "$file"
case $code in 129 | 13[0-9] | 14[0-3]) kill -s $((code - 128)) $$ 2> /dev/null ;; esac
exit $code
"""
"""The program begins when the agent says so, after it has written down which process it is. If the agent is killed
before that, its end of the pipe is closed, and nothing begins. How it has ended is written down as well: the agent may
be killed before it sees that. A signal to the group ends the program, and this only after it: as long as the program
tidies up, the process that is written down is there."""
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
    if takes_up and taken_up(job):
        return Ended(argv[0], 0, ())
    if job.seconds_left() <= 0:
        raise HandlerFailed(problem=f"{argv[0]} was not started: the time limit has passed.")
    run = job.run if takes_up else ""
    with run_lock(job, run) as lock:
        try:
            process = subprocess.Popen(  # noqa: S603 - the config says what is run
                ["/bin/sh", "-c", _GATE, argv[0], str(lock.end_file), run, program, *argv[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=variables,
                cwd=place,
                start_new_session=True,
                pass_fds=(lock.descriptor,),
            )
        except (OSError, ValueError) as error:
            raise HandlerFailed(problem=f"{argv[0]} could not be started: {error}.") from error
        output = Output(job, on_line)
        try:
            lock.record(process.pid)
            problem = _Attendance(job, process, output, f"go\n{text}".encode()).attend()
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
            end_group(self._process.pid)
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
        end_group(process.pid)
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
