"""Kills of an agent while its program runs: never two programs at once, and none is left."""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from depth import amount
from forewarn.agent.handlers import program
from forewarn.system import child_process, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EVERY = amount(1, 8)
"""The deep profile kills at every line, the quick one at every eighth."""

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# Says so when another of its kind is running. Told to stay, it stays until it is ended; or a little longer, to tidy up.
LONELY = """
import fcntl, os, signal, sys, threading
folder = sys.argv[1]
signal.alarm(300)
busy = open(folder + "/busy", "a")
try:
    fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    open(folder + "/overlap", "w")
    sys.exit(1)
def tidy_up(*_):
    threading.Event().wait(0.2)
    os._exit(0)
if sys.argv[2] == "tidy":
    signal.signal(signal.SIGTERM, tidy_up)
print("runs", flush=True)
while sys.argv[2] in ("stay", "tidy"):
    signal.pause()
"""


class Agents:
    """Agents, each of which runs the program and may be killed at a line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "lonely.py").write_text(LONELY)
        self._process = subprocess.Popen(
            [sys.executable, "-S", HERE / "kill_at_line.py"],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, folder: Path, place: str = "", manner: str = "go") -> int:
        folder.mkdir(exist_ok=True)
        argv = [sys.executable, "-S", str(self.folder / "lonely.py"), str(folder), manner]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"folder": str(folder), "place": place, "argv": argv}) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def agents(tmp_path: Path) -> Iterator[Agents]:
    agents = Agents(tmp_path)
    yield agents
    agents.close()


def is_free(folder: Path) -> bool:
    """Whether no program of that folder runs."""
    with (folder / "busy").open("a") as busy:
        try:
            fcntl.flock(busy, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def lines_of(folder: Path) -> list[str]:
    return (folder / "lines").read_text().split()


def functions_of(lines: list[str]) -> set[str]:
    return {line.partition(":")[0] for line in lines}


def line_of(function: Callable[..., object], text: str) -> str:
    source, first = inspect.getsourcelines(function)
    (number,) = [number for number, line in enumerate(source, first) if text in line]
    return f"{name_of(function)}:{number}"


def name_of(function: Callable[..., object]) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}"


HEARD = line_of(program.ProgramOutput._end_line, "self._job.info(short)")
"""When an agent comes to this line, its program runs."""


def assert_the_next_is_alone(agents: Agents, folder: Path, place: str) -> None:
    assert agents.run(folder) == 0, f"{place}: {(folder / 'said').read_text()}"
    assert not (folder / "overlap").exists(), place
    assert is_free(folder), place


def assert_most_were_killed(ends: list[int]) -> None:
    """A few lines are only come to when a process ends while it is looked at: then all goes through, which is fine."""
    assert set(ends) <= {-9, 0}
    assert ends.count(-9) > len(ends) * 3 / 4


def test_killed_at_every_line_it_never_runs_two_and_leaves_none(agents: Agents, tmp_path: Path) -> None:
    assert agents.run(tmp_path) == 0, (tmp_path / "said").read_text()
    lines = lines_of(tmp_path)
    reached = functions_of(lines)
    assert reached >= {
        name_of(program.run_program),
        name_of(program._take_lock),
        name_of(child_process.ChildProcess.start),
    }
    assert reached >= {
        name_of(program.ProgramOutput.take),
        name_of(processes.find_process),
        "subprocess.Popen._execute_child",
    }
    # Not simply those before HEARD: on a busy machine the program may have ended before it was heard.
    assert agents.run(tmp_path / "stays", HEARD, "stay") == -9
    while_it_runs = {*lines_of(tmp_path / "stays")}
    assert_the_next_is_alone(agents, tmp_path / "stays", HEARD)
    left, ends = 0, []
    for number, line in list(enumerate(lines))[::EVERY]:
        folder = tmp_path / str(number)
        # Other lines are only come to when the program ends.
        manner = "stay" if line in while_it_runs else "go"
        ends.append(agents.run(folder, line, manner))
        left += (folder / "busy").exists() and not is_free(folder)
        assert_the_next_is_alone(agents, folder, line)
    assert left > 0, "no agent was killed while its program ran: nothing was tried"
    assert_most_were_killed(ends)


def test_killed_while_it_sees_off_an_earlier_one(agents: Agents, tmp_path: Path) -> None:
    """The one that comes third still finds what the first has left, and has not ended yet."""
    assert agents.run(tmp_path) == 0
    known = lines_of(tmp_path)
    second = tmp_path / "second"
    assert agents.run(second, HEARD, "tidy") == -9
    (second / "lines").unlink()
    assert not is_free(second)
    assert_the_next_is_alone(agents, second, HEARD)
    more = [line for line in lines_of(second) if line not in known]
    assert functions_of(more) >= {name_of(processes.end_group), name_of(program._end_earlier)}
    ends = []
    for number, line in list(enumerate(more))[::EVERY]:
        folder = tmp_path / str(number)
        assert agents.run(folder, HEARD, "tidy") == -9
        ends.append(agents.run(folder, line))
        assert_the_next_is_alone(agents, folder, line)
    assert_most_were_killed(ends)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"limit": 0.1}', '{"limit": "x"}'])
def test_a_lock_without_an_owner_is_waited_for_with_a_limit(agents: Agents, tmp_path: Path, content: str) -> None:
    """An agent that stopped before it wrote its data to the lock has not started a program."""
    (tmp_path / "run").mkdir()
    with (tmp_path / "run" / "it.lock").open("w") as lock:
        lock.write(content)
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert agents.run(tmp_path) == 0, (tmp_path / "said").read_text()


def test_a_number_that_another_process_has_now_is_left_alone(agents: Agents, tmp_path: Path) -> None:
    """The lock is held by a daemon; the process that is written down has ended, and its number was given away."""
    (tmp_path / "run").mkdir()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        try:
            with (tmp_path / "run" / "it.lock").open("w") as lock:
                lock.write(json.dumps({"limit": 60, "pid": other.pid, "started": 1}))
                lock.flush()
                fcntl.flock(lock, fcntl.LOCK_EX)
                assert agents.run(tmp_path) == 0, (tmp_path / "said").read_text()
            assert other.poll() is None
        finally:
            other.kill()
