"""Errors of the command line are one line: no home folder, closed output, endless files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from agent.events import WRITTEN as EVENT
from forewarn.agent.cli.main import main
from forewarn.agent.files import MAX_FILE_SIZE

CONFIG = '[[rule]]\nname = "Büro"\nmax_duration = "10s"\nprepare = ["x"]\nwhen = "5m"\napprove = "self"\n'
HANDLER = '[handler.x]\nkind = "command"\nprepare = ["true"]\n'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("FOREWARN_")]:
        monkeypatch.delenv(name)
    # If an agent starts by mistake, it sends requests only to this machine.
    monkeypatch.setenv("FOREWARN_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").write_text(CONFIG + HANDLER)
    (tmp_path / "event.json").write_text(json.dumps(EVENT))
    return tmp_path


def shell(command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a shell command. `agent` stands for the program."""
    program = f'agent() {{ "{sys.executable}" -m forewarn.agent "$@"; }}\n'
    return subprocess.run(
        ["bash", "-c", program + command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


# --- Nowhere to write ---------------------------------------------------------------------------------


def test_a_full_disk_is_reported_as_a_failure() -> None:
    for command in ("check agent.toml", "plan --event event.json", "--help", "status --state . --json", "check --help"):
        done = shell(f"agent {command} > /dev/full")
        assert done.stderr == "forewarn: Cannot write: No space left on device\n", command
        assert done.returncode == 1


def test_a_closed_output_is_no_error() -> None:
    for command in ("check agent.toml", "plan --event event.json", "--help", "check --help"):
        done = shell(f"agent {command} >&-")
        assert (done.stderr, done.returncode) == ("", 0), command
    done = shell("agent check missing.toml 2>&-")
    assert (done.stdout, done.returncode) == ("", 2)
    done = shell("agent plan --event - <&-")
    assert done.returncode == 2
    assert done.stderr == "forewarn: Cannot read standard input: Not a Scheduled Events document: it is empty.\n"


def test_nothing_that_is_opened_later_gets_the_number_of_a_closed_output() -> None:
    code = "import os; from forewarn.agent.cli.main import main; main([]); print(os.open('event.json', 0), file=out)"
    done = shell(f'"{sys.executable}" -c "out = open(7, \'w\'); {code}" 7>&1 <&- >&- 2>&-')
    assert int(done.stdout) > 2


def test_with_closed_stderr_the_exit_code_is_correct() -> None:
    done = shell("agent check missing.toml 2> /dev/full")
    assert (done.stdout, done.returncode) == ("", 2)


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict", "latin-1", "utf-8:strict"])
def test_a_terminal_of_any_alphabet_shows_any_name(folder: Path, encoding: str) -> None:
    (folder / "ключ.toml").write_text(CONFIG + HANDLER)
    (folder / os.fsdecode(b"odd\xff.toml")).write_text(CONFIG + HANDLER)
    for command in (
        "check ключ.toml",
        "check $'odd\\xff.toml'",
        "bundle --output $'\\xff.pyz'",
        "bundle --output б.pyz",
    ):
        done = subprocess.run(
            ["bash", "-c", f'"{sys.executable}" -m forewarn.agent {command}'],
            env={**os.environ, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert (done.stderr, done.returncode) == (b"", 0), command


def test_an_unexpected_system_error_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Path) -> Path:
        raise OSError(5, "Input/output error", "somewhere")

    monkeypatch.setattr(Path, "absolute", broken)
    assert main(["check", "agent.toml"]) == 1
    assert capsys.readouterr().err == "forewarn: somewhere: Input/output error\n"


# --- No home ------------------------------------------------------------------------------------------


def homeless(*arguments: str) -> subprocess.CompletedProcess[str]:
    """As in a container with an unknown user."""
    code = (
        "import os, sys; os.getuid = os.geteuid = lambda: 54321\n"
        "from forewarn.agent.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    known = {name: value for name, value in os.environ.items() if name not in ("HOME", "XDG_STATE_HOME")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=known, capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize("arguments", [("status",), ("run",), ("run", "--config", "agent.toml")])
def test_without_a_home_folder_the_error_asks_for_the_state_folder(arguments: tuple[str, ...]) -> None:
    done = homeless(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("forewarn: The agent has no state folder")
    assert "--state DIR" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [("check", "agent.toml"), ("plan", "--config", "agent.toml", "--event", "event.json"), ("install", "--print")],
)
def test_commands_without_state_need_no_home_folder(arguments: tuple[str, ...]) -> None:
    done = homeless(*arguments)
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_missing_home_folder_is_named(folder: Path) -> None:
    (folder / "agent.toml").write_text('[agent]\nstate = "~/agent"\n')
    done = homeless("check", "agent.toml")
    assert (
        done.stderr
        == "forewarn: agent.toml:2: agent.state: '~/agent' starts with ~, but this user has no home folder.\n"
    )
    (folder / "agent.toml").write_text(
        '[peers]\nlisten = "127.0.0.1:1"\nsecret_file = "~nobody-such/s"\nmembers = {a = "h:1"}\n'
    )
    done = homeless("check", "agent.toml")
    assert "agent.toml:3: peers.secret_file: '~nobody-such/s' starts with ~" in done.stderr


# --- Too much -----------------------------------------------------------------------------------------


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    for command in ("check /dev/zero", "plan --event /dev/zero", "plan --event - < /dev/zero"):
        # Little memory: who read on would be seen.
        done = shell(f"ulimit -v 400000; agent {command}")
        assert "it is larger than 4 MB" in done.stderr, command
        assert done.stderr.count("\n") == 1
        assert done.returncode == 2


def test_a_file_of_the_largest_size_is_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(EVENT)
    (folder / "event.json").write_text(text + " " * (MAX_FILE_SIZE - len(text)))
    assert main(["plan", "--event", "event.json"]) == 0
    (folder / "event.json").write_text(text + " " * (MAX_FILE_SIZE + 1 - len(text)))
    assert main(["plan", "--event", "event.json"]) == 2
    assert "Cannot read event.json: it is larger than 4 MB" in capsys.readouterr().err


def test_a_config_can_be_read_from_a_pipe() -> None:
    done = shell("agent check <(cat agent.toml)")
    assert done.returncode == 0, done.stderr


# --- Odd values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changed",
    [
        {"DurationInSeconds": 10**30},
        {"DurationInSeconds": -(10**30)},
        {"NotBefore": "1970-01-01T00:00:00Z"},
        {"NotBefore": "8999-12-31T23:59:59Z"},
    ],
    ids=str,
)
@pytest.mark.parametrize("now", ["0001-01-01T00:00:00Z", "2026-11-20T02:00:00Z", "9999-12-31T23:59:59Z"])
@pytest.mark.parametrize("limit", ["", 'timeout = "3660d"\n'])
def test_unusual_times_and_durations_can_be_planned(
    folder: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, object], now: str, limit: str
) -> None:
    (folder / "agent.toml").write_text(
        CONFIG
        + '[[rule]]\nname = "second"\nprepare = ["x"]\nwhen = "5m"\napprove_when = "3660d"\napprove = "self"\n'
        + limit
        + HANDLER
        + 'timeout = "3660d"\n'
    )
    (folder / "event.json").write_text(json.dumps({**EVENT, **changed}))
    command = ["plan", "--config", "agent.toml", "--event", "event.json", "--now", now]
    assert main(command) == 0
    assert "rule: second" in capsys.readouterr().out
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["plans"][0]["rule"] == "second"


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "soon"])
def test_an_impossible_time_of_an_event_is_an_error(
    folder: Path, capsys: pytest.CaptureFixture[str], moment: str
) -> None:
    (folder / "event.json").write_text(json.dumps({**EVENT, "NotBefore": moment}))
    assert main(["plan", "--config", "agent.toml", "--event", "event.json"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"NotBefore is {moment!r}" in line


def test_an_interruption_of_any_duration_is_given_as_a_reason(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "event.json").write_text(json.dumps({**EVENT, "DurationInSeconds": 10**30}))
    assert main(["plan", "--config", "agent.toml", "--event", "event.json"]) == 0
    assert "interruptions of at most 10s; the duration of this one is unknown" in capsys.readouterr().out


def test_a_time_before_the_minimum_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--event", "event.json", "--now", "0001-01-01T00:00:00+10:00"]) == 2
    assert "Invalid --now '0001-01-01T00:00:00+10:00'" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64, "ü", "a b", "[::g]", "300.1.1.1", "-a", "a\udcff"])
