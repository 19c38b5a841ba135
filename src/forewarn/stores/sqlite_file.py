"""Open the database file: lock, checks and migrations.

A damaged, foreign or newer database is rejected and not modified. A new one is created under another name and then
renamed. So an unreadable file is always damage, never an interrupted start.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sqlite3
import stat
from contextlib import closing, suppress
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from forewarn.core.durations import from_text
from forewarn.core.history import SKIPPED_NUMBERS, changes_lost
from forewarn.core.state import FORGOTTEN_ENABLING
from forewarn.errors import (
    DataFolderOfOther,
    DataFolderWritable,
    DataInUse,
    NotARegularFile,
    NotPermitted,
    StoreDamaged,
    StoreFailed,
    StoreForeign,
    StoreNewer,
)
from forewarn.stores import sql
from forewarn.stores.rows import HISTORY
from forewarn.stores.sqlite_log import SequenceFile, keep_log, log_path
from forewarn.system.files import kind_of, move_into_place
from forewarn.system.logs import get_logger

MEMORY = ":memory:"
DATABASE_NAME = "forewarn.db"
APPLICATION_ID = 0x46574E31  # "FWN1"
"""Written to the file header to detect databases of other programs."""

LOG_BYTES = 4_096_000
"""Size of the write-ahead log. SQLite then merges it into the database. A small log has little to lose by damage."""
CACHE_BYTES = 2_048_000
"""SQLite's default."""
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

_LAST_SEQUENCE = "SELECT coalesce(max(sequence), 0) FROM history"
_log = get_logger(__name__)


def read_statements() -> dict[str, str]:
    """Read the statements of this store."""
    return sql.read_statements("sqlite")


def migrations() -> list[str]:
    """Return the migration scripts, each from schema n to n+1."""
    folder = resources.files(__package__).joinpath("migrations")
    return [script.read_text("utf-8") for script in sorted(folder.iterdir(), key=lambda script: script.name)]


class OpenDatabase(NamedTuple):
    """An open database, and what belongs to it."""

    connection: sqlite3.Connection
    path: Path | None = None
    lock: DataLock | None = None
    sequence_file: SequenceFile | None = None
    shared: bool = True
    """Whether other connections can be opened. Not if there was no space for the index of the log (-shm)."""


def open_database(folder: Path | None) -> OpenDatabase:
    """Open the database of a folder and lock it. None: in memory."""
    if folder is None:
        database = _connect(MEMORY)
        _migrate(database, MEMORY)
        return OpenDatabase(database)
    lock = lock_folder(folder)
    path = folder / DATABASE_NAME
    try:
        if path.is_symlink() or path.exists():
            check_kind(path)
            path = Path(os.path.realpath(path))  # SQLite keeps the log beside the file itself
        else:
            _create(path)
        return _open(path, lock)
    except BaseException:
        lock.close()
        raise


