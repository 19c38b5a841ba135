"""What is known of what is over, and of what is not: reading from one connection to the database."""

from __future__ import annotations

import json
import sqlite3
from typing import TYPE_CHECKING, Any, TypeVar

from forewarn.core.durations import to_text, to_text_if_any
from forewarn.errors import StoreFailed
from forewarn.ports import Expired, HistoryFilter, ListFilter
from forewarn.stores import access_rows, rows
from forewarn.stores.sqlite_file import read_statements

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from forewarn.core.access import Kept
    from forewarn.core.events import Event
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Entry

T = TypeVar("T")
_SQL = read_statements()
_CONDITIONS = [name for name in HistoryFilter._fields if f"history_{name}" in _SQL]
"""The fields of a filter that are a condition each, to be left out where they are not given."""


class SqliteRecords:
    """Reads; the store writes too."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._db = database

    def event(self, event_id: str) -> Event | None:
        row = self._guarded(lambda: self._db.execute(_SQL["event"], (event_id,)).fetchone())
        return rows.event_from_row(row) if row else None

    def events_beginning(self, start: str, group: str = "") -> list[Event]:
        return self._listed("events_beginning", rows.event_from_row, (*_bounds(start), group, group))

    def events(self, wanted: ListFilter) -> list[tuple[int, Event]]:
        return self._placed("events", rows.event_from_row, wanted)

    def operation(self, operation_id: str) -> Operation | None:
        row = self._guarded(lambda: self._db.execute(_SQL["operation"], (operation_id,)).fetchone())
        return rows.operation_from_row(row) if row else None

    def operations_beginning(self, start: str) -> list[Operation]:
        return self._listed("operations_beginning", rows.operation_from_row, _bounds(start))

    def operations(self, wanted: ListFilter) -> list[tuple[int, Operation]]:
        return self._placed("operations", rows.operation_from_row, wanted)

    def rollouts_beginning(self, start: str) -> list[Rollout]:
        return self._listed("rollouts_beginning", rows.rollout_from_row, _bounds(start))

    def rollouts(self, wanted: ListFilter) -> list[tuple[int, Rollout]]:
        return self._placed("rollouts", rows.rollout_from_row, wanted)

    def _placed(self, table: str, read: Callable[[rows.Row], T], wanted: ListFilter) -> list[tuple[int, T]]:
        """A page of a table; the last column is where each row is in it."""
        statement = f"{table}_live" if wanted.live else f"{table}_all"
        return self._listed(statement, lambda row: (row[-1], read(row)), wanted._asdict())

    def kept_answer(self, key: str) -> Kept | None:
        row = self._guarded(lambda: self._db.execute(_SQL["kept_answer"], (key,)).fetchone())
        return access_rows.kept_from_row(row) if row else None

    # --- History ------------------------------------------------------------------------------------

    def history(self, wanted: HistoryFilter) -> list[Entry]:
        # Put together of what is asked for: what is not asked for costs nothing, and an index can be used.
        parts = ["history", *(f"history_{name}" for name in _CONDITIONS if getattr(wanted, name))]
        parts.append("history_newest_first" if wanted.newest else "history_oldest_first")
        statement = "\n".join(_SQL[part] for part in parts)
        parameters = wanted._asdict() | {
            "groups": json.dumps(wanted.groups),
            "what": json.dumps(wanted.what),
            "quoted_vm": json.dumps(wanted.vm),
            "since": to_text_if_any(wanted.since),
            "until": to_text_if_any(wanted.until),
        }
        return self._guarded(lambda: list(map(rows.entry_from_row, self._db.execute(statement, parameters))))

    def oldest(self) -> int:
        return int(self._guarded(lambda: self._db.execute(_SQL["oldest_sequence"]).fetchone()[0]))

    def expired(self, before: datetime, answers_before: datetime) -> Expired:
        earlier, kept_earlier = {"before": to_text(before)}, {"before": to_text(answers_before)}
        return Expired(
            before,
            *self._listed("expired_history", _only, earlier),
            *self._listed("expired_operations", _only, earlier),
            *self._listed("expired_rollouts", _only, earlier),
            *self._listed("expired_answers", _only, kept_earlier),
        )

    # --- The connection -------------------------------------------------------------------------------

    def _listed(self, statement: str, read: Callable[[rows.Row], T], parameters: Any = ()) -> list[T]:
        return self._guarded(lambda: list(map(read, self._db.execute(_SQL[statement], parameters))))

    def let_go(self) -> None:
        self._db.close()

    def _guarded(self, call: Callable[[], T]) -> T:
        """SQLite's errors are translated once, here. A transaction that failed leaves nothing behind."""
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
            raise StoreFailed(problem=f"and could not be undone: {error}") from error


def _only(row: rows.Row) -> Any:
    return row[0]


def _bounds(start: str) -> tuple[str, str]:
    """Ids are hexadecimal: all that begin so sort before the beginning followed by a tilde."""
    return start, start + "~"
