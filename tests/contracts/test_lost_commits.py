"""A node notices that the database has lost commits, or is another one, and no number is used twice."""

from __future__ import annotations

import logging
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from contracts.test_nodes_in_process import running, until
from contracts.test_promotion import leading
from forewarn.core.fleet import VM, Fleet
from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.state import Changes
from forewarn.delivery.feed import Feed
from forewarn.errors import NotLeading
from forewarn.ports import DatabaseChange, HistoryFilter, JournalPosition
from forewarn.stores.postgresql import LOST, RESTORED, PostgresqlJournal, PostgresqlMembership, PostgresqlStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.stores.postgresql_server import PostgresqlServer
    from postgresql import PostgresServer

pytestmark = pytest.mark.anyio
NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("known", "found", "is_lost"),
    [
        ((0, 0), [], False),
        ((28, 4), [], True),
        ((28, 4), [(28, 4)], False),
        ((28, 4), [(28, 5)], True),
        ((28, 4), [(28, 3)], True),
        ((28, 0), [(28, 5)], False),
        ((28, 0), [], True),
        ((28, 4), [(35, 4)], False),  # expired
        ((28, 4), [(35, 9)], False),
        ((28, 4), [(35, 3)], True),
    ],
)
def test_a_row_is_lost_if_the_journal_ends_before_it_or_has_another_epoch(
    known: tuple[int, int], found: list[tuple[int, int]], is_lost: bool
) -> None:
    assert JournalPosition(*known).is_lost([JournalPosition(*each) for each in found]) is is_lost


# --- The mark of the database -----------------------------------------------------------------------


def changed_mark(mark: str, part: int) -> str:
    parts = mark.split()
    parts[part] = "1" + parts[part]
    return " ".join(parts)


CHANGES: list[tuple[Callable[[str], str], str | None]] = [
    (lambda mark: mark, None),
    (lambda _: "", None),
    (lambda mark: changed_mark(mark, 0), "restored"),
    (lambda mark: changed_mark(mark, 1), "restored"),
    (lambda mark: changed_mark(mark, 2), "restored"),
    (lambda mark: changed_mark(mark, 3), "database-failover"),
    (lambda _: RESTORED, "restored"),
    (lambda mark: f"{mark}{LOST}one has seen more", "changes-lost"),
    (lambda mark: f"{changed_mark(mark, 3)}{LOST}one has seen more", "changes-lost"),
    (lambda mark: f"{changed_mark(mark, 2)}{LOST}one has seen more", "restored"),
]


@pytest.mark.parametrize("number", range(len(CHANGES)))
def test_a_new_leader_notices_another_database_once(
    server: PostgresqlServer, postgresql: PostgresServer, number: int
) -> None:
    change, kind = CHANGES[number]
    with closing(PostgresqlMembership(server, "one")) as one:
        assert one.find_change() is None, "the first leader"
        one.save_mark()
        ((mark,),) = postgresql.execute(f"SELECT mark FROM {server.schema}.service")
        postgresql.execute(f"UPDATE {server.schema}.service SET mark = E'{change(str(mark))!r}'".replace("''", "'"))
        found = one.find_change()
        assert (found and found.kind) == kind
        one.save_mark()
        assert one.find_change() is None


def test_a_report_that_arrives_meanwhile_is_not_forgotten(server: PostgresqlServer) -> None:
    with closing(PostgresqlMembership(server, "one")) as one, closing(PostgresqlMembership(server, "two")) as two:
        one.find_change()
        one.save_mark()
        two.report_loss("two has seen more")
        two.report_loss("two has seen even more")
        assert one.find_change() == DatabaseChange("changes-lost", "two has seen more")
        two.report_restore()
        one.save_mark()
        found = one.find_change()
        assert found is not None
        assert found.kind == "restored"


