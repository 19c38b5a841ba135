"""A database that is damaged, foreign, newer or in use is rejected and left unchanged."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import pytest

from forewarn.core.state import Changes
from forewarn.errors import DataInUse, StoreDamaged, StoreForeign, StoreNewer
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import DATABASE_NAME, LOG_BYTES, read_statements

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def database(tmp_path: Path) -> Path:
    store = SqliteStore(tmp_path)
    store.commit(Changes(facts={"alive_at": "x" * 20_000}))
    store.close()
    return tmp_path / DATABASE_NAME


def refused(database: Path, error: type[Exception]) -> None:
    before = database.read_bytes()
    with pytest.raises(error, match=DATABASE_NAME):
        SqliteStore(database.parent)
    assert database.read_bytes() == before, "a refused database is not touched"


def test_it_is_in_wal_mode_and_synced_with_each_commit(database: Path) -> None:
    store = SqliteStore(database.parent)
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()


def test_a_commit_does_not_extend_the_log(database: Path) -> None:
    size = database.stat().st_size
    log = database.with_name(f"{DATABASE_NAME}-wal")
    store = SqliteStore(database.parent)
    extended_size = log.stat().st_size
    store.commit(Changes(facts={"alive_at": "y" * 20_000}))
    assert log.stat().st_size == extended_size >= LOG_BYTES
    store.close()
    assert database.stat().st_size == size, "only the log was extended"


@pytest.mark.parametrize("name", ["load_operations", "load_rollouts", "load_events", "events_ended_since"])
def test_a_start_reads_no_ended_rows_of_the_past(database: Path, name: str) -> None:
    store = SqliteStore(database.parent)
    statement = read_statements()[name]
    plan = list(store._db.execute(f"EXPLAIN QUERY PLAN {statement}", {"since": "2041"}))
    assert [step for *_, step in plan if "USING INDEX" not in step] == []
    store.close()


def test_only_its_owner_can_read_it(database: Path) -> None:
    database.chmod(0o644)  # as an earlier release made it
    store = SqliteStore(database.parent)
    store.commit(Changes(facts={"alive_at": "x"}))
    assert {path.name: path.stat().st_mode & 0o077 for path in database.parent.glob(f"{DATABASE_NAME}*")} == {
        DATABASE_NAME: 0,
        f"{DATABASE_NAME}-shm": 0,
        f"{DATABASE_NAME}-wal": 0,
    }
    store.close()


def test_garbage(database: Path) -> None:
    database.write_bytes(b"not a database at all" * 500)
    refused(database, StoreDamaged)


def test_an_empty_file(database: Path) -> None:
    database.write_bytes(b"")
    refused(database, StoreDamaged)


def test_a_file_cut_short(database: Path) -> None:
    content = database.read_bytes()
    database.write_bytes(content[: len(content) // 2])
    refused(database, StoreDamaged)


def test_pages_overwritten_in_the_middle(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096 : 4096 * 3] = b"\xa5" * 8192
    database.write_bytes(content)
    refused(database, StoreDamaged)


def test_another_programs_database(database: Path) -> None:
    database.unlink()
    with sqlite3.connect(database) as foreign:
        foreign.execute("CREATE TABLE t (x)")
    foreign.close()
    refused(database, StoreForeign)


def test_one_from_the_future(database: Path) -> None:
    with sqlite3.connect(database, isolation_level=None) as newer:
        newer.execute("PRAGMA user_version = 99")
    newer.close()
    refused(database, StoreNewer)


def test_one_that_is_in_use(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with pytest.raises(DataInUse, match=r"Another Forewarn service .* uses the data folder"):
        SqliteStore(tmp_path)
    store.close()
    SqliteStore(tmp_path).close()


def test_a_start_that_was_cut_short_while_making_it_is_simply_made_again(tmp_path: Path) -> None:
    (tmp_path / "forewarn.new").write_bytes(b"half a database")
    store = SqliteStore(tmp_path)
    assert store.load().sequence == 0
    store.close()
