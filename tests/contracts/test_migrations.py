"""Databases of earlier releases are migrated, and their operations continue."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.clock import VirtualClock
from forewarn.core.access import Role, Token, create_token
from forewarn.core.events import EventStatus
from forewarn.core.fleet import VM, Fleet, Group, GroupKind, HostState
from forewarn.core.history import HISTORY_KINDS
from forewarn.core.limits import OperatorLimits
from forewarn.core.rollouts import RolloutStatus
from forewarn.core.webhooks import Undelivered, WebhookRetryPolicy, parse_allowed_networks
from forewarn.delivery.outbound import OutboundClient
from forewarn.delivery.webhooks import Dispatcher
from forewarn.engine.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import APPLICATION_ID, DATABASE_NAME, migrations
from webhook_receiver import Receiver

if TYPE_CHECKING:
    from pathlib import Path

# As the first release wrote them.
ROWS = """
INSERT INTO fact VALUES ('virtual_now', '2041-05-06T07:08:09.000000Z');
INSERT INTO fleet_group VALUES ('web', 'availability-set', 5, 2, '["reboot"]');
INSERT INTO host VALUES ('host-a');
INSERT INTO vm VALUES ('web-0', 'web', 'host-a', 0, 0, '', '', 'web-0', 'regular', '', '', '[]', '[]');
INSERT INTO operation VALUES
    ('op-1', 'restart', '["web-0"]', 'user', '2041-05-06T07:08:09.000000Z', 'pending', '["ev-1"]', '{}',
     NULL, NULL, NULL, NULL),
    ('op-2', 'host-update', '["web-0"]', 'operator', '2041-05-06T07:08:09.000000Z', 'started', '["ev-2"]', '{}',
     '2041-05-06T07:08:09.000000Z', NULL, '2041-05-06T07:23:09.000000Z', NULL);
INSERT INTO event VALUES
    ('ev-1', 'op-1', 'web', 'Reboot', 'Scheduled', '["web-0"]',
     '2041-05-06T07:23:09.000000Z', '', 'User', NULL, '2041-05-06T07:08:09.000000Z',
     NULL, NULL, NULL, NULL),
    ('ev-2', 'op-2', 'web', 'Freeze', 'Started', '["web-0"]',
     '2041-05-06T07:08:09.000000Z', '', 'Platform', 9, '2041-05-06T07:08:09.000000Z',
     NULL, NULL, '2041-05-06T07:08:09.000000Z', NULL);
INSERT INTO delivery VALUES ('web', 1, 'abcd', 3, '2041-05-06T07:08:09.000000Z');
"""


def first_release(folder: Path) -> None:
    database = sqlite3.connect(folder / DATABASE_NAME)
    database.executescript(
        f"{migrations()[0]} {ROWS} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 1;"
    )
    database.close()


def test_the_data_of_the_first_release_is_read(tmp_path: Path) -> None:
    first_release(tmp_path)
    store = SqliteStore(tmp_path)
    saved = store.load()
    restart, update = saved.operations
    assert (restart.cause, restart.type, restart.verb, restart.request.duration) == (
        "restart",
        "Reboot",
        "reboot",
        None,
    )
    assert (update.type, update.verb, update.request.duration) == ("Freeze", "freeze", timedelta(seconds=9))
    assert saved.fleet.hosts["host-a"].state is HostState.IN_SERVICE
    assert (saved.fleet.groups["web"].windows, saved.fleet.groups["web"].terminate_notice) == ((), None)
    assert (saved.fleet.groups["web"].os_image_notice, saved.fleet.groups["web"].file_policy) == (None, None)
    vm = saved.fleet.vms["web-0"]
    assert not vm.deallocated
    assert (vm.os, vm.location, vm.user_data, vm.custom_data, vm.public_keys) == ("linux", "local", "", "", ())
    store.close()


async def test_operations_in_progress_continue_to_their_end(tmp_path: Path) -> None:
    first_release(tmp_path)
    clock = VirtualClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits())
    await engine.start()
    assert [event.status for event in engine.document("web").events] == [EventStatus.SCHEDULED, EventStatus.STARTED]
    await engine.advance(timedelta(minutes=15))
    assert [(event.id, event.status) for event in engine.document("web").events] == [("ev-1", EventStatus.STARTED)]
    await engine.advance(timedelta(minutes=10))
    assert engine.document("web").events == ()
    await engine.stop()


TENANT_TOKENS = """
INSERT INTO token (name, role, group_name, hash, created_by, created_at) VALUES
    ('web-team', 'tenant', 'web', 'h1', 'admin', '2041-05-06T07:08:09.000000Z'),
    ('gone-team', 'tenant', 'gone', 'h2', 'admin', '2041-05-06T07:08:09.000000Z'),
    ('web-0-team', 'tenant', 'web-0', 'h3', 'admin', '2041-05-06T07:08:09.000000Z'),
    ('admin', 'admin', '', 'h4', 'forewarn', '2041-05-06T07:08:09.000000Z');
