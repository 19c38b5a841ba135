"""The commands of `forewarn agent` and their output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from agent.events import WRITTEN as EVENT
from forewarn.agent.cli.main import COMMANDS, main
from forewarn.agent.cli.options import ResolvedValue, config_path, read_address, resolve_options
from forewarn.agent.policy import Config
from forewarn.errors import BadOption

CONFIG = """
[[rule]]
name = "web"
on = ["Reboot", "Redeploy"]
prepare = ["stop-web"]
when = "5m"
approve = "self"

[handler.stop-web]
kind = "command"
prepare = ["systemctl", "stop", "web"]
undo = ["systemctl", "start", "web"]
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which only the endpoint is set."""
    for name in [name for name in os.environ if name.startswith("FOREWARN_")]:
        monkeypatch.delenv(name)
    # If an agent starts by mistake, it sends requests only to this machine.
    monkeypatch.setenv("FOREWARN_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "agent.toml").write_text(CONFIG)
    (tmp_path / "event.json").write_text(json.dumps(EVENT))
    return tmp_path


def run_command(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in its own process."""
    command = [sys.executable, "-m", "forewarn", "agent", *arguments]
    return subprocess.run(
        command, env={**os.environ, **variables}, capture_output=True, text=True, check=False, timeout=60
    )


def test_help_lists_the_verbs_and_loads_nothing_of_the_service(folder: Path) -> None:
    code = (
        "import sys; sys.argv[1:] = ['agent', '--help']\n"
        "from forewarn.__main__ import main\n"
        "try: main()\n"
        "finally: print(sorted({'click', 'asyncio', 'rich', 'forewarn.cli', 'inspect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    for verb, does in COMMANDS.items():
        assert f"  {verb:<9} {does}" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
    assert done.returncode == 0


@pytest.mark.parametrize("module", [("forewarn", "agent"), ("forewarn.agent",)])
def test_it_is_the_same_however_it_is_started(module: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *module, "--version"], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.startswith("forewarn, version ")


def test_the_command_line_of_the_service_hands_it_on(folder: Path) -> None:
    code = "from forewarn.cli import main; main(['agent', 'check', '--config', 'agent.toml'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "1. web: Reboot or Redeploy" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["runn"], 2, "There is no command 'runn'. Did you mean 'run'? See: forewarn agent --help"),
        (["--verison"], 2, "There is no option '--verison'. See: forewarn agent --help"),
        (["check", "--jsn", "agent.toml"], 2, "There is no option '--jsn'. Did you mean '--json'?"),
        (["check", "agent.toml", "other.toml"], 2, "Unexpected argument 'other.toml'."),
        (["check"], 2, "Name the policy file with --config FILE or FOREWARN_AGENT_CONFIG."),
        (["check", "--config"], 2, "--config: expected one argument."),
        (["check", "agent.toml", "--config", "agent.toml"], 2, "The policy file is given twice"),
        (["check", "missing.toml"], 2, "missing.toml"),
        (["check", "bad.toml"], 2, "bad.toml:2: rule[0].on: "),
        (["plan"], 2, "Name the file with the event: --event FILE."),
        (["plan", "--event", "missing.json"], 2, "Cannot read missing.json: No such file"),
        (["plan", "--event", "agent.toml"], 2, "it is not JSON"),
        (["plan", "--event", "event.json", "--now", "noon"], 2, "write a time like 2026-11-20T02:00:00Z."),
        (["run", "--listen", "9169"], 2, "write it like 127.0.0.1:9169"),
        (["run", "--endpoint", ""], 2, "Invalid --endpoint ''"),
        (["run", "--vm-name", " "], 2, "Invalid --vm-name ' '"),
        (["run", "--config", ""], 2, "Invalid --config ''"),
        (["run", "--log", "xml"], 2, "--log"),
        (["install", "--user", "nobody-of-this-name"], 2, "useradd --system"),
        (["install", "--unit-dir", "missing"], 5, "Cannot write missing/forewarn-agent.service: No such file"),
        (["bundle", "--output", "missing/agent.pyz"], 5, "Cannot write missing/agent.pyz: No such file"),
        (["bundle", "--out", "/"], 5, "Cannot write /"),
        (["status"], 6, "No agent uses the state folder"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_a_code(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, said: str
) -> None:
    (folder / "bad.toml").write_text("[[rule]]\non = 5\n")
    assert main([*arguments, *(["--state", str(folder)] if arguments == ["status"] else [])]) == code
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("forewarn: ")
    assert said in error
    assert error.count("\n") == 1


def test_nothing_in_an_error_is_an_order_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "\x1b[2Jno.toml"])
    error = capsys.readouterr().err
    assert "\x1b" not in error
    assert "\\x1b[2J" in error


