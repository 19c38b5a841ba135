"""Open the database file: lock, checks and migrations.

A damaged, foreign or newer database is rejected and not modified. A new one is created under another name and then
renamed. So an unreadable file is always damage, never an interrupted start.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from importlib import resources
from typing import IO, TYPE_CHECKING

from forewarn.errors import DataInUse, NotPermitted, StoreDamaged, StoreFailed, StoreForeign, StoreNewer
from forewarn.stores.rows import TABLES
from forewarn.system.files import move_into_place

if TYPE_CHECKING:
    from pathlib import Path

MEMORY = ":memory:"
DATABASE_NAME = "forewarn.db"
APPLICATION_ID = 0x46574E31  # "FWN1"
"""Written to the file header to detect databases of other programs."""

LOG_BYTES = 16_384_000
CACHE_BYTES = 2_048_000
"""SQLite's default."""


def read_statements() -> dict[str, str]:
    """Read the named statements of sqlite.sql, with their column lists."""
    text = resources.files(__package__).joinpath("sqlite.sql").read_text("utf-8")
    parts = (part.split("\n", 1) for part in text.split("-- name: ")[1:])
    return {name.strip(): statement.strip().format(**TABLES) for name, statement in parts}


def migrations() -> list[str]:
    """Return the migration scripts, each from schema n to n+1."""
    folder = resources.files(__package__).joinpath("migrations")
    return [script.read_text("utf-8") for script in sorted(folder.iterdir(), key=lambda script: script.name)]


def open_database(folder: Path | None) -> tuple[sqlite3.Connection, IO[str] | None]:
    """Open the database of a folder and lock it. None: in memory."""
    if folder is None:
        database = _connect(MEMORY)
        _migrate(database, MEMORY)
        return database, None
    lock = lock_folder(folder)
    path = folder / DATABASE_NAME
    try:
        if not path.exists():
            _create(path)
        return _open(path), lock
    except BaseException:
        lock.close()
        raise


def lock_folder(folder: Path) -> IO[str]:
    """Create a data folder if needed, and lock it, so that no service can use it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return _lock(folder)
    except OSError as error:
        raise NotPermitted(action="write to", path=folder, problem=error.strerror, flag="--data") from error


def open_reader(folder: Path) -> sqlite3.Connection:
    """Open a read-only connection. In WAL mode it does not wait for commits."""
    database = _connect(folder / DATABASE_NAME)
    database.execute("PRAGMA query_only = ON")
    return database


def _lock(folder: Path) -> IO[str]:
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip() or "unknown"
        lock.close()
        raise DataInUse(path=folder, pid=pid) from None
    lock.truncate(0)
    lock.write(str(os.getpid()))
    lock.flush()
    return lock


def _connect(path: Path | str) -> sqlite3.Connection:
    # Only one thread uses it at a time, but not the one that opens it.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


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


def _open(path: Path) -> sqlite3.Connection:
    if path.stat().st_size == 0:
        raise StoreDamaged(path=path, problem="the file is empty")
    database = _connect(path)
    try:
        application = database.execute("PRAGMA application_id").fetchone()[0]
        if application != APPLICATION_ID:
            raise StoreForeign(path=path)
        verdict = database.execute("PRAGMA quick_check(1)").fetchone()[0]
        if verdict != "ok":
            raise StoreDamaged(path=path, problem=verdict)
        _migrate(database, path)
        for file in path.parent.glob(f"{path.name}*"):
            file.chmod(0o600)  # earlier releases created files that others could read
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        # A checkpoint needs two syncs: do it after 16 MB instead of 4.
        database.execute(f"PRAGMA wal_autocheckpoint = {LOG_BYTES // 4096}")
        _extend_log(database, path)
    except sqlite3.OperationalError as error:
        database.close()
        raise StoreFailed(problem=str(error)) from error
    except sqlite3.DatabaseError as error:
        database.close()
        raise StoreDamaged(path=path, problem=str(error)) from error
    except BaseException:
        database.close()
        raise
    return database


def _extend_log(database: sqlite3.Connection, path: Path) -> None:
    """Allocate the full size of the log. Commits are a third faster if they do not extend the file."""
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size >= LOG_BYTES:
        return
    # Data beyond the cache is written to the log. The rollback leaves the file at this size.
    database.execute("BEGIN IMMEDIATE")
    database.execute("CREATE TABLE unused (filler BLOB)")
    database.execute("INSERT INTO unused VALUES (zeroblob(?))", (LOG_BYTES + CACHE_BYTES,))
    database.execute("ROLLBACK")


def _migrate(database: sqlite3.Connection, path: Path | str) -> None:
    scripts = migrations()
    found = database.execute("PRAGMA user_version").fetchone()[0]
    if found > len(scripts):
        raise StoreNewer(path=path, found=found, known=len(scripts))
    for version, script in enumerate(scripts[found:], start=found + 1):
        # One transaction each, so that an interrupted migration has no effect.
        database.executescript(
            f"BEGIN IMMEDIATE; {script} PRAGMA application_id = {APPLICATION_ID}; "
            f"PRAGMA user_version = {version}; COMMIT;"
        )
