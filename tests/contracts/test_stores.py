"""One contract for all stores."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.core.events import Event, EventStatus, Source
from forewarn.core.fleet import VM, Fleet, FleetChange, Group, Host, HostState, difference
from forewarn.core.operations import CauseRequest, Health, Operation, OperationStatus
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus
from forewarn.core.state import Changes, Delivery, HistoryEntry
from forewarn.core.webhooks import Undelivered, Webhook
from forewarn.core.windows import parse_window
from forewarn.errors import StoreFailed
from forewarn.ports import HistoryFilter, ListFilter, Store
from forewarn.stores.sqlite import SqliteStore
from postgresql import SERVERS, store_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from postgresql import SharedStore

NOW = datetime(2041, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)

OPERATION = Operation(
    id="op-1",
    request=CauseRequest(
        "host-update",
        host="a",
        type="Freeze",
        duration=timedelta(seconds=9),
        notice=timedelta(hours=1),
        postpone_deadline=NOW + timedelta(days=3),
        overrides=("windows",),
        rollout="ro-1",
        health_timeout=timedelta(minutes=5),
    ),
    vms=("web-0",),
    requested_by="user",
    requested_at=NOW,
    events=("ev-1",),
    not_notified=(("db", "db has never polled"),),
    moves=(("web-0", "spare"),),
    holds_until=NOW + timedelta(minutes=20),
    health=Health.BAD,
    reason="not healthy in time: web-0",
)
ROLLOUT = Rollout(
    id="ro-1",
    patterns=("a*", "b?"),
    settings=RolloutSettings(
        "Freeze", timedelta(seconds=9), overrides=("notice",), max_unavailable=3, pause=timedelta(minutes=1)
    ),
    requested_by="operator",
    requested_at=NOW,
    status=RolloutStatus.PAUSED,
    wave=2,
    pending=("b1",),
    in_progress=(("a", "op-1"),),
    done=("a2",),
    skipped=(("a3", "the host is failed"),),
    next_wave_at=NOW + timedelta(minutes=2),
    reason="",
)
EVENT = Event(
    id="ev-1",
    operation="op-1",
    group="web",
    scope="web.2",
    type="Reboot",
    status=EventStatus.SCHEDULED,
    resources=("web-0", "wéb-1"),
    not_before=NOW + timedelta(minutes=15),
    description="d",
    source=Source.USER,
    duration=timedelta(seconds=9),
    created_at=NOW,
)
FLEET = Fleet(
    [
        VM(
            name="web-0",
            group="web",
            host="a",
            update_domain=1,
            fault_domain=1,
            address="10.0.0.4",
            listen="",
            hostname="web0",
            priority="spot",
            size="Standard_D2",
            zone="2",
            tags=(("k", "v"),),
        ),
        VM("own", "own", "own-host", auto_approve=("reboot",), deallocated=True, configured_host="a"),
    ],
    [
        Group(
            *("web", "scale-set", 5, 3, ("reboot", "redeploy"), timedelta(minutes=10)),
            windows=(parse_window("sat,sun 02:00 4h Europe/Berlin"),),
            os_image_notice=timedelta(minutes=15),
        )
    ],
    [Host("a", HostState.DEGRADED), Host("spare", spare=True)],
)


WEBHOOK = Webhook(
    name="pager",
    url="https://example.com/hook",
    secret="a sécret of sorts",  # noqa: S106 - of a test
    created_by="ops",
    created_at=NOW,
    groups=("web",),
    kinds=("scheduled", "not-notified"),
    cursor=7,
)
ROW = Undelivered("pager", 5, 3, 77, "HTTP 500")


@pytest.fixture
def reopen_file(tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the same file again each time it is called."""
    opened: list[SqliteStore] = []

    def again() -> Store:
        for store in opened:
            store.close()
        opened.append(SqliteStore(tmp_path))
        return opened[-1]

    yield again
    opened[-1].close()


