"""One program of a handler: its input, its output, its end."""

from __future__ import annotations

import os
import signal
import stat
import sys
import threading
from pathlib import Path

import pytest

from agent.jobs import LoneJob
from forewarn.agent.handlers.program import run_program
from forewarn.errors import HandlerFailed
from forewarn.system.processes import find_process


def shell(job: LoneJob, line: str, text: str = "") -> int:
    return run_program(job, ["sh", "-c", line], text=text).status


def test_a_program_gets_its_whole_input(tmp_path: Path) -> None:
    text = "x" * 1_000_000
    assert shell(LoneJob(tmp_path), f"cat > {tmp_path}/got", text) == 0
    assert (tmp_path / "got").read_text() == text


@pytest.mark.parametrize("line", ["exec 0<&-; exit 0", "exit 0"])
def test_a_program_need_not_read_its_input(tmp_path: Path, line: str) -> None:
    assert shell(LoneJob(tmp_path), line, "x" * 1_000_000) == 0


def test_output_is_logged_line_by_line(tmp_path: Path) -> None:
    """The program writes the second line only after the first was logged."""
    job = LoneJob(tmp_path)
    os.mkfifo(tmp_path / "go")
    running = threading.Thread(
        target=shell, args=(job, f"echo one; read x < {tmp_path}/go; echo two >&2; printf three")
    )
    running.start()
    job.until_said("one")
    assert job.said == ["one"]
    (tmp_path / "go").write_text("go\n")
    running.join()
    assert job.said == ["one", "two", "three"]


def test_endless_output_is_cut_and_counted(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    code = "print('x' * 3_000_000)\nfor number in range(1000): print(number)"
    assert run_program(job, [sys.executable, "-S", "-c", code]).status == 0
    assert len(job.said) == 200
    assert job.said[0] == "x" * 2000 + "…"
    assert job.said[-1] == "198"
    assert job.warned == ["801 more lines of output are not logged"]


def test_binary_output_is_logged_with_replacement_characters(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    shell(job, r"printf 'a\377b\r\n'")
    assert job.said == ["a\N{REPLACEMENT CHARACTER}b"]


def test_the_failure_has_the_exit_code_and_the_last_output(tmp_path: Path) -> None:
    ended = run_program(LoneJob(tmp_path), ["sh", "-c", "for i in 1 2 3 4 5 6 7; do echo $i; done; exit 3"])
    assert str(ended.error) == "sh ended with exit code 3: 3 / 4 / 5 / 6 / 7"
    ended = run_program(LoneJob(tmp_path), ["sh", "-c", "kill -USR1 $$"])
    assert str(ended.error).startswith("sh ended with signal SIGUSR1")


@pytest.mark.parametrize("name", ["no-such-program", "/no/such/program", "{folder}/plain", "{folder}"])
def test_a_program_that_cannot_run_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "plain").write_text("echo")
    name = name.format(folder=tmp_path)
    with pytest.raises(HandlerFailed, match=f"cannot run {name}: "):
        run_program(LoneJob(tmp_path), [name])


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HandlerFailed, match="there is no folder /no/such"):
        run_program(LoneJob(tmp_path), ["true"], directory="/no/such")


def test_a_missing_interpreter_is_a_failure_with_the_system_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    ended = run_program(LoneJob(tmp_path), [str(script)])
    assert ended.status == 127
    assert "not found" in str(ended.error)


def test_at_the_limit_the_whole_group_is_ended(tmp_path: Path) -> None:
    job = LoneJob(tmp_path, seconds=2)
    line = f"sleep 60 & echo $! > {tmp_path}/inner; echo $$ > {tmp_path}/outer; echo begun; wait"
    with pytest.raises(HandlerFailed, match="sh was ended at its timeout: begun"):
        shell(job, line)
    for name in ("inner", "outer"):
        assert find_process(int((tmp_path / name).read_text())) is None


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    line = f"trap '' TERM; echo $$ > {tmp_path}/pid; echo begun; for i in 1 2 3 4 5 6; do sleep 10; done"
    failures: list[BaseException] = []

    def run() -> None:
        try:
            shell(job, line)
        except HandlerFailed as error:
            failures.append(error)

    running = threading.Thread(target=run)
    running.start()
    job.until_said("begun")
    job.stopped.set()
    running.join()
    assert "was ended because it is no longer needed" in str(failures[0])
    assert find_process(int((tmp_path / "pid").read_text())) is None


