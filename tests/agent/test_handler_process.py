"""The handler `process`: real processes, stopped and started again."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, handler_of, then, toml_list
from agent.workers import Worker
from forewarn.errors import BadAgentConfig, HandlerFailed
from forewarn.system.processes import find_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.close()


def options(folder: Path, more: str = "") -> str:
    return f'kind = "process"\npid_file = "{folder}/pid"\n{more}'


def started(worker: Worker, more: str = "") -> str:
    return options(worker.folder, f"start = {toml_list(*worker.argv())}\n{more}")


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_the_process_gets_sigterm_and_is_waited_for(tmp_path: Path, worker: Worker, name: str) -> None:
    pid = worker.start()
    handler = handler_of(options(tmp_path, f'signal = "{name}"'))
    assert handler.describe("prepare") == f"send {name} to the process of {tmp_path}/pid and wait until it ends"
    handler.prepare(LoneJob(tmp_path))
    assert find_process(pid) is None
    assert (tmp_path / "ended").read_text() == f"SIG{name}"


def test_the_restarted_process_outlives_the_agent(tmp_path: Path, worker: Worker) -> None:
    pid = worker.start()
    handler = handler_of(started(worker, f'log = "{tmp_path}/log"'))
    job = LoneJob(tmp_path)
    handler.prepare(job)
    handler.undo(then(job))
    new = worker.until_ready(pid)
    assert find_process(new) is not None
    assert os.getsid(new) == new
    assert (tmp_path / "log").read_text() == "says\n"
    # Once more, as after a kill: it runs already.
    again = then(job)
    handler.undo(again)
    assert again.said == [f"process {new} is already running"]


def test_one_that_was_not_running_is_not_started(tmp_path: Path, worker: Worker) -> None:
    handler = handler_of(started(worker))
    job = LoneJob(tmp_path)
    handler.prepare(job)
    handler.undo(then(job))
    assert worker.pid == 0
    assert job.said == [f"nothing to stop: the process of {tmp_path}/pid is not running"]


def test_after_a_kill_it_continues_with_the_same_process(tmp_path: Path, worker: Worker) -> None:
    """The process has removed its file already, and yet lives on."""
    pid = worker.start("deaf")
    handler = handler_of(started(worker))
    with pytest.raises(HandlerFailed, match=f"process {pid} did not end before the timeout"):
        handler.prepare(LoneJob(tmp_path, seconds=0.3))
    (tmp_path / "pid").unlink()
    forced = handler_of(started(worker, 'kill_after = "0s"'))
    job = LoneJob(tmp_path)
    forced.prepare(job)
    assert find_process(pid) is None
    assert job.warned == [f"killing process {pid}, which did not end"]
    forced.undo(then(job))
    assert worker.until_ready(pid) != pid


def test_a_cancellation_ends_the_wait(tmp_path: Path, worker: Worker) -> None:
    worker.start("deaf")
    job = LoneJob(tmp_path)
    job.stopped.set()
    with pytest.raises(HandlerFailed, match="was stopped before process"):
        handler_of(options(tmp_path)).prepare(job)


def test_a_number_that_another_process_has_got_is_left_alone(tmp_path: Path, worker: Worker) -> None:
    pid = worker.start()
    os.utime(tmp_path / "pid", (1_000_000_000, 1_000_000_000))
    with pytest.raises(HandlerFailed, match=f"process {pid} is newer than {tmp_path}/pid: it is another"):
        handler_of(options(tmp_path)).prepare(LoneJob(tmp_path))
    assert find_process(pid) is not None


def test_an_old_file_does_not_keep_it_from_being_started(tmp_path: Path, worker: Worker) -> None:
    """After a restart of the machine another process has the number."""
    pid = worker.start()
    job = LoneJob(tmp_path)
    job.remember(pid=pid, started=1, boot="another")
    handler_of(started(worker)).undo(then(job))
    new = worker.until_ready(pid)
    assert find_process(new) is not None
    assert find_process(pid) is not None


def test_the_handler_writes_the_pid_file_if_the_process_does_not(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    job.remember(pid=1, started=1, boot="another")
    text = 'start = ["sleep", "60"]\nwrite_pid = true'
    handler_of(options(tmp_path, text)).undo(then(job))
    pid = int((tmp_path / "pid").read_text())
    assert find_process(pid) is not None
    (tmp_path / "next").mkdir()
    handler_of(options(tmp_path, text)).prepare(LoneJob(tmp_path / "next"))
    assert find_process(pid) is None


def test_one_that_fails_at_once_is_a_failure(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    job.remember(pid=1, started=1, boot="another")
    with pytest.raises(HandlerFailed, match="sh exited at once with 3"):
        handler_of(options(tmp_path, 'start = ["sh", "-c", "exit 3"]')).undo(then(job))
    with pytest.raises(HandlerFailed, match="cannot run no-such-program"):
        handler_of(options(tmp_path, 'start = ["no-such-program"]')).undo(then(job))


@pytest.mark.parametrize("content", ["", "\n", "999999999"])
def test_a_pid_file_without_a_process_means_that_nothing_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    handler_of(options(tmp_path)).prepare(LoneJob(tmp_path))


@pytest.mark.parametrize("content", ["x", "-1", "0", "1", "99999999999999999999"])
def test_a_file_without_a_number_is_a_failure(tmp_path: Path, content: str) -> None:
    (tmp_path / "pid").write_text(content)
    with pytest.raises(HandlerFailed, match="which is not a process id"):
        handler_of(options(tmp_path)).prepare(LoneJob(tmp_path))


def test_the_agent_does_not_stop_itself(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getpid()))
    with pytest.raises(HandlerFailed, match="contains the process id of the agent itself"):
        handler_of(options(tmp_path)).prepare(LoneJob(tmp_path))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "pid_file: It is missing"),
        ('pid_file = "a.pid"', "Must be an absolute path"),
        ('pid_file = "/a"\nsignal = "STOP"', "is not one of TERM, "),
        ('pid_file = "/a"\nkill_after = "soon"', "kill_after: "),
        ('pid_file = "/a"\nlog = "/b"', "Is only used with start"),
    ],
)
def test_invalid_options_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "process"\n{text}')
