"""Stores for the tests of the contract."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forewarn.stores.postgresql_server import PostgresqlServer
from forewarn.stores.sqlite import SqliteStore
from postgresql import SERVERS, store_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from forewarn.ports import Store
    from postgresql import PostgresServer, SharedStore

    MakeStore = Callable[[], AbstractContextManager[Store]]


@pytest.fixture
def server(postgresql: PostgresServer, schema: str) -> Iterator[PostgresqlServer]:
    """A prepared schema of its own."""
    made = PostgresqlServer(postgresql.url, schema)
    made.prepare()
    yield made
    postgresql.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.fixture(params=["file", "memory", *SERVERS], ids=store_name)
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Make an empty store, as often as a test needs one."""

    @contextmanager
    def in_memory() -> Iterator[Store]:
        store = SqliteStore(None)
        yield store
        store.close()

    @contextmanager
    def in_file() -> Iterator[Store]:
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(Path(folder))
            yield store
            store.close()

    @contextmanager
    def in_postgresql() -> Iterator[Store]:
        shared: SharedStore = request.getfixturevalue("shared_store_of")(request.param)
        shared.clear()
        yield shared.open()

    makers: dict[str, MakeStore] = {"file": in_file, "memory": in_memory}
    return makers.get(request.param, in_postgresql)


@pytest.fixture
def store(make_store: MakeStore) -> Iterator[Store]:
    with make_store() as made:
        yield made
