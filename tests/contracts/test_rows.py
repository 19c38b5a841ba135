"""A value class and its table have the same columns, and every value survives being a row."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from forewarn.core.access import Role, StoredResponse, Token
from forewarn.core.events import Event, EventStatus, Source
from forewarn.core.fleet import VM, Group, GroupPolicy, Host, HostState, SetMode, Visibility
from forewarn.core.operations import UNKNOWN_DURATION, CauseRequest, Health, Operation, OperationStatus
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus
from forewarn.core.state import Delivery, HistoryEntry, HistorySnapshot
from forewarn.core.waits import Wait
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.core.windows import parse_window
from forewarn.stores.rows import TABLES, VMS, Table
from forewarn.stores.sqlite_file import open_database, read_statements

if TYPE_CHECKING:
    from postgresql import SharedStore

NOW = datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
LATER = NOW + timedelta(days=3, microseconds=7)
BESIDE = {"delivery": {"last_seen_at"}}
"""Columns that are not of the value: statements name them."""

MORE = {"delivery": ("",)}
SAVED_AS = {"fleet_group": "group", "kept_answer": "response"}

LENGTH = timedelta(minutes=14, seconds=50.5)
REQUEST = CauseRequest(
    *("host-update", ("web-0",), "host-a", "Freeze", UNKNOWN_DURATION, LENGTH, LATER, ("notice",), "r-1", LENGTH, 2.5),
    *("", "delete", True),
)
COURSE = RolloutSettings("Reboot", LENGTH, LENGTH, LATER, ("windows",), 7, LENGTH, LENGTH, 0.5, "why", True)
PAIRS = (("web-0", "host-b"), ("web-1", "höst"))
ROWS: dict[str, tuple[Any, ...]] = {
    "vm": (
        VM("web-0", "web", "host-a"),
        VM(
            *("a", "b", "c", 1, 2, "d", "e", "f", "spot", "g", "h", (("i", "j"), ("k", "")), ("reboot",), True, "l"),
            placement_group=2,
            os="windows",
            location="m",
            terminate_notice=LENGTH,
            eviction_policy="delete",
        ),
    ),
    "fleet_group": (
        Group("db", "standalone"),
        Group(
            *("web", "scale-set", 5, 3, ("reboot", "redeploy"), LENGTH, (parse_window("sat 02:00 4h Europe/Berlin"),)),
            SetMode.FLEXIBLE,
            Visibility.OWN,
            "deallocate",
            LENGTH,
            False,
            GroupPolicy(("reboot",), LENGTH, (parse_window("sun 02:00 4h Europe/Berlin"),), LENGTH, False),
        ),
        Group("pool", "scale-set", file_policy=GroupPolicy()),
    ),
    "host": (Host("host-a"), Host("host-b", HostState.FAILED, spare=True)),
    "delivery": (Delivery("web", True, 3, 7), Delivery("db", False, 0, 0)),
    "operation": (
        Operation("o-1", CauseRequest("restart"), (), "somebody", NOW),
        Operation(
            *(
                "o-2",
                REQUEST,
                ("web-0", "web-1"),
                "somebody",
                NOW,
                OperationStatus.FAILED,
                ("e-1",),
                (("db", "silent"),),
            ),
            *(NOW, NOW, LATER, LATER, PAIRS, LATER, Health.BAD, "it failed"),
        ),
    ),
    "rollout": (
        Rollout("r-1", ("*",), RolloutSettings(), "somebody", NOW),
        Rollout(
            *("r-2", ("a*", "b"), COURSE, "somebody", NOW, RolloutStatus.STOPPED, 3, ("c",), PAIRS, ("d", "e"), PAIRS),
            *(LATER, "bad health", LATER),
        ),
    ),
    "event": (
        Event("e-1", "o-1", "web", "web", "Reboot", EventStatus.SCHEDULED, ("web-0",), NOW, "", Source.USER, None, NOW),
        Event(
            *("e-2", "o-1", "web", "web.2", "Freeze", EventStatus.CANCELLED, ("web-0", "wéb"), LATER, "why"),
            Source.PLATFORM,
            *(LENGTH, NOW, NOW, "web-0", LATER, LATER),
        ),
    ),
    "history": (
        HistoryEntry(NOW, "enabled", "web"),
        HistoryEntry(NOW, "started", "b", 9, "c", "d", "e", ("f", "g"), "h", "i", "Freeze", "host-update"),
        HistoryEntry(
            *(NOW, "scheduled", "b", 10, "c", "d", "e", ("f", "g"), "h", "i", "Freeze", "host-update"),
            HistorySnapshot("c", EventStatus.SCHEDULED, LATER, "", Source.USER, None, NOW),
            (Wait("approval", False, "c", until=LATER), Wait("window", True, "ö", "ö.2", "x", NOW, LATER, 'y "z"')),
        ),
        HistoryEntry(
            *(NOW, "completed", "b", 11, "c", "d", "e", (), "h", "i", "Freeze", "host-update"),
            HistorySnapshot(
                "c.2",
                *(EventStatus.COMPLETED, NOW, 'wéb "why"', Source.PLATFORM, LENGTH, NOW, NOW, "web-0", LATER, LATER),
            ),
        ),
    ),
    "token": (Token("ann", Role.TENANT, "h", "root", NOW, "web", LATER), Token("bob", Role.ADMIN, "i", "root", NOW)),
    "kept_answer": (StoredResponse("caller a", "print", NOW, 201, "{}"),),
    "webhook": (
        Webhook("pager", "https://example.org/", "s", "root", NOW),
        Webhook("audit", "https://example.org/", "s", "root", NOW, ("web", "db"), ("started",), 9),
    ),
    "undelivered": (Undelivered("pager", 7, 1, 2), Undelivered("pager", 8, 3, 0, "refused")),
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_columns_are_those_of_the_database(table: Table[Any]) -> None:
    database = open_database(None).connection
    found = {name for _, name, *_ in database.execute(f"PRAGMA table_info({table.name})")}
    assert found == {*table.names} | BESIDE.get(table.name, set())
    database.close()


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_columns_are_those_of_postgresql(shared_store: SharedStore, table: Table[Any]) -> None:
    cursor = shared_store.open()._db.execute(f"SELECT * FROM {table.name}")
    found = {column.name for column in cursor.description}  # type: ignore[attr-defined]
    assert found - {"rowid"} == {*table.names} | BESIDE.get(table.name, set())


def test_the_columns_of_a_vm_are_its_fields() -> None:
    renamed = {"group": "group_name", "terminate_notice": "terminate_notice_seconds"}
    assert VMS.names == [renamed.get(field, field) for field in VM._fields]


@pytest.mark.parametrize("name", TABLES)
def test_a_value_survives_its_row(name: str) -> None:
    table, (*values,) = TABLES[name], ROWS[name]
    database = open_database(None).connection
    database.executemany(
        read_statements()[f"save_{SAVED_AS.get(name, name)}"],
        [[*table.write(value), *MORE.get(name, ())] for value in values],
    )
    found = [table.read(row) for row in database.execute(f"SELECT {table.columns}, 'more' FROM {name}")]
    assert found == values
    assert [list(map(type, value)) for value in found] == [list(map(type, value)) for value in values]
    database.close()


def test_a_field_of_a_type_without_a_codec_is_an_error_at_once() -> None:
    class Odd(NamedTuple):
        name: str
        parts: frozenset[str]

    with pytest.raises(TypeError, match="No codec for parts"):
        Table("odd", Odd)
