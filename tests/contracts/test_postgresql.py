"""What is special about the store in PostgreSQL: the lease, the journal, and errors at the start."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import psycopg
import pytest

from forewarn.core.fleet import VM, Fleet, Host, difference
from forewarn.core.shell_patterns import glob_matcher, glob_to_regex
from forewarn.core.state import Changes, HistoryEntry
from forewarn.errors import (
    BadDatabaseUrl,
    DatabaseFailed,
    DatabasePermission,
    DatabaseTooOld,
    DatabaseUnreachable,
    NodeNameTaken,
    NotLeading,
    SchemaForeign,
    SchemaNewer,
    SessionsShared,
    StoreFailed,
    TooFewConnections,
)
from forewarn.ports import HistoryFilter, ListFilter, NodeRow
from forewarn.stores import change_set, postgresql, postgresql_server
from forewarn.stores.postgresql import PostgresqlJournal, PostgresqlMembership, PostgresqlStore
from forewarn.stores.postgresql_server import CONNECTIONS, WRITER, CollectedStatements, PostgresqlServer
from forewarn.stores.sqlite_file import open_database
from pooler import Pooler
from postgresql import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgresql import PostgresServer, SharedStore

NOW = datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)


class Node:
    """A node with its connections."""

    def __init__(self, server: PostgresqlServer, name: str) -> None:
        self.row = NodeRow(name, name, "", "", "", "", "", 0)
        self.store = PostgresqlStore(server, name)
        self.membership = PostgresqlMembership(server, name)
        self.journal = PostgresqlJournal(server, name)

    def lead(self) -> int:
        self.store.follow()
        epoch = self.membership.take_lease(60)
        assert epoch is not None
        self.store.lead(epoch, self.store.load().position)
        return epoch

    def renew_lease(self) -> int | None:
        renewal = self.membership.renew_lease(self.row, 60)
        assert self.row.id in {node.id for node in renewal.nodes}
        return renewal.epoch

    def close(self) -> None:
        for part in (self.store, self.membership, self.journal):
            part.close()


@pytest.fixture
def nodes(server: PostgresqlServer) -> Iterator[list[Node]]:
    made = [Node(server, name) for name in ("one", "two")]
    yield made
    for node in made:
        node.close()


def test_only_one_node_leads_until_its_lease_ends(nodes: list[Node]) -> None:
    one, two = nodes
    assert one.membership.take_lease(60) == 1
    assert (two.membership.take_lease(60), two.renew_lease()) == (None, None)
    assert one.renew_lease() == 1
    lease = two.membership.lease()
    assert (lease.holder, lease.epoch) == ("one", 1)
    one.membership.release_lease()
    assert two.membership.lease().remaining_seconds <= 0
    assert two.membership.take_lease(60) == 2
    assert one.renew_lease() is None


def test_a_deposed_leader_cannot_write_one_more_row(nodes: list[Node]) -> None:
    one, two = nodes
    one.lead()
    one.store.commit(Changes(facts={"a": "first"}))
    one.membership.release_lease()
    two.lead()
    with pytest.raises(NotLeading):
        one.store.commit(Changes(facts={"a": "late"}, history=[HistoryEntry(NOW, "enabled", "x", 1)]))
    cutoff = one.store.retention_cutoff(NOW, NOW)
    with pytest.raises(NotLeading):
        one.store.remove_expired(cutoff, 10)
    two.store.commit(Changes(facts={"b": "second"}))
    saved = two.store.load()
    assert (saved.facts, saved.sequence, saved.position) == ({"a": "first", "b": "second"}, 0, 2)


@pytest.mark.parametrize(
    "changes",
    [
        Changes(facts={"a": "\0"}),
        Changes(facts={"a": "\0", "b": "x"}),
        Changes(facts={"a": "\0"}, tokens={"ci": None}),
    ],
    ids=["one row", "several rows", "several statements"],
)
def test_a_commit_with_a_character_that_postgresql_lacks_has_no_effect(nodes: list[Node], changes: Changes) -> None:
    one, _ = nodes
    one.lead()
    before = one.membership.lease().epoch
    with pytest.raises(DatabaseFailed):
        one.store.commit(changes)
    assert one.membership.lease().epoch == before, "the node still leads"
    assert one.store.commit(Changes(facts={"c": "next"})) == 1
    assert one.store.load().facts == {"c": "next"}


def test_a_commit_and_a_new_lease_at_the_same_time_exclude_each_other(
    nodes: list[Node], server: PostgresqlServer
) -> None:
    """The commit locks the lease, so the lease is taken before it or after it, never in between."""
    one, two = nodes
    one.lead()
    blocking = open_session(server)
    with blocking.transaction():
        blocking.execute("SELECT check_epoch(1)")
        with open_session(server) as other:
            other.execute("SET lock_timeout = 50")
            with pytest.raises(Exception, match="lock timeout"):
                other.execute("UPDATE lease SET epoch = epoch + 1")
    blocking.close()
    one.membership.release_lease()
    assert two.membership.take_lease(60) == 2


@pytest.fixture(scope="module")
def large_commit() -> Changes:
    vms = (VM(f"v{number}", f"v{number}", "host-a", user_data=f"{number} " * 40) for number in range(5000))
    fleet = Fleet(vms, (), [Host("host-a")])
    changes = [difference(Fleet(), fleet)]
    return Changes(fleet=fleet, fleet_changes=changes, facts={"file": "large"}, decided_at=NOW)


def test_a_large_commit_has_rows_of_bounded_size_that_are_read_together(
    nodes: list[Node], server: PostgresqlServer, large_commit: Changes
) -> None:
    one, two = nodes
    one.lead()
    for number, changes in enumerate([Changes(facts={"a": "1"}), large_commit, Changes(facts={"b": "1"})], 1):
        assert one.store.commit(changes) == number
        assert one.store.last_row is not None
        assert (one.store.last_row.data == b"") == (changes is large_commit), "what is sent with an answer is one row"
    with open_session(server) as session:
        ((rows, size),) = session.execute("SELECT count(*), max(length(data)) FROM journal WHERE number = 2").fetchall()
    assert rows > 2
    assert size <= change_set.PART_BYTES
    for limit in (1, 2, 3, rows, rows + 1, rows + 2):
        numbers = [row.number for row in two.journal.read(0, limit)]
        assert numbers.count(2) in (0, rows), "all rows of a commit, or none"
        assert len(numbers) >= limit
    applied = two.journal.decode([row.data for row in two.journal.read(1, 1)[1:]], Fleet())
    assert applied.fleet is not None
    assert applied.fleet.vms == large_commit.fleet.vms  # type: ignore[union-attr]
    assert (applied.fleet_changes, applied.facts) == (large_commit.fleet_changes, {"file": "large"})


def test_a_node_that_loads_the_state_after_a_large_commit_continues_with_the_next_one(
    nodes: list[Node], large_commit: Changes
) -> None:
    one, two = nodes
    one.lead()
    one.store.commit(large_commit)
    saved = two.store.load()
    assert (saved.position, saved.decided_at, len(saved.fleet.vms)) == (1, NOW, 5000)
    assert two.journal.newest() == 1
    assert [row[:2] for row in two.journal.read(saved.position, 500)] == [(1, b"")], "the row that it has"
    one.store.commit(Changes(facts={"a": "1"}))
    assert [row.number for row in two.journal.read(saved.position, 500)] == [1, 2]


def test_a_large_commit_is_removed_from_the_journal_as_a_whole(
    nodes: list[Node], server: PostgresqlServer, large_commit: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = nodes
    one.lead()
    for changes in (large_commit, Changes(facts={"a": "1"})):
        one.store.commit(changes)
    with open_session(server) as session:
        times = session.execute("SELECT DISTINCT written_at FROM journal WHERE number = 1").fetchall()
    assert len(times) == 1, "no time is between two of its rows"
    assert one.membership.trim(journal_seconds=60, node_seconds=60) is False
    assert {row.number for row in two.journal.read(0, 500)} == {1, 2}
    monkeypatch.setattr(postgresql, "JOURNAL_ROWS_AT_ONCE", 2)
    assert one.membership.trim(journal_seconds=0, node_seconds=60) is True
    assert [row.number for row in two.journal.read(0, 500)] == [2]


def test_the_journal_has_the_complete_changes_in_order(nodes: list[Node]) -> None:
    one, two = nodes
    one.lead()
    fleet = Fleet([VM("web-0", "web", "a")])
    first = Changes(fleet=fleet, fleet_changes=[difference(Fleet(), fleet)], facts={"x": "1"}, decided_at=NOW)
    second = Changes(history=[HistoryEntry(NOW, "enabled", "x", 1)])
    assert [one.store.commit(changes) for changes in (first, second)] == [1, 2]
    rows = two.journal.read(0, 10)
    assert [row.number for row in rows] == [1, 2]
    applied = two.journal.decode([rows[0].data], Fleet())
    assert applied.fleet is not None
    assert (applied.fleet.vms, applied.facts, applied.decided_at) == (fleet.vms, {"x": "1"}, NOW)
    assert change_set.decode([rows[1].data], fleet) == second
    assert [row.number for row in two.journal.read(1, 10)] == [1, 2]
    one.membership.trim(journal_seconds=0, node_seconds=60)
    assert [row.number for row in two.journal.read(0, 10)] == [2], "the newest row stays"


def test_a_commit_notifies_and_a_lost_notification_only_delays(nodes: list[Node]) -> None:
    one, two = nodes
    one.lead()
    two.journal.read(0, 10)
    one.store.commit(Changes(facts={"a": "b"}))
    assert two.journal.wait(60) == 1
    assert [row.number for row in two.journal.read(0, 10)] == [1]
    assert two.journal.wait(0.01) is None
    assert [row.number for row in two.journal.read(1, 10)] == [1]


def test_a_notification_of_another_program_is_ignored(
    nodes: list[Node], server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    one, two = nodes
    one.lead()
    two.journal.read(0, 10)
    two.journal.wait(0)  # listens
    postgresql.execute(f"NOTIFY \"forewarn {server.schema}\", 'hello'")
    assert two.journal.wait(60) is None
    one.store.commit(Changes(facts={"a": "b"}))
    assert two.journal.wait(60) == 1


def test_a_lost_connection_is_opened_again_and_the_commit_is_made_once(
    nodes: list[Node], postgresql: PostgresServer
) -> None:
    one, two = nodes
    one.lead()
    one.store.commit(Changes(facts={"a": "1"}))
    for number in (2, 3):
        ended = postgresql.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = '{WRITER}one'"
        )
        assert ended == [(True,)]
        assert one.store.commit(Changes(history=[HistoryEntry(NOW, "enabled", "x", number - 1)])) == number
    assert [row.sequence for row in two.store.history(HistoryFilter())] == [1, 2]
    assert [row.number for row in two.journal.read(0, 10)] == [1, 2, 3]
    assert two.membership.lease().epoch == 3, "a lost transaction can no longer commit"


def test_a_read_after_a_restart_of_the_database_uses_a_new_connection(
    nodes: list[Node], postgresql: PostgresServer
) -> None:
    one, _ = nodes
    reader = one.store.reader()
    for _ in range(2):
        assert reader.history(HistoryFilter()) == []
        ended = postgresql.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'forewarn reader one'"
        )
        assert ended == [(True,)]
    assert reader.oldest() == 1


def test_a_commit_without_the_database_has_no_effect(nodes: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = nodes
    one.lead()
    one.store.close()
    monkeypatch.setattr(one.store._server, "_conninfo", "host=127.0.0.1 port=1 user=x dbname=x")
    with pytest.raises(StoreFailed, match="Connection refused"):
        one.store.commit(Changes(facts={"a": "1"}))


def test_a_leader_that_was_stopped_in_a_transaction_does_not_block_the_next_one(
    nodes: list[Node], server: PostgresqlServer
) -> None:
    one, two = nodes
    one.lead()
    one.membership.release_lease()  # as if its time were over
    stopped = open_session(server, f"{WRITER}one")
    stopped.execute("BEGIN")
    stopped.execute("INSERT INTO journal (number, epoch, data) VALUES (1, 1, '')")
    stopped.execute("SELECT check_epoch(1)")
    assert two.lead() == 2
    assert two.store.commit(Changes(facts={"a": "1"})) == 1
    with pytest.raises(psycopg.OperationalError):
        stopped.execute("COMMIT")


def test_a_connection_of_a_node_that_hangs_does_not_block_the_next_lease_of_the_same_node(
    nodes: list[Node], server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was cut off in a transaction, and the server does not notice that for hours."""
    monkeypatch.setattr(postgresql_server, "SILENCE_SECONDS", 1.0)
    one, _ = nodes
    hanging = open_session(server, f"{WRITER}one")
    one.lead()
    hanging.execute("BEGIN")
    hanging.execute("UPDATE lease SET expires_at = '-infinity'")
    hanging.execute("COMMIT")
    hanging.execute("BEGIN")
    hanging.execute("SELECT check_epoch(1)")
    assert one.lead() == 2
    hanging.close()


