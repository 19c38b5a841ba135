"""Connect to PostgreSQL, and check and upgrade the schema.

A foreign or newer schema, an old server and missing permissions are rejected, and nothing is modified.
"""

from __future__ import annotations

import re
import secrets
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import psycopg
from psycopg import sql as query
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from forewarn.core.shell_patterns import glob_to_regex
from forewarn.errors import (
    BadDatabaseUrl,
    DatabaseFailed,
    DatabasePermission,
    DatabaseTooOld,
    DatabaseUnreachable,
    NoSuchSchema,
    SchemaForeign,
    SchemaNewer,
    SessionsShared,
    StoreFailed,
    TooFewConnections,
)
from forewarn.stores import sql
from forewarn.stores.rows import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from psycopg import Connection, Cursor

T = TypeVar("T")

OLDEST_SERVER = 15
WRITER = "forewarn writer "
LEASE = "forewarn lease "
"""Start of the application names of connections that write, and that renew the lease. The id of the node follows."""
SILENCE_SECONDS = 5.0
"""A connection on which nothing happens for this long while a statement runs is given up: the network may be cut."""
STATEMENT_SECONDS = 4.5
"""The server gives up a statement after this time. Less than SILENCE_SECONDS: it must not continue with what its client
has given up."""
LOAD_SECONDS = 600.0
"""The same, for connections that may read or copy everything."""
CONNECTIONS = 3
"""How many connections a node has at most: for the lease, for the journal or the commits, and for reads of records."""
_INTERVAL_SECONDS = 0.1
_MIGRATION_LOCK = 0x46574E31
"""Key of the advisory lock that is held during migrations, and while data is moved."""
LOCK_SECONDS = 4
"""How long a node waits for that lock. Less than STATEMENT_SECONDS, so that its message says why."""
_DEFAULTS = {
    "connect_timeout": "3",
    "target_session_attrs": "read-write",  # of several hosts, the one that is no standby
    # Of TCP: a server that is gone is noticed after about five seconds, also while nothing is sent.
    "keepalives_idle": "2",
    "keepalives_interval": "1",
    "keepalives_count": "3",
    "tcp_user_timeout": "5000",
}


_SET_UP_SESSION = """
SELECT set_config('search_path', '', false), -- each statement has the schema of its tables
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('idle_in_transaction_session_timeout', '60s', false),
    set_config('statement_timeout', %s, false),
    -- A change that was confirmed must be on disk.
    CASE current_setting('synchronous_commit') WHEN 'off' THEN set_config('synchronous_commit', 'on', false) END
"""


def migrations() -> list[str]:
    """Return the migration scripts, each from schema n to n+1."""
    folder = resources.files(__package__).joinpath("postgresql_migrations")
    return [script.read_text("utf-8") for script in sorted(folder.iterdir(), key=lambda script: script.name)]


def read_statements(*files: str) -> dict[str, str]:
    """Read the named statements of these files, with parameters as psycopg writes them."""
    found: dict[str, str] = {}
    for file in files:
        for name, statement in sql.read_statements(file).items():
            lines = (line for line in statement.splitlines() if not line.startswith("--"))
            text = "\n".join(lines).replace("?", "%s")
            found[name] = re.sub(r"(?<![:\w]):([a-z_]+)", r"%(\1)s", text)
    return found


STATEMENTS = read_statements("postgresql", "postgresql_nodes")


class _RowsStatement(NamedTuple):
    """A statement that inserts or updates any number of rows, which are one parameter: a JSON array of objects."""

    statement: str
    table: str
    columns: list[str]

    def parameter(self, rows: Iterable[Sequence[Any]]) -> str:
        return msgspec.json.encode([dict(zip(self.columns, row, strict=True)) for row in rows]).decode()


def _rows_statement(statement: str) -> _RowsStatement | None:
    """Return the statement for many rows of one that inserts or updates a row; None if it does something else."""
    if (found := _UPDATE.fullmatch(statement)) is not None:
        table, column, key = found.groups()
        source = f"FROM json_populate_recordset(NULL::{table}, %s::text::json) AS given"
        update = f"UPDATE {table} SET {column} = given.{column}"  # noqa: S608 - our own
        return _RowsStatement(f"{update} {source} WHERE {table}.{key} = given.{key}", table, [column, key])
    found = _INSERT.fullmatch(statement)
    if found is None:
        return None
    table, columns, conflict = found.groups()
    source = f"SELECT {columns} FROM json_populate_recordset(NULL::{table}, %s::text::json)"  # noqa: S608 - our own
    return _RowsStatement(f"INSERT INTO {table} ({columns}) {source} {conflict}", table, columns.split(", "))


