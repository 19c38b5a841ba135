"""Find out at start whether the write-ahead log has lost commits.

SQLite reads its log up to the first frame with a wrong checksum. A single wrong bit therefore drops all later commits,
without an error. Two files know what the log should contain:

- `forewarn.db-sequence` has the last history sequence. The store writes it after each commit, without a sync. So it can
  be behind the database, but never ahead.
- `forewarn.db-shm`, SQLite's index of the log, has the number of its frames (https://sqlite.org/walformat.html). After
  a kill it is exact. SQLite rebuilds it when it opens the database, so it must be read before and after that.
"""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from forewarn.system.files import move_into_place, write_atomically

if TYPE_CHECKING:
    from pathlib import Path


def log_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-wal")


def sequence_path(database: Path) -> Path:
    return database.with_name(f"{database.name}-sequence")


# --- The last history sequence --------------------------------------------------------------------


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


# --- The log --------------------------------------------------------------------------------------


class LogState(NamedTuple):
    """The state of the log according to SQLite's index."""

    salt: bytes
    """Changes when SQLite starts the log again from its beginning."""
    frames: int
    """Number of frames up to the last commit."""
    checkpointed: int
    """Number of frames whose content is also in the database file."""


_INDEX_VERSION = 3_007_000
_INDEX_BYTES = 136


def log_state(database: Path) -> LogState | None:
    """Read the state of the log; None if it is not known.

    No connection to this database may be open in this process: closing the file would release SQLite's locks.
    """
    try:
        with database.with_name(f"{database.name}-shm").open("rb") as stream:
            index = stream.read(_INDEX_BYTES)
    except OSError:
        return None
    # The header is stored twice. The copies differ if it was not written completely.
    if len(index) < _INDEX_BYTES or index[:48] != index[48:96] or struct.unpack_from("=I", index)[0] != _INDEX_VERSION:
        return None
    frames, checkpointed = (struct.unpack_from("=I", index, offset)[0] for offset in (16, 96))
    return LogState(index[32:40], frames, checkpointed)


def _has_valid_header(log: Path) -> bool:
    """Return whether SQLite accepts the header of the log. If not, it ignores the whole log."""
    try:
        with log.open("rb") as stream:
            header = stream.read(32)
    except OSError:
        return False
    if len(header) < 32:
        return False
    order = ">" if header[3] & 1 else "<"
    first = second = 0
    for one, other in struct.iter_unpack(f"{order}II", header[:24]):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return struct.pack(">II", first, second) == header[24:]


class Damage(NamedTuple):
    """What a damaged log has lost."""

    log_needed: bool
    """Whether the valid part of the log has commits that the database file does not have."""
    lost: bool
    """Whether commits are lost. If not, the database file has them all."""


def find_damage(database: Path, before: LogState | None, after: LogState | None) -> Damage | None:
    """Compare the state of the log before SQLite has read the log and after. None: the log is intact, or unknown."""
    if before is None or after is None or not _is_used(log_path(database)):
        return None
    valid = _has_valid_header(log_path(database))
    if valid and after.salt != before.salt:
        return None  # SQLite has started the log again since it wrote the index
    frames = after.frames if valid else 0
    if frames >= before.frames:
        return None
    return Damage(frames > before.checkpointed, max(frames, before.checkpointed) < before.frames)


def _is_used(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def set_aside(database: Path, *, keep: bool) -> Path | None:
    """Keep a damaged log under a new name: as a copy, or renamed if SQLite must not read it. None: there is no log."""
    log = log_path(database)
    if not _is_used(log):
        return None
    names = (log.with_name(f"{log.name}.damaged-{number}") for number in count(1))
    aside = next(path for path in names if not path.exists())
    if keep:
        write_atomically(aside, log.read_bytes())
    else:
        log.chmod(0o600)
        move_into_place(log, aside)
    return aside