def test_nodes_report_and_settings_are_shared(nodes: list[Node]) -> None:
    one, two = nodes
    settings = {"speed": "1", "fabric": "manual"}
    first, second = (NodeRow(name, name, "", "", "", "", "", 0) for name in ("one", "two"))
    nobody: set[str] = set()
    assert one.membership.join(first, settings, nobody, 60) == settings
    assert two.membership.join(second, {"speed": "2", "fabric": "manual"}, nobody, 60) == settings
    assert [node.name for node in one.membership.nodes()] == ["one"], "the other one does not start"
    assert two.membership.join(second, {"speed": "1", "new": "x"}, nobody, 60) == settings | {"new": "x"}
    assert one.membership.join(first, settings | {"new": "y"}, nobody, 60)["new"] == "x", "of a later release"
    one.membership.remove_node("two")
    assert one.membership.join(first, {"speed": "2"}, nobody, 60) == {"speed": "2"}, "no other node runs"


def test_a_node_that_has_not_reported_counts_if_it_answers(nodes: list[Node], server: PostgresqlServer) -> None:
    """The database was away, and the nodes that run have not reported since."""
    one, two = nodes
    first, second = (NodeRow(name, name, "", "", "", "", "", 0) for name in ("one", "two"))
    one.membership.join(first, {"speed": "1"}, set(), 10)
    with closing(open_session(server)) as connection:
        connection.execute("UPDATE node SET seen_at = seen_at - interval '1 minute'")
    assert two.membership.join(second, {"speed": "2"}, set(), 10) == {"speed": "1"}
    assert two.membership.join(second, {"speed": "2"}, {"one"}, 10) == {"speed": "2"}, "it is gone"


