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

from forewarn.stores.sqlite_file import read_statements

Row = tuple[Any, ...]
Written = list[tuple[str, Any]]
"""The statements of one transaction, each with its values."""

OF_AN_APPROVAL = ("approved", "started")
"""The rows of history that an approval adds when nothing else is waited for."""


def read_written(source: sqlite3.Connection, events: list[str], sequence: int) -> list[Written]:
    """What the service wrote for the approval of each event: operation, event, delivery and two rows of history."""
    statements = read_statements()
    transactions = []
    for event_id in events:
        event = _row(source, "SELECT * FROM event WHERE id = ?", event_id)
        operation = _row(source, "SELECT * FROM operation WHERE id = ?", event[1])
        group, enabled, enabling, incarnation, _ = _row(source, "SELECT * FROM delivery WHERE group_name = ?", event[2])
        delivery = {
            "group": group,
            "enabled": enabled,
            "enabling": enabling,
            "incarnation": incarnation,
            "heard_at": None,
        }
        entries = source.execute("SELECT * FROM history WHERE event = ? ORDER BY sequence", (event_id,)).fetchall()
        history = [entry for entry in entries if entry[2] in OF_AN_APPROVAL]
        if len(history) != len(OF_AN_APPROVAL):
            raise RuntimeError(f"Event {event_id} was not approved once and started: {entries}")
        written: Written = [
            (statements["save_operation"], (*operation[:9], None, *operation[10:])),  # not carried out yet
            (statements["save_event"], event),
            (statements["save_delivery"], delivery),
        ]
        for entry in history:
            sequence += 1
            written.append((statements["save_history"], (sequence, *entry[1:])))
        transactions.append(written)
    return transactions


def _row(database: sqlite3.Connection, statement: str, key: str) -> Row:
    found: Row = database.execute(statement, (key,)).fetchone()
    return found


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
    (sequence,) = _row(target, "SELECT max(sequence) FROM history WHERE ? = ''", "")
    transactions = read_written(source, given["events"], sequence)
    source.close()
    seconds = commit_all(target, transactions)
    print(json.dumps({"count": len(transactions), "per_second": len(transactions) / seconds}))


if __name__ == "__main__":
    main()
