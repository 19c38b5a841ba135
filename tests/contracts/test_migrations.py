"""A database of an earlier release is brought up to date, and what was under way in it goes on."""

from __future__ import annotations

import sqlite3
from datetime import timedelta
from typing import TYPE_CHECKING

from forewarn.clock import VirtualClock
from forewarn.core.events import Status
from forewarn.core.fleet import HostState
from forewarn.core.limits import Terms
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
    assert saved.fleet.hosts["host-a"].state is HostState.IN_USE
    assert (saved.fleet.groups["web"].windows, saved.fleet.groups["web"].terminate_notice) == ((), None)
    assert not saved.fleet.vms["web-0"].deallocated
    store.close()


async def test_what_was_under_way_goes_on_to_its_end(tmp_path: Path) -> None:
    first_release(tmp_path)
    clock = VirtualClock()
    engine = Engine(clock, SqliteStore(tmp_path), SimulatedFabric(clock), Terms())
    await engine.start()
    assert [event.status for event in engine.document("web").events] == [Status.SCHEDULED, Status.STARTED]
    await engine.advance(timedelta(minutes=15))
    assert [(event.id, event.status) for event in engine.document("web").events] == [("ev-1", Status.STARTED)]
    await engine.advance(timedelta(minutes=10))
    assert engine.document("web").events == ()
    await engine.stop()