def test_a_name_can_be_used_again_when_its_node_is_gone(nodes: list[Node]) -> None:
    one, two = nodes
    first, again = (NodeRow(id_, "name", "", "", "", "", "", 0) for id_ in ("one", "two"))
    one.membership.join(first, {}, set(), 10)
    with pytest.raises(NodeNameTaken, match="name"):
        two.membership.join(again, {}, set(), 10)
    two.membership.join(again, {}, {"one"}, 10)


def test_nothing_depends_on_the_schemas_that_a_session_searches(nodes: list[Node], server: PostgresqlServer) -> None:
    """Another client of a pooler may have had the session."""
    one, _ = nodes
    one.lead()
    for database in (one.store._writing, one.membership._db, one.journal._db):
        database.connection.execute("SET search_path TO public")
    one.store.commit(Changes(facts={"a": "1"}))
    assert one.renew_lease() == 1
    assert [row.number for row in one.journal.read(0, 10)] == [1]
    one.store.remove_expired(one.store.retention_cutoff(NOW, NOW), 10)


@pytest.mark.parametrize(
    ("setting", "value", "wanted"),
    [("synchronous_commit", "off", "on"), ("default_transaction_isolation", "serializable", "read committed")],
)
def test_a_session_does_not_inherit_settings_that_would_break_a_promise(
    postgresql: PostgresServer, server: PostgresqlServer, setting: str, value: str, wanted: str
) -> None:
    url = f"{postgresql.url}?options=-c%20{setting}%3D{value}"
    with closing(PostgresqlServer(url, server.schema).connect("test")) as connection:
        assert connection.execute(f"SHOW {setting}".encode()).fetchone() == (wanted,)


