"""Back up the database while the service runs, and restore it while the service is stopped.

A backup is one SQLite file that needs no other file. It is written next to its final name, read back completely, and
then renamed. A restore prepares the new database in the same way. Whenever one of them is killed, the earlier file or
the new file is in place, complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

from forewarn.core.progress import when_due
from forewarn.core.restore import UsedNumbers, pending_operations, restore
from forewarn.core.state import ServiceState
from forewarn.errors import (
    BackupFailed,
    BackupInProgress,
    BadBackup,
    BadOption,
    NoDatabase,
    RestoreFailed,
    StoreDamaged,
    StoreFailed,
    StoreForeign,
    StoreNewer,
)
from forewarn.stores.sql import SqlRecords
from forewarn.stores.sqlite import SqliteDatabase, SqliteStore
from forewarn.stores.sqlite_file import APPLICATION_ID, DATABASE_NAME, lock_folder, migrations, read_statements
from forewarn.system.files import check_regular_file, move_into_place, sync_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.core.operations import Operation
    from forewarn.ports import StoredState

PAGES_AT_ONCE = 1024
"""Pages to copy between two checks for Ctrl-C."""
_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"
_APPLICATION_ID_AT = 68
"""Offset of the application id in the header of an SQLite file."""


class Backup(NamedTuple):
    """A backup that was written and read back."""

    file: str
    bytes: int
    sequence: int
    """Its newest history row."""
    schema: int
    vms: int
    pending_operations: int


class _Unusable(Exception):
    """A copy of the database cannot be used. The text says why."""


# --- Backup ---------------------------------------------------------------------------------------


def back_up(folder: Path, file: Path, keep: int) -> Backup:
    """Write a backup of the data folder, read it back, and put it in place. Keep `keep - 1` earlier ones."""
    database = folder / DATABASE_NAME
    if not database.exists():
        raise NoDatabase(path=folder)
    target = _backup_target(file, folder)
    try:
        with _staging(target.with_name(f".{target.name}.new")) as staging:
            copy = staging / DATABASE_NAME
            sequence = _copy_database(database, copy)
            state, schema = _read_back(copy, sequence)
            _sync(copy)
            pending = len(pending_operations(state))
            result = Backup(str(target), copy.stat().st_size, sequence, schema, len(state.fleet.vms), pending)
            _rotate(target, keep)
            move_into_place(copy, target)
    except OSError as error:
        raise BackupFailed(path=target, problem=error.strerror or str(error)) from error
    except (sqlite3.Error, _Unusable) as error:
        raise BackupFailed(path=target, problem=error) from error
    return result


def _backup_target(file: Path, folder: Path) -> Path:
    """Return the path to write. Links are followed, so that a link to another disk stays a link."""
    try:
        check_regular_file(file)  # before resolving, because a link can point to itself
        target = Path(os.path.realpath(file))
        if target.is_relative_to(os.path.realpath(folder)) or _is_same_file(target, folder / DATABASE_NAME):
            problem = f"it is in the data folder {folder}, and would be lost with it. Name a file elsewhere."
            raise BadOption(name="FILE", value=str(file), problem=problem)
        if not target.parent.is_dir():
            problem = f"the folder {target.parent} does not exist. Create it first."
            raise BadOption(name="FILE", value=str(file), problem=problem)
        if target.exists() and target.stat().st_size and not _is_backup(target):
            problem = "it exists, and is not a backup of Forewarn. Name another file."
            raise BadOption(name="FILE", value=str(file), problem=problem)
    except OSError as error:
        raise BadOption(name="FILE", value=str(file), problem=f"{error.strerror or error}.") from error
    return target


def _is_same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _is_backup(path: Path) -> bool:
    with path.open("rb") as stream:
        header = stream.read(_HEADER_BYTES)
    application_id = header[_APPLICATION_ID_AT : _APPLICATION_ID_AT + 4]
    return header.startswith(_MAGIC) and int.from_bytes(application_id, "big") == APPLICATION_ID


def _copy_database(database: Path, copy: Path) -> int:
    """Copy a database in one read transaction. Returns its newest history row.

    Commits continue meanwhile. Only the log cannot start over until the copy is complete. Read-only, because the last
    connection of a writer would fold the log of a killed service into the database.
    """
    os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    with closing(_open_source(database)) as source, closing(_connect(copy)) as target:
        sequence = _newest(source)
        # The callback does nothing, but Python handles signals when it is called.
        source.backup(target, pages=PAGES_AT_ONCE, progress=lambda *_: None)
        source.execute("ROLLBACK")
        target.execute("PRAGMA journal_mode = DELETE")  # so that the file can be read without a log
    return sequence


def _open_source(database: Path) -> sqlite3.Connection:
    """Open the database of a service, and begin a read transaction."""
    if _is_empty(database):
        raise StoreDamaged(path=database, problem="the file is empty")
    try:
        source = _open_read_only(database)
        source.execute("BEGIN")
        if source.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise StoreForeign(path=database)
        _check_schema(source, database)
        _newest(source)
    except sqlite3.OperationalError as error:
        raise _Unusable(f"{database} cannot be read ({error})") from error
    except sqlite3.DatabaseError as error:
        raise StoreDamaged(path=database, problem=error) from error
    return source


def _read_back(copy: Path, sequence: int) -> tuple[ServiceState, int]:
    """Load the state of a copy as a service would, migrated if needed, without changing the copy."""
    with closing(_connect(copy)) as database:
        schema = _check(database, copy)
        # One script, because Python commits an open transaction before a script.
        database.executescript(";".join(("BEGIN IMMEDIATE", *migrations()[schema:])) + ";")
        state = _as_service_state(_load(SqlRecords(SqliteDatabase(database))))
        database.execute("ROLLBACK")
    if state.sequence != sequence:
        problem = f"its newest history row is {state.sequence}, not {sequence}"
        raise _Unusable(f"the copy is not complete: {problem}")
    return state, schema


def _rotate(target: Path, keep: int) -> None:
    """Make FILE into FILE.1, FILE.1 into FILE.2, and so on. FILE itself stays until it is replaced."""
    if keep == 1 or not target.exists():
        return
    numbered = [target.with_name(f"{target.name}.{number}") for number in range(1, keep)]
    # After an interrupted rotation a number is free: no backup has to go then.
    last = next((index for index, path in enumerate(numbered) if not path.exists()), len(numbered) - 1)
    for index in range(last, 0, -1):
        numbered[index - 1].replace(numbered[index])
    numbered[0].unlink(missing_ok=True)  # only with keep 2
    try:
        os.link(target, numbered[0])
    except OSError:  # a file system without hard links
        target.replace(numbered[0])


# --- Restore --------------------------------------------------------------------------------------


class PendingOperation(NamedTuple):
    """An operation in a backup that has not started."""

    operation: Operation
    due_at: datetime | None


class PreparedRestore:
    """A backup that was read, checked and migrated, and can replace the database of a data folder."""

    def __init__(self, file: Path, database: Path, store: SqliteStore, new: Path) -> None:
        self._file = file
        self._database = database
        self._store = store
        self._new = new
        self.state = _as_service_state(_load(store))
        self.replaces = database.exists()

    def pending(self) -> list[PendingOperation]:
        """Return the operations that have not started, each with the time when it starts at the latest."""
        found = pending_operations(self.state)
        return [PendingOperation(operation, when_due(self.state, operation)) for operation in found]

    def finish(self, now: datetime, *, cancel_pending: bool) -> Path | None:
        """Put the database in place. Returns the name under which the replaced one is kept.

        `now` is the time of the service, for history.
        """
        replaced = _used_numbers(self._database, self._file)
        self._store.commit(restore(self.state, now, replaced, cancel_pending=cancel_pending))
        self._store.close()
        try:
            _sync(self._new)
            _give_to_owner(self._new, self._database.parent)
            return _replace(self._database, self._new)
        except OSError as error:
            raise RestoreFailed(path=self._file, problem=error.strerror or str(error)) from error
        except sqlite3.Error as error:
            problem = f"the current database cannot be replaced ({error}; a backup may be reading it)"
            raise RestoreFailed(path=self._file, problem=problem) from error


@contextmanager
def prepare_restore(folder: Path, file: Path) -> Iterator[PreparedRestore]:
    """Lock a data folder, and prepare a database from a backup. The lock is held within the block."""
    _check_backup_file(file, folder / DATABASE_NAME)
    with closing(lock_folder(folder, as_root=True)):
        database = Path(os.path.realpath(folder / DATABASE_NAME))
        try:
            _give_to_owner(folder / "lock", folder)
            with _staging(database.parent / ".restore.new") as staging:
                # In a folder of its own, because the store locks its folder too.
                new = staging / "data" / DATABASE_NAME
                new.parent.mkdir(mode=0o700)
                shutil.copyfile(file, new)
                with closing(_connect(new)) as copy:
                    _check(copy, file)
                store = SqliteStore(new.parent)
                try:
                    yield PreparedRestore(file, database, store, new)
                finally:
                    store.close()
        except OSError as error:
            raise RestoreFailed(path=file, problem=error.strerror or str(error)) from error
        except _Unusable as error:
            raise BadBackup(path=file, problem=error) from error


def _check_backup_file(file: Path, database: Path) -> None:
    """Reject what cannot be a backup, before the data folder is touched."""
    try:
        check_regular_file(file)
        if not file.stat().st_size:
            raise BadBackup(path=file, problem="it is empty")
        if not _is_backup(file):
            raise BadBackup(path=file, problem="it is not a database of Forewarn")
        if _is_same_file(file, database):
            problem = "it is the current database of the data folder"
            raise BadBackup(path=file, problem=problem)
        log = file.with_name(f"{file.name}-wal")
        if log.exists() and log.stat().st_size:
            problem = f"it may be in use, because {log.name} is beside it. Copy it with: forewarn backup --data"
            raise BadBackup(path=file, problem=f"{problem} {file.parent} NEW-FILE")
    except OSError as error:
        raise BadBackup(path=file, problem=error.strerror or str(error)) from error


def _used_numbers(database: Path, file: Path) -> UsedNumbers:
    """Return the numbers of the database that is replaced. A missing one has none."""
    if not database.exists():
        return UsedNumbers(0, {})
    try:
        if _is_empty(database):
            raise _Unusable("the file is empty")
        with closing(_open_read_only(database)) as source:
            incarnations = dict(source.execute("SELECT scope, incarnation FROM delivery"))
            (enabling,) = source.execute(read_statements()["highest_enabling"]).fetchone()
            return UsedNumbers(_newest(source), incarnations, enabling)
    except (sqlite3.Error, _Unusable) as error:
        problem = f"the current database {database} is damaged ({error}). Move {database.name}* to another folder first"
        raise RestoreFailed(path=file, problem=problem) from error


def _replace(database: Path, new: Path) -> Path | None:
    """Rename a database into place, and keep the replaced one under another name.

    SQLite would apply the log of the old database to the new one. So the log is folded into the old database first,
    and no other program can open that until the new one is in place.
    """
    held, aside = None, None
    try:
        if database.exists():
            held = _connect(database)
            held.execute("PRAGMA journal_mode = DELETE")
            held.execute("BEGIN EXCLUSIVE")
            aside = _name_for_replaced(database)
            os.link(database, aside)
            sync_folder(database.parent)
        for suffix in ("-wal", "-shm", "-sequence"):  # of the replaced database, or left over
            database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)
        move_into_place(new, database)
    finally:
        if held is not None:
            held.close()
    return aside


def _name_for_replaced(database: Path) -> Path:
    """Return the first free name. A second name of the database itself is left over from a killed restore."""
    for number in count(1):
        aside = database.with_name(f"{database.name}.before-restore-{number}")
        if _is_same_file(aside, database):
            aside.unlink()
        if not aside.exists():
            break
    return aside


# --- Both -----------------------------------------------------------------------------------------


@contextmanager
def _staging(path: Path) -> Iterator[Path]:
    """Create a private folder for an unfinished file. Removes what a killed process left in it, and itself at the end.

    The folder is locked, so that two commands do not use it at the same time.
    """
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise OSError(None, f"the folder {path} belongs to another user")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            in_use = not os.path.samestat(os.fstat(descriptor), path.stat())
        except (BlockingIOError, FileNotFoundError):
            in_use = True
        if in_use:
            raise BackupInProgress(path=path)
        for left in path.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(descriptor)


def _check(database: sqlite3.Connection, file: Path) -> int:
    """Check a copy completely. Returns its schema version."""
    try:
        if database.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
            raise _Unusable("it is not a database of Forewarn")
        schema = _check_schema(database, file)
        verdict = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
    except sqlite3.DatabaseError as error:
        raise _Unusable(f"it is damaged ({error})") from error
    if verdict != "ok":
        raise _Unusable(f"it is damaged ({verdict})")
    return schema


def _check_schema(database: sqlite3.Connection, file: Path) -> int:
    found = int(database.execute("PRAGMA user_version").fetchone()[0])
    if found > len(migrations()):
        raise StoreNewer(path=file, found=found, known=len(migrations()))
    return found


def _load(records: SqlRecords) -> StoredState:
    try:
        return records.load()
    except (StoreFailed, ValueError, TypeError, LookupError) as error:
        raise _Unusable(f"its content cannot be read ({error})") from error


def _as_service_state(saved: StoredState) -> ServiceState:
    loaded = ServiceState(saved.fleet)
    loaded.absorb(saved.as_changes())
    loaded.sequence = saved.sequence
    return loaded


def _is_empty(database: Path) -> bool:
    """Return whether a database has no content. SQLite removes the log of an empty file, so it must not open one."""
    return not database.exists() or not database.stat().st_size


def _newest(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT coalesce(max(sequence), 0) FROM history").fetchone()[0])


def _connect(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(path, isolation_level=None)


def _open_read_only(path: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, 0o600)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _give_to_owner(path: Path, folder: Path) -> None:
    """Give a file that root creates to the owner of the folder, who runs the service."""
    if os.geteuid() == 0:
        owner = folder.stat()
        os.chown(path, owner.st_uid, owner.st_gid)