@pytest.fixture(params=["file", *SERVERS], ids=store_name)
def reopen(request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Opens the same store again each time it is called."""
    if request.param == "file":
        again: Callable[[], Store] = request.getfixturevalue("reopen_file")
        return again
    shared: SharedStore = request.getfixturevalue("shared_store_of")(request.param)
    return shared.open


def everything() -> Changes:
    return Changes(
        operations={"op-1": OPERATION},
        rollouts={"ro-1": ROLLOUT},
        events={"ev-1": EVENT},
        deliveries={"web": Delivery("web", enabled=True, enabling=3, incarnation=7)},
        last_seen={"web": NOW},
        fleet=FLEET,
        fleet_changes=[difference(Fleet(), FLEET)],
        facts={"alive_at": "x"},
        webhooks={"pager": WEBHOOK},
        undelivered={("pager", 5): ROW, ("pager", 3): ROW._replace(sequence=3, attempts_left=0)},
        history=[
            HistoryEntry(sequence=1, time=NOW, kind="scheduled", by="user", group="web", event="ev-1", vms=("web-0",))
        ],
    )


def test_a_new_store_is_empty(store: Store) -> None:
    saved = store.load()
    assert (saved.fleet.vms, saved.operations, saved.events, saved.deliveries, saved.sequence) == ({}, [], [], [], 0)


def test_committed_data_is_loaded(store: Store) -> None:
    store.commit(everything())
    check_everything(store)


def test_committed_data_survives_a_restart_of_the_store(reopen: Callable[[], Store]) -> None:
    reopen().commit(everything())
    check_everything(reopen())


def check_everything(store: Store) -> None:
    saved = store.load()
    assert (saved.fleet.vms, saved.fleet.groups, saved.fleet.hosts) == (FLEET.vms, FLEET.groups, FLEET.hosts)
    assert saved.operations == [OPERATION]
    assert saved.rollouts == [ROLLOUT]
    assert saved.events == [EVENT]
    assert saved.deliveries == [Delivery("web", enabled=True, enabling=3, incarnation=7)]
    assert saved.last_seen == {"web": NOW}
    assert saved.facts == {"alive_at": "x"}
    assert saved.webhooks == [WEBHOOK]
    assert sorted(saved.undelivered) == [ROW._replace(sequence=3, attempts_left=0), ROW]
    assert saved.sequence == 1


def test_webhook_cursors_advance_and_webhooks_are_removed(store: Store) -> None:
    store.commit(everything())
    moved = WEBHOOK._replace(cursor=12)
    store.commit(
        Changes(webhooks={"pager": moved}, undelivered={("pager", 5): None, ("pager", 3): ROW._replace(sequence=3)})
    )
    saved = store.load()
    assert (saved.webhooks, saved.undelivered) == ([moved], [ROW._replace(sequence=3)])
    another = Webhook("pager", "https://example.org/", "another secret it is", "other", NOW, cursor=20)
    store.commit(Changes(webhooks={"pager": another}, undelivered={("pager", 3): None}))
    saved = store.load()
    assert (saved.webhooks, saved.undelivered) == ([another], [])
    store.commit(Changes(webhooks={"pager": None}))
    assert store.load().webhooks == []


def test_ended_objects_are_stored_but_not_loaded(store: Store) -> None:
    store.commit(everything())
    over = EVENT._replace(status=EventStatus.COMPLETED, ended_at=NOW)
    done = OPERATION._replace(status=OperationStatus.DONE, ended_at=NOW)
    store.commit(Changes(operations={"op-1": done}, events={"ev-1": over}))
    saved = store.load()
    assert (saved.operations, saved.events) == ([], [])
    assert store.event("ev-1") == over
    assert store.events_ended_since(NOW) == []
    assert store.events_ended_since(NOW - timedelta(microseconds=1)) == [over]
    assert store.operation("op-1") == done
    assert [event for _, event in store.events(ListFilter(live=False))] == [over]
    assert store.event("nothing") is None
    for wrong in ("ev\0", "ev\ud800"):  # PostgreSQL has no NUL, and no database has half of a pair of surrogates
        assert (store.event(wrong), store.operation(wrong)) == (None, None)
        assert (store.events_by_prefix(wrong), store.operations_by_prefix(wrong)) == ([], [])
        assert store.rollouts_by_prefix(wrong) == []
    store.commit(Changes(operations={"op-2": OPERATION._replace(id="op-2")}))
    store.commit(Changes(events={"ev-2": EVENT._replace(id="ev-2", operation="op-2")}))
    assert store.events_by_prefix("ev-1") == [over]
    assert len(store.events_by_prefix("ev")) == 2
    assert store.events_by_prefix("ex") == []


def test_a_commit_that_fails_leaves_nothing_behind(store: Store) -> None:
    store.commit(everything())
    twice = HistoryEntry(sequence=1, time=NOW, kind="again", by="user")
    failing = Changes(facts={"alive_at": "y"}, history=[twice])
    with pytest.raises(StoreFailed, match="Nothing was changed"):
        store.commit(failing)
    assert store.load().facts == {"alive_at": "x"}
    store.commit(Changes(facts={"alive_at": "z"}))
    assert store.load().facts == {"alive_at": "z"}


def test_a_fleet_that_changes(store: Store) -> None:
    store.commit(everything())
    after = Fleet([VM("web-0", "web", "a", address="10.0.0.9")], FLEET.groups.values(), [Host("a")])
    change = difference(FLEET, after)
    assert [vm.name for vm in change.removed] == ["own"]
    assert change.hosts_removed == ("spare",)
    store.commit(Changes(fleet=after, fleet_changes=[change]))
    loaded = store.load().fleet
    assert (loaded.vms, loaded.hosts) == (after.vms, after.hosts)


def with_texts(count: int, user_data: str) -> Fleet:
    """A fleet of VMs that have the same long texts."""
    keys = ("ssh-rsa " + "A" * 700, "ssh-ed25519 größe")
    vm = VM("", "", "a", os="windows", location="westeurope", user_data=user_data, custom_data="c\0\n" * 9)
    return Fleet(vm._replace(name=f"v{n}", group=f"v{n}", public_keys=keys) for n in range(count))


def test_long_texts_of_vms_are_stored_and_held_once(reopen: Callable[[], Store], tmp_path: Path) -> None:
    fleet = with_texts(2000, "u" * 65_535)
    reopen().commit(Changes(fleet=fleet, fleet_changes=[difference(Fleet(), fleet)]))
    loaded = reopen().load().fleet
    assert loaded.vms == fleet.vms
    for field in ("os", "location", "user_data", "custom_data", "public_keys"):
        assert len({id(getattr(vm, field)) for vm in loaded.vms.values()}) == 1, field
    if (database := tmp_path / "forewarn.db").exists():
        assert database.stat().st_size < 2_000_000  # 131 MB if each VM had its own copy


def test_a_text_stays_while_a_vm_has_it(reopen: Callable[[], Store]) -> None:
    before, after = with_texts(2, "first"), with_texts(2, "second")
    store = reopen()
    store.commit(Changes(fleet=before, fleet_changes=[difference(Fleet(), before)]))
    moved = after.vms["v1"]._replace(host="b")
    change = difference(before, Fleet([before.vms["v0"], after.vms["v1"]]))
    store.commit(Changes(fleet_changes=[change, FleetChange(changed=(moved,), in_place=True)]))
    assert [vm.user_data for vm in reopen().load().fleet.vms.values()] == ["first", "second"]
    store = reopen()
    store.load()
    store.commit(Changes(fleet_changes=[FleetChange(removed=(before.vms["v0"],))]))
    assert reopen().load().fleet.vms == {"v1": moved}
    store = reopen()
    store.commit(Changes(fleet_changes=[FleetChange(added=(before.vms["v0"],))]))
    assert reopen().load().fleet.vms == {"v1": moved, "v0": before.vms["v0"]}


def test_a_text_that_no_vm_has_leaves_the_database_at_the_next_start(
    reopen_file: Callable[[], Store], tmp_path: Path
) -> None:
    before, after = with_texts(1, "first"), with_texts(1, "second")
    store = reopen_file()
    store.commit(Changes(fleet=before, fleet_changes=[difference(Fleet(), before)]))
    store.commit(Changes(fleet=after, fleet_changes=[difference(before, after)]))
    reopen_file().load()
    with closing(sqlite3.connect(tmp_path / "forewarn.db")) as database:
        assert {text[:6] for (text,) in database.execute("SELECT text FROM shared_text")} == {
            "second",
            "c\0\nc\0\n",
            "ssh-rs",
        }


def test_deliveries_keep_their_last_seen_time(store: Store) -> None:
    store.commit(everything())
    store.commit(Changes(deliveries={"web": Delivery("web", enabled=True, enabling=3, incarnation=8)}))
    assert store.load().last_seen == {"web": NOW}
    store.commit(Changes(last_seen={"web": NOW + timedelta(minutes=1)}))
    assert store.load().last_seen == {"web": NOW + timedelta(minutes=1)}
    assert store.load().deliveries[0].incarnation == 8
    store.commit(Changes(deliveries={"web": None}))
    assert store.load().deliveries == []


def test_history_is_filtered_and_in_order(store: Store) -> None:
    rows = [
        HistoryEntry(
            sequence=1, time=NOW, kind="requested", by="user", operation="op-1", vms=("web-0",), reason="restart"
        ),
        HistoryEntry(sequence=2, time=NOW, kind="scheduled", by="user", group="web", event="ev-1", operation="op-1"),
        HistoryEntry(sequence=3, time=NOW, kind="scheduled", by="user", group="db", event="ev-2", operation="op-1"),
        HistoryEntry(sequence=4, time=NOW, kind="enabled", by="x", group="x"),
    ]
    store.commit(Changes(history=rows))
    assert store.history(HistoryFilter()) == rows
    assert store.history(HistoryFilter(event="ev-1", operation="op-1")) == rows[:2]
    assert store.history(HistoryFilter(operation="op-1")) == rows[:3]
    assert store.history(HistoryFilter(groups=("x",))) == rows[3:]
    assert store.history(HistoryFilter(limit=1)) == rows[:1]
    assert store.history(HistoryFilter(after=1, limit=2)) == rows[1:3]
    assert store.history(HistoryFilter(operation="op-1", after=2)) == rows[2:3]
    assert store.history(HistoryFilter(after=4)) == []


def test_nothing_to_change_is_no_change() -> None:
    assert not difference(FLEET, FLEET)
    assert not FleetChange()