def test_the_statements_of_a_commit_become_one() -> None:
    sql = postgresql_server.STATEMENTS
    collected = CollectedStatements()
    collected.execute_many(sql["save_fact"], [])
    assert collected.as_one("SELECT %s", (1,)) == ("SELECT %s", [1])
    host = ["rack-1", "in-service", 0]
    collected.execute_many(sql["save_host"], [host])
    whole = collected.as_one("SELECT %s", (1,))
    assert whole is not None
    assert (whole[0].startswith("WITH insert_0 AS (INSERT INTO host "), whole[1]) == (True, [*host, 1])
    collected.execute_many(sql["save_host"], [host])
    assert collected.as_one("SELECT %s", (1,)) is None, "one statement cannot change a row twice"


def test_of_two_nodes_that_start_at_the_same_time_one_decides_the_settings(nodes: list[Node]) -> None:
    def join(number: int) -> dict[str, str]:
        name = f"node-{number}"
        membership = nodes[number].membership
        return membership.join(NodeRow(name, name, "", "", "", "", "", 0), {"speed": name}, set(), 60)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(join, range(2))
    assert first == second
    assert len(nodes[0].membership.nodes()) == 1


@pytest.mark.parametrize(
    ("pattern", "matching", "other"),
    [
        ("web-*", "web-01", "db-0"),
        ("web-?", "web-1", "web-01"),
        ("[wd]eb", "deb", "feb"),
        ("[^w]eb", "deb", "web"),
        ("[!w]eb", "deb", "web"),
        ("a.b", "a.b", "axb"),
        ("a[", "a[", "a"),
        ("[]]", "]", "["),
        ("a+(b)|c{1}$\\", "a+(b)|c{1}$\\", "aab"),
        ("Web", "Web", "web"),
        ("[a&&~~||b]", "&", "c"),
    ],
)
def test_a_pattern_has_the_meaning_of_sqlite(
    shared_store: SharedStore, pattern: str, matching: str, other: str
) -> None:
    store = shared_store.open()
    for name, expected in ((matching, True), (other, False)):
        assert store._db.execute("SELECT %s ~ %s", (name, glob_to_regex(pattern))).fetchone() == (expected,)
        assert bool(glob_matcher(pattern)(name)) == expected
    assert store.operations(ListFilter(vm=pattern)) == []


