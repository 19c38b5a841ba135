"""docs/explanation/fidelity.md is generated from the golden lists."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from golden.behaviours import BEHAVIOURS

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date() -> None:
    script = [sys.executable, str(ROOT / "script" / "fidelity"), "--print"]
    made = subprocess.run(script, capture_output=True, timeout=60, check=True, env={"PYTHONIOENCODING": "utf-8"})
    written = (ROOT / "docs" / "explanation" / "fidelity.md").read_bytes()
    assert written == made.stdout, "run: .venv/bin/python script/fidelity"


def test_every_behaviour_names_an_existing_test() -> None:
    assert all((ROOT / "tests" / behaviour.test).exists() for behaviour in BEHAVIOURS)
