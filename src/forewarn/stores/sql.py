"""What the stores have in common: statements, and the mapping between them and the values of the core.

`statements.sql` has the statements of all stores. Each store has a file with those that differ.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from forewarn.core.durations import from_text, to_text, to_text_if_any
from forewarn.core.fleet import Fleet
from forewarn.ports import HistoryFilter, ListFilter, RetentionCutoff, StoredState
from forewarn.stores import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import datetime

    from forewarn.core.access import StoredResponse
    from forewarn.core.events import Event
    from forewarn.core.fleet import FleetChange
    from forewarn.core.operations import Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Changes, HistoryEntry


T = TypeVar("T")
Row = tuple[Any, ...]


def read_statements(dialect: str) -> dict[str, str]:
    """Read the named statements for a dialect (`sqlite`, `postgresql`), with their column lists."""
    found = {}
    for name in ("statements", dialect):
        text = resources.files(__package__).joinpath(f"{name}.sql").read_text("utf-8")
        parts = (part.split("\n", 1) for part in text.split("-- name: ")[1:])
        found.update({name.strip(): statement.strip().format(**rows.TABLES) for name, statement in parts})
    return found


class Cursor(Protocol):
    """The result of a statement."""

    @property
    def rowcount(self) -> int: ...

    def fetchone(self) -> Any: ...

    def __iter__(self) -> Iterator[Any]: ...


class StatementTarget(Protocol):
    """Takes the statements that save changes."""

    @property
    def statements(self) -> Mapping[str, str]:
        """Statements by name."""

    def execute_many(self, statement: str, parameters: Iterable[Any]) -> object:
        """Execute a statement once for each set of parameters."""

    def text(self, text: str) -> str | bytes:
        """Return a text that can contain every character, in the form of its column."""


class Database(StatementTarget, Protocol):
    """A connection to a database."""

    def execute(self, statement: str, parameters: Any = ()) -> Cursor:
        """Execute a statement."""

    def run(self, call: Callable[[], T]) -> T:
        """Run a call. Translate errors of the database, and roll back a failed transaction."""

    def check(self) -> None:
        """Read a little, and not from memory. Raises an error of the database."""

    def glob(self, pattern: str) -> str:
        """Return a shell pattern in the form of the statements."""


class SqlRecords:
    """Read access to a database."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._sql = database.statements

    def load(self) -> StoredState:
        return self._db.run(self._load)

    def problem(self) -> str:
        return ""

    def check(self) -> None:
        self._db.run(self._db.check)

    def _load(self) -> StoredState:
        texts = {key: _text(stored) for key, stored in self._db.execute(self._sql["load_texts"])}
        fleet = Fleet(
            map(rows.vm_table(texts).read, self._db.execute(self._sql["load_vms"])),
            map(rows.GROUPS.read, self._db.execute(self._sql["load_groups"])),
            map(rows.HOSTS.read, self._db.execute(self._sql["load_hosts"])),
        )
        deliveries, last_seen = [], {}
        for *row, last_seen_at in self._db.execute(self._sql["load_deliveries"]):
            deliveries.append(rows.DELIVERIES.read(row))
            last_seen[deliveries[-1].scope] = from_text(last_seen_at)
        return StoredState(
            fleet,
            self._query("load_operations", rows.OPERATIONS.read),
            self._query("load_rollouts", rows.ROLLOUTS.read),
            self._query("load_events", rows.EVENTS.read),
            deliveries,
            last_seen,
            dict(self._db.execute(self._sql["load_facts"])),
            self._query("load_tokens", rows.TOKENS.read),
            self._query("load_responses", rows.RESPONSES.read),
            self._db.execute(self._sql["last_sequence"]).fetchone()[0],
            self._query("load_webhooks", rows.WEBHOOKS.read),
            self._query("load_undelivered", rows.UNDELIVERED.read),
        )

    def event(self, event_id: str) -> Event | None:
        return self._one("event", rows.EVENTS.read, event_id)

    def events_by_prefix(self, start: str, group: str = "", generation: int = 0) -> list[Event]:
        return self._by_prefix("events", rows.EVENTS.read, start, {"group": group, "generation": generation})

    def events(self, filters: ListFilter) -> list[tuple[int, Event]]:
        return self._page("events", rows.EVENTS.read, filters)

    def count_events(self, filters: ListFilter) -> int:
        return self._count("events", filters)

    def operation(self, operation_id: str) -> Operation | None:
        return self._one("operation", rows.OPERATIONS.read, operation_id)

    def operations_by_prefix(self, start: str) -> list[Operation]:
        return self._by_prefix("operations", rows.OPERATIONS.read, start, {})

    def operations(self, filters: ListFilter) -> list[tuple[int, Operation]]:
        return self._page("operations", rows.OPERATIONS.read, filters)

    def count_operations(self, filters: ListFilter) -> int:
        return self._count("operations", filters)

    def rollouts_by_prefix(self, start: str) -> list[Rollout]:
        return self._by_prefix("rollouts", rows.ROLLOUTS.read, start, {})

    def rollouts(self, filters: ListFilter) -> list[tuple[int, Rollout]]:
        return self._page("rollouts", rows.ROLLOUTS.read, filters)

    def _one(self, statement: str, read: Callable[[Row], T], key: str) -> T | None:
        """Return the item with this id. Clients send any text; a database does not take every character."""
        if not key.isprintable():
            return None
        row = self._db.run(lambda: self._db.execute(self._sql[statement], (key,)).fetchone())
        return read(row) if row else None

    def _by_prefix(self, table: str, read: Callable[[Row], T], start: str, parameters: dict[str, str | int]) -> list[T]:
        """Return the items whose id has this prefix. Ids are hexadecimal, which sorts before the tilde."""
        if not start.isprintable():
            return []
        return self._query(f"{table}_by_prefix", read, {"start": start, "end": f"{start}~", **parameters})

    def _page(self, table: str, read: Callable[[Row], T], filters: ListFilter) -> list[tuple[int, T]]:
        """Return a page of a table. The last column is the position of the row."""
        order = "oldest_first" if filters.live else "newest_first"
        statement = f"{self._selection(table, filters)}\n{self._sql[order]}"
        parameters = self._parameters(filters)
        return self._db.run(lambda: [(row[-1], read(row)) for row in self._db.execute(statement, parameters)])

    def _count(self, table: str, filters: ListFilter) -> int:
        statement = f"SELECT count(*) FROM ({self._selection(table, filters)}) AS found"  # noqa: S608 - our own statements
        return int(self._db.run(lambda: self._db.execute(statement, self._parameters(filters)).fetchone()[0]))

    def _selection(self, table: str, filters: ListFilter) -> str:
        """Return the statement without its order."""
        parts = [f"{table}_live" if filters.live else f"{table}_all", *self._conditions(table, filters)]
        return "\n".join(self._sql[part] for part in dict.fromkeys(parts))

    def _conditions(self, table: str, filters: ListFilter | HistoryFilter) -> list[str]:
        """Return the names of the given conditions only, so that the database can use an index."""
        given = (f"{table}_{name}" for name, value in filters._asdict().items() if value)
        return [name for name in given if name in self._sql]

    def stored_response(self, key: str) -> StoredResponse | None:
        return self._one("response", rows.RESPONSES.read, key)

    # --- History ------------------------------------------------------------------------------------

    def history(self, filters: HistoryFilter) -> list[HistoryEntry]:
        order = "history_newest_first" if filters.newest else "history_oldest_first"
        parts = ["history", *self._conditions("history", filters), order]
        statement = "\n".join(self._sql[part] for part in parts)
        parameters = filters._asdict() | {
            "groups": json.dumps(filters.groups),
            "kinds": json.dumps(filters.kinds),
            "quoted_vm": json.dumps(filters.vm),
            "since": to_text_if_any(filters.since),
            "until": to_text_if_any(filters.until),
        }
        return self._db.run(lambda: list(map(rows.HISTORY.read, self._db.execute(statement, parameters))))

    def oldest(self) -> int:
        return int(self._db.run(lambda: self._db.execute(self._sql["oldest_sequence"]).fetchone()[0]))

    def retention_cutoff(self, before: datetime, responses_before: datetime) -> RetentionCutoff:
        parameters, response_parameters = {"before": to_text(before)}, {"before": to_text(responses_before)}
        return RetentionCutoff(
            before,
            *self._query("expired_history", _first_column, parameters),
            *self._query("expired_operations", _first_column, parameters),
            *self._query("expired_rollouts", _first_column, parameters),
            *self._query("expired_responses", _first_column, response_parameters),
        )

    def events_ended_since(self, since: datetime) -> list[Event]:
        return self._query("events_ended_since", rows.EVENTS.read, {"since": to_text(since)})

    def _parameters(self, filters: ListFilter) -> dict[str, Any]:
        return filters._asdict() | {"vm": self._db.glob(filters.vm)}

    def _query(self, statement: str, read: Callable[[Row], T], parameters: Any = ()) -> list[T]:
        return self._db.run(lambda: list(map(read, self._db.execute(self._sql[statement], parameters))))


