"""Software with the address built in works unchanged: in a network namespace of its own, which has no way out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from namespace import IN_NAMESPACE

HERE = Path(__file__).parent


def in_namespace(*command: str, data: Path) -> subprocess.CompletedProcess[str]:
    inside = [sys.executable, str(HERE / "link_local.py"), *command]
    environment = {**os.environ, "FOREWARN_DATA": str(data), "PYTHONPATH": str(HERE.parent)}
    return subprocess.run(
        [*IN_NAMESPACE, *inside], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_a_client_written_for_azure(tmp_path: Path) -> None:
    result = in_namespace(sys.executable, str(HERE / "azure_client.py"), data=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "approved on 169.254.169.254"
