"""A database of an earlier release is brought up to date, and what was under way in it goes on."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.clock import VirtualClock
from forewarn.core.events import EventStatus
from forewarn.core.fleet import HostState
from forewarn.core.limits import Terms
from forewarn.core.webhooks import Undelivered
from forewarn.engine.engine import Engine
from forewarn.fabrics.simulated import SimulatedFabric
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import APPLICATION_ID, DATABASE_NAME, migrations

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


def test_what_the_first_release_wrote_is_read(tmp_path: Path) -> None:
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
    assert not saved.fleet.vms["web-0"].deallocated
    store.close()


async def test_what_was_under_way_goes_on_to_its_end(tmp_path: Path) -> None:
    first_release(tmp_path)
    clock = VirtualClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), Terms())
    await engine.start()
    assert [event.status for event in engine.document("web").events] == [EventStatus.SCHEDULED, EventStatus.STARTED]
    await engine.advance(timedelta(minutes=15))
    assert [(event.id, event.status) for event in engine.document("web").events] == [("ev-1", EventStatus.STARTED)]
    await engine.advance(timedelta(minutes=10))
    assert engine.document("web").events == ()
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


def test_webhooks_of_the_release_before_go_on_with_one_cursor_and_lose_nothing(tmp_path: Path) -> None:
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
        # Somebody has asked for it again: it has one attempt.
        Undelivered("narrow", 9, 85, 1, "answered with status 400"),
        # Not 12, 14 and 17, which are not wanted, and not 13, which is delivered.
        Undelivered("narrow", 11, 0, 80),
        Undelivered("narrow", 15, 0, 80),
        Undelivered("narrow", 16, 3, 77, "answered with status 503"),
        Undelivered("narrow", 18, 0, 80),
    ]
