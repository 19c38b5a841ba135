"""What every measurement is given."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from bench.processes import Processes


class Stage(NamedTuple):
    """Where to measure, and how often."""

    processes: Processes
    root: Path
    rounds: int

    def folder(self, name: str) -> Path:
        """A path for a folder of its own, not made yet."""
        return self.root / name.replace(", ", "-").replace(" ", "-")

    def say(self, progress: str) -> None:
        print(f"  {progress}", file=sys.stderr, flush=True)
