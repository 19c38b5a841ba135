"""docs/fidelity.md is what the golden lists say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from golden.behaviours import BEHAVIOURS

ROOT = Path(__file__).parents[2]


def test_the_page_is_what_the_script_makes() -> None:
    script = [sys.executable, str(ROOT / "script" / "fidelity"), "--print"]
    made = subprocess.run(script, capture_output=True, timeout=60, check=True, env={"PYTHONIOENCODING": "utf-8"})
    written = (ROOT / "docs" / "fidelity.md").read_bytes()
    assert written == made.stdout, "run: .venv/bin/python script/fidelity"


def test_every_course_of_events_is_held_by_a_test_that_is_there() -> None:
    assert all((ROOT / "tests" / behaviour.test).exists() for behaviour in BEHAVIOURS)