def test_a_user_who_may_not_see_the_server_still_notices_a_restored_dump(
    server: PostgresqlServer, postgresql: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(PostgresqlMembership(server, "one")) as known:
        known.find_change()
        known.save_mark()
    postgresql.execute("CREATE ROLE limited LOGIN")
    postgresql.execute("REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        postgresql.execute(f"GRANT ALL ON SCHEMA {server.schema} TO limited")
        postgresql.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {server.schema} TO limited")
        limited = type(server)(postgresql.url_at(postgresql.port, user="limited"), server.schema)
        with closing(PostgresqlMembership(limited, "one")) as one:
            assert one.find_change() is None, "what is not known does not differ"
            postgresql.execute(f"UPDATE {server.schema}.service SET mark = '1 2 3 4'")
            found = one.find_change()
            assert found is not None
            assert found.kind == "restored"
        events = [getattr(record, "event_name", "") for record in caplog.records if record.levelno == logging.WARNING]
        assert events == ["server_not_known"]
    finally:
        postgresql.execute("GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
        postgresql.execute("DROP OWNED BY limited")
        postgresql.execute("DROP ROLE limited")


# --- The leader -------------------------------------------------------------------------------------


def lose_last_row(postgresql: PostgresServer, schema: str) -> None:
    postgresql.execute(f"DELETE FROM {schema}.journal WHERE number = (SELECT max(number) FROM {schema}.journal)")


@pytest.mark.parametrize("is_new", [True, False], ids=["a new connection", "its connection"])
def test_a_leader_does_not_commit_to_a_database_without_its_last_commit(
    server: PostgresqlServer, postgresql: PostgresServer, is_new: bool
) -> None:
    with leading(server, "one") as store:
        store.commit(Changes(facts={"a": "1"}))
        store.commit(Changes(facts={"a": "2"}))
        store._writing.close()
        store.commit(Changes(facts={"a": "3"}))
        lose_last_row(postgresql, server.schema)
        if is_new:
            store._writing.close()
        for _ in range(2):
            with pytest.raises(NotLeading):
                store.commit(Changes(facts={"a": "4"}))
        with closing(PostgresqlJournal(server, "reader")) as journal:
            assert [row.number for row in journal.read(0, 10)] == [1, 2]


class _LosesConnection(PostgresqlStore):
    lose = False

    def _write_all(self, *arguments: object) -> None:
        if self.lose:
            self.lose = False
            self._writing.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        super()._write_all(*arguments)  # type: ignore[arg-type]


def test_a_leader_does_not_repeat_a_commit_in_a_database_without_the_commit_before_it(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    with (
        closing(_LosesConnection(server, "one")) as store,
        closing(PostgresqlMembership(server, "one")) as membership,
    ):
        store.lead(membership.take_lease(60) or 0, 0)
        store.commit(Changes(facts={"a": "1"}))
        store.lose = True
        store.commit(Changes(facts={"a": "2"}))
        lose_last_row(postgresql, server.schema)
        store.lose = True
        with pytest.raises(NotLeading):
            store.commit(Changes(facts={"a": "3"}))


async def test_an_idle_leader_notices_that_the_database_is_behind_it(
    server: PostgresqlServer, postgresql: PostgresServer
) -> None:
    async with running(server, "one", "two") as (one, two):
        await one.engine.apply_fleet(Fleet([VM("web-0", "web-0", "a")]), "test")
        feed = Feed(one.engine)
        await one.engine.enable("web-0", "test")
        await one.engine.apply_fleet(Fleet([VM(name, name, "a") for name in ("web-0", "web-1")]), "test")
        await until(lambda: two.engine.position == one.engine.position)
        tag, lost_row, position = one.engine.document("web-0"), feed.tail[-1].sequence, one.engine.position
        schema = server.schema
        postgresql.execute(f"DELETE FROM {schema}.history WHERE sequence = {lost_row}")
        lose_last_row(postgresql, schema)
        await until(lambda: one.engine.position > SKIPPED_NUMBERS or two.engine.position > SKIPPED_NUMBERS)
        await until(lambda: two.engine.position == one.engine.position)
        assert one.engine.position > position
        leader = one if one.engine.leads else two
        rows = leader.store.reader().history(HistoryFilter())
        assert rows[-1].kind == "changes-lost"
        assert rows[-1].sequence > SKIPPED_NUMBERS
        assert lost_row not in [row.sequence for row in (*rows, *feed.tail)]
        for member in (one, two):
            assert member.node.loss == ""
            assert member.engine.document("web-0").enabling > tag.enabling + SKIPPED_NUMBERS - 10
        epochs = [member.node.role.epoch for member in (one, two)]
        assert min(epochs) > SKIPPED_NUMBERS
