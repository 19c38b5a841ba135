"""The store for several nodes: PostgreSQL. Each commit checks in its own transaction that this node still leads.

A commit also writes its complete change set as one row of the journal, which the other nodes apply. Most commits are
one statement; the others are a transaction in one pipeline. So the check needs no round trip of its own.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import psycopg

from forewarn.errors import DatabaseFailed, DatabaseUnreachable, NodeNameTaken, NotLeading, StoreOutcomeUnknown
from forewarn.ports import JournalRow, LeaseState, NodeRow
from forewarn.stores import change_set
from forewarn.stores.postgresql_server import WRITER, CollectedStatements, PostgresqlDatabase, one_line
from forewarn.stores.sql import SqlRecords, SqlWriter, remove_expired

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.core.fleet import Fleet
    from forewarn.core.state import Changes
    from forewarn.ports import RetentionCutoff, StoredState
    from forewarn.stores.postgresql_server import PostgresqlServer

NOT_LEADING = "FW001"
"""The error code of the function check_epoch."""
NO_EPOCH = -1
"""No lease has it, so every commit is rejected."""
ATTEMPTS = 5
RETRY_SECONDS = 0.3
"""How often, and how fast, a lost connection is opened again to find the outcome of a commit."""
COLLECT_SECONDS = 0.005
"""Notifications of this time are one. Meanwhile the rows may also arrive with an answer of the leader."""


class PostgresqlStore(SqlRecords):
    """Stores commits in PostgreSQL. Only after `lead` it writes."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        """`node` is the id of this node: a new one for each start of the process."""
        self._server = server
        self._node = node
        self._writing = PostgresqlDatabase(server, WRITER + node)
        super().__init__(PostgresqlDatabase(server, f"forewarn loader {node}", limited=False))
        self._channel = f"forewarn {server.schema}"
        self._epoch = 0
        self._position = 0
        self.last_row: JournalRow | None = None
        self._readers: list[PostgresqlDatabase] = []

    def load(self) -> StoredState:
        """Load everything at one point in time, with its position in the journal."""
        return self._db.run(self._load_snapshot)

    def _load_snapshot(self) -> StoredState:
        connection = self._loading.connection
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            last = self._loading.named("last_journal_row").fetchone()
            saved = super().load()
        if last is not None:
            saved.position, saved.decided_at = last[0], change_set.decided_at(last[1])
        return saved

    @property
    def _loading(self) -> PostgresqlDatabase:
        assert isinstance(self._db, PostgresqlDatabase)  # noqa: S101 - set in the constructor
        return self._db

    # --- Writing --------------------------------------------------------------------------------------

    def lead(self, epoch: int, position: int) -> None:
        self._epoch = epoch
        self._position = position
        self._writing.close()  # another leader may have ended the connection
        try:
            self._write_transaction(self._remove_unused_texts)
        except psycopg.Error as error:
            raise DatabaseFailed(problem=one_line(error)) from error

    def _remove_unused_texts(self) -> None:
        self._writing.named("remove_unused_texts")
        self._writing.named("check_epoch", epoch=self._epoch)

    def commit(self, changes: Changes) -> int:
        number, data = self._position + 1, change_set.encode(changes)
        collected = CollectedStatements()
        SqlWriter(collected).save(changes)

        def write() -> None:
            # With the current epoch, which is higher in the second attempt.
            self._write_all(collected, (number, self._epoch, data, self._channel))

        try:
            write()
        except psycopg.Error as error:
            if not self._find_outcome(number, error):
                self._commit_again(number, write)
        self._position = number
        self.last_row = JournalRow(number, data)
        return number

    def _commit_again(self, number: int, write: Callable[[], None]) -> None:
        """Repeat a commit that is known to have had no effect, on the new connection."""
        try:
            write()
        except psycopg.Error as error:
            if not self._find_outcome(number, error):
                raise DatabaseFailed(problem=one_line(error)) from error

    def _write_all(self, collected: CollectedStatements, journal: tuple[Any, ...]) -> None:
        last = self._writing.statements["save_journal"]
        whole = collected.as_one(last, journal)
        if whole is not None:
            self._write(lambda: self._writing.execute(*whole))
            return

        def work() -> None:
            for statement, parameters in collected.calls:
                self._writing.execute_many(statement, parameters)
            self._writing.execute(last, journal)

        self._write_transaction(work)

    def _write_transaction(self, work: Callable[[], object]) -> None:
        """Run a transaction. All of it is sent at once. After an error, the server ignores the rest, and the COMMIT."""

        def whole() -> None:
            with self._writing.connection.pipeline():
                self._writing.execute("BEGIN")
                work()
                self._writing.execute("COMMIT")

        self._write(whole)

    def _write(self, work: Callable[[], object]) -> None:
        """Write something. `work` must check the epoch, so that it fails if another node leads.

        Raises StoreFailed if nothing has changed, and an error of psycopg if the connection was lost.
        """
        connection = self._writing.connection
        try:
            work()
        except psycopg.Error as error:
            self._writing.roll_back()
            if error.sqlstate == NOT_LEADING:
                raise NotLeading from error
            if connection.closed or not error.sqlstate:
                self._writing.close()
                raise
            raise DatabaseFailed(problem=one_line(error)) from error
        except BaseException:
            self._writing.close()
            raise

    def _find_outcome(self, number: int, cause: psycopg.Error) -> bool:
        """Return whether a commit had an effect, whose connection was lost.

        First it raises the epoch, or finds that another node has: after that, the lost transaction cannot commit.
        """
        for attempt in range(ATTEMPTS):
            if attempt:
                threading.Event().wait(RETRY_SECONDS)
            try:
                raised = self._writing.named("raise_epoch", node=self._node, epoch=self._epoch).fetchone()
                found = self._writing.named("committed_epoch", number=number).fetchone()
            except (psycopg.Error, DatabaseUnreachable):
                self._writing.close()
                continue
            is_mine = found is not None and found[0] == self._epoch
            if raised is not None:
                self._epoch = raised[0]
            elif not is_mine:
                raise NotLeading from cause
            return is_mine
        # The next commit would have the same number, and could be taken for this one. Nothing is written until `lead`.
        self._epoch = NO_EPOCH
        raise StoreOutcomeUnknown(problem=one_line(cause)) from cause

    def remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        try:
            return self._write_and_fetch(cutoff, limit)
        except psycopg.Error as error:
            raise DatabaseFailed(problem=one_line(error)) from error

    def _write_and_fetch(self, cutoff: RetentionCutoff, limit: int) -> bool:
        connection = self._writing.connection
        try:
            with connection.transaction():  # no pipeline: the numbers of rows are needed
                self._writing.named("check_epoch", epoch=self._epoch)
                return remove_expired(self._writing, cutoff, limit)
        except psycopg.Error as error:
            if error.sqlstate == NOT_LEADING:
                raise NotLeading from error
            self._writing.close()
            raise

    def reader(self) -> SqlRecords:
        self._readers.append(PostgresqlDatabase(self._server, f"forewarn reader {self._node}", repeats=True))
        return SqlRecords(self._readers[-1])

    def close(self) -> None:
        for database in (self._writing, self._loading, *self._readers):
            database.close()


# --- What the nodes share -------------------------------------------------------------------------


class PostgresqlMembership:
    """The lease, and the list of nodes."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        self._node = node
        self._db = PostgresqlDatabase(server, f"forewarn lease {node}")

    def take_lease(self, seconds: float) -> int | None:
        return self._db.run(lambda: self._take_lease(seconds))

    def _take_lease(self, seconds: float) -> int | None:
        self._db.named("end_writer", application=WRITER)
        row = self._db.named("take_lease", node=self._node, seconds=seconds).fetchone()
        return row[0] if row is not None else None

    def renew_lease(self, seconds: float) -> int | None:
        row = self._db.run(lambda: self._db.named("renew_lease", node=self._node, seconds=seconds).fetchone())
        return row[0] if row is not None else None

    def release_lease(self) -> None:
        self._db.run(lambda: self._db.named("release_lease", node=self._node))

    def lease(self) -> LeaseState:
        return LeaseState(*self._db.run(lambda: self._db.named("lease").fetchone()))  # type: ignore[misc]

    def report(self, node: NodeRow) -> None:
        self._db.run(lambda: self._db.named("report_node", **node._asdict()))

    def nodes(self) -> list[NodeRow]:
        return self._db.run(lambda: [NodeRow(*row) for row in self._db.named("nodes")])

    def remove_node(self, node: str) -> None:
        self._db.run(lambda: self._db.named("remove_node", id=node))

    def trim(self, journal_seconds: float, node_seconds: float) -> None:
        self._db.run(lambda: self._db.named("trim_journal", seconds=journal_seconds))
        self._db.run(lambda: self._db.named("remove_lost_nodes", seconds=node_seconds))

    def join(self, node: NodeRow, settings: dict[str, str], gone: set[str], lost_seconds: float) -> dict[str, str]:
        return self._db.run(lambda: self._join(node, settings, gone, lost_seconds))

    def _join(self, node: NodeRow, settings: dict[str, str], gone: set[str], lost_seconds: float) -> dict[str, str]:
        with self._db.connection.transaction():
            self._db.named("lock_shared_settings")
            shared = dict(self._db.named("shared_settings").fetchall())
            others = [each for each in self.nodes() if each.id != node.id]
            for other in others:
                if other.name == node.name and other.id not in gone:
                    raise NodeNameTaken(name=node.name, address=other.address)
            others = [each for each in others if each.id not in gone or each.age_seconds < lost_seconds]
            if not others:
                shared = {}
                self._db.named("remove_shared_settings")
            for name, value in settings.items():  # also one that the other nodes do not know yet
                if name not in shared:
                    shared[name] = value
                    self._db.named("save_shared_setting", name=name, value=value)
            if all(settings.get(name, value) == value for name, value in shared.items()):
                self.report(node)
        return shared

    def close(self) -> None:
        self._db.close()


