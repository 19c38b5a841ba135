"""The arguments of every benchmark."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from tools.bench.processes import Processes


class Context(NamedTuple):
    """The processes, the temporary folder and the number of rounds of a run."""

    processes: Processes
    root: Path
    rounds: int

    def folder(self, name: str) -> Path:
        """Return the path of a folder with this name. The caller creates the folder."""
        return self.root / name.replace(", ", "-").replace(" ", "-")

    def log(self, progress: str) -> None:
        print(f"  {progress}", file=sys.stderr, flush=True)
