"""The data of a service moves from SQLite to PostgreSQL and back, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from contracts.test_stores import NOW, check_everything, everything, with_texts
from forewarn.assembly import move_database
from forewarn.core.access import Role, StoredResponse, Token
from forewarn.core.fleet import Fleet, difference
from forewarn.core.state import Changes
from forewarn.errors import (
    DatabaseFailed,
    DatabaseUnreachable,
    DataInUse,
    NoSuchSchema,
    SamePlace,
    ServiceRunning,
    TargetNotEmpty,
    UnreadableFile,
)
from forewarn.ports import HistoryFilter
from forewarn.stores import move, postgresql_server
from forewarn.stores.postgresql_server import PostgresqlServer
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from postgresql import PostgresServer, SharedStore


def filled(folder: Path) -> None:
    store = SqliteStore(folder)
    store.commit(everything())
    store.commit(
        Changes(
            tokens={"ann": Token("ann", Role.TENANT, "h", "root", NOW, "web")},
            responses={"k": StoredResponse("k", "f", NOW, 201, "body")},
        )
    )
    store.close()


def test_everything_moves_there_and_back(
    shared_store: SharedStore, postgresql: PostgresServer, schema: str, tmp_path: Path
) -> None:
    filled(tmp_path / "old")
    counts = move_database(str(tmp_path / "old"), postgresql.url, schema)
    assert (counts["vm"], counts["history"], counts["token"], counts["kept_answer"]) == (2, 1, 1, 1)
    store = shared_store.open()
    check_everything(store)
    assert store.load().tokens[0].name == "ann"
    response = store.stored_response("k")
    assert response is not None
    assert response.body == "body"
    rows = store.history(HistoryFilter())
    shared_store.release()
    assert move_database(postgresql.url, str(tmp_path / "new"), schema) == counts
    back = SqliteStore(tmp_path / "new")
    check_everything(back)
    assert back.history(HistoryFilter()) == rows
    back.close()


def test_texts_with_every_character_move(
    shared_store: SharedStore, postgresql: PostgresServer, schema: str, tmp_path: Path
) -> None:
    fleet = with_texts(3, "größe\0")
    store = SqliteStore(tmp_path / "old")
    store.commit(Changes(fleet=fleet, fleet_changes=[difference(Fleet(), fleet)]))
    store.close()
    move_database(str(tmp_path / "old"), postgresql.url, schema)
    assert shared_store.open().load().fleet.vms == fleet.vms


def test_a_node_does_not_start_while_data_is_moved(
    shared_store: SharedStore, postgresql: PostgresServer, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_server, "LOCK_SECONDS", 1)
    server = PostgresqlServer(postgresql.url, schema)
    with move.open_postgresql(postgresql.url, schema), pytest.raises(DatabaseUnreachable, match="moves the data"):
        server.prepare()
    server.prepare()


def test_a_source_that_does_not_exist_is_not_created(postgresql: PostgresServer, tmp_path: Path) -> None:
    with pytest.raises(NoSuchSchema, match="no data of Forewarn in the schema nothing_here"):
        move_database(postgresql.url, str(tmp_path / "new"), "nothing_here")
    assert postgresql.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'nothing_here'") == []


def test_an_error_of_the_database_during_a_move_leaves_nothing(
    shared_store: SharedStore, postgresql: PostgresServer, schema: str, tmp_path: Path
) -> None:
    filled(tmp_path / "old")
    store = SqliteStore(tmp_path / "old")
    store.commit(Changes(facts={"odd": "a\0b"}))
    store.close()
    with pytest.raises(DatabaseFailed, match="NUL"):
        move_database(str(tmp_path / "old"), postgresql.url, schema)
    assert shared_store.open().load().facts == {}


def test_a_target_with_data_a_running_service_and_a_wrong_place_are_rejected(
    shared_store: SharedStore, postgresql: PostgresServer, schema: str, tmp_path: Path
) -> None:
    filled(tmp_path / "old")
    shared_store.open()
    with pytest.raises(ServiceRunning):
        move_database(str(tmp_path / "old"), postgresql.url, schema)
    shared_store.release()
    move_database(str(tmp_path / "old"), postgresql.url, schema)
    with pytest.raises(TargetNotEmpty, match="fact"):
        move_database(str(tmp_path / "old"), postgresql.url, schema)
    with pytest.raises(SamePlace):
        move_database(postgresql.url, postgresql.url, schema)
    with pytest.raises(UnreadableFile, match="does not exist"):
        move_database(str(tmp_path / "nothing"), postgresql.url, schema)
    store = SqliteStore(tmp_path / "old")
    with pytest.raises(DataInUse):
        move_database(str(tmp_path / "old"), postgresql.url, schema)
    store.close()
