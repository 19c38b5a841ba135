"""A program that outlives who started it: found again by its files, and begun only once it is recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.system.child_process import GO, ChildProcess

if TYPE_CHECKING:
    from pathlib import Path

# Starts a program and is killed: before it lets the program begin, or right after that.
PARENT = """
import os, signal, subprocess, sys
from pathlib import Path
from forewarn.system.child_process import ChildProcess
folder = Path(sys.argv[1])
child = ChildProcess(folder / "lock", folder / "end")
(folder / "input").write_text("some input\\n")
child.start(
    child.take_lock({"run": "one"}),
    ["/bin/sh", "-c", 'echo "$$" >"$0/begun"; cat >"$0/got"; read x <"$0/fifo"; exit 7', str(folder)],
    run="one", input_file=folder / "input" if sys.argv[2] == "begin" else None, survives_signals=False,
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def child(tmp_path: Path) -> ChildProcess:
    return ChildProcess(tmp_path / "lock", tmp_path / "end")


def start(child: ChildProcess, line: str, run: str = "", **options: Any) -> subprocess.Popen[bytes]:
    usual = {"survives_signals": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return child.start(child.take_lock({"run": run}), ["/bin/sh", "-c", line], run=run, **(usual | options))


def killed_parent(folder: Path, when: str) -> ChildProcess:
    done = subprocess.run([sys.executable, "-c", PARENT, str(folder), when], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    return ChildProcess(folder / "lock", folder / "end")


def wait_for(child: ChildProcess) -> None:
    """Wait until the lock is free."""
    import fcntl

    with child._lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)


def test_the_program_does_not_start_if_the_parent_is_killed_before_go(tmp_path: Path) -> None:
    (tmp_path / "fifo").touch()
    child = killed_parent(tmp_path, "never")
    wait_for(child)
    assert not (tmp_path / "begun").exists()
    assert child.exit_code("one") is None
    assert child.facts()["run"] == "one"


def test_a_later_process_finds_it_running_and_takes_over_its_result(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    child = killed_parent(tmp_path, "begin")
    process = child.process()
    assert process is not None
    assert process.lives
    assert child.is_held()
    assert child.exit_code("one") is None
    (tmp_path / "fifo").write_text("go on\n")
    wait_for(child)
    assert child.exit_code("one") == 7
    assert child.exit_code("another") is None
    assert (tmp_path / "got").read_text() == "some input\n"
    assert not child.is_held()


def test_its_input_is_the_text_after_go(child: ChildProcess) -> None:
    process = start(child, "cat")
    assert process.communicate(GO + b"one\ntwo\n")[0] == b"one\ntwo\n"


def test_a_new_run_has_not_the_exit_code_of_the_one_before(child: ChildProcess) -> None:
    start(child, "exit 75").communicate(GO)
    assert child.exit_code() == 75
    lock = child.take_lock({})
    assert child.is_held()
    assert child.exit_code() is None
    os.close(lock)


def test_it_gets_exactly_the_given_environment(child: ChildProcess) -> None:
    given = {"run": "1", "go": "2", "code": "3", "file": "4"}
    process = start(child, "echo $run $go $code $file", "R", env=given)
    assert process.communicate(GO)[0] == b"1 2 3 4\n"


@pytest.mark.parametrize("survives", [True, False])
def test_a_signal_to_the_group_is_recorded_only_by_a_shell_that_survives_it(
    child: ChildProcess, survives: bool
) -> None:
    process = start(child, "echo begun; exec sleep 60", "R", survives_signals=survives)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(GO)
    process.stdin.flush()
    assert process.stdout.readline() == b"begun\n"
    os.killpg(process.pid, signal.SIGTERM)
    process.communicate()
    assert process.returncode == -signal.SIGTERM
    assert child.exit_code("R") == (143 if survives else None)


def test_a_child_that_it_leaves_keeps_the_lock_but_blocks_no_new_run(child: ChildProcess, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    assert start(child, f"(read x <{tmp_path}/fifo) >/dev/null 2>&1 & exit 0").communicate(GO)[0] == b""
    assert child.is_held()
    assert child.exit_code() == 0
    assert start(child, "exit 3", "second").communicate(GO)[0] == b""
    assert not child.is_held()
    assert (child.exit_code(), child.exit_code("second")) == (None, 3)
    (tmp_path / "fifo").write_text("go on\n")


@pytest.mark.parametrize("text", ["", "1", "one 1", "no number\n", "\xff\n"])
def test_an_incomplete_exit_file_is_ignored(child: ChildProcess, tmp_path: Path, text: str) -> None:
    (tmp_path / "end").write_bytes(text.encode("latin-1"))
    assert child.exit_code() is None
    assert child.exit_code("one") is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"pid": 1}', b'{"pid": "1", "started": 2}', b"\xff"])
def test_a_lock_that_cannot_be_read_names_no_process(child: ChildProcess, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lock").write_bytes(content)
    assert child.process() is None
    assert not child.is_held()


def test_a_process_that_cannot_be_recorded_does_not_begin(
    child: ChildProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = child.take_lock({"run": "one"})

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        child.start(lock, ["/bin/touch", str(tmp_path / "begun")], survives_signals=False)
    assert not (tmp_path / "begun").exists()
    assert not child.is_held()
    assert json.loads((tmp_path / "lock").read_text()) == {"run": "one"}
