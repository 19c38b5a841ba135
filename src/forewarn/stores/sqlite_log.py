"""Find out at start whether the write-ahead log has lost commits.

SQLite reads its log up to the first frame with a wrong checksum. A single wrong bit therefore drops all later commits,
without an error. The file `forewarn.db-sequence` has the last history sequence. The store writes it after each commit,
without a sync. So it can be behind the database, but never ahead.
"""

from __future__ import annotations

import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

from forewarn.system.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def log_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def sequence_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-sequence")


class SequenceFile:
    """The last history sequence that was committed."""

    def __init__(self, database: Path) -> None:
        self._path = sequence_path(database)
        self._descriptor = -1

    def read(self) -> int:
        """Return the sequence; 0 if there is no file or if it is damaged."""
        with suppress(OSError, ValueError):
            number, checksum = self._path.read_text("ascii").split()
            if int(checksum, 16) == crc32(number.encode()):
                return int(number)
        return 0

    def write(self, sequence: int) -> None:
        """Write the sequence, without a sync. An error leaves an older sequence, which is harmless."""
        number = f"{sequence:020d}"
        with suppress(OSError):
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, f"{number} {crc32(number.encode()):08x}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def keep_log(database: Path) -> Path | None:
    """Copy a damaged log to a new name. None: there is no log."""
    log = log_path(database)
    if not log.exists() or not log.stat().st_size:
        return None
    names = (log.with_name(f"{log.name}.damaged-{number}") for number in count(1))
    copy = next(path for path in names if not path.exists())
    write_atomically(copy, log.read_bytes())
    return copy