"""
"""Of a group, of one that was removed, and of a VM that is in a group now."""


async def test_a_tenant_token_of_an_earlier_release_belongs_to_the_group_that_exists_now(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as database:
        first, *others = migrations()[:16]
        history = (
            "INSERT INTO history VALUES (7, '2041-05-06T07:08:09.000000Z', 'scheduled', 'ops', '', '', '', '[]', '')"
        )
        database.executescript(f"{first} {ROWS} {history}; {' '.join(others)} {TENANT_TOKENS}")
        database.executescript(f"PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 16;")
    clock = VirtualClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), OperatorLimits())
    await engine.start()
    valid = {token.name: token.has_group_in(engine.fleet) for token in engine.draft().all_tokens()}
    assert valid == {"web-team": True, "gone-team": False, "web-0-team": False, "admin": True}
    assert all(engine.draft().all_tokens()[0].sees(event) for event in engine.live_events())
    vm = engine.fleet.vms["web-0"]
    with_gone = Fleet(
        [vm, VM("x", "gone", "x-host")], [*engine.fleet.groups.values(), Group("gone", GroupKind.AVAILABILITY_SET)]
    )
    applied = await engine.apply_fleet(with_gone, by="admin")
    assert applied.tokens_revoked == ["gone-team", "web-0-team"]
    assert [token.name for token in engine.draft().all_tokens()] == ["web-team", "admin"]
    await engine.stop()


# As the release before the outbox wrote them: a webhook that had finished rows beyond its position.
OUTBOX_ROWS = """
INSERT INTO history (at, what, by, sequence, group_name, event, operation, vms, why)
SELECT '2041-05-06T07:08:09.000000Z', iif(value = 14, 'approved', 'scheduled'), 'test', value,
    iif(value IN (12, 17), 'db', 'web'), '', '', '[]', ''
FROM json_each('[8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20]');
INSERT INTO webhook (name, url, secret, groups, kinds, created_by, created_at, position, ahead) VALUES
    ('narrow', 'http://127.0.0.1:9/', 'not really a secret', '["web"]', '["scheduled"]', 'ops',
     '2041-05-06T07:08:09.000000Z', 10, '[13, 16, 18]'),
    ('all', 'http://127.0.0.1:9/', 'not really a secret', '[]', '[]', 'ops', '2041-05-06T07:08:09.000000Z', 10, '[12]'),
    ('quiet', 'http://127.0.0.1:9/', 'not really a secret', '[]', '[]', 'ops', '2041-05-06T07:08:09.000000Z', 20, '[]');
INSERT INTO undelivered (webhook, sequence, group_name, attempts, problem, given_up) VALUES
    ('narrow', 8, 'web', 80, 'answered with status 400', 1),
    ('narrow', 9, 'web', 85, 'answered with status 400', 0),
    ('narrow', 16, 'web', 3, 'answered with status 503', 0),
    ('narrow', 18, 'web', 0, '', 0);
