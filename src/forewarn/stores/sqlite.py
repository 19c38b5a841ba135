"""The default store: one SQLite file in WAL mode. Every commit is synced to disk before it returns."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.errors import StoreFailed, StoreOutcomeUnknown
from forewarn.stores.sql import SqlRecords, SqlWriter, remove_expired
from forewarn.stores.sqlite_file import connect_writer, open_database, open_reader, read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from forewarn.core.state import Changes
    from forewarn.ports import RetentionCutoff, StoredState


MIN_FREE_BYTES = 500_000
"""With less free space, the disk counts as full. Most commits write less."""

T = TypeVar("T")
_STATEMENTS = read_statements()


class SqliteDatabase:
    """A connection to a SQLite database."""

    statements = _STATEMENTS

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection

    def execute(self, statement: str, parameters: Any = ()) -> sqlite3.Cursor:
        return self.connection.execute(statement, parameters)

    def execute_many(self, statement: str, parameters: Iterable[Any]) -> None:
        self.connection.executemany(statement, parameters)

    def run(self, call: Callable[[], T]) -> T:
        """Run a call, translate errors of SQLite, and roll back a failed transaction."""
        try:
            return call()
        except BaseException as error:
            if self.connection.in_transaction:
                self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise StoreFailed(problem=str(error)) from error
            raise

    def _roll_back(self) -> None:
        try:
            self.connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StoreFailed(problem=f"and the rollback failed: {error}") from error

    def text(self, text: str) -> str:
        return text

    def check(self) -> None:
        self.connection.execute("PRAGMA shrink_memory")  # forget the pages that were read before
        self.connection.execute("PRAGMA schema_version").fetchone()

    def glob(self, pattern: str) -> str:
        return pattern.replace("[!", "[^")


class SqliteStore(SqlRecords):
    """Stores commits in `forewarn.db` of a folder, or in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._opened = open_database(folder)
        self._use(self._opened.connection)
        self._readers: list[sqlite3.Connection] = []
        self._commit_failed = False
        """Whether the last commit failed. Before the next one, its remains in the log must be voided."""

    def _use(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        super().__init__(SqliteDatabase(connection))
        self._writer = SqlWriter(self._db)

    def load(self) -> StoredState:
        with suppress(sqlite3.OperationalError):  # the disk may be full
            self._db.execute(_STATEMENTS["remove_unused_texts"])
        return super().load()

    def commit(self, changes: Changes) -> int:
        self._write(lambda: self._writer.save(changes))
        if changes.history and self._opened.sequence_file is not None:
            self._opened.sequence_file.write(changes.history[-1].sequence)
        return 0

    def remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        return self._write(lambda: remove_expired(self._db, cutoff, limit))

    def problem(self) -> str:
        """A small commit can succeed on a full disk, because the log has room, and the next one fail."""
        path = self._opened.path
        if path is None:
            return ""
        with suppress(OSError):
            found = os.statvfs(path)
            free = found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
            if free < MIN_FREE_BYTES:
                return f"The disk of {path} is full: {free:,} bytes are free. Changes fail until there is room."
        return ""

    def reader(self) -> SqlRecords | None:
        if self._opened.path is None or not self._opened.shared:
            return None
        self._readers.append(open_reader(self._opened.path))
        return SqlRecords(SqliteDatabase(self._readers[-1]))

    def close(self) -> None:
        if self._commit_failed:
            self._void_failed_commit()
        for connection in (*self._readers, self._connection):
            connection.close()
        for opened in (self._opened.sequence_file, self._opened.lock):
            if opened is not None:
                opened.close()

    # --- Transactions ---------------------------------------------------------------------------------

    def _write(self, work: Callable[[], T]) -> T:
        """Run a transaction: all of it is durable when this returns, or nothing has changed. StoreOutcomeUnknown: a
        crash may make the change appear."""
        if self._commit_failed:
            self._reopen()
        result = self._db.run(lambda: self._begin(work))
        try:
            self._connection.execute("COMMIT")
        except Exception as error:
            self._commit_failed = self._opened.path is not None
            # If there was no space, the log has no complete commit.
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            if self._void_failed_commit() is None or is_full:
                raise StoreFailed(problem=str(error)) from error
            raise StoreOutcomeUnknown(problem=str(error)) from error
        return result

    def _begin(self, work: Callable[[], T]) -> T:
        self._connection.execute("BEGIN IMMEDIATE")
        return work()

    def _void_failed_commit(self) -> sqlite3.Error | None:
        """Make sure that a crash does not bring back a commit that failed. Returns an error if that is not possible.

        A commit can fail when it is complete in the log, because the sync failed. SQLite does not count its frames, but
        it would find them after a crash. The next commit overwrites the first of them, so that the rest becomes
        invalid. This commit writes a single page, without a change. It is durable when it returns.
        """
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            if self._opened.path is not None:
                version = self._connection.execute("PRAGMA user_version").fetchone()[0]
                self._connection.execute(f"PRAGMA user_version = {version}")
        except sqlite3.Error as error:
            return error
        return None

    def _reopen(self) -> None:
        """Void a failed commit, and continue with a new connection, which reads again what is on disk."""
        if (problem := self._void_failed_commit()) is not None:
            raise StoreFailed(problem=str(problem)) from problem
        # The only connection of a database that is not shared stays open: on this disk, a new one might fail.
        if self._opened.path is not None and self._opened.shared:
            try:
                database = connect_writer(self._opened.path, shared=True)
            except sqlite3.Error as error:
                raise StoreFailed(problem=str(error)) from error
            self._connection.close()
            self._use(database)
        self._commit_failed = False
