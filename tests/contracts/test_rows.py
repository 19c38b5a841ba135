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
    cause="host-update",
    vms=("web-0",),
    host="host-a",
    type="Freeze",
    duration=UNKNOWN_DURATION,
    notice=LENGTH,
    postpone_deadline=LATER,
    overrides=("notice",),
    rollout="r-1",
    health_timeout=LENGTH,
    speed=2.5,
    description="",
    verb="delete",
    require_notice=True,
)
COURSE = RolloutSettings(
    type="Reboot",
    duration=LENGTH,
    notice=LENGTH,
    postpone_deadline=LATER,
    overrides=("windows",),
    max_unavailable=7,
    pause=LENGTH,
    health_timeout=LENGTH,
    speed=0.5,
    description="why",
    require_notice=True,
)
PAIRS = (("web-0", "host-b"), ("web-1", "höst"))
ROWS: dict[str, tuple[Any, ...]] = {
    "vm": (
        VM("web-0", "web", "host-a"),
        VM(
            name="a",
            group="b",
            host="c",
            update_domain=1,
            fault_domain=2,
            address="d",
            listen="e",
            hostname="f",
            priority="spot",
            size="g",
            zone="h",
            tags=(("i", "j"), ("k", "")),
            auto_approve=("reboot",),
            deallocated=True,
            configured_host="l",
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
            name="web",
            kind="scale-set",
            update_domains=5,
            fault_domains=3,
            auto_approve=("reboot", "redeploy"),
            terminate_notice=LENGTH,
            windows=(parse_window("sat 02:00 4h Europe/Berlin"),),
            mode=SetMode.FLEXIBLE,
            visibility=Visibility.OWN,
            eviction_policy="deallocate",
            os_image_notice=LENGTH,
            approve_when_down=False,
            file_policy=GroupPolicy(("reboot",), LENGTH, (parse_window("sun 02:00 4h Europe/Berlin"),), LENGTH, False),
        ),
        Group("pool", "scale-set", file_policy=GroupPolicy()),
    ),
    "host": (Host("host-a"), Host("host-b", HostState.FAILED, spare=True)),
    "delivery": (Delivery("web", True, 3, 7), Delivery("db", False, 0, 0)),
    "operation": (
        Operation("o-1", CauseRequest("restart"), (), "somebody", NOW),
        Operation(
            id="o-2",
            request=REQUEST,
            vms=("web-0", "web-1"),
            requested_by="somebody",
            requested_at=NOW,
            status=OperationStatus.FAILED,
            events=("e-1",),
            not_notified=(("db", "silent"),),
            started_at=NOW,
            executed_at=NOW,
            settles_at=LATER,
            ended_at=LATER,
            moves=PAIRS,
            holds_until=LATER,
            health=Health.BAD,
            reason="it failed",
        ),
    ),
    "rollout": (
        Rollout("r-1", ("*",), RolloutSettings(), "somebody", NOW),
        Rollout(
            id="r-2",
            patterns=("a*", "b"),
            settings=COURSE,
            requested_by="somebody",
            requested_at=NOW,
            status=RolloutStatus.STOPPED,
            wave=3,
            pending=("c",),
            in_progress=PAIRS,
            done=("d", "e"),
            skipped=PAIRS,
            next_wave_at=LATER,
            reason="bad health",
            ended_at=LATER,
        ),
    ),
    "event": (
        Event(
            id="e-1",
            operation="o-1",
            group="web",
            scope="web",
            type="Reboot",
            status=EventStatus.SCHEDULED,
            resources=("web-0",),
            not_before=NOW,
            description="",
            source=Source.USER,
            duration=None,
            created_at=NOW,
        ),
        Event(
            id="e-2",
            operation="o-1",
            group="web",
            scope="web.2",
            type="Freeze",
            status=EventStatus.CANCELLED,
            resources=("web-0", "wéb"),
            not_before=LATER,
            description="why",
            source=Source.PLATFORM,
            duration=LENGTH,
            created_at=NOW,
            approved_at=NOW,
            approved_by="web-0",
            started_at=LATER,
            ended_at=LATER,
        ),
    ),
    "history": (
        HistoryEntry(NOW, "enabled", "web"),
        HistoryEntry(
            time=NOW,
            kind="started",
            by="b",
            sequence=9,
            group="c",
            event="d",
            operation="e",
            vms=("f", "g"),
            reason="h",
            host="i",
            type="Freeze",
            cause="host-update",
        ),
        HistoryEntry(
            time=NOW,
            kind="scheduled",
            by="b",
            sequence=10,
            group="c",
            event="d",
            operation="e",
            vms=("f", "g"),
            reason="h",
            host="i",
            type="Freeze",
            cause="host-update",
            snapshot=HistorySnapshot(
                scope="c",
                status=EventStatus.SCHEDULED,
                not_before=LATER,
                description="",
                source=Source.USER,
                duration=None,
                created_at=NOW,
            ),
            waits=(
                Wait("approval", False, "c", until=LATER),
                Wait(kind="window", done=True, group="ö", scope="ö.2", by="x", time=NOW, until=LATER, text='y "z"'),
            ),
        ),
        HistoryEntry(
            time=NOW,
            kind="completed",
            by="b",
            sequence=11,
            group="c",
            event="d",
            operation="e",
            vms=(),
            reason="h",
            host="i",
            type="Freeze",
            cause="host-update",
            snapshot=HistorySnapshot(
                scope="c.2",
                status=EventStatus.COMPLETED,
                not_before=NOW,
                description='wéb "why"',
                source=Source.PLATFORM,
                duration=LENGTH,
                created_at=NOW,
                approved_at=NOW,
                approved_by="web-0",
                started_at=LATER,
                ended_at=LATER,
            ),
        ),
    ),
    "token": (
        Token(name="ann", role=Role.TENANT, hash="h", created_by="root", created_at=NOW, group="web", expires_at=LATER),
        Token("bob", Role.ADMIN, "i", "root", NOW),
    ),
    "kept_answer": (StoredResponse("caller a", "print", NOW, 201, "{}"),),
    "webhook": (
        Webhook("pager", "https://example.org/", "s", "root", NOW),
        Webhook(
            name="audit",
            url="https://example.org/",
            secret="s",  # noqa: S106 - of a test
            created_by="root",
            created_at=NOW,
            groups=("web", "db"),
            kinds=("started",),
            cursor=9,
        ),
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