# --- Limits and poolers ---------------------------------------------------------------------------


@pytest.fixture
def limited_user(postgresql: PostgresServer, schema: str) -> Iterator[str]:
    """A user with fewer connections than a node needs. The test has its schema."""
    user = f"{schema}_user"
    postgresql.execute(f"CREATE ROLE {user} LOGIN CONNECTION LIMIT {CONNECTIONS - 1}")
    postgresql.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {user}")
    yield user
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE; DROP ROLE {user}")


def test_a_node_with_too_few_connections_does_not_start(
    postgresql: PostgresServer, schema: str, limited_user: str
) -> None:
    server = PostgresqlServer(postgresql.url_at(postgresql.port, user=limited_user), schema)
    with pytest.raises(TooFewConnections, match=r"only 2 of the 3 connections.*too many connections for role"):
        server.prepare()
    assert postgresql.execute(f"SELECT 1 FROM pg_tables WHERE schemaname = '{schema}'") == [], "nothing was changed"


def test_a_node_that_gets_too_few_connections_of_a_pooler_does_not_start(
    postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_server, "SILENCE_SECONDS", 1.0)
    with closing(Pooler(postgresql, "session", CONNECTIONS - 1)) as pooler:
        server = PostgresqlServer(postgresql.url_at(pooler.port), schema)
        with pytest.raises(TooFewConnections, match=r"only 2 of the 3 connections.*no response"):
            server.prepare()
    assert not exists(postgresql, schema)


@pytest.mark.parametrize("size", range(1, 6))
@pytest.mark.parametrize("round_robin", [0, 1])
def test_a_pooler_that_shares_sessions_is_rejected(
    postgresql: PostgresServer, schema: str, size: int, round_robin: int
) -> None:
    with closing(Pooler(postgresql, "transaction", size, f"server_round_robin = {round_robin}")) as pooler:
        url = postgresql.url_at(pooler.port)
        with ExitStack() as stack:  # the pooler has opened all its connections
            opened = [stack.enter_context(psycopg.connect(url)) for _ in range(size)]
            for connection in opened:
                connection.execute("SELECT 1")
        with pytest.raises(SessionsShared, match="pool_mode = session"):
            PostgresqlServer(url, schema).prepare()
    assert not exists(postgresql, schema)


# --- Errors at the start --------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["postgresql://[::1/x", "nonsense", "postgresql://h/d?unknown=1"])
def test_a_wrong_url_is_named(url: str) -> None:
    with pytest.raises(BadDatabaseUrl, match="postgresql://USER@HOST:5432/DATABASE"):
        PostgresqlServer(url, "forewarn")