def test_an_invalid_host_is_an_error(folder: Path, capsys: pytest.CaptureFixture[str], host: str) -> None:
    assert main(["run", "--state", "state", "--listen", f"{host}:80"]) == 2
    error = capsys.readouterr().err
    assert "--listen" in error
    assert error.count("\n") == 1
    if host.isprintable():
        (folder / "agent.toml").write_text(f'[agent]\nlisten = "{host}:80"\n')
        assert main(["check", "agent.toml"]) == 2
        assert capsys.readouterr().err.startswith("forewarn: agent.toml:2: agent.listen: ")


@pytest.mark.parametrize(
    "table",
    ['[agent]\nstate = "a\\u0000b"\n', '[peers]\nsecret_file = "a\\u0000b"\nlisten = "h:1"\nmembers = {a = "h:1"}\n'],
)
def test_no_path_has_a_null_in_it(folder: Path, capsys: pytest.CaptureFixture[str], table: str) -> None:
    (folder / "agent.toml").write_text(table)
    assert main(["check", "agent.toml"]) == 2
    assert "agent.toml:2: " in capsys.readouterr().err


# --- An agent that is started oddly -------------------------------------------------------------------


def test_an_invalid_endpoint_leaves_no_state_behind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--endpoint", "ftp://x", "--state", "state"]) == 2
    assert "(from --endpoint)" in capsys.readouterr().err
    assert not (folder / "state").exists()


def test_a_variable_that_is_no_endpoint_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREWARN_ENDPOINT", "ftp://x")
    assert main(["run", "--state", "state"]) == 2
    assert "(from FOREWARN_ENDPOINT)" in capsys.readouterr().err


def test_an_agent_runs_with_closed_log_output(folder: Path) -> None:
    """It says over its socket that it does; and it can be stopped."""
    command = [sys.executable, "-m", "forewarn.agent", "run", "--state", "state"]
    process = subprocess.Popen(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "-", *command])
    try:
        for _ in range(600):
            if (folder / "state" / "agent.sock").exists():
                break
            with suppress(subprocess.TimeoutExpired):
                raise AssertionError(f"it has ended with {process.wait(0.1)}")
        assert main(["status", "--state", "state"]) == 0
    finally:
        process.terminate()
        assert process.wait(30) == 0