"""


def test_webhooks_of_the_previous_release_continue_with_one_cursor_and_lose_nothing(tmp_path: Path) -> None:
    database = sqlite3.connect(tmp_path / DATABASE_NAME)
    scripts = " ".join(migrations()[:3])
    database.executescript(
        f"{scripts} {OUTBOX_ROWS} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = 3;"
    )
    database.close()
    store = SqliteStore(tmp_path)
    saved = store.load()
    store.close()
    assert {webhook.name: webhook.cursor for webhook in saved.webhooks} == {"narrow": 18, "all": 12, "quiet": 20}
    narrow = saved.webhooks[0]
    assert (narrow.groups, narrow.kinds, narrow.secret) == (("web",), ("scheduled",), "not really a secret")
    assert sorted(saved.undelivered) == [
        # 11 was neither delivered nor tried, 12 is ahead: this one has all of its attempts.
        Undelivered("all", 11, 0, 80),
        Undelivered("narrow", 8, 80, 0, "answered with status 400"),
        # An operator has retried it: it has one attempt.
        Undelivered("narrow", 9, 85, 1, "answered with status 400"),
        # Not 12, 14 and 17, which are not wanted, and not 13, which is delivered.
        Undelivered("narrow", 11, 0, 80),
        Undelivered("narrow", 15, 0, 80),
        Undelivered("narrow", 16, 3, 77, "answered with status 503"),
        Undelivered("narrow", 18, 0, 80),
    ]


# --- The kinds of history -------------------------------------------------------------------------

OLD_KINDS = {
    "requested": "requested",
    "not told": "not-notified",
    "scheduled": "scheduled",
    "approved": "approved",
    "postponed": "postponed",
    "started": "started",
    "carried out": "executed",
    "said to be done": "marked-done",
    "failed": "failed",
    "healthy": "healthy",
    "unhealthy": "unhealthy",
    "completed": "completed",
    "cancelled": "cancelled",
    "rollout started": "rollout-started",
    "wave announced": "wave-scheduled",
    "rollout paused": "rollout-paused",
    "rollout resumed": "rollout-resumed",
    "rollout done": "rollout-completed",
    "rollout stopped": "rollout-stopped",
    "rollout cancelled": "rollout-cancelled",
    "host in-use": "host-in-service",
    "host degraded": "host-degraded",
    "host failed": "host-failed",
    "spare host added": "spare-host-added",
    "enabled": "enabled",
    "disabled": "disabled",
    "fault added": "fault-added",
    "fault cleared": "fault-cleared",
    "fault over": "fault-expired",
    "policy changed": "policy-changed",
    "fleet applied": "fleet-applied",
    "token created": "token-created",
    "token revoked": "token-revoked",
    "webhook added": "webhook-added",
    "webhook removed": "webhook-removed",
}
"""Every kind that release 0.1 wrote, with its name of today."""
AT = "2041-05-06T07:08:09.000000Z"


def with_old_kinds(folder: Path, *webhooks: tuple[str, str, list[str], int]) -> None:
    """Write a database of schema 4 with a row of each kind, and webhooks: name, URL, kinds and cursor."""
    with closing(sqlite3.connect(folder / DATABASE_NAME)) as database, database:
        database.executescript(" ".join(migrations()[:4]))
        database.executemany(
            "INSERT INTO history (sequence, at, what, by, group_name, event, operation, vms, why, host)"
            " VALUES (?, ?, ?, 'ops', 'web', 'ev-1', 'op-1', '[\"web-0\"]', 'carried out', 'rack-1')",
            [(number, AT, kind) for number, kind in enumerate(OLD_KINDS, 1)],
        )
        database.executemany(
            "INSERT INTO webhook (name, url, secret, groups, kinds, created_by, created_at, cursor)"
            " VALUES (?, ?, 'not really a secret', '[]', ?, 'ops', ?, ?)",
            [(name, url, json.dumps(kinds), AT, cursor) for name, url, kinds, cursor in webhooks],
        )
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 4")


def test_every_old_kind_of_history_is_renamed_and_nothing_else_in_its_row(tmp_path: Path) -> None:
    with_old_kinds(tmp_path)
    with closing(SqliteStore(tmp_path)) as store:
        rows = store.history(HistoryFilter())
        assert [row.kind for row in rows] == list(OLD_KINDS.values())
        assert {*OLD_KINDS.values()} <= HISTORY_KINDS.keys()  # later releases have more
        assert {row._replace(sequence=0, kind="") for row in rows} == {
            rows[0]._replace(
                sequence=0,
                kind="",
                time=datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC),
                by="ops",
                group="web",
                event="ev-1",
                operation="op-1",
                vms=("web-0",),
                reason="carried out",
                host="rack-1",
            )
        }
        for number, kind in enumerate(OLD_KINDS.values(), 1):
            assert [row.sequence for row in store.history(HistoryFilter(kinds=(kind,)))] == [number], kind


def test_every_old_kind_is_renamed_in_the_filters_of_webhooks(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/"
    filters = {"all": [*OLD_KINDS], "none": [], "same": ["started", "approved"], "mixed": ["fault over", "started"]}
    with_old_kinds(tmp_path, *((name, url, kinds, 0) for name, kinds in filters.items()))
    with closing(SqliteStore(tmp_path)) as store:
        found = {webhook.name: webhook.kinds for webhook in store.load().webhooks}
    assert found == {name: tuple(OLD_KINDS[kind] for kind in kinds) for name, kinds in filters.items()}


async def test_a_webhook_with_an_old_kind_in_its_filter_gets_its_pending_rows_and_those_to_come(tmp_path: Path) -> None:
    numbers = {kind: number for number, kind in enumerate(OLD_KINDS, 1)}
    with closing(Receiver()) as receiver:
        wanted = ["carried out", "wave announced", "token created"]
        # Beyond the cursor are a row of a kind that it wants, and many that it does not.
        with_old_kinds(tmp_path, ("pager", receiver.url(), wanted, numbers["wave announced"]))
        with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as database, database:
            database.execute(
                "INSERT INTO undelivered (webhook, sequence, attempts, problem, attempts_left)"
                " VALUES ('pager', ?, 3, 'HTTP 503', 77)",
                (numbers["carried out"],),
            )
        targets, clock = parse_allowed_networks("127.0.0.1"), VirtualClock()
        limits = OperatorLimits(webhook_private_networks=targets)
        engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), limits)
        await engine.start()
        dispatcher = Dispatcher(engine, OutboundClient(targets, 30), WebhookRetryPolicy(0.01, 80))
        await dispatcher.start()
        await engine.execute(create_token, Token("ci", Role.VIEWER, "hash", "ops", clock.now()), "ops")
        await asyncio.to_thread(receiver.until, lambda: len(receiver.taken) == 3)
        await dispatcher.stop()
        await engine.stop()
    got = [(int(got.id), got.event["type"], got.event["data"]["kind"]) for got in receiver.taken]
    assert got == [
        (numbers["carried out"], "forewarn.executed", "executed"),
        (numbers["token created"], "forewarn.token-created", "token-created"),
        (len(OLD_KINDS) + 1, "forewarn.token-created", "token-created"),
    ]
    assert {got.event["data"]["reason"] for got in receiver.taken[:2]} == {"carried out"}
    assert {got.event["data"]["time"] for got in receiver.taken[:2]} == {AT}


# --- Snapshots ------------------------------------------------------------------------------------


def test_rows_of_earlier_releases_get_type_and_cause_and_no_snapshot(tmp_path: Path) -> None:
    before = [script for script in migrations() if "ADD COLUMN snapshot" not in script]
    at = next(number for number, script in enumerate(migrations()) if "ADD COLUMN snapshot" in script)
    assert len(before) == len(migrations()) - 1
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as database, database:
        database.executescript(" ".join(before[:at]))
        database.executemany(
            "INSERT INTO operation (id, cause, vms, requested_by, requested_at, status, events, not_notified, request)"
            " VALUES (?, ?, '[]', 'ops', ?, 'pending', '[]', '{}', ?)",
            [
                ("op-1", "restart", AT, '{"cause": "restart", "type": "Reboot"}'),
                ("op-2", "start", AT, '{"cause": "start"}'),
            ],
        )
        database.executemany(
            "INSERT INTO history (sequence, time, kind, by, group_name, event, operation, vms, reason, host)"
            " VALUES (?, ?, 'scheduled', 'ops', 'web', 'ev-1', ?, '[]', '', '')",
            [(1, AT, "op-1"), (2, AT, "op-2"), (3, AT, ""), (4, AT, "rollout-1")],
        )
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute(f"PRAGMA user_version = {at}")
    with closing(SqliteStore(tmp_path)) as store:
        rows = store.history(HistoryFilter())
        assert [(row.type, row.cause) for row in rows] == [("Reboot", "restart"), ("", "start"), ("", ""), ("", "")]
        assert {(row.snapshot, row.event_then, row.waits) for row in rows} == {(None, None, ())}
        assert [row.sequence for row in store.history(HistoryFilter(type="Reboot"))] == [1]
        assert [row.sequence for row in store.history(HistoryFilter(cause="start"))] == [2]


# --- The status of a rollout ----------------------------------------------------------------------


def test_a_running_rollout_of_release_0_1_is_running_and_other_statuses_stay(tmp_path: Path) -> None:
    statuses = {"walking": RolloutStatus.RUNNING} | {
        status.value: status for status in RolloutStatus if status is not RolloutStatus.RUNNING
    }
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as database, database:
        database.executescript(" ".join(migrations()[:5]))
        database.executemany(
            "INSERT INTO rollout (id, patterns, course, requested_by, requested_at, stage, wave, waiting, under_way,"
            " done, skipped, outcome, ended_at)"
            """ VALUES (?, '["rack-*"]', '{"type": "Freeze", "budget": 3}', 'ops', ?, ?, 1, '["rack-2"]', '[]', '[]',"""
            " '[]', '', ?)",
            [(f"rollout-{old}", AT, old, None if RolloutStatus(new).live else AT) for old, new in statuses.items()],
        )
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 5")
    with closing(SqliteStore(tmp_path)) as store:
        assert [(rollout.id, rollout.status) for rollout in store.load().rollouts] == [
            ("rollout-walking", RolloutStatus.RUNNING),
            ("rollout-paused", RolloutStatus.PAUSED),
        ]
        for old, new in statuses.items():
            (rollout,) = store.rollouts_by_prefix(f"rollout-{old}")
            assert (rollout.status, rollout.pending, rollout.settings.max_unavailable) == (new, ("rack-2",), 3)


# --- The last fleet file ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {}),
        ({"fleet file /srv/fleet.toml": "aa"}, {"fleet file": "aa"}),
        ({"fleet file /a": "aa", "fleet file /b": "aa"}, {"fleet file": "aa"}),
        ({"fleet file /a": "aa", "fleet file /b": "bb"}, {}),
    ],
)
def test_the_last_fleet_file_is_known_if_only_one_was_ever_applied(
    tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    with closing(sqlite3.connect(tmp_path / DATABASE_NAME)) as database, database:
        database.executescript(" ".join(migrations()[:11]))
        database.executemany("INSERT INTO fact VALUES (?, ?)", [("virtual_now", AT), *before.items()])
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 11")
    with closing(SqliteStore(tmp_path)) as store:
        assert store.load().facts == {"virtual_now": AT, **after}
