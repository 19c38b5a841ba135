"""A database of an earlier schema is migrated when it is opened.

There is one schema so far. These tests add a migration to it. Copy the first one for a real migration: write rows with
the schema before it, open the database, and check what the migration made of them.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from forewarn.core.fleet import VM, Fleet, FleetChange
from forewarn.core.state import Changes
from forewarn.errors import StoreFailed, StoreNewer
from forewarn.stores import sqlite_backup, sqlite_file
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_backup import back_up, prepare_restore
from forewarn.stores.sqlite_file import DATABASE_NAME

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = len(sqlite_file.migrations())
FLEET = Fleet([VM("web-0", "", "rack-1")])


def add_migration(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    scripts = [*sqlite_file.migrations(), script]
    for module in (sqlite_file, sqlite_backup):
        monkeypatch.setattr(module, "migrations", lambda: scripts)


def schema_of(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with the schema of today."""
    with closing(SqliteStore(tmp_path / "data")) as store:
        change = FleetChange(added=tuple(FLEET.vms.values()), hosts=tuple(FLEET.hosts.values()))
        store.commit(Changes(facts={"mark": "kept"}, fleet_changes=[change]))
    return tmp_path / "data"


def test_a_migration_changes_rows_and_keeps_the_others(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_migration(monkeypatch, "UPDATE vm SET os = 'windows' WHERE name = 'web-0';")
    for _ in range(2):
        with closing(SqliteStore(data)) as store:
            state = store.load()
        assert state.fleet.vms["web-0"].os == "windows"
        assert state.facts["mark"] == "kept"
        assert schema_of(data / DATABASE_NAME) == SCHEMA + 1


def test_a_migration_that_fails_changes_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_migration(monkeypatch, "UPDATE vm SET os = 'windows'; INSERT INTO no_such_table VALUES (1);")
    before = (data / DATABASE_NAME).read_bytes()
    with pytest.raises(StoreFailed, match=f"no_such_table, while upgrading {data / DATABASE_NAME}"):
        SqliteStore(data)
    assert (data / DATABASE_NAME).read_bytes() == before


def test_an_older_release_does_not_open_a_newer_schema(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as later:
        add_migration(later, "UPDATE vm SET os = 'windows';")
        SqliteStore(data).close()
    with pytest.raises(StoreNewer, match=f"schema {SCHEMA + 1}"):
        SqliteStore(data)


def test_a_backup_keeps_its_schema_and_the_restore_migrates_it(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_migration(monkeypatch, "UPDATE vm SET os = 'windows';")
    assert back_up(data, tmp_path / "b.db", 1).schema == schema_of(tmp_path / "b.db") == SCHEMA
    with prepare_restore(tmp_path / "restored", tmp_path / "b.db") as prepared:
        assert prepared.state.fleet.vms["web-0"].os == "windows"
