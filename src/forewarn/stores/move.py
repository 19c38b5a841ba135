"""Move all data of a service from one store to another: the state, history, tokens and incarnations.

Both stores have the same tables with the same columns, so every row is copied as it is. Then all rows are read from
both and compared. Until that is done, the target is empty for everybody else.
"""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from forewarn.errors import MoveFailed, ServiceRunning, TargetNotEmpty
from forewarn.stores.postgresql import PostgresqlMembership
from forewarn.stores.postgresql_server import PostgresqlDatabase, PostgresqlServer
from forewarn.stores.rows import TABLES
from forewarn.stores.sqlite import SqliteDatabase
from forewarn.stores.sqlite_file import open_database

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forewarn.stores.sql import Database

    Row = tuple[Any, ...]

LIVE_SECONDS = 10.0
"""A node that has reported within this time is running."""
BATCH = 1000
COLUMNS = {
    "fact": ["name", "value"],
    "shared_text": ["key", "text"],
    **{name: [*table.names, *(["last_seen_at"] if name == "delivery" else [])] for name, table in TABLES.items()},
}
ORDERS = {"fact": "name", "shared_text": "key", "delivery": "scope", "history": "sequence"} | {
    "undelivered": "webhook, sequence"
}
"""What orders the rows of a table. Other tables have a rowid."""


@contextmanager
def open_sqlite(folder: Path) -> Iterator[Database]:
    """Open the database of a data folder that no service uses."""
    opened = open_database(folder)
    try:
        yield SqliteDatabase(opened.connection)
        (newest,) = opened.connection.execute("SELECT coalesce(max(sequence), 0) FROM history").fetchone()
        if opened.sequence_file is not None:
            opened.sequence_file.write(newest)
    finally:
        opened.connection.close()
        for part in (opened.sequence_file, opened.lock):
            if part is not None:
                part.close()


@contextmanager
def open_postgresql(url: str, schema: str, *, is_source: bool = False) -> Iterator[Database]:
    """Open a schema that no node uses. A source must exist."""
    server = PostgresqlServer(url, schema)
    server.prepare(creates=not is_source)
    with closing(PostgresqlDatabase(server, "forewarn move", limited=False)) as database:
        if not server.lock(database):  # a node that starts now would not see what is copied
            raise ServiceRunning(place=server.place, nodes="one that starts, or another move")
        with closing(PostgresqlMembership(server, "move")) as membership:
            running = [node.name for node in membership.nodes() if node.age_seconds < LIVE_SECONDS]
            if running or membership.lease().remaining_seconds > 0:
                raise ServiceRunning(place=server.place, nodes=", ".join(running) or "unknown")
        yield database


def move(source: Database, target: Database, place: str) -> dict[str, int]:
    """Copy all rows in one transaction of the target. Returns the number of rows of each table."""
    for name in COLUMNS:
        if target.execute(f"SELECT 1 FROM {name} LIMIT 1").fetchone() is not None:  # noqa: S608 - our own names
            raise TargetNotEmpty(place=place, table=name)
    mark = "%s" if isinstance(target, PostgresqlDatabase) else "?"
    with ExitStack() as undo:
        target.execute("BEGIN")
        undo.callback(target.execute, "ROLLBACK")
        counts = {name: _copy(source, target, name, mark) for name in COLUMNS}
        for name in COLUMNS:
            _compare(source, target, name)
        undo.pop_all()
    target.execute("COMMIT")
    return counts


def _rows(database: Database, name: str) -> Iterator[Row]:
    statement = f"SELECT {', '.join(COLUMNS[name])} FROM {name} ORDER BY {ORDERS.get(name, 'rowid')}"  # noqa: S608 - ours
    for row in database.execute(statement):
        if name == "shared_text":  # PostgreSQL has bytes, because a text can contain a NUL
            yield row[0], row[1].decode() if isinstance(row[1], bytes) else row[1]
        else:
            yield tuple(row)


def _copy(source: Database, target: Database, name: str, mark: str) -> int:
    columns = COLUMNS[name]
    statement = f"INSERT INTO {name} ({', '.join(columns)}) VALUES ({', '.join(mark for _ in columns)})"  # noqa: S608 - ours
    count, batch = 0, []
    for row in _rows(source, name):
        batch.append((row[0], target.text(row[1])) if name == "shared_text" else row)
        count += 1
        if len(batch) >= BATCH:
            target.execute_many(statement, batch)
            batch = []
    target.execute_many(statement, batch)
    return count


def _compare(source: Database, target: Database, name: str) -> None:
    for number, (given, found) in enumerate(zip_longest(_rows(source, name), _rows(target, name)), 1):
        if given != found:
            raise MoveFailed(table=name, row=number)