class PostgresqlJournal:
    """Reads the journal, and waits for new rows."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        self._channel = f"forewarn {server.schema}"
        self._db = PostgresqlDatabase(server, f"forewarn journal {node}")
        self._listening: Any = None
        """The connection on which it listens."""
        self._has_notifications = False

    def read(self, after: int, limit: int) -> list[JournalRow]:
        return self._db.run(lambda: self._read(after, limit))

    def _read(self, after: int, limit: int) -> list[JournalRow]:
        self._listen()
        return [JournalRow(*row) for row in self._db.named("journal_after", after=after, limit=limit)]

    def newest(self) -> int:
        row = self._db.run(lambda: self._db.named("last_journal_row").fetchone())
        return row[0] if row is not None else 0

    def decode(self, data: bytes, fleet: Fleet) -> Changes:
        return change_set.decode(data, fleet)

    def _listen(self) -> None:
        connection = self._db.connection
        if self._listening is connection:
            return
        self._listening = connection
        try:
            connection.execute(f'LISTEN "{self._channel}"'.encode())
        except psycopg.Error as error:
            if connection.closed or not error.sqlstate:
                raise
            self._has_notifications = False
        else:
            self._has_notifications = True

    def wait(self, seconds: float) -> int | None:
        return self._db.run(lambda: self._wait(seconds))

    def _wait(self, seconds: float) -> int | None:
        self._listen()
        if not self._has_notifications:
            threading.Event().wait(seconds)
            return None
        with self._db.without_limit() as connection:
            found = [*connection.notifies(timeout=seconds, stop_after=1)]
            if found:  # more follow at once if there are many changes
                threading.Event().wait(COLLECT_SECONDS)
                found += connection.notifies(timeout=0)
        return max((int(notification.payload) for notification in found), default=None)

    def close(self) -> None:
        self._db.close()