def test_a_mistyped_variable_is_reported() -> None:
    """Without the warning, the agent would search for the endpoint."""
    others = {"FOREWARN_DATA": "x", "FOREWARN_NAME": "x", "FOREWARN_EVENT_ID": "x", "FOREWARN_KITCHEN": "x"}
    result = run_command("check", "agent.toml", FOREWARN_ENDPONT="http://127.0.0.1:9", **others)
    warning = "forewarn: the variable FOREWARN_ENDPONT has no effect. Did you mean 'FOREWARN_ENDPOINT'?\n"
    assert (result.returncode, result.stderr) == (0, warning)
    result = run_command(
        "check", "agent.toml", FOREWARN_AGENT_ENDPOINT="http://127.0.0.1:9", FOREWARN_AGENT_XYLOPHONE="x"
    )
    assert result.stderr == (
        "forewarn: the variable FOREWARN_AGENT_ENDPOINT has no effect. Did you mean 'FOREWARN_ENDPOINT'?\n"
        "forewarn: the variable FOREWARN_AGENT_XYLOPHONE has no effect.\n"
    )


def test_check_explains_a_config(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_AGENT_CONFIG", "agent.toml")
    assert main(["check"]) == 0
    text = capsys.readouterr().out
    assert "1. web: Reboot or Redeploy" in text
    assert "stop-web (command, at most 1m): run systemctl stop web" in text
    assert main(["check", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["rules"][0]["prepare"][0]["does"] == "run systemctl stop web"
    assert facts["warnings"] == []


def test_check_finds_what_is_missing_on_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    (folder / "systemctl").write_text(
        '#!/bin/sh\n[ "$1 $2" = "cat web" ] || { echo "No files for $2." >&2; exit 1; }\n'
    )
    (folder / "systemctl").chmod(0o755)
    (folder / "own.py").write_text(
        "from forewarn.agent import Handler\n"
        "class Own(Handler):\n"
        "    def __init__(self, options): pass\n"
        "    def describe(self, action): return 'work'\n"
        "    def prepare(self, job): pass\n"
        "    def undo(self, job): pass\n"
        "    def problems_here(self): return [1 / 0]\n"
    )
    monkeypatch.setenv("PATH", str(folder))
    (folder / "here.toml").write_text(
        """
[[rule]]
prepare = ["run", "start", "units", "pool", "own"]
[handler.run]
kind = "command"
prepare = ["systemctl", "stop", "web"]
undo = ["no-such-program"]
[handler.start]
kind = "process"
pid_file = "/run/worker.pid"
start = ["/etc/passwd"]
[handler.units]
kind = "systemd"
units = ["web", "worker"]
[handler.pool]
kind = "haproxy"
socket = "/no/such.sock"
server = "web/web-0"
[handler.own]
file = "own.py"
"""
    )
    assert main(["check", "here.toml", "--strict"]) == 0
    capsys.readouterr()
    assert main(["check", "here.toml", "--here"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning: ")] == [
        "warning: run: cannot run no-such-program: it is not in PATH.",
        "warning: start: cannot run /etc/passwd: it is not executable.",
        "warning: units: systemctl cat worker: No files for worker.",
        "warning: pool: HAProxy does not respond at /no/such.sock: No such file or directory.",
        "warning: own: ZeroDivisionError: division by zero",
        "warning: Cannot connect to the endpoint http://127.0.0.1:9: Connection refused.",
    ]
    assert main(["check", "here.toml", "--here", "--strict", "--json"]) == 2
    output = capsys.readouterr()
    assert len(json.loads(output.out)["warnings"]) == 6
    assert output.err == "forewarn: here.toml has 6 warnings, and --strict allows none.\n"


def plans(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    assert main(["plan", "--config", "agent.toml", "--json", *arguments]) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["plans"]
    return found


def test_plan_prints_the_steps_and_their_times(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    at = ("--now", "2021-07-22T04:35:17Z")
    (found,) = plans(capsys, "--event", "event.json", *at)
    assert found["rule"] == "web"
    assert found["prepare"][0]["earliest"] == "2021-07-22T04:45:17.000000Z"
    (folder / "document.json").write_text(json.dumps({"DocumentIncarnation": 3, "Events": [EVENT, EVENT]}))
    assert [plan["rule"] for plan in plans(capsys, "--event", "document.json", *at)] == ["web", "web"]
    (other,) = plans(capsys, "--event", "event.json", "--vm-name", "web-1", *at)
    assert other["rule"] is None
    assert other["reasons"] == ["it affects web-0, not this VM"]
    (other,) = plans(capsys, "--event", "event.json", "--vm-name", "WEB-0", *at)
    assert other["rule"] == "web"


def test_plan_reads_its_input_and_reports_that_it_is_empty(folder: Path) -> None:
    command = [sys.executable, "-m", "forewarn.agent", "plan", "--config", "agent.toml", "--event", "-"]
    given = json.dumps({"DocumentIncarnation": 3, "Events": []})
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "The document contains no events.\n"


def test_plan_without_a_config_plans_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--event", "event.json"]) == 0
    assert "there are no rules" in capsys.readouterr().out


def test_a_closed_output_pipe_is_no_error(folder: Path) -> None:
    (folder / "many.json").write_text(json.dumps({"DocumentIncarnation": 3, "Events": [EVENT] * 3000}))
    command = f"{sys.executable} -m forewarn.agent plan --config agent.toml --event many.json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("Reboot 4caea225")
    assert done.stderr == ""


def test_any_terminal_can_show_a_plan(folder: Path) -> None:
    (folder / "event.json").write_text(json.dumps({**EVENT, "EventType": "Réboot \ud800"}))
    done = run_command("plan", "--event", "event.json", PYTHONIOENCODING="ascii:strict")
    assert done.stdout.startswith("R\\xe9boot \\ud800 4caea225"), done.stderr


def options(**given: str) -> Namespace:
    return Namespace(**{"config": None, "endpoint": None, "vm_name": None, "state": None, **given})


def test_a_flag_beats_a_variable_which_beats_the_config_which_beats_the_default(folder: Path) -> None:
    config = Config(source="agent.toml", endpoint="c", vm_name="c", state="/c")
    variables = {"FOREWARN_ENDPOINT": "v", "FOREWARN_VM_NAME": "v", "FOREWARN_AGENT_STATE": "v"}
    found = resolve_options(options(endpoint="f", vm_name="f", state="f"), config, variables)
    assert found == (ResolvedValue("f", "--endpoint"), ResolvedValue("f", "--vm-name"), ResolvedValue("f", "--state"))
    found = resolve_options(options(), config, variables)
    assert found == tuple(ResolvedValue("v", name) for name in variables)
    found = resolve_options(options(), config, {"FOREWARN_ENDPOINT": "", "FOREWARN_VM_NAME": " "})
    assert found == (
        ResolvedValue("c", "agent.toml"),
        ResolvedValue("c", "agent.toml"),
        ResolvedValue("/c", "agent.toml"),
    )
    found = resolve_options(options(), Config(), {})
    assert found[:2] == (ResolvedValue("", ""), ResolvedValue("", ""))


def test_the_state_folder_is_that_of_systemd_or_of_the_user(folder: Path) -> None:
    systemd = {"STATE_DIRECTORY": "/var/lib/private/forewarn-agent:/var/lib/other"}
    assert resolve_options(options(), Config(), systemd).folder == Path("/var/lib/private/forewarn-agent")
    code = (
        "import os, sys; os.geteuid = lambda: int(sys.argv[1])\n"
        "from argparse import Namespace as N; from forewarn.agent.cli.options import *\n"
        "from forewarn.agent.policy import Config\n"
        "print(resolve_options(N(endpoint=None, vm_name=None, state=None), Config()).folder)"
    )
    for user, expected in (("0", "/var/lib/forewarn-agent"), ("1000", f"{folder}/state/forewarn-agent")):
        done = subprocess.run(
            [sys.executable, "-c", code, user], capture_output=True, text=True, check=True, timeout=60
        )
        assert done.stdout.strip() == expected


def test_the_config_may_be_named_by_a_variable() -> None:
    assert config_path(options(), {}) is None
    assert config_path(options(), {"FOREWARN_AGENT_CONFIG": "v.toml"}) == Path("v.toml")
    assert config_path(options(config="f.toml"), {"FOREWARN_AGENT_CONFIG": "v.toml"}) == Path("f.toml")


@pytest.mark.parametrize(
    ("text", "found"),
    [("127.0.0.1:9169", ("127.0.0.1", 9169)), ("[::1]:0", ("::1", 0)), ("all.local:1", ("all.local", 1))],
)
def test_addresses(text: str, found: tuple[str, int]) -> None:
    assert read_address(text, "--listen") == found


@pytest.mark.parametrize("text", ["", ":", "host", "host:", ":80", "::1:80", "host:65536", "host:-1", "host:²", "[]:1"])
def test_invalid_addresses_are_rejected(text: str) -> None:
    with pytest.raises(BadOption, match="--listen"):
        read_address(text, "--listen")
