"""Plain SQLite commits of the rows that approvals write, in a process of their own.

Reads {"source", "target", "events"} as JSON from standard input. The source is the database of the service, with the
rows of these events. The target is a copy from before the approvals. It gets the rows of each event in one
transaction, with WAL, synchronous=FULL and the statements of the service.
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
Transaction = list[tuple[str, Any]]
"""Statements with their values."""

APPROVAL_KINDS = ("approved", "started")
"""The history rows of an approval that starts the event at once."""


def read_transactions(source: sqlite3.Connection, events: list[str], sequence: int) -> list[Transaction]:
    """Read the rows of each approval: operation, event, delivery, and two rows of history."""
    statements = read_statements()
    transactions = []
    for event_id in events:
        event = _row(source, rows.EVENTS, "id", event_id)
        operation = _row(source, rows.OPERATIONS, "id", event["operation"])
        delivery = _row(source, rows.DELIVERIES, "scope", event["scope"])
        entries = _rows(source, rows.HISTORY, "event = ? ORDER BY sequence", event_id)
        history = [entry for entry in entries if entry["kind"] in APPROVAL_KINDS]
        if len(history) != len(APPROVAL_KINDS):
            raise RuntimeError(f"Event {event_id} should have one approval and one start, but has: {entries}")
        transaction: Transaction = [
            (statements["save_operation"], _values(operation | {"executed_at": None})),  # executed later
            (statements["save_event"], _values(event)),
            (statements["save_delivery"], (*_values(delivery), "")),
        ]
        for entry in history:
            sequence += 1
            transaction.append((statements["save_history"], _values(entry | {"sequence": sequence})))
        transactions.append(transaction)
    return transactions


def _rows(database: sqlite3.Connection, table: rows.Table[Any], condition: str, key: str) -> list[Row]:
    """Return the rows as dictionaries. Their columns have the order that the statements need."""
    found = database.execute(f"SELECT {table.columns} FROM {table.name} WHERE {condition}", (key,))  # noqa: S608 - ours
    return [dict(zip(table.names, values, strict=True)) for values in found]


def _row(database: sqlite3.Connection, table: rows.Table[Any], column: str, key: str) -> Row:
    (found,) = _rows(database, table, f"{column} = ?", key)
    return found


def _values(row: Row) -> tuple[Any, ...]:
    return tuple(row.values())


def commit_all(target: sqlite3.Connection, transactions: list[Transaction]) -> float:
    """Commit one transaction after the other. Return the seconds."""
    started = time.perf_counter()
    for transaction in transactions:
        target.execute("BEGIN IMMEDIATE")
        for statement, values in transaction:
            target.execute(statement, values)
        target.execute("COMMIT")
    return time.perf_counter() - started


def main() -> None:
    arguments = json.load(sys.stdin)
    source = sqlite3.connect(arguments["source"])
    target = sqlite3.connect(arguments["target"], isolation_level=None)
    target.execute("PRAGMA journal_mode = WAL")
    target.execute("PRAGMA synchronous = FULL")
    (sequence,) = target.execute(read_statements()["last_sequence"]).fetchone()
    transactions = read_transactions(source, arguments["events"], sequence)
    source.close()
    seconds = commit_all(target, transactions)
    print(json.dumps({"count": len(transactions), "per_second": len(transactions) / seconds}))


if __name__ == "__main__":
    main()
