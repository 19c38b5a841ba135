"""Find out at start whether the write-ahead log has lost commits.

SQLite reads its log up to the first frame with a wrong checksum. A single wrong bit therefore drops all later commits,
without an error. The file `forewarn.db-sequence` has the last history sequence. The store writes it after each commit,
without a sync. So it can be behind the database, but never ahead.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

from forewarn.system.files import write_atomically
from forewarn.system.number_file import NumberFile

if TYPE_CHECKING:
    from pathlib import Path


def log_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def sequence_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-sequence")


class SequenceFile:
    """The last history sequence that was committed."""

    def __init__(self, database: Path) -> None:
        self._file = NumberFile(sequence_path(database))

    def read(self) -> int:
        """Return the sequence; 0 if there is no file or if it is damaged."""
        return next(iter(self._file.read()), 0)

    def write(self, sequence: int) -> None:
        self._file.write(sequence)

    def close(self) -> None:
        self._file.close()


def keep_log(database: Path) -> Path | None:
    """Copy a damaged log to a new name. None: there is no log."""
    log = log_path(database)
    if not log.exists() or not log.stat().st_size:
        return None
    names = (log.with_name(f"{log.name}.damaged-{number}") for number in count(1))
    copy = next(path for path in names if not path.exists())
    write_atomically(copy, log.read_bytes())
    return copy