_INSERT = re.compile(r"INSERT INTO (\w+) \(([\w, ]+)\) VALUES \([%s, ]+\)(.*)", re.DOTALL)
_UPDATE = re.compile(r"UPDATE (\w+) SET (\w+) = %s WHERE (\w+) = %s;")
_ROWS_STATEMENTS = {text: found for text in STATEMENTS.values() if (found := _rows_statement(text)) is not None}
ROWS_AT_ONCE = 1000
_CLOSE_ATTEMPTS = 3


_TABLES = "|".join([*TABLES, "fact", "journal", "lease", "node", "service", "shared_setting", "shared_text"])
_OUR_NAME = re.compile(
    rf"(\b(?:FROM|INTO|JOIN|TABLE|UPDATE)\s+|NULL::)(?=(?:{_TABLES})\b)|\b(?=(?:check_epoch|save_journal)\()"
)
"""The place before the name of a table, its type, or a function. Only these need the schema."""


class LimitedConnection(psycopg.Connection[Any]):
    """A connection that gives up a statement after some time without any data from the server."""

    limited = True
    abandoned = False
    """Set by another thread: the statement ends now."""

    def wait(self, gen: Generator[Any, Any, T], *args: Any, **kwargs: Any) -> T:
        return super().wait(self._limit(gen) if self.limited else gen, *args, **kwargs)

    def _limit(self, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """Pass everything on, and count how often in a row the wait ended without data."""
        silent = 0
        try:
            state = next(gen)
            while True:
                ready = yield state
                silent = 0 if ready else silent + 1
                if self.abandoned:
                    _close(gen)
                    raise psycopg.OperationalError("the lease of this node has ended, and the server has not responded")
                if silent * _INTERVAL_SECONDS > SILENCE_SECONDS:
                    _close(gen)
                    raise psycopg.OperationalError(f"no response from the server for {SILENCE_SECONDS:g} seconds")
                state = gen.send(ready)
        except StopIteration as stop:
            found: T = stop.value
            return found


def _close(gen: Generator[Any, Any, Any]) -> None:
    """End a generator of psycopg now. Otherwise Python prints a warning when it finds it later.

    The end of a pipeline waits for the server again, which a generator that is closed may not do.
    """
    for _ in range(_CLOSE_ATTEMPTS):
        with suppress(RuntimeError, psycopg.Error):
            gen.close()
            return


class PostgresqlDatabase:
    """A connection that is opened when it is needed, and again after it was lost."""

    statements: Mapping[str, str] = STATEMENTS

    def __init__(
        self, server: PostgresqlServer, application: str, *, limited: bool = True, repeats: bool = False
    ) -> None:
        """With `repeats`, a call that found a lost connection is repeated once. So it must only read."""
        self._server = server
        self._repeats = repeats
        self._application = application
        self._limited = limited
        self._connection: LimitedConnection | None = None

    @property
    def connection(self) -> LimitedConnection:
        """The open connection."""
        if self._connection is None or self._connection.closed:
            self._connection = self._server.connect(self._application, limited=self._limited)
        return self._connection

    def execute(self, statement: str, parameters: Any = ()) -> Cursor[Any]:
        """Execute a statement, with the tables of the schema."""
        return self.connection.execute(self._server.qualified(statement), parameters, binary=True)

    def named(self, name: str, /, **parameters: Any) -> Cursor[Any]:
        """Execute the statement of this name."""
        return self.execute(STATEMENTS[name], parameters)

    def execute_many(self, statement: str, parameters: Iterable[Any]) -> None:
        given = list(parameters)
        rows_statement = _ROWS_STATEMENTS.get(statement)
        if len(given) == 1:  # can be prepared, and needs no cursor of its own
            self.execute(statement, given[0])
        elif given and rows_statement is not None:  # much faster than a statement for each row
            for start in range(0, len(given), ROWS_AT_ONCE):
                self.execute(rows_statement.statement, (rows_statement.parameter(given[start : start + ROWS_AT_ONCE]),))
        elif given:
            with self.connection.cursor() as cursor:
                cursor.executemany(self._server.qualified(statement), given)

    @contextmanager
    def without_limit(self) -> Iterator[LimitedConnection]:
        """Wait without the limit for silence: nothing may happen for long."""
        connection = self.connection
        connection.limited = False
        try:
            yield connection
        finally:
            connection.limited = self._limited

    def run(self, call: Callable[[], T]) -> T:
        """Run a call, translate errors of the database, and roll back a failed transaction."""
        try:
            return call()
        except BaseException as error:
            is_lost = self._is_lost(error)
            self.roll_back()
            if self._repeats and is_lost and isinstance(error, psycopg.Error):  # the server was started again
                return self._run_again(call)
            if isinstance(error, psycopg.Error):
                raise self._translated(error, is_lost=is_lost) from error
            raise

    def _run_again(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except psycopg.Error as error:
            is_lost = self._is_lost(error)
            self.roll_back()
            raise self._translated(error, is_lost=is_lost) from error

    def _is_lost(self, error: BaseException) -> bool:
        """Return whether an error means that the connection was lost, or that the server does not respond."""
        is_silent = isinstance(error, psycopg.OperationalError) and not error.sqlstate
        return is_silent or (self._connection is not None and self._connection.broken)

    def _translated(self, error: psycopg.Error, *, is_lost: bool) -> StoreFailed:
        if is_lost:
            return DatabaseUnreachable(place=self._server.place, problem=one_line(error))
        return DatabaseFailed(problem=one_line(error))

    def abandon(self) -> None:
        """Let a statement end that waits for the server. Called from any thread."""
        if (connection := self._connection) is not None:
            connection.abandoned = True

    def roll_back(self) -> None:
        """Roll back a transaction. If that is not possible, close the connection, which also does it."""
        if self._connection is None:
            return
        try:
            self._connection.rollback()
        except psycopg.Error:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def text(self, text: str) -> bytes:
        """PostgreSQL has no NUL in a text."""
        return text.encode()

    def check(self) -> None:
        """A node hears from the database all the time, and knows when it does not."""

    def glob(self, pattern: str) -> str:
        return glob_to_regex(pattern)


class CollectedStatements:
    """Collects the statements that save changes, so that they can be executed as one."""

    statements: Mapping[str, str] = STATEMENTS

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[Any]]] = []

    def execute_many(self, statement: str, parameters: Iterable[Any]) -> None:
        if given := list(parameters):
            self.calls.append((statement, given))

    def text(self, text: str) -> bytes:
        return text.encode()

    def as_one(self, last: str, parameters: Sequence[Any]) -> tuple[str, list[Any]] | None:
        """Return one statement that inserts all rows and then executes the last statement, with its parameters.

        None if something else is to be done, or a table has two statements: one statement cannot change a row twice.
        """
        parts: list[str] = []
        given: list[Any] = []
        tables: set[str] = set()
        for statement, rows in self.calls:
            found = _ROWS_STATEMENTS.get(statement)
            if found is None or found.table in tables or len(rows) > ROWS_AT_ONCE:
                return None
            tables.add(found.table)
            if len(rows) == 1:
                parts.append(statement)
                given += rows[0]
            else:
                parts.append(found.statement)
                given.append(found.parameter(rows))
        inserts = ", ".join(f"insert_{number} AS ({part.rstrip(';')})" for number, part in enumerate(parts))
        return f"WITH {inserts} {last}" if parts else last, [*given, *parameters]


