"""A service on a full disk answers polls, rejects changes until there is room, and says that it is not ready."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import need

NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]


@pytest.mark.parametrize(
    "scenario",
    [
        "after_a_stop",
        "after_a_kill",
        "with_something_due",
        "with_a_changed_fleet",
        "without_the_token_file",
        "while_it_runs",
    ],
)
def test_a_full_disk(tmp_path: Path, scenario: str) -> None:
    need("unshare", "mount")
    program = [sys.executable, str(Path(__file__).with_name("full_disk.py")), str(tmp_path), scenario]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run([*NAMESPACE, *program], capture_output=True, text=True, timeout=120, env=environment)
    assert ended.returncode == 0, ended.stderr
