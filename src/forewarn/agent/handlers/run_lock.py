"""That of one handler only one program runs, even when the agent that started it was killed.

A killed agent leaves its program behind. So each program inherits a lock on a file of its handler, in which the agent
writes which process it is before the program begins. Whoever comes next sees by the lock that there may be one left:
if it is of the very run that is to be taken up, it is waited for, else it is ended. A daemon that a program leaves on
purpose holds the lock too; only the process that is written down counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.processes import Process, end_group, find_process
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forewarn.agent.handlers.handler import Job

_LOOK_SECONDS = 0.1
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
def run_lock(job: Job) -> Iterator[RunLock]:
    """Hold the lock of the job's handler, once an earlier program of it has ended or was ended."""
    try:
        path = _path(job)
        _see_off(job, path)
        descriptor = _fresh(path)
    except OSError as error:
        raise HandlerFailed(problem=f"cannot lock {error.filename or job.folder}: {error.strerror}.") from error
    try:
        yield RunLock(descriptor, job.seconds_left(), job.run, path.with_suffix(".end"))
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
            if job.wait(_LOOK_SECONDS) or job.seconds_left() <= 0:
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
    folder = job.folder / "run"
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
        if job.wait(_LOOK_SECONDS):
            raise HandlerFailed(problem="was told to stop while an earlier run had not ended.")
        if real_seconds() >= until:
            return
