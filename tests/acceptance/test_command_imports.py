"""Which modules a short command loads. Loading takes most of its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from forewarn import __version__

if TYPE_CHECKING:
    from forewarn.testing import Service

SLOW = {
    "asyncio",
    "dataclasses",
    "forewarn.core.state",
    "forewarn.settings",
    "httptools",
    "importlib.metadata",
    "msgspec",
    "secrets",
    "starlette",
    "subprocess",
    "tomllib",
    "uvicorn",
}
SCRIPT = """
import atexit, json, os, sys
atexit.register(lambda: os.write(2, ("\\n" + json.dumps(sorted(sys.modules))).encode()))
from forewarn.__main__ import main
sys.argv = ["forewarn", *sys.argv[1:]]
main()
"""


def run_and_list_modules(arguments: list[str], environment: dict[str, str]) -> tuple[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, set(json.loads(done.stderr.splitlines()[-1]))


def test_the_version_is_printed_without_the_command_line() -> None:
    output, modules = run_and_list_modules(["--version"], {})
    assert output == f"forewarn, version {__version__}\n"
    assert not modules & (SLOW | {"click", "forewarn.cli", "http.client", "socket"})


@pytest.mark.parametrize("command", ["vm list", "host list", "event list", "operation list", "history", "group list"])
def test_a_list_loads_only_what_it_needs(forewarn: Service, command: str) -> None:
    forewarn.vm("web-0")
    _, modules = run_and_list_modules(command.split(), forewarn.environment)
    assert "forewarn.cli" in modules
    assert not modules & SLOW
