"""Plain SQLite commits of what approvals write, as a process of its own.

Reads {"source", "target", "events"} as JSON from standard input. The rows that the service wrote for
these events are read from the source; the target is a copy from before, and gets each event's rows in
one transaction: WAL, synchronous=FULL, the service's own statements.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from typing import Any

from forewarn.stores import rows
from forewarn.stores.sqlite_file import read_statements

Row = dict[str, Any]
Written = list[tuple[str, Any]]
"""The statements of one transaction, each with its values."""

OF_AN_APPROVAL = ("approved", "started")
"""The rows of history that an approval adds when nothing else is waited for."""


def read_written(source: sqlite3.Connection, events: list[str], sequence: int) -> list[Written]:
    """What the service wrote for the approval of each event: operation, event, delivery and two rows of history."""
    statements = read_statements()
    transactions = []
    for event_id in events:
        event = _row(source, rows.EVENTS, "id", event_id)
        operation = _row(source, rows.OPERATIONS, "id", event["operation"])
        delivery = _row(source, rows.DELIVERIES, "group_name", event["group_name"])
        entries = _rows(source, rows.HISTORY, "event = ? ORDER BY sequence", event_id)
        history = [entry for entry in entries if entry["kind"] in OF_AN_APPROVAL]
        if len(history) != len(OF_AN_APPROVAL):
            raise RuntimeError(f"Event {event_id} was not approved once and started: {entries}")
        written: Written = [
            (statements["save_operation"], _values(operation | {"executed_at": None})),  # not carried out yet
            (statements["save_event"], _values(event)),
            (statements["save_delivery"], (*_values(delivery), "")),
        ]
        for entry in history:
            sequence += 1
            written.append((statements["save_history"], _values(entry | {"sequence": sequence})))
        transactions.append(written)
    return transactions


def _rows(database: sqlite3.Connection, table: rows.Table[Any], condition: str, key: str) -> list[Row]:
    """By column name, in the order in which the statements take the columns."""
    found = database.execute(f"SELECT {table.columns} FROM {table.name} WHERE {condition}", (key,))  # noqa: S608 - ours
    return [dict(zip(table.names, values, strict=True)) for values in found]


def _row(database: sqlite3.Connection, table: rows.Table[Any], column: str, key: str) -> Row:
    (found,) = _rows(database, table, f"{column} = ?", key)
    return found


def _values(row: Row) -> tuple[Any, ...]:
    return tuple(row.values())


def commit_all(target: sqlite3.Connection, transactions: list[Written]) -> float:
    """Seconds for one commit after the other."""
    begun = time.perf_counter()
    for written in transactions:
        target.execute("BEGIN IMMEDIATE")
        for statement, values in written:
            target.execute(statement, values)
        target.execute("COMMIT")
    return time.perf_counter() - begun


def main() -> None:
    given = json.load(sys.stdin)
    source = sqlite3.connect(given["source"])
    target = sqlite3.connect(given["target"], isolation_level=None)
    target.execute("PRAGMA journal_mode = WAL")
    target.execute("PRAGMA synchronous = FULL")
    (sequence,) = target.execute(read_statements()["last_sequence"]).fetchone()
    transactions = read_written(source, given["events"], sequence)
    source.close()
    seconds = commit_all(target, transactions)
    print(json.dumps({"count": len(transactions), "per_second": len(transactions) / seconds}))


if __name__ == "__main__":
    main()
