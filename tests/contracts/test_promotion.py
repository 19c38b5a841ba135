"""What grows with the fleet is neither a part of a promotion, nor of a transaction that locks the lease."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from depth import amount
from forewarn.core.fleet import VM, Fleet, difference
from forewarn.core.state import Changes, Delivery, HistoryEntry
from forewarn.errors import DatabaseFailed, NotLeading
from forewarn.stores import postgresql as postgresql_module
from forewarn.stores import postgresql_server
from forewarn.stores.postgresql import PostgresqlJournal, PostgresqlMembership, PostgresqlStore
from forewarn.stores.postgresql_server import STATEMENTS, WRITER, CollectedStatements, PostgresqlServer
from forewarn.stores.sql import SqlWriter
from postgresql import open_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from postgresql import PostgresServer

VMS = amount(40_000, 4000)
NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
LONGEST_WAIT_SECONDS = 30
LEADER = "promoted"
"""Start of the ids of the nodes."""


def fleet_with_user_data(*names: str, text: str = "user data of") -> Fleet:
    """A fleet in which each VM has user data of its own."""
    return Fleet(VM(name, name, "a", user_data=f"{text} {name}") for name in names)


def large_fleet() -> Fleet:
    return fleet_with_user_data(*(f"v{n}" for n in range(VMS)))


def replace(store: PostgresqlStore, before: Fleet, after: Fleet) -> None:
    store.commit(Changes(fleet=after, fleet_changes=[difference(before, after)]))


@contextmanager
def leading(server: PostgresqlServer, name: str) -> Iterator[PostgresqlStore]:
    """A node that takes the lease and leads."""
    name = f"{LEADER} {name}"
    with (
        closing(PostgresqlStore(server, name)) as store,
        closing(PostgresqlMembership(server, name)) as membership,
        closing(PostgresqlJournal(server, name)) as journal,
    ):
        epoch = membership.take_lease(60)
        assert epoch is not None, "another node leads"
        store.lead(epoch, journal.newest())
        yield store
        membership.release_lease()


def wait_until(postgresql: PostgresServer, condition: str) -> None:
    """Wait until a condition about the sessions of the server is true."""
    ends_at = monotonic() + LONGEST_WAIT_SECONDS
    while postgresql.execute(f"SELECT {condition}") != [(True,)]:
        assert monotonic() < ends_at, condition


def work_of(postgresql: PostgresServer, schema: str) -> int:
    """Return how many rows of the tables were read, and how many blocks of their long values, by sessions that have
    ended."""
    wait_until(postgresql, f"NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE application_name LIKE '%{LEADER}%')")
    ((rows,),) = postgresql.execute(
        f"SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::int FROM pg_stat_user_tables"
        f" WHERE schemaname = '{schema}'"
    )
    ((blocks,),) = postgresql.execute(
        f"SELECT sum(toast_blks_hit + toast_blks_read)::int FROM pg_statio_user_tables WHERE schemaname = '{schema}'"
    )
    assert isinstance(rows, int)
    assert isinstance(blocks, int)
    return rows + blocks


def test_a_node_begins_to_lead_with_the_same_work_for_every_fleet(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str
) -> None:
    with leading(server, "one") as store:
        replace(store, Fleet(), large_fleet())
    postgresql.execute(f"ANALYZE {schema}.vm, {schema}.shared_text")
    before = work_of(postgresql, schema)
    with leading(server, "two") as store:
        store.commit(Changes(history=[HistoryEntry(NOW, "enabled", "x", 1)]))
    assert work_of(postgresql, schema) - before < 100


def test_an_update_of_last_seen_times_is_one_statement_and_needs_no_new_entries_in_the_index(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str
) -> None:
    scopes = [f"v{number}" for number in range(2000)]
    with leading(server, "one") as store:
        deliveries = {scope: Delivery(scope, enabled=True, enabling=1, incarnation=0) for scope in scopes}
        store.commit(Changes(deliveries=dict(deliveries), last_seen=dict.fromkeys(scopes, NOW)))
        for part in range(20):
            some = dict.fromkeys(scopes[part::20], NOW + timedelta(hours=part))
            store.commit(Changes(last_seen=some, facts={"alive_at": str(part)}))
        found = store.load().last_seen
    assert found == {scope: NOW + timedelta(hours=number % 20) for number, scope in enumerate(scopes)}
    work_of(postgresql, schema)  # waits for the statistics
    ((updated, hot),) = postgresql.execute(
        f"SELECT n_tup_upd::int, n_tup_hot_upd::int FROM pg_stat_user_tables"
        f" WHERE schemaname = '{schema}' AND relname = 'delivery'"
    )
    assert updated == 2000
    assert isinstance(hot, int)
    assert hot > 1900
    collected = CollectedStatements()
    SqlWriter(collected).save(Changes(last_seen=dict.fromkeys(scopes[:1000], NOW)))
    whole = collected.as_one("SELECT %s", (1,))
    assert whole is not None
    assert len(whole[1]) == 2


# --- Texts that no VM has -------------------------------------------------------------------------


def rows_of(plan: dict[str, Any]) -> float:
    """Return how many rows a plan has processed, with all of its parts."""
    rejected = sum(plan.get(f"Rows Removed by {kind}", 0) for kind in ("Filter", "Join Filter", "Index Recheck"))
    found: float = (plan["Actual Rows"] + rejected) * plan["Actual Loops"]
    return found + sum(map(rows_of, plan.get("Plans", ())))


def test_a_part_of_the_search_for_unused_texts_has_the_same_work_for_every_fleet(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str
) -> None:
    with leading(server, "one") as store:
        replace(store, Fleet(), large_fleet())
    postgresql.execute(f"VACUUM ANALYZE {schema}.vm, {schema}.shared_text")
    with closing(open_session(server)) as connection:
        connection.execute("SET work_mem = '64kB'")  # as if the fleet were larger
        statement = f"EXPLAIN (ANALYZE, FORMAT JSON) {STATEMENTS['texts_after']}"
        found = connection.execute(statement.encode(), {"after": "", "limit": 100}).fetchone()
    assert found is not None
    plan = found[0][0]["Plan"]
    assert plan["Actual Rows"] == 100
    assert rows_of(plan) < 1000


def test_retention_removes_texts_that_no_vm_has_in_small_parts(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_module, "TEXTS_AT_ONCE", 3)
    names = [f"v{n}" for n in range(10)]
    first, second = fleet_with_user_data(*names), fleet_with_user_data(*names[5:], text="new text of")
    with leading(server, "one") as store:
        replace(store, Fleet(), first)
        replace(store, first, second)
        cutoff, calls = store.retention_cutoff(NOW, NOW), 1
        while store.remove_expired(cutoff, 100):
            calls += 1
        assert calls == 15 // 3 + 1
        assert postgresql.execute(f"SELECT count(*) FROM {schema}.shared_text") == [(5,)]
        assert store.load().fleet.vms == second.vms
        replace(store, second, first)
        assert store.load().fleet.vms == first.vms


def test_a_node_that_no_longer_leads_removes_no_text(
    server: PostgresqlServer, postgresql: PostgresServer, schema: str
) -> None:
    """The next leader may have given it to a VM again."""
    fleet = fleet_with_user_data("v0")
    with leading(server, "one") as one:
        replace(one, Fleet(), fleet)
        replace(one, fleet, Fleet())
        ((key, used),) = one._writing.named("texts_after", after="", limit=1).fetchall()
        assert not used
        postgresql.execute(f"UPDATE {schema}.lease SET expires_at = '-infinity'")
        with leading(server, "two") as two:
            replace(two, Fleet(), fleet)
            one._writing.close()  # the other one has ended its connection
            with pytest.raises(NotLeading):
                one._remove_texts([key])
            assert two.load().fleet.vms == fleet.vms


# --- The lease ------------------------------------------------------------------------------------


def test_retention_does_not_lock_the_lease_while_it_deletes(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    with leading(server, "one") as store, closing(open_session(server)) as other, ThreadPoolExecutor(1) as pool:
        store.commit(Changes(history=[HistoryEntry(NOW, "enabled", "x", number) for number in (1, 2)]))
        cutoff = store.retention_cutoff(NOW + timedelta(days=1), NOW)
        with other.transaction():
            other.execute("SELECT 1 FROM history WHERE sequence = 1 FOR UPDATE")
            removing = pool.submit(store.remove_expired, cutoff, 10)
            waiting = f"application_name LIKE '{WRITER}%' AND wait_event_type = 'Lock'"
            wait_until(postgresql, f"EXISTS (SELECT 1 FROM pg_stat_activity WHERE {waiting})")
            other.execute("SET LOCAL lock_timeout = '50ms'")
            other.execute("UPDATE lease SET expires_at = expires_at")
        assert removing.result(LONGEST_WAIT_SECONDS)
        assert store.oldest() == 2


def test_the_server_gives_up_a_statement_before_the_node_does(
    server: PostgresqlServer, postgresql: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert postgresql_server.LOCK_SECONDS < postgresql_server.STATEMENT_SECONDS < postgresql_server.SILENCE_SECONDS
    monkeypatch.setattr(postgresql_server, "STATEMENT_SECONDS", 0.1)
    with leading(server, "one") as store, closing(open_session(server)) as other:
        with other.transaction():
            other.execute("LOCK TABLE fact")
            with pytest.raises(DatabaseFailed, match="statement timeout"):
                store.commit(Changes(facts={"a": "1"}))
            waiting = f"application_name LIKE '{WRITER}%' AND state <> 'idle'"
            assert postgresql.execute(f"SELECT 1 FROM pg_stat_activity WHERE {waiting}") == []
        assert store.commit(Changes(facts={"a": "1"})) == 1


def test_a_migration_may_take_longer_than_a_statement(
    postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index of a large table takes long."""
    scripts = postgresql_server.migrations()
    monkeypatch.setattr(postgresql_server, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(postgresql_server, "STATEMENT_SECONDS", 0.2)
    monkeypatch.setattr(postgresql_server, "migrations", lambda: [*scripts, "SELECT pg_sleep(1)"])
    PostgresqlServer(postgresql.url, schema).prepare()
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE")


def test_old_rows_of_the_journal_are_removed_in_small_parts(
    server: PostgresqlServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection that does it also renews the lease."""
    monkeypatch.setattr(postgresql_module, "JOURNAL_ROWS_AT_ONCE", 3)
    with leading(server, "one") as store, closing(PostgresqlMembership(server, "one")) as membership:
        for number in range(8):
            store.commit(Changes(facts={"a": str(number)}))
        assert not membership.trim(journal_seconds=3600, node_seconds=60)
        assert [membership.trim(journal_seconds=0, node_seconds=60) for _ in range(3)] == [True, True, False]
        with closing(PostgresqlJournal(server, "one")) as journal:
            assert [row.number for row in journal.read(0, 10)] == [8], "the newest row stays"
