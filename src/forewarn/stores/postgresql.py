"""The store for several nodes: PostgreSQL. Each commit checks in its own transaction that this node still leads.

A commit also writes its complete change set to the journal, which the other nodes apply: one row, or several if it is
large. Most commits are one statement; the others are a transaction in one pipeline. So the check needs no round trip of
its own.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.errors import (
    FeatureNotSupported,
    InsufficientPrivilege,
    ObjectNotInPrerequisiteState,
    UndefinedFunction,
)

from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.state import FORGOTTEN_ENABLING
from forewarn.errors import DatabaseFailed, DatabaseUnreachable, NodeNameTaken, NotLeading, StoreOutcomeUnknown
from forewarn.ports import DatabaseChange, JournalPosition, JournalRow, LeaseRenewal, LeaseState, NodeRow
from forewarn.stores import change_set
from forewarn.stores.postgresql_server import (
    LEASE,
    LOAD_SECONDS,
    WRITER,
    CollectedStatements,
    PostgresqlDatabase,
    one_line,
)
from forewarn.stores.sql import SqlRecords, SqlWriter, remove_expired
from forewarn.system.logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from forewarn.core.fleet import Fleet
    from forewarn.core.state import Changes
    from forewarn.ports import RetentionCutoff, StoredState
    from forewarn.stores.postgresql_server import PostgresqlServer

_log = get_logger(__name__)

NOT_LEADING, COMMITS_LOST = "FW001", "FW002"
"""Error codes of the functions check_epoch and save_journal."""
NO_EPOCH = -1
"""No lease has it, so every commit is rejected."""
ATTEMPTS = 5
RETRY_SECONDS = 0.3
"""How often, and how fast, a lost connection is opened again to find the outcome of a commit."""
TEXTS_AT_ONCE = 1000
"""How many texts are looked at in one step of the search for those that no VM has."""
JOURNAL_ROWS_AT_ONCE = 2000
"""How many rows of the journal are removed at once: the same connection renews the lease."""
LOST = "\nlost: "
"""After it, the mark has the reason why a node has reported that the database has lost commits."""
RESTORED = "restored"
"""The mark of a database that was restored from a backup, if an operator has said so."""
COLLECT_SECONDS = 0.005
"""Notifications of this time are one. Meanwhile the rows may also arrive with an answer of the leader."""


class PostgresqlStore(SqlRecords):
    """Stores commits in PostgreSQL. Only after `lead` it writes."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        """`node` is the id of this node: a new one for each start of the process."""
        self._server = server
        self._node = node
        self._writing = PostgresqlDatabase(server, WRITER + node)
        super().__init__(self._writing)
        self._channel = f"forewarn {server.schema}"
        self._epoch = 0
        self._position = 0
        self._is_abandoned = False
        """Whether the lease has ended without the database: a commit then does not wait for its outcome."""
        self._searched_texts = ""
        """The last key that the search for unused texts has looked at; empty: it begins again."""
        self.last_row: JournalRow | None = None
        self._newest: JournalPosition | None = None
        """The newest row of the journal while this node leads."""
        self._compared: Any = None
        """The connection on which that was compared: another one may be to a standby that has lost commits."""
        self._written_epoch = 0
        """The epoch of the last commit."""
        self._readers: list[PostgresqlDatabase] = []

    def load(self) -> StoredState:
        """Load everything at one point in time, with its position in the journal."""
        return self._writing.run(self._load_snapshot)

    def _load_snapshot(self) -> StoredState:
        with self._writing.without_limit() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            connection.execute(f"SET LOCAL statement_timeout = '{LOAD_SECONDS:.0f}s'".encode())
            last = self._writing.named("last_journal_row").fetchone()
            saved = self._load()
        if last is not None:
            saved.position, saved.decided_at = last[0], change_set.decided_at(last[1])
        return saved

    # --- Writing --------------------------------------------------------------------------------------

    def lead(self, epoch: int, position: int) -> None:
        self._epoch = epoch
        self._position = position
        self._is_abandoned = False
        self._newest = None
        self._writing.close()  # another leader may have ended the connection
        try:
            self._write_first()
        except psycopg.Error as error:
            raise DatabaseFailed(problem=one_line(error)) from error

    def _write_first(self) -> None:
        try:
            self._write(self._check_epoch)
        except DatabaseUnreachable:  # the server may still count the connection that the journal has just closed
            threading.Event().wait(RETRY_SECONDS)
            self._write(self._check_epoch)

    def follow(self) -> None:
        self._writing.close()

    def abandon(self) -> None:
        self._is_abandoned = True
        self._writing.abandon()

    def _check_epoch(self) -> None:
        """Check that this node leads. The last statement of a transaction, so that it locks the lease only briefly."""
        self._writing.named("check_epoch", epoch=self._epoch)

    def commit(self, changes: Changes) -> int:
        number, parts = self._position + 1, change_set.encode(changes)
        collected = CollectedStatements()
        SqlWriter(collected).save(changes)

        def write() -> None:
            # With the current epoch, which is higher in the second attempt.
            self._written_epoch = self._epoch
            self._write_all(collected, number, parts)

        try:
            write()
        except psycopg.Error as error:
            if not self._find_outcome(number, error):
                self._commit_again(number, write)
        self._position = number
        self._newest = JournalPosition(number, self._written_epoch)
        self.last_row = JournalRow(number, parts[0] if len(parts) == 1 else b"", self._written_epoch)
        return number

    def commit_after_loss(self, changes: Changes) -> int:
        number = self._position + 1
        others = replace(changes, deliveries={})  # they may be a million, and get the same numbers by one statement
        collected = CollectedStatements()
        SqlWriter(collected).save(others)
        enabling = int(changes.facts[FORGOTTEN_ENABLING])
        parts = change_set.encode(others)

        def work() -> None:
            self._writing.execute("SET LOCAL statement_timeout = 0")
            self._writing.named("skip_numbers_of_scopes", enabling=enabling, skipped=SKIPPED_NUMBERS)
            self._save(collected, number, parts)

        try:
            with self._writing.without_limit():
                self._write_transaction(work)
        except psycopg.Error as error:
            raise DatabaseFailed(problem=one_line(error)) from error
        self._position, self._newest = number, JournalPosition(number, self._epoch)
        return number

    def _commit_again(self, number: int, write: Callable[[], None]) -> None:
        """Repeat a commit that is known to have had no effect, on the new connection."""
        try:
            write()
        except psycopg.Error as error:
            if not self._find_outcome(number, error):
                raise DatabaseFailed(problem=one_line(error)) from error

    def _write_all(self, collected: CollectedStatements, number: int, parts: list[bytes]) -> None:
        first, *others = parts
        whole = None if others else collected.as_one(self._writing.statements["save_journal"], self._row(number, first))
        if whole is not None:
            self._write(lambda: self._writing.execute(*whole))
            return

        self._write_transaction(lambda: self._save(collected, number, parts))

    def _save(self, collected: CollectedStatements, number: int, parts: list[bytes]) -> None:
        for statement, parameters in collected.calls:
            self._writing.execute_many(statement, parameters)
        first, *others = parts
        for part, data in enumerate(others, 2):
            statement = self._writing.statements["save_journal_part"]
            self._writing.execute(statement, (number, self._epoch, part, data))
        self._writing.execute(self._writing.statements["save_journal"], self._row(number, first))

    def _row(self, number: int, data: bytes) -> tuple[Any, ...]:
        """Return the parameters of save_journal: also the row that must be the newest one."""
        return (number, self._epoch, data, self._channel, *(self._newest or JournalPosition()))

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
            if connection is not self._compared:
                self._compare_journal()
                self._compared = connection
            work()
        except psycopg.Error as error:
            self._writing.roll_back()
            if error.sqlstate == COMMITS_LOST:
                self._epoch = NO_EPOCH
            if error.sqlstate in (NOT_LEADING, COMMITS_LOST):
                raise NotLeading from error
            was_sent = not isinstance(error, psycopg.DataError)  # or the server has rejected a value
            if connection.closed or (was_sent and not error.sqlstate):
                self._writing.close()
                raise
            raise DatabaseFailed(problem=one_line(error)) from error
        except BaseException:
            self._writing.close()
            raise

    def _compare_journal(self) -> None:
        """Check that the database has the last commit, and none of another leader."""
        found = self._writing.named("newest_journal_position").fetchone()
        newest = JournalPosition(*(found or ()))
        if self._newest is None:
            self._newest = newest
        elif newest != self._newest:
            self._epoch = NO_EPOCH
            raise NotLeading

    def _find_outcome(self, number: int, cause: psycopg.Error) -> bool:
        """Return whether a commit had an effect, whose connection was lost.

        First it raises the epoch, or finds that another node has: after that, the lost transaction cannot commit.
        """
        for attempt in range(ATTEMPTS):
            if self._is_abandoned:
                break
            if attempt:
                threading.Event().wait(RETRY_SECONDS)
            try:
                raised = self._writing.named("raise_epoch", node=self._node, epoch=self._epoch).fetchone()
                found = self._writing.named("committed_epoch", number=number).fetchone()
                is_mine = found is not None and found[0] == self._epoch
                if raised is not None and not is_mine:
                    self._compare_journal()
            except (psycopg.Error, DatabaseUnreachable):
                self._writing.close()
                continue
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
            return self._write_and_fetch(cutoff, limit) or self._remove_unused_texts()
        except psycopg.Error as error:
            raise DatabaseFailed(problem=one_line(error)) from error

    def _write_and_fetch(self, cutoff: RetentionCutoff, limit: int) -> bool:
        connection = self._writing.connection
        try:
            with connection.transaction():  # no pipeline: the numbers of rows are needed
                removed = remove_expired(self._writing, cutoff, limit)
                self._check_epoch()
                return removed
        except psycopg.Error as error:
            if error.sqlstate == NOT_LEADING:
                raise NotLeading from error
            self._writing.close()
            raise

    def _remove_unused_texts(self) -> bool:
        """Remove those of the next texts that no VM has. Returns whether there are more texts to look at.

        If another node has led meanwhile, and has given one of them to a VM, the epoch is another one.
        """
        found = self._writing.named("texts_after", after=self._searched_texts, limit=TEXTS_AT_ONCE).fetchall()
        self._searched_texts = found[-1][0] if len(found) == TEXTS_AT_ONCE else ""
        if unused := [key for key, is_used in found if not is_used]:
            self._remove_texts(unused)
        return bool(self._searched_texts)

    def _remove_texts(self, keys: list[str]) -> None:
        def work() -> None:
            self._writing.named("remove_texts", keys=keys)
            self._check_epoch()

        self._write_transaction(work)

    def reader(self) -> SqlRecords:
        self._readers.append(PostgresqlDatabase(self._server, f"forewarn reader {self._node}", repeats=True))
        return SqlRecords(self._readers[-1])

    def close(self) -> None:
        for database in (self._writing, *self._readers):
            database.close()


# --- What the nodes share -------------------------------------------------------------------------


class PostgresqlMembership:
    """The lease, and the list of nodes."""

    def __init__(self, server: PostgresqlServer, node: str) -> None:
        self._node = node
        self._db = PostgresqlDatabase(server, LEASE + node)
        self._has_logged_permission = False
        self._mark: tuple[str, str] | None = None
        """The mark of the database, as it is saved and as it would be now, when this node began to lead."""
        self._mark_statement = "database_mark"

    def take_lease(self, seconds: float) -> int | None:
        return self._db.run(lambda: self._take_lease(seconds))

    def _take_lease(self, seconds: float) -> int | None:
        try:
            self._db.named("end_holder", writer=WRITER, lease=LEASE)
        except InsufficientPrivilege as error:  # another user's. The epoch excludes its commits anyway
            self._log_permission(error)
        row = self._db.named("take_lease", node=self._node, seconds=seconds).fetchone()
        return row[0] if row is not None else None

    def _log_permission(self, error: psycopg.Error) -> None:
        if self._has_logged_permission:
            return
        self._has_logged_permission = True
        (user,) = self._db.execute("SELECT current_user").fetchone() or ("",)
        text = (
            "The connection of the last leader belongs to another user of the database, and this node may not end it. "
            "If that node hangs in a transaction, this node leads up to a minute later. Run as an administrator of the "
            f"database: GRANT pg_signal_backend TO {user}"
        )
        _log.warning("old_leader_not_ended", text, error=one_line(error))

    def renew_lease(self, node: NodeRow, seconds: float) -> LeaseRenewal:
        return self._db.run(lambda: self._renew_lease(node, seconds))

    def _renew_lease(self, node: NodeRow, seconds: float) -> LeaseRenewal:
        def find() -> tuple[Any, Any]:
            mark = self._db.named(self._mark_statement) if self._mark is not None else None
            return self._db.named("journal_position", number=node.position), mark

        row, nodes, (found, mark) = self._report_and("renew_lease", node, find, node=self._node, seconds=seconds)
        is_replaced = mark is not None and mark.fetchone() != self._mark
        return LeaseRenewal(row and row[0], nodes, [JournalPosition(*each) for each in found], is_replaced)

    def look(self, node: NodeRow) -> tuple[LeaseState, list[NodeRow]]:
        row, nodes, _ = self._db.run(lambda: self._report_and("lease", node))
        return LeaseState(*row), nodes

    def _report_and(
        self, statement: str, reported: NodeRow, find: Callable[[], Any] = lambda: None, **parameters: Any
    ) -> tuple[Any, list[NodeRow], Any]:
        """Report a node, read all nodes, and execute a statement, in one round trip: the lease needs it also if that is
        long. The statement is last, because it may lock the lease until the end of the transaction. `find` reads more
        before it."""
        with self._db.connection.pipeline():
            self._db.named("report_node", **reported._asdict())
            nodes = self._db.named("nodes")
            more = find()
            found = self._db.named(statement, **parameters)
        return found.fetchone(), [NodeRow(*row) for row in nodes], more

    # --- Lost commits -------------------------------------------------------------------------------

    def find_change(self) -> DatabaseChange | None:
        return self._db.run(self._find_change)

    def _find_change(self) -> DatabaseChange | None:
        saved, now = self._mark = self._read_mark()
        before, _, report = saved.partition(LOST)
        pairs = zip(before.split(), now.split(), strict=False)  # a new database has no mark
        *is_other, is_later = [was != found and "-" not in (was, found) for was, found in pairs] or [False]
        if before == RESTORED:
            return DatabaseChange("restored", "an operator said that it was restored from a backup")
        if any(is_other):
            return DatabaseChange("restored", "it was restored from a backup")
        if report:
            return DatabaseChange("changes-lost", report)
        if is_later:
            return DatabaseChange("database-failover", "another server has taken over")
        return None

    def _read_mark(self) -> tuple[str, str]:
        try:
            found = self._db.named(self._mark_statement).fetchone()
        except (InsufficientPrivilege, UndefinedFunction, FeatureNotSupported, ObjectNotInPrerequisiteState) as error:
            text = (
                "This user of the database may not see which server it is. So a restore, or a failover that loses "
                "commits, may not be noticed. After it, run: forewarn database restored"
            )
            _log.warning("server_not_known", text, error=one_line(error))
            self._mark_statement = "database_mark_without_server"
            found = self._db.named(self._mark_statement).fetchone()
        saved, now = found  # type: ignore[misc]
        return saved, now

    def save_mark(self) -> None:
        if self._mark is None or self._mark[0] == self._mark[1]:
            return
        (before, now) = self._mark
        if self._db.run(lambda: self._db.named("set_database_mark", mark=now, before=before).fetchone()) is not None:
            self._mark = now, now

    def report_loss(self, reason: str) -> None:
        self._db.run(lambda: self._db.named("report_loss", report=LOST + reason, report_start=LOST))

    def report_restore(self) -> None:
        """Let the leader know that the database was restored, as an operator says."""
        self._db.run(lambda: self._db.named("report_restore", mark=RESTORED))

    def skip_epochs(self, epoch: int, skipped: int) -> int | None:
        row = self._db.run(
            lambda: self._db.named("skip_epochs", node=self._node, epoch=epoch, skipped=skipped).fetchone()
        )
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

    def trim(self, journal_seconds: float, node_seconds: float) -> bool:
        return self._db.run(lambda: self._trim(journal_seconds, node_seconds))

    def _trim(self, journal_seconds: float, node_seconds: float) -> bool:
        with self._db.connection.pipeline():
            self._db.named("remove_lost_nodes", seconds=node_seconds)
            removed = self._db.named("trim_journal", seconds=journal_seconds, limit=JOURNAL_ROWS_AT_ONCE)
        return removed.rowcount >= JOURNAL_ROWS_AT_ONCE

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
        return int(self._db.run(lambda: self._db.named("newest_journal_number").fetchone())[0])  # type: ignore[index]

    def decode(self, parts: Sequence[bytes], fleet: Fleet) -> Changes:
        return change_set.decode(parts, fleet)

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
        numbers = (each.payload for each in found)  # any user of the database can notify the channel
        return max((int(number) for number in numbers if number.isdecimal() and len(number) < 20), default=None)

    def close(self) -> None:
        self._db.close()
