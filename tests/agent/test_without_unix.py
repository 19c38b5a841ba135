"""The library, `agent check` and `agent plan` run where Python has none of the modules of Unix, as on Windows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent import raw_server
from agent.events import WRITTEN
from agent.raw_server import RawServer
from forewarn.agent.cli.main import main

HERE = Path(__file__).parent
POLICY = """
[[rule]]
name = "web"
prepare = ["program", "own", "unit", "pool", "call", "write"]
when = "5m"
approve = "self"

[handler.program]
kind = "command"
prepare = ["true"]

[handler.own]
kind = "process"
pid_file = "/run/own.pid"

[handler.unit]
kind = "systemd"
unit = "web.service"

[handler.pool]
kind = "haproxy"
socket = "/run/haproxy.sock"
server = "pool/web-0"

[handler.call]
kind = "webhook"
url = "http://127.0.0.1:1/"

[handler.write]
kind = "log"
"""
LIBRARY = """
import socket, sys
from forewarn.agent import AsyncClient, Change, Client, Document, EndpointError, Event, Handler, HandlerFailed, Job

url = sys.argv[1]
with Client(url, "web-0") as client:
    (event,) = client.document().events
    client.approve(event)
    change = next(iter(client.changes()))
    print(change.kind, change.approve())

socket.AF_UNIX = 1  # Linux' own asyncio needs it
import asyncio


async def again():
    async with AsyncClient(url, "web-0") as client:
        async for change in client.changes():
            print(change.kind, await change.approve())
            return


asyncio.run(again())
"""


@pytest.fixture(params=["installed", "bundle"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The agent's command line: the installed one, and the single file."""
    if request.param == "installed":
        return "forewarn.agent"
    file = tmp_path / "forewarn-agent.pyz"
    assert main(["bundle", "--output", str(file)]) == 0
    return str(file)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, HERE / "without_unix.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "agent.toml"
    path.write_text(POLICY)
    return path


def test_check_and_plan_run(program: str, policy: Path, tmp_path: Path) -> None:
    event = tmp_path / "event.json"
    event.write_text(json.dumps(WRITTEN))
    checked = run(program, "check", policy, "--json")
    assert checked.returncode == 0, checked.stderr
    assert json.loads(checked.stdout)["rules"][0]["name"] == "web"
    planned = run(program, "plan", "--config", policy, "--event", event, "--json")
    assert planned.returncode == 0, planned.stderr
    assert len(json.loads(planned.stdout)["plans"][0]["prepare"]) == 6


@pytest.mark.parametrize("command", ["run", "status", "install", "bundle"])
def test_other_commands_end_with_one_line(program: str, policy: Path, command: str) -> None:
    config = () if command == "bundle" else ("--config", str(policy))
    done = run(program, command, *config)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"forewarn: `forewarn agent {command}` needs Linux: this Python has no module fcntl. "
        "Here you can use `agent check`, `agent plan` and the library forewarn.agent.\n"
    )
    assert run(program, command, "--help").returncode == 0


def test_the_library_runs(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LIBRARY)
    with RawServer(raw_server.document(1, raw_server.event(1))) as server:
        done = run(program, server.url)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "scheduled True\nscheduled True\n"


def test_the_modules_are_really_missing(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import os\nassert not hasattr(os, 'geteuid')\nimport fcntl\n")
    assert "No module named 'fcntl'" in run(program).stderr
