"""Software with the built-in address 169.254.169.254 works unchanged, in an isolated network namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from namespace import IN_NAMESPACE
from programs import need

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"

FINDER = """
from forewarn.agent.discovery import find_endpoint
found = find_endpoint()
print(found.url, found.origin, sep="; ")
"""


READER = """
from forewarn.agent import Client, EndpointError
with Client() as client:
    try:
        print(client.document().incarnation)
    except EndpointError as error:
        print(error)
"""
WITHOUT_THE_CAPABILITY = ("setpriv", "--bounding-set=-net_admin,-net_raw", "--inh-caps=-net_admin,-net_raw")


def in_namespace(*command: str, data: Path, locked: bool = False) -> subprocess.CompletedProcess[str]:
    inside = [sys.executable, str(HERE / "link_local.py"), *command]
    environment = {
        **os.environ,
        "IMDS_LOCKED": "1" if locked else "",
        "FOREWARN_DATA": str(data),
        "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE.parent}",
    }
    environment.pop("FOREWARN_ENDPOINT", None)
    return subprocess.run(
        [*IN_NAMESPACE, *inside], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_client_written_for_azure(tmp_path: Path) -> None:
    result = in_namespace(sys.executable, str(HERE / "azure_client.py"), data=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "approved on 169.254.169.254"


def test_an_agent_without_configuration_finds_the_endpoint(tmp_path: Path) -> None:
    result = in_namespace(sys.executable, "-c", FINDER, data=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "http://169.254.169.254:80; the link-local address"


# --- systemd 261 has locked the address -----------------------------------------------------------------


@pytest.fixture
def run_locked(tmp_path: Path) -> Callable[..., str]:
    need("ip", "setpriv")

    def run(*command: str) -> str:
        result = in_namespace(*command, data=tmp_path, locked=True)
        assert result.returncode == 0, result.stderr
        return result.stdout.splitlines()[-1]

    return run


def test_a_program_without_the_mark_is_locked_out(run_locked: Callable[..., str]) -> None:
    connect = (
        "import socket\ntry: socket.create_connection(('169.254.169.254', 80))\nexcept OSError as error: print(error)"
    )
    assert run_locked(sys.executable, "-c", connect) == "[Errno 13] Permission denied"


def test_the_agent_opens_the_lock_with_the_mark(run_locked: Callable[..., str]) -> None:
    assert run_locked(sys.executable, "-c", READER) == "0"
    assert run_locked(sys.executable, "-c", FINDER) == "http://169.254.169.254:80; the link-local address"


def test_without_the_capability_one_message_names_the_lock_and_the_remedy(run_locked: Callable[..., str]) -> None:
    message = run_locked(*WITHOUT_THE_CAPABILITY, sys.executable, "-c", READER)
    assert message.startswith("Cannot connect to the endpoint http://169.254.169.254:80: Permission denied. ")
    assert all(words in message for words in ("systemd.imds.network=locked", "CAP_NET_ADMIN", "=unlocked"))
