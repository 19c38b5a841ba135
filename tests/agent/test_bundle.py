"""The agent as one file, with every installed Python and no packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forewarn.agent.cli.bundle import closure, make_bundle
from forewarn.agent.cli.main import main
from forewarn.agent.handlers.loader import kinds
from forewarn.agent.status_server import connect
from programs import installed_pythons

if TYPE_CHECKING:
    from forewarn.testing import Service

SOURCE = Path(__file__).parents[2] / "src" / "forewarn"
CONFIG = """
[[rule]]
name = "web"
prepare = ["{kind}"]
approve = "self"

[handler.command]
kind = "command"
prepare = ["touch", "{folder}/prepared"]
undo = ["touch", "{folder}/undone"]
"""
EVENT = {
    "EventId": "E1",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT",
}


PYTHONS = installed_pythons()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("bundle") / "forewarn-agent.pyz"
    assert main(["bundle", "--output", str(file)]) == 0
    return file


@pytest.fixture(params=PYTHONS)
def python(request: pytest.FixtureRequest) -> list[str]:
    """Isolated, and without site-packages: nothing that is installed can be seen."""
    return [PYTHONS[request.param], "-I", "-S"]


def run(*command: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, timeout=60)


def test_it_prints_its_version(bundle: Path, python: list[str]) -> None:
    done = run(*python, bundle, "--version")
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout.startswith("forewarn, version 0.")


def test_it_reads_a_config_and_plans(bundle: Path, python: list[str], tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text(CONFIG.format(kind="command", folder=tmp_path))
    (tmp_path / "event.json").write_text(json.dumps(EVENT))
    done = run(*python, bundle, "check", tmp_path / "agent.toml")
    assert "1. web: any event" in done.stdout, done.stderr
    # As it is typed where Forewarn is installed.
    done = run(
        *python, bundle, "agent", "plan", "--config", tmp_path / "agent.toml", "--event", tmp_path / "event.json"
    )
    assert "command would run touch" in done.stdout, done.stderr


def test_it_has_every_kind_of_handler(bundle: Path, python: list[str], tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('[handler.x]\nkind = "nonsense"\n')
    done = run(*python, bundle, "check", tmp_path / "agent.toml")
    assert f"'nonsense' is not one of {', '.join(kinds())}." in done.stderr


def test_it_runs(bundle: Path, python: list[str], tmp_path: Path, forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    (tmp_path / "agent.toml").write_text(CONFIG.format(kind="command", folder=tmp_path))
    command = [
        *python,
        str(bundle),
        "run",
        "--config",
        str(tmp_path / "agent.toml"),
        "--state",
        str(tmp_path / "state"),
    ]
    with (tmp_path / "log").open("wb") as log:
        environment = {**vm.environment, "PATH": os.environ["PATH"]}
        process = subprocess.Popen(command, env=environment, stderr=log)
    try:
        forewarn.advance(seen_by=vm)
        event = vm.restart()
        while not event.was_approved:
            forewarn.advance(seen_by=vm)
        assert (tmp_path / "prepared").exists()
        done = run(*python, bundle, "status", "--json", "--state", tmp_path / "state")
        assert json.loads(done.stdout)["running"] is True
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_it_keeps_running_when_its_file_is_replaced(
    bundle: Path, tmp_path: Path, python: list[str], forewarn: Service
) -> None:
    """It loads some parts only when they are needed, and a newer file has others."""
    vm = forewarn.vm("web-0")
    copy = tmp_path / "forewarn-agent.pyz"
    copy.write_bytes(bundle.read_bytes())
    command = [*python, str(copy), "run", "--state", str(tmp_path / "state"), "--log", "json"]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env={**vm.environment, "PATH": os.environ["PATH"]}, stderr=log)
    try:
        forewarn.advance(seen_by=vm)
        copy.write_bytes(b"#!/bin/false\n" * 40_000)
        with connect(tmp_path / "state") as line:
            line.settimeout(20)
            line.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: line.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 200 "), (tmp_path / "log").read_text()
        assert b"forewarn_agent_responses_total" in answer
    finally:
        process.terminate()
        assert process.wait(30) == 0, (tmp_path / "log").read_text()


def test_an_old_python_is_a_clear_error(bundle: Path) -> None:
    with zipfile.ZipFile(bundle) as zipped:
        start = zipped.read("__main__.py").decode()
    older = start.replace("sys.version_info < (3, 10)", "sys.version_info < (9, 9)")
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("forewarn: Python 3.10 or newer is required, but this is 3.")
    assert done.stderr.count("\n") == 1


def test_tomllib_of_the_standard_library_is_preferred(bundle: Path) -> None:
    program = (
        f"import runpy, sys; sys.argv = [{str(bundle)!r}, '--version']\n"
        f"try: runpy.run_path({str(bundle)!r}, run_name='__main__')\n"
        "finally: import tomllib; print(tomllib.__file__)"
    )
    done = run(sys.executable, "-I", "-S", "-c", program)
    assert (done.stdout.splitlines()[1:], done.returncode) == ([tomllib.__file__], 0), done.stderr


def test_it_is_the_same_each_time_and_can_be_started_as_it_is(bundle: Path, tmp_path: Path) -> None:
    assert make_bundle() == bundle.read_bytes()
    assert os.access(bundle, os.X_OK)
    assert bundle.read_bytes().startswith(b"#!/usr/bin/env python3\n")
    copy = tmp_path / "copy.pyz"
    done = run(sys.executable, bundle, "bundle", "--output", copy)
    assert done.returncode == 0, done.stderr
    assert copy.read_bytes() == bundle.read_bytes()


def test_a_unit_starts_the_file_where_it_is(bundle: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, bundle.name, "install", "--print"],
        cwd=bundle.parent,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert f"ExecStart={sys.executable} {bundle} run\n" in done.stdout


def test_it_contains_the_imports_of_the_agent_and_nothing_of_the_service() -> None:
    found = set(closure(SOURCE, "agent"))
    parts = {name.split("/")[1] for name in found}
    assert parts == {"__init__.py", "agent", "wire", "system", "files", "core", "errors.py"}
    assert {name for name in found if name.startswith("forewarn/core/")} <= {
        "forewarn/core/__init__.py",
        "forewarn/core/durations.py",
        "forewarn/core/event_types.py",
    }
    assert "forewarn/system/connections.py" not in found
    assert {name for name in found if name.startswith("forewarn/files/")} == {
        "forewarn/files/__init__.py",
        "forewarn/files/toml_reader.py",
    }
    assert {name for name in found if name.startswith("forewarn/agent/")} == {
        f"forewarn/{path.relative_to(SOURCE)}" for path in (SOURCE / "agent").rglob("*.py")
    }


def test_imports_for_type_checking_are_not_bundled(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    for name in ("__init__", "part/__init__", "wanted", "types_only", "lazily", "otherwise"):
        (tmp_path / f"{name}.py").write_text("")
    (tmp_path / "part" / "one.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "from forewarn import wanted\n"
        "if TYPE_CHECKING:\n    import forewarn.types_only\n"
        "else:\n    import forewarn.otherwise\n"
        "def f():\n    from forewarn.lazily import something\n"
    )
    assert set(closure(tmp_path, "part")) == {
        "forewarn/__init__.py",
        "forewarn/lazily.py",
        "forewarn/otherwise.py",
        "forewarn/part/__init__.py",
        "forewarn/part/one.py",
        "forewarn/wanted.py",
    }