def lock_folder(folder: Path, *, as_root: bool = False) -> DataLock:
    """Create a data folder if needed, and lock it, so that no service can use it.

    `as_root`: root may use the folder of another user.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return DataLock(Path(os.path.realpath(folder)), as_root=as_root)
    except OSError as error:
        raise NotPermitted(action="write to", path=folder, problem=error.strerror, flag="--data") from error


def open_reader(path: Path) -> sqlite3.Connection:
    """Open a read-only connection. In WAL mode it does not wait for commits."""
    database = _connect(path)
    database.execute("PRAGMA query_only = ON")
    return database


def check_kind(path: Path) -> None:
    """Raise an error if this is not a regular file, or a link to one."""
    try:
        kind = kind_of(path.stat().st_mode)
    except FileNotFoundError:
        kind = "a symbolic link to nothing"
    except OSError as error:  # such as a link to itself
        raise NotPermitted(action="open", path=path, problem=error.strerror, flag="--data") from error
    if kind:
        raise NotARegularFile(path=path, kind=kind)


class DataLock:
    """The exclusive use of a data folder.

    The lock is on the folder itself, so it does not end if somebody removes the file `lock`. That file contains the
    process id. It is locked too, because some file systems can lock files, but not folders.
    """

    def __init__(self, folder: Path, *, as_root: bool = False) -> None:
        self._folder = folder
        self._file = -1
        self._descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._check_owner(as_root=as_root)
            self._acquire(self._descriptor)
            self._write_pid()
        except BaseException:
            self.close()
            raise

    def _check_owner(self, *, as_root: bool) -> None:
        """Other users must not be able to replace files in the folder."""
        found = os.fstat(self._descriptor)
        if found.st_uid not in (0, os.geteuid()) and not (as_root and os.geteuid() == 0):
            raise DataFolderOfOther(path=self._folder, owner=found.st_uid, user=os.geteuid())
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise DataFolderWritable(path=self._folder, mode=f"{stat.S_IMODE(found.st_mode):04o}")

    def _acquire(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DataInUse(path=self._folder, pid=self._read_pid()) from None
        except OSError:
            if descriptor != self._descriptor:  # some file systems can lock files, but not folders
                raise

    def _write_pid(self) -> None:
        try:
            self._file = self._open_file(os.O_RDWR | os.O_CREAT)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            return
        self._acquire(self._file)
        with suppress(OSError):  # the disk may be full
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, str(os.getpid()).encode(), 0)

    def _read_pid(self) -> str:
        try:
            descriptor = self._open_file(os.O_RDONLY)
        except OSError:
            return "unknown"
        with os.fdopen(descriptor, errors="replace") as stream:
            return stream.read(20).strip() or "unknown"

    def _open_file(self, flags: int) -> int:
        path = self._folder / "lock"
        with suppress(FileNotFoundError):
            kind = kind_of(path.lstat().st_mode)
            if kind:
                raise NotARegularFile(path=path, kind=kind)
        return os.open("lock", flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._descriptor)

    def close(self) -> None:
        for descriptor in (self._file, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._descriptor = -1


def _connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    # Only one thread uses it at a time, but not the one that opens it.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, uri=uri)


def _create(path: Path) -> None:
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    try:
        # Readable only by the owner. The log gets the same mode.
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        database = _connect(unfinished)
        _migrate(database, unfinished)
        database.close()
        move_into_place(unfinished, path)
    except (sqlite3.Error, OSError) as error:
        raise StoreFailed(problem=str(error)) from error


def _open(path: Path, lock: DataLock) -> OpenDatabase:
    if path.stat().st_size == 0:
        raise StoreDamaged(path=path, problem="the file is empty")
    try:
        shared = _read_log(path)
        lost = _find_lost_commits(path, _check_file(path)) if shared else None
        database = connect_writer(path, shared=shared)
        try:
            if not shared:
                lost = _find_lost_commits(path, _check(database, path))
            _prepare(database, path, lost)
        except BaseException:
            database.close()
            raise
    except (sqlite3.OperationalError, OSError) as error:
        raise StoreFailed(problem=str(error)) from error
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(path=path, problem=str(error)) from error
    return OpenDatabase(database, path, lock, SequenceFile(path), shared)


def connect_writer(path: Path, *, shared: bool) -> sqlite3.Connection:
    """Open the connection that writes."""
    database = _connect(path)
    if not shared:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // 4096}")
    # After a large transaction, the log gets its normal size back.
    database.execute(f"PRAGMA journal_size_limit = {LOG_BYTES + CACHE_BYTES}")
    return database


def _connect_read_only(path: Path) -> sqlite3.Connection:
    """Open a connection that does not merge the log into the database when it is closed."""
    return _connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def _read_log(path: Path) -> bool:
    """Let SQLite read the log and create its index. Returns False if it cannot: the disk may be full."""
    with closing(_connect_read_only(path)) as database:
        try:
            database.execute("PRAGMA schema_version").fetchone()
        except sqlite3.OperationalError:
            return False
        except sqlite3.DatabaseError:
            pass  # `_check_file` rejects a damaged database, but a damaged log may be the reason
    return True


def _check_file(path: Path) -> int:
    with closing(_connect_read_only(path)) as database:
        return _check(database, path)


class LostCommits(NamedTuple):
    """Commits that a damaged log has lost."""

    newest: int
    """Sequence of the newest history row that is left."""
    expected: int
    """Sequence of the newest history row that was committed."""
    log: Path | None
    """The copy of the damaged log."""


def _find_lost_commits(path: Path, sequence: int) -> LostCommits | None:
    """Compare the newest history row with the last one that was committed. Returns what is missing."""
    expected = SequenceFile(path).read()
    return LostCommits(sequence, expected, keep_log(path)) if expected > sequence else None


def _check(database: sqlite3.Connection, path: Path) -> int:
    """Check that this is an intact database of Forewarn. Returns its newest history sequence."""
    if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise StoreForeign(path=path)
    verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StoreDamaged(path=path, problem=verdict)
    _check_version(database, path)
    return int(database.execute(_LAST_SEQUENCE).fetchone()[0])


def _prepare(database: sqlite3.Connection, path: Path, lost: LostCommits | None) -> None:
    try:
        _migrate(database, path)
    except sqlite3.OperationalError as error:
        raise StoreFailed(problem=f"{error}, while upgrading {path} for this release") from error
    for file in path.parent.glob(f"{path.name}*"):
        file.chmod(0o600)  # a copy may have another mode
    if lost is not None:
        _record_loss(database, lost)
    try:
        _extend_log(database, path)
    except sqlite3.OperationalError as error:
        if database.in_transaction:
            database.execute("ROLLBACK")
        _log.warning("log_not_extended", "Cannot extend the log of the database. Commits are slower.", error=str(error))


def _record_loss(database: sqlite3.Connection, lost: LostCommits) -> None:
    """Continue after lost commits, so that no client sees a number twice."""
    rows = lost.expected - lost.newest
    _log.error(
        "commits_lost",
        "The write-ahead log was damaged. Its last changes are lost. The damaged log is kept.",
        lost_history_rows=rows,
        last_history_row=lost.newest,
        damaged_log=str(lost.log or ""),
    )
    found = database.execute("SELECT time FROM history WHERE sequence = ?", (lost.newest,)).fetchone()
    time = from_text(found[0]) if found else datetime(1970, 1, 1, tzinfo=UTC)
    reason = f"The write-ahead log was damaged. At least {rows} rows after row {lost.newest} are lost."
    # The file with the last sequence may be behind, if the machine crashed.
    statements = read_statements()
    entry = changes_lost(time, lost.expected + SKIPPED_NUMBERS, reason)
    database.execute("BEGIN IMMEDIATE")
    (enabling,) = database.execute(statements["highest_enabling"]).fetchone()
    enabling += SKIPPED_NUMBERS
    database.execute("UPDATE delivery SET enabling = ?, incarnation = incarnation + ?", (enabling, SKIPPED_NUMBERS))
    database.execute(statements["save_fact"], (FORGOTTEN_ENABLING, str(enabling)))
    # A webhook that has read all rows is not behind by the skipped ones.
    database.execute("UPDATE webhook SET cursor = ? WHERE cursor = ?", (entry.sequence - 1, lost.newest))
    database.execute(statements["save_history"], HISTORY.write(entry))
    database.execute("COMMIT")


def _extend_log(database: sqlite3.Connection, path: Path) -> None:
    """Allocate the full size of the log. Commits are a third faster if they do not extend the file."""
    log = log_path(path)
    if log.exists() and log.stat().st_size >= LOG_BYTES:
        return
    # Data beyond the cache is written to the log. The rollback leaves the file at this size.
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE unused (filler BLOB)")
    database.execute("INSERT INTO unused VALUES (zeroblob(?))", (LOG_BYTES + CACHE_BYTES,))
    database.execute("ROLLBACK")


def _check_version(database: sqlite3.Connection, path: Path | str) -> int:
    """Return the schema version. A newer release may have written the database."""
    found = int(database.execute("PRAGMA user_version").fetchone()[0])
    known = len(migrations())
    if found > known:
        raise StoreNewer(path=path, found=found, known=known)
    return found


def _migrate(database: sqlite3.Connection, path: Path | str) -> None:
    found = _check_version(database, path)
    scripts = migrations()
    for version, script in enumerate(scripts[found:], start=found + 1):
        # One transaction each, so that an interrupted migration has no effect.
        database.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {version}; COMMIT;"
        )
