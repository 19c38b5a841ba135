"""The default store: one SQLite file in WAL mode. Every commit is synced to disk before it returns."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.durations import from_text, to_text, to_text_if_any
from forewarn.core.fleet import Fleet
from forewarn.errors import StoreFailed, StoreOutcomeUnknown
from forewarn.ports import HistoryFilter, ListFilter, RetentionCutoff, StoredState
from forewarn.stores import rows
from forewarn.stores.sqlite_file import connect_writer, open_database, open_reader, read_statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from pathlib import Path

    from forewarn.core.access import StoredResponse
    from forewarn.core.events import Event
    from forewarn.core.fleet import FleetChange
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Changes, HistoryEntry


T = TypeVar("T")
Row = tuple[Any, ...]
_SQL = read_statements()
_CONDITIONS = [name for name in HistoryFilter._fields if f"history_{name}" in _SQL]
"""Filter fields that add a condition to the statement."""


class SqliteRecords:
    """Read access to a SQLite database."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def load(self) -> StoredState:
        return self._guarded(self._load)

    def _load(self) -> StoredState:
        with suppress(sqlite3.OperationalError):  # the disk may be full
            self._db.execute(_SQL["remove_unused_texts"])
        texts = dict(self._db.execute(_SQL["load_texts"]))
        fleet = Fleet(
            map(rows.vm_table(texts).read, self._db.execute(_SQL["load_vms"])),
            map(rows.GROUPS.read, self._db.execute(_SQL["load_groups"])),
            map(rows.HOSTS.read, self._db.execute(_SQL["load_hosts"])),
        )
        deliveries, last_seen = [], {}
        for *row, last_seen_at in self._db.execute(_SQL["load_deliveries"]):
            deliveries.append(rows.DELIVERIES.read(row))
            last_seen[deliveries[-1].scope] = from_text(last_seen_at)
        return StoredState(
            fleet,
            self._query("load_operations", rows.OPERATIONS.read),
            self._query("load_rollouts", rows.ROLLOUTS.read),
            self._query("load_events", rows.EVENTS.read),
            deliveries,
            last_seen,
            dict(self._db.execute(_SQL["load_facts"])),
            self._query("load_tokens", rows.TOKENS.read),
            self._query("load_responses", rows.RESPONSES.read),
            self._db.execute(_SQL["last_sequence"]).fetchone()[0],
            self._query("load_webhooks", rows.WEBHOOKS.read),
            self._query("load_undelivered", rows.UNDELIVERED.read),
        )

    def event(self, event_id: str) -> Event | None:
        row = self._guarded(lambda: self._db.execute(_SQL["event"], (event_id,)).fetchone())
        return rows.EVENTS.read(row) if row else None

    def events_by_prefix(self, start: str, group: str = "") -> list[Event]:
        return self._query("events_by_prefix", rows.EVENTS.read, _bounds(start) | {"group": group})

    def events(self, filters: ListFilter) -> list[tuple[int, Event]]:
        return self._page("events", rows.EVENTS.read, filters)

    def count_events(self, filters: ListFilter) -> int:
        return self._count("events", filters)

    def operation(self, operation_id: str) -> Operation | None:
        row = self._guarded(lambda: self._db.execute(_SQL["operation"], (operation_id,)).fetchone())
        return rows.OPERATIONS.read(row) if row else None

    def operations_by_prefix(self, start: str) -> list[Operation]:
        return self._query("operations_by_prefix", rows.OPERATIONS.read, _bounds(start))

    def operations(self, filters: ListFilter) -> list[tuple[int, Operation]]:
        return self._page("operations", rows.OPERATIONS.read, filters)

    def count_operations(self, filters: ListFilter) -> int:
        return self._count("operations", filters)

    def rollouts_by_prefix(self, start: str) -> list[Rollout]:
        return self._query("rollouts_by_prefix", rows.ROLLOUTS.read, _bounds(start))

    def rollouts(self, filters: ListFilter) -> list[tuple[int, Rollout]]:
        return self._page("rollouts", rows.ROLLOUTS.read, filters)

    def _page(self, table: str, read: Callable[[Row], T], filters: ListFilter) -> list[tuple[int, T]]:
        """Return a page of a table. The last column is the position of the row."""
        order = "oldest_first" if filters.live else "newest_first"
        statement = f"{self._selection(table, filters)}\n{_SQL[order]}"
        parameters = filters._asdict()
        return self._guarded(lambda: [(row[-1], read(row)) for row in self._db.execute(statement, parameters)])

    def _count(self, table: str, filters: ListFilter) -> int:
        statement = f"SELECT count(*) FROM ({self._selection(table, filters)})"  # noqa: S608 - our own statements
        return int(self._guarded(lambda: self._db.execute(statement, filters._asdict()).fetchone()[0]))

    @staticmethod
    def _selection(table: str, filters: ListFilter) -> str:
        """Return the statement without its order. It has the given conditions only, so that SQLite can use an index."""
        parts = [f"{table}_live" if filters.live else f"{table}_all"]
        parts += [part for name in filters._fields if getattr(filters, name) and (part := f"{table}_{name}") in _SQL]
        return "\n".join(_SQL[part] for part in dict.fromkeys(parts))

    def stored_response(self, key: str) -> StoredResponse | None:
        row = self._guarded(lambda: self._db.execute(_SQL["response"], (key,)).fetchone())
        return rows.RESPONSES.read(row) if row else None

    # --- History ------------------------------------------------------------------------------------

    def history(self, filters: HistoryFilter) -> list[HistoryEntry]:
        # Built from the given conditions only, so that SQLite can use an index.
        parts = ["history", *(f"history_{name}" for name in _CONDITIONS if getattr(filters, name))]
        parts.append("history_newest_first" if filters.newest else "history_oldest_first")
        statement = "\n".join(_SQL[part] for part in parts)
        parameters = filters._asdict() | {
            "groups": json.dumps(filters.groups),
            "kinds": json.dumps(filters.kinds),
            "quoted_vm": json.dumps(filters.vm),
            "since": to_text_if_any(filters.since),
            "until": to_text_if_any(filters.until),
        }
        return self._guarded(lambda: list(map(rows.HISTORY.read, self._db.execute(statement, parameters))))

    def oldest(self) -> int:
        return int(self._guarded(lambda: self._db.execute(_SQL["oldest_sequence"]).fetchone()[0]))

    def retention_cutoff(self, before: datetime, responses_before: datetime) -> RetentionCutoff:
        parameters, response_parameters = {"before": to_text(before)}, {"before": to_text(responses_before)}
        return RetentionCutoff(
            before,
            *self._query("expired_history", _first_column, parameters),
            *self._query("expired_operations", _first_column, parameters),
            *self._query("expired_rollouts", _first_column, parameters),
            *self._query("expired_responses", _first_column, response_parameters),
        )

    # --- The connection -------------------------------------------------------------------------------

    def _query(self, statement: str, read: Callable[[Row], T], parameters: Any = ()) -> list[T]:
        return self._guarded(lambda: list(map(read, self._db.execute(_SQL[statement], parameters))))

    def close_connection(self) -> None:
        self._db.close()

    def _guarded(self, call: Callable[[], T]) -> T:
        """Run a call, translate errors of SQLite, and roll back a failed transaction."""
        try:
            return call()
        except BaseException as error:
            if self._db.in_transaction:
                self._roll_back()
            if isinstance(error, sqlite3.Error):
                raise StoreFailed(problem=str(error)) from error
            raise

    def _roll_back(self) -> None:
        try:
            self._db.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise StoreFailed(problem=f"and the rollback failed: {error}") from error


