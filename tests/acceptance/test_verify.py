"""Forewarn passes every check of `forewarn verify`: the test runs the commands of docs/how-to/verify.md.

It uses its own network namespace, because the example has fixed ports.
"""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

from forewarn.verify.runner import CHECKS
from namespace import IN_NAMESPACE

ROOT = Path(__file__).parents[2]
TIMEOUT_SECONDS = 300


def example() -> list[str]:
    """Return the two commands of the page: the service and the run."""
    page = (ROOT / "docs" / "how-to" / "verify.md").read_text()
    return [part.partition("```")[0].strip() for part in page.split("```sh\n")[1:]]


def test_forewarn_passes_every_check(tmp_path: Path) -> None:
    service, verify = example()
    report = tmp_path / "verify.xml"
    script = "\n".join(
        [
            "set -euo pipefail",
            f"cd {ROOT}",
            f"PATH={Path(sys.executable).parent}:$PATH",
            f"{sys.executable} {ROOT / 'tests' / 'namespace.py'}",
            f"{service} >{tmp_path}/service.log 2>&1 &",
            "service=$!",
            "trap 'kill $service' EXIT",
            f"until grep -q '^Try in another' {tmp_path}/service.log; do kill -0 $service; done",
            verify.replace("verify.xml", str(report)),
        ]
    )
    run = subprocess.run(
        [*IN_NAMESPACE, "bash", "-c", script],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("FOREWARN_")},
            "HOME": str(tmp_path),
            "FOREWARN_RUNTIME_DIR": str(tmp_path / "run"),
            "XDG_DATA_HOME": str(tmp_path / "share"),
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert f"{len(CHECKS)} passed, 0 failed, 0 skipped." in run.stdout, run.stdout
    assert "Traceback" not in run.stdout + run.stderr + (tmp_path / "service.log").read_text()
    suites = ET.fromstring(report.read_bytes())  # noqa: S314 - written by the program under test
    assert [case.get("name") for case in suites.iter("testcase") if len(case)] == []
