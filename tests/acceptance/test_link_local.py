"""Software with the built-in address 169.254.169.254 works unchanged, in an isolated network namespace."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from namespace import IN_NAMESPACE

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"

FINDER = """
from forewarn.agent.discovery import find_endpoint
found = find_endpoint()
print(found.url, found.origin, sep="; ")
"""


def in_namespace(*command: str, data: Path) -> subprocess.CompletedProcess[str]:
    inside = [sys.executable, str(HERE / "link_local.py"), *command]
    environment = {**os.environ, "FOREWARN_DATA": str(data), "PYTHONPATH": f"{SOURCE}{os.pathsep}{HERE.parent}"}
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