def _first_column(row: Row) -> Any:
    return row[0]


def _bounds(start: str) -> dict[str, str]:
    """Range of all ids with this prefix. Ids are hexadecimal, which sorts before the tilde."""
    return {"start": start, "end": start + "~"}


# --- The store ------------------------------------------------------------------------------------


class SqliteStore(SqliteRecords):
    """Stores commits in `forewarn.db` of a folder, or in memory."""

    def __init__(self, folder: Path | None = None) -> None:
        self._opened = open_database(folder)
        super().__init__(self._opened.connection)
        self._readers: list[SqliteRecords] = []
        self._commit_failed = False
        """Whether the last commit failed. Before the next one, its remains in the log must be voided."""

    def events_ended_since(self, since: datetime) -> list[Event]:
        return self._query("events_ended_since", rows.EVENTS.read, {"since": to_text(since)})

    def commit(self, changes: Changes) -> None:
        self._write(lambda: self._save(changes))
        if changes.history and self._opened.sequence_file is not None:
            self._opened.sequence_file.write(changes.history[-1].sequence)

    def _save(self, changes: Changes) -> None:
        for change in changes.fleet_changes:
            self._save_fleet(change)
        self._many("save_operation", map(rows.OPERATIONS.write, changes.operations.values()))
        if changes.rollouts:
            self._many("save_rollout", map(rows.ROLLOUTS.write, changes.rollouts.values()))
        self._many("save_event", map(rows.EVENTS.write, changes.events.values()))
        self._save_deliveries(changes)
        if changes.facts:
            self._many("save_fact", changes.facts.items())
        if changes.tokens:
            self._save_tokens(changes)
        if changes.responses:
            self._many("save_response", map(rows.RESPONSES.write, changes.responses.values()))
        if changes.webhooks or changes.undelivered:
            self._save_webhooks(changes)
        self._many("save_history", map(rows.HISTORY.write, changes.history))

    def _save_fleet(self, change: FleetChange) -> None:
        # Removals first, because new items may reuse names and addresses.
        self._many("remove_vm", ((vm.name,) for vm in change.removed))
        self._many("remove_group", ((name,) for name in change.groups_removed))
        self._many("remove_host", ((name,) for name in change.hosts_removed))
        self._many("save_group", map(rows.GROUPS.write, change.groups))
        self._many("save_host", map(rows.HOSTS.write, change.hosts))
        if not change.in_place:
            self._many("save_text", rows.shared_texts((*change.changed, *change.added)).items())
        self._many("save_vm", map(rows.VMS.write, change.changed))
        self._many("save_vm", map(rows.VMS.write, change.added))

    def _save_deliveries(self, changes: Changes) -> None:
        for scope, delivery in changes.deliveries.items():
            if delivery is None:
                self._db.execute(_SQL["remove_delivery"], (scope,))
            else:
                last_seen_at = to_text_if_any(changes.last_seen.get(scope)) or ""
                self._db.execute(_SQL["save_delivery"], [*rows.DELIVERIES.write(delivery), last_seen_at])
        only_seen = [scope for scope in changes.last_seen if scope not in changes.deliveries]
        if only_seen:
            times = ({"scope": scope, "last_seen_at": to_text(changes.last_seen[scope])} for scope in only_seen)
            self._many("save_last_seen", times)

    def _save_tokens(self, changes: Changes) -> None:
        for name, token in changes.tokens.items():
            if token is None:
                self._db.execute(_SQL["remove_token"], (name,))
            else:
                self._db.execute(_SQL["save_token"], rows.TOKENS.write(token))

    def _save_webhooks(self, changes: Changes) -> None:
        webhooks, undelivered = changes.webhooks, changes.undelivered
        self._many("remove_webhook", ((name,) for name, webhook in webhooks.items() if webhook is None))
        saved = [webhook for webhook in webhooks.values() if webhook is not None]
        self._many("save_webhook", map(rows.WEBHOOKS.write, saved))
        self._many("forget_undelivered", (key for key, row in undelivered.items() if row is None))
        pending = [row for row in undelivered.values() if row is not None]
        self._many("save_undelivered", map(rows.UNDELIVERED.write, pending))

    def _many(self, statement: str, parameters: Iterable[Any]) -> None:
        self._db.executemany(_SQL[statement], parameters)

    def remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        return self._write(lambda: self._remove_expired(cutoff, limit))

    def _remove_expired(self, cutoff: RetentionCutoff, limit: int) -> bool:
        parameters = cutoff._asdict() | {"before": to_text(cutoff.before), "limit": limit}
        # Events before their operations, and undelivered rows after their history.
        removed = [
            self._db.execute(_SQL[f"remove_{name}"], parameters).rowcount
            for name in ("events", "operations", "rollouts", "history", "undelivered", "responses")
        ]
        return any(removed)

    def reader(self) -> SqliteRecords | None:
        if self._opened.path is None or not self._opened.shared:
            return None
        self._readers.append(SqliteRecords(open_reader(self._opened.path)))
        return self._readers[-1]

    def close(self) -> None:
        if self._commit_failed:
            self._void_failed_commit()
        for records in (*self._readers, self):
            records.close_connection()
        for opened in (self._opened.sequence_file, self._opened.lock):
            if opened is not None:
                opened.close()

    # --- Transactions ---------------------------------------------------------------------------------

    def _write(self, work: Callable[[], T]) -> T:
        """Run a transaction: all of it is durable when this returns, or nothing has changed. StoreOutcomeUnknown: a
        crash may make the change appear."""
        if self._commit_failed:
            self._reopen()
        result = self._guarded(lambda: self._begin(work))
        try:
            self._db.execute("COMMIT")
        except Exception as error:
            self._commit_failed = self._opened.path is not None
            # If there was no space, the log has no complete commit.
            is_full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            if self._void_failed_commit() is None or is_full:
                raise StoreFailed(problem=str(error)) from error
            raise StoreOutcomeUnknown(problem=str(error)) from error
        return result

    def _begin(self, work: Callable[[], T]) -> T:
        self._db.execute("BEGIN IMMEDIATE")
        return work()

    def _void_failed_commit(self) -> sqlite3.Error | None:
        """Make sure that a crash does not bring back a commit that failed. Returns an error if that is not possible.

        A commit can fail when it is complete in the log, because the sync failed. SQLite does not count its frames, but
        it would find them after a crash. The next commit overwrites the first of them, so that the rest becomes
        invalid. This commit writes a single page, without a change. It is durable when it returns.
        """
        try:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if self._opened.path is not None:
                version = self._db.execute("PRAGMA user_version").fetchone()[0]
                self._db.execute(f"PRAGMA user_version = {version}")
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
            self._db.close()
            self._db = database
        self._commit_failed = False
