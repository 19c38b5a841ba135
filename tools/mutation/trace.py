"""Records which lines of the mutated files run, in the test process and in every Python process that a test starts.

All processes write to one table in shared memory, one byte for each line. A killed process loses nothing, and the test
process can read and clear the table between two tests while a service runs on. coverage.py can do neither.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    Local: TypeAlias = Callable[[FrameType, str, Any], Any]

TABLE = "MUTATION_TABLE"
"""The variable with the path of the table. An index.json beside it has the offset of each mutated file."""


def start() -> mmap.mmap:
    """Start recording in this thread and in all later ones."""
    name = os.environ[TABLE]
    index: dict[str, int] = json.loads((Path(name).parent / "index.json").read_text())
    with Path(name).open("r+b") as file:
        table = mmap.mmap(file.fileno(), 0)
    by_file: dict[str, Local | None] = {path: _recorder(table, begin) for path, begin in index.items()}

    def called(frame: FrameType, _event: str, _argument: object) -> Local | None:
        return by_file.get(frame.f_code.co_filename)

    threading.settrace(called)
    sys.settrace(called)
    return table


def _recorder(table: mmap.mmap, begin: int) -> Local:
    def record(frame: FrameType, event: str, _argument: object) -> Local:
        if event == "line":
            table[begin + frame.f_lineno] = 1
        return record

    return record