def one_line(error: BaseException) -> str:
    """Return the message of an error of PostgreSQL in one line."""
    return " ".join(str(error).split()).removeprefix("connection failed: ") or type(error).__name__


def _without_values(problem: str) -> str:
    """Return an error of libpq about its parameters without what it quotes: that may be the password."""
    if problem.startswith(("invalid URI query parameter", "invalid connection option")):
        return problem  # it has the name of a parameter
    return 'a word has no "="' if problem.startswith('missing "="') else re.sub('".*"', '"***"', problem)


class PostgresqlServer:
    """Where the database is: opens connections to it."""

    def __init__(self, url: str, schema: str) -> None:
        self.schema = schema
        try:
            given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
        except psycopg.ProgrammingError as error:
            raise BadDatabaseUrl(problem=_without_values(one_line(error))) from None
        if "://" in url and "@" in given.get("dbname", ""):  # libpq took the password for a port
            raise BadDatabaseUrl(problem='a special character of the password is not encoded, for example "/" as %2F')
        self._conninfo = make_conninfo("", **(_DEFAULTS | given))
        host = given.get("host") or given.get("service") or "the default host"
        port = f":{given['port']}" if "port" in given else ""
        self.place = f"{host}{port}/{given.get('dbname', '')}"
        """The server and the database, without credentials."""
        self.qualified = lru_cache(1000)(self._qualified)
        """Returns a statement with the schema of its tables and functions. The session may search any other schema."""

    def _qualified(self, statement: str) -> str:
        return _OUR_NAME.sub(lambda place: f'{place[1] or ""}"{self.schema}".', statement)

    def connect(self, application: str, *, limited: bool = True) -> LimitedConnection:
        """Open a connection, in which each statement is a transaction of its own."""
        with ExitStack() as stack:
            try:
                connection = LimitedConnection.connect(self._conninfo, autocommit=True, application_name=application)
                stack.callback(connection.close)
                connection.limited = limited
                seconds = STATEMENT_SECONDS if limited else LOAD_SECONDS
                connection.execute(_SET_UP_SESSION, (f"{seconds * 1000:.0f}",))
            except (psycopg.Error, UnicodeError, ValueError) as error:
                raise DatabaseUnreachable(place=self.place, problem=one_line(error)) from error
            stack.pop_all()
        return connection

    def prepare(self, check: Callable[[str], None] = lambda _: None, *, creates: bool = True) -> str:
        """Check the server and the schema, and create or upgrade the schema. Returns the secret that the nodes share.

        `check` gets the secret. If it raises an error, nothing is modified.
        """
        with ExitStack() as stack:
            connection = stack.enter_context(closing(self.connect("forewarn")))
            try:
                self._check_connections(connection)
                return self._prepare(connection, check, creates=creates)
            except psycopg.errors.InsufficientPrivilege as error:
                user, problem = connection.info.user, one_line(error)
                raise DatabasePermission(place=self.place, user=user, schema=self.schema, problem=problem) from error
            except psycopg.errors.LockNotAvailable as error:
                problem = "another program upgrades the schema or moves the data. Retry when it is done"
                raise DatabaseUnreachable(place=self.place, problem=problem) from error
            except psycopg.Error as error:
                raise DatabaseUnreachable(place=self.place, problem=one_line(error)) from error

    def _check_connections(self, first: LimitedConnection) -> None:
        """Check that a node can open its connections, and that each has a session of its own.

        A pooler in another mode gives each statement to any session. The statements of a node then fail at random.
        """
        with ExitStack() as stack:
            opened = [first]
            while len(opened) < CONNECTIONS:
                try:
                    opened.append(stack.enter_context(closing(self.connect("forewarn"))))
                except DatabaseUnreachable as error:
                    problem = error.fields["problem"]
                    raise TooFewConnections(
                        place=self.place, found=len(opened), needed=CONNECTIONS, problem=problem
                    ) from error
            for number, connection in enumerate(opened):
                connection.execute("SELECT set_config('forewarn.connection', %s, false)", (str(number),))
            # In reverse, so that a pooler that gives the sessions in turn is noticed, too.
            for number, connection in reversed([*enumerate(opened)]):
                found = connection.execute("SELECT current_setting('forewarn.connection', true)").fetchone()
                if found != (str(number),):
                    raise SessionsShared(place=self.place)

    def lock(self, database: PostgresqlDatabase) -> bool:
        """Keep nodes from starting while this connection is open. Returns False if another program does that."""
        statement = "SELECT pg_try_advisory_lock(%s, hashtext(%s))"
        return bool(database.execute(statement, (_MIGRATION_LOCK, self.schema)).fetchone()[0])  # type: ignore[index]

    def _prepare(self, connection: LimitedConnection, check: Callable[[str], None], *, creates: bool) -> str:
        found = connection.info.server_version // 10_000
        if found < OLDEST_SERVER:
            raise DatabaseTooOld(place=self.place, found=found, oldest=OLDEST_SERVER)
        with connection.transaction():
            connection.execute("SELECT set_config('search_path', quote_ident(%s), true)", (self.schema,))
            connection.execute(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'".encode())
            connection.execute("SELECT pg_advisory_xact_lock(%s, hashtext(%s))", (_MIGRATION_LOCK, self.schema))
            version = self._version(connection)
            scripts = migrations()
            if version > len(scripts):
                raise SchemaNewer(schema=self.schema, place=self.place, found=version, known=len(scripts))
            if version == 0 and not creates:
                raise NoSuchSchema(schema=self.schema, place=self.place)
            if version == 0 and not self._exists(connection):  # who may use a schema may not always create one
                connection.execute(query.SQL("CREATE SCHEMA {}").format(query.Identifier(self.schema)))
            for script in scripts[version:]:  # which may take long: of an index, for example
                connection.limited = False
                connection.execute("SET LOCAL statement_timeout = 0")
                connection.execute(script.encode())
            if version == 0:
                row = (len(scripts), secrets.token_hex(32))
                connection.execute("INSERT INTO service (forewarn_schema, secret) VALUES (%s, %s)", row)
            elif version < len(scripts):
                connection.execute("UPDATE service SET forewarn_schema = %s", (len(scripts),))
            ((_, secret),) = connection.execute(STATEMENTS["service"]).fetchall()
            check(secret)
        return str(secret)

    def _exists(self, connection: Connection[Any]) -> bool:
        found = connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (self.schema,))
        return found.fetchone() is not None

    def _version(self, connection: Connection[Any]) -> int:
        """Return the version of the schema; 0: it does not exist or is empty."""
        names = "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s"
        found = {str(name) for (name,) in connection.execute(names, (self.schema,))}
        if not found:
            return 0
        marker = (
            "SELECT 1 FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = 'service' AND column_name = 'forewarn_schema'"
        )
        if connection.execute(marker, (self.schema,)).fetchone() is None:
            example = min(found)
            raise SchemaForeign(schema=self.schema, place=self.place, example=example)
        row = connection.execute("SELECT forewarn_schema FROM service").fetchone()
        if row is None:
            raise SchemaForeign(schema=self.schema, place=self.place, example="service")
        return int(row[0])