def test_a_server_that_does_not_respond_is_named_without_the_password() -> None:
    with pytest.raises(DatabaseUnreachable, match="Connection refused") as raised:
        PostgresqlServer("postgresql://me:secret@127.0.0.1:1/x", "forewarn").prepare()
    assert "127.0.0.1:1/x" in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql//me:s3cret@h/d",
        "me:s3cret@h/d",
        "host=h password=s3 s3cret",
        "postgresql://me:s3cret%x@h/d",
        "postgresql://me:s3/s3cret@h/d",
    ],
)
def test_a_wrong_url_is_reported_without_the_password(url: str) -> None:
    with pytest.raises(BadDatabaseUrl) as raised:
        PostgresqlServer(url, "forewarn")
    assert "s3cret" not in str(raised.value)


def test_an_unknown_database_is_named(postgresql: PostgresServer) -> None:
    with pytest.raises(DatabaseUnreachable, match='database "nothing" does not exist'):
        PostgresqlServer(postgresql.url_at(postgresql.port, "nothing"), "forewarn").prepare()


def test_an_old_server_is_rejected(postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgresql_server, "OLDEST_SERVER", 99)
    with pytest.raises(DatabaseTooOld, match="Forewarn needs PostgreSQL 99"):
        PostgresqlServer(postgresql.url, schema).prepare()
    assert not exists(postgresql, schema)


def exists(postgresql: PostgresServer, schema: str) -> bool:
    return bool(postgresql.execute(f"SELECT 1 FROM pg_namespace WHERE nspname = '{schema}'"))


def test_a_schema_of_another_program_is_not_touched(postgresql: PostgresServer, schema: str) -> None:
    postgresql.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.vm (id int)")
    with pytest.raises(SchemaForeign, match="it has 'vm'"):
        PostgresqlServer(postgresql.url, schema).prepare()
    assert postgresql.execute(f"SELECT tablename FROM pg_tables WHERE schemaname = '{schema}'") == [("vm",)]
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE")


def test_a_newer_schema_is_not_touched(server: PostgresqlServer, postgresql: PostgresServer, schema: str) -> None:
    postgresql.execute(f"UPDATE {schema}.service SET forewarn_schema = 99")
    with pytest.raises(SchemaNewer, match="version 99"):
        server.prepare()


def test_a_migration_changes_rows_and_keeps_the_others(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = [*postgresql_server.migrations(), "UPDATE fact SET value = 'changed' WHERE name = 'mark';"]
    postgresql.execute(f"INSERT INTO {schema}.fact VALUES ('mark', 'first'), ('other', 'kept')")
    monkeypatch.setattr(postgresql_server, "migrations", lambda: scripts)
    for _ in range(2):
        server.prepare()
        with closing(PostgresqlStore(server, "one")) as store:
            facts = store.load().facts
        assert (facts["mark"], facts["other"]) == ("changed", "kept")
    assert postgresql.execute(f"SELECT forewarn_schema FROM {schema}.service") == [(len(scripts),)]


def test_both_stores_have_the_same_columns(server: PostgresqlServer, postgresql: PostgresServer, schema: str) -> None:
    """Apart from the rowid, which SQLite has without a column."""
    with closing(open_database(None).connection) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        expected = {name: {row[1] for row in database.execute(f"PRAGMA table_info({name})")} for name in tables}
    found: dict[str, set[str]] = {}
    statement = f"SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = '{schema}'"
    for table, column in postgresql.execute(statement):
        found.setdefault(str(table), set()).add(str(column))
    assert {name: found[name] - {"rowid"} for name in expected} == expected
    assert set(found) - set(expected) == {"lease", "journal", "node", "shared_setting", "service"}


def test_a_user_without_permission_gets_the_command_for_it(postgresql: PostgresServer, schema: str) -> None:
    user = f"{schema}_user"
    postgresql.execute(f"CREATE ROLE {user} LOGIN")
    url = f"postgresql://{user}@127.0.0.1:{postgresql.port}/postgres"
    with pytest.raises(DatabasePermission, match=f"CREATE SCHEMA {schema} AUTHORIZATION {user}"):
        PostgresqlServer(url, schema).prepare()
    postgresql.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {user}")
    assert PostgresqlServer(url, schema).prepare() == PostgresqlServer(url, schema).prepare()
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE; DROP ROLE {user}")


def test_two_nodes_can_create_the_schema_at_the_same_time(postgresql: PostgresServer, schema: str) -> None:
    with ThreadPoolExecutor(4) as pool:
        secrets = set(pool.map(lambda _: PostgresqlServer(postgresql.url, schema).prepare(), range(4)))
    assert len(secrets) == 1
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE")