def test_it_may_tidy_up_when_it_is_ended(tmp_path: Path) -> None:
    job = LoneJob(tmp_path, seconds=2)
    line = (
        f"trap 'echo tidied > {tmp_path}/tidied; exit 0' TERM; echo begun; while :; do read x < {tmp_path}/fifo; done"
    )
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(HandlerFailed, match="at its timeout"):
        shell(job, line)
    assert (tmp_path / "tidied").read_text() == "tidied\n"


def test_nothing_is_started_after_the_limit(tmp_path: Path) -> None:
    with pytest.raises(HandlerFailed, match="was not started: the timeout has passed"):
        shell(LoneJob(tmp_path, seconds=0), f"touch {tmp_path}/begun")
    assert not (tmp_path / "begun").exists()


# Talks until nobody listens any more, and then just stays; not for ever, should the test be killed.
DAEMON = """
import os, signal, sys
signal.alarm(120)
with open(sys.argv[1], "w") as file:
    file.write(str(os.getpid()))
try:
    while True:
        os.write(1, b"still here\\n")
except OSError:
    signal.pause()
"""


def test_a_daemon_that_a_program_starts_survives_and_blocks_nothing(tmp_path: Path) -> None:
    """It keeps the output and the lock, and continues to write."""
    (tmp_path / "daemon.py").write_text(DAEMON)
    line = f"setsid {sys.executable} -S {tmp_path}/daemon.py {tmp_path}/pid & until [ -s {tmp_path}/pid ]; do :; done"
    assert shell(LoneJob(tmp_path), line) == 0
    daemon = int((tmp_path / "pid").read_text())
    try:
        again = LoneJob(tmp_path)
        assert shell(again, "echo next") == 0
        assert again.said == ["next"]
        assert find_process(daemon) is not None
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_the_lock_is_for_the_owner_only_and_no_name_leads_out_of_its_folder(tmp_path: Path) -> None:
    assert shell(LoneJob(tmp_path, handler="../../a b\0"), "exit 0") == 0
    (lock,) = (tmp_path / "run").glob("*.lock")
    assert {path.parent for path in tmp_path.rglob("*.*")} == {tmp_path / "run"}
    assert stat.S_IMODE(lock.stat().st_mode) == 0o600
    assert lock.name.endswith("a%20b%0.lock")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("in the way")
    with pytest.raises(HandlerFailed, match=f"cannot lock {tmp_path}/run: File exists"):
        shell(LoneJob(tmp_path), "exit 0")


def test_a_program_inherits_no_open_files_of_the_agent(tmp_path: Path) -> None:
    job = LoneJob(tmp_path)
    with Path("/dev/null").open() as other:
        os.set_inheritable(other.fileno(), True)
        run_program(job, ["ls", "-l", "/proc/self/fd"])
    opened = [line.rpartition(" -> ")[2] for line in job.said if " -> " in line and "/proc/" not in line]
    assert [path for path in opened if not path.startswith("pipe:")] == [f"{tmp_path}/run/it.lock"]


def test_a_relative_folder_is_resolved_for_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent may be started with --state here."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    job = LoneJob(Path("here"))
    assert shell(job, "pwd") == 0
    assert job.said == [f"{tmp_path}/here"]


def test_only_a_resumable_program_uses_an_earlier_result(tmp_path: Path) -> None:
    """Several programs of one run are all run, though one before them came to a good end."""
    for _ in range(2):
        job = LoneJob(tmp_path, run="one")
        assert shell(job, "echo one") == 0
        assert shell(job, "echo two") == 0
        assert job.said == ["one", "two"]
    # And one of the same run that has been done to its end is not done again.
    for said in (["once"], []):
        job = LoneJob(tmp_path, run="another")
        assert run_program(job, ["echo", "once"], resumable=True).status == 0
        assert job.said == said