def _text(stored: str | bytes) -> str:
    """PostgreSQL stores texts as bytes, because a text can contain a NUL."""
    return stored if isinstance(stored, str) else stored.decode()


def _first_column(row: Row) -> Any:
    return row[0]


# --- Writing --------------------------------------------------------------------------------------


class SqlWriter:
    """Writes changes within a transaction of the caller."""

    def __init__(self, target: StatementTarget) -> None:
        self._db = target
        self._sql = target.statements

    def save(self, changes: Changes) -> None:
        """Write all changes."""
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
            texts = rows.shared_texts((*change.changed, *change.added))
            self._many("save_text", ((key, self._db.text(text)) for key, text in texts.items()))
        self._many("save_vm", map(rows.VMS.write, change.changed))
        self._many("save_vm", map(rows.VMS.write, change.added))

    def _save_deliveries(self, changes: Changes) -> None:
        deliveries, last_seen = changes.deliveries, changes.last_seen
        self._many("remove_delivery", ((scope,) for scope, delivery in deliveries.items() if delivery is None))
        saved = [delivery for delivery in deliveries.values() if delivery is not None]
        self._many(
            "save_delivery",
            ([*rows.DELIVERIES.write(each), to_text_if_any(last_seen.get(each.scope)) or ""] for each in saved),
        )
        only_seen = ((to_text(time), scope) for scope, time in last_seen.items() if scope not in deliveries)
        self._many("save_last_seen", only_seen)

    def _save_tokens(self, changes: Changes) -> None:
        for name, token in changes.tokens.items():
            if token is None:
                self._many("remove_token", [(name,)])
            else:
                self._many("save_token", [rows.TOKENS.write(token)])

    def _save_webhooks(self, changes: Changes) -> None:
        webhooks, undelivered = changes.webhooks, changes.undelivered
        self._many("remove_webhook", ((name,) for name, webhook in webhooks.items() if webhook is None))
        saved = [webhook for webhook in webhooks.values() if webhook is not None]
        self._many("save_webhook", map(rows.WEBHOOKS.write, saved))
        self._many("forget_undelivered", (key for key, row in undelivered.items() if row is None))
        pending = [row for row in undelivered.values() if row is not None]
        self._many("save_undelivered", map(rows.UNDELIVERED.write, pending))

    def _many(self, statement: str, parameters: Iterable[Any]) -> None:
        self._db.execute_many(self._sql[statement], parameters)


def remove_expired(database: Database, cutoff: RetentionCutoff, limit: int) -> bool:
    """Delete expired items, at most `limit` of each kind. Returns whether there were any."""
    parameters = cutoff._asdict() | {"before": to_text(cutoff.before), "limit": limit}
    # Events before their operations, and undelivered rows after their history.
    removed = [
        database.execute(database.statements[f"remove_{name}"], parameters).rowcount
        for name in ("events", "operations", "rollouts", "history", "undelivered", "responses")
    ]
    return any(removed)
