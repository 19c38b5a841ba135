"""One contract for all stores: which rows of history are found, and which are forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import amount
from forewarn.core.access import StoredResponse
from forewarn.core.events import Event, EventStatus, Source
from forewarn.core.operations import CauseRequest, Operation, OperationStatus
from forewarn.core.rollouts import Rollout, RolloutSettings, RolloutStatus
from forewarn.core.state import Changes, HistoryEntry, HistorySnapshot
from forewarn.core.waits import Wait
from forewarn.ports import HistoryFilter, ListFilter, Store
from forewarn.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path

    MakeStore = Callable[[], AbstractContextManager[Store]]

START = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)
DAY = timedelta(days=1)
ALL = ListFilter(live=False)
# Names that are parts of each other, that are not ASCII, and that mean something in JSON, SQL and patterns.
NAMES = ["web", "web-0", "web-01", "wéb-0", "web_0", "web%", 'a", "web-0', "a\\", "'"]
GROUPS = ["", "web", "Web", "wéb", "db"]
HOSTS = ["", "host-a", "host-b", "hóst"]
CAUSES = ["restart", "redeploy", "host-update"]
TYPES = ["", "Reboot", "Redeploy", "Freeze"]
KINDS = ["requested", "scheduled", "approved", "executed"]
WHO = ["operator", "forewarn", "web-0"]


class Past(NamedTuple):
    """Something to ask of."""

    operations: list[Operation]
    rows: list[HistoryEntry]

    @property
    def changes(self) -> Changes:
        return Changes(operations={each.id: each for each in self.operations}, history=self.rows)


names = st.lists(st.sampled_from(NAMES), max_size=3, unique=True).map(tuple)
times = st.integers(0, 10**9).map(lambda number: START + timedelta(microseconds=number))
texts = st.sampled_from(["", *NAMES])
snapshots = st.builds(
    HistorySnapshot,
    texts,
    st.sampled_from(EventStatus),
    times,
    texts,
    st.sampled_from(Source),
    st.none() | st.timedeltas(timedelta(0), timedelta(days=30)),
    times,
    *(st.none() | times, st.none() | texts, st.none() | times, st.none() | times),
)
waits = st.builds(
    Wait,
    st.sampled_from(["approval", "window", "deletion"]),
    st.booleans(),
    texts,
    texts,
    texts,
    *(st.none() | times, st.none() | times, texts),
)


@st.composite
def pasts(draw: st.DrawFn) -> Past:
    operations = [
        Operation(
            id=f"op-{number}",
            request=CauseRequest(
                draw(st.sampled_from(CAUSES)), host=draw(st.sampled_from(HOSTS)), type=draw(st.sampled_from(TYPES))
            ),
            vms=(),
            requested_by="operator",
            requested_at=START,
            moves=tuple((vm, draw(st.sampled_from(HOSTS[1:]))) for vm in draw(names)),
        )
        for number in range(draw(st.integers(0, 4)))
    ]
    ids = ["", "ro-1", *(operation.id for operation in operations)]
    rows = [
        HistoryEntry(
            # Not always later than the one before: a wall clock can be put back.
            time=START + timedelta(seconds=draw(st.integers(0, 5))),
            kind=draw(st.sampled_from(KINDS)),
            by=draw(st.sampled_from(WHO)),
            sequence=number + 1,
            group=draw(st.sampled_from(GROUPS)),
            event=draw(st.sampled_from(["", "ev-1", "ev-2"])),
            operation=draw(st.sampled_from(ids)),
            vms=draw(names),
            host=draw(st.sampled_from(HOSTS)),
            type=draw(st.sampled_from(TYPES)),
            cause=draw(st.sampled_from(["", *CAUSES])),
            snapshot=draw(st.none() | snapshots),
            waits=draw(st.lists(waits, max_size=2).map(tuple)),
        )
        for number in range(draw(st.integers(0, 12)))
    ]
    return Past(operations, rows)


@st.composite
def filters(draw: st.DrawFn) -> HistoryFilter:
    moments = st.none() | st.integers(0, 6).map(lambda seconds: START + timedelta(seconds=seconds))
    operation = draw(st.sampled_from(["", "", "", "op-0", "ro-1"]))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "groups": st.lists(st.sampled_from(GROUPS[1:]), max_size=2).map(tuple),
        "vm": st.sampled_from(["", *NAMES]),
        "host": st.sampled_from(HOSTS),
        "type": st.sampled_from(TYPES),
        "cause": st.sampled_from(["", *CAUSES]),
        "by": st.sampled_from(["", *WHO]),
        "kinds": st.lists(st.sampled_from(KINDS), max_size=2).map(tuple),
        "since": moments,
        "until": moments,
        "after": st.integers(0, 13),
        "before": st.integers(0, 13),
    }
    # Few at a time: all together nothing would be found.
    chosen = draw(st.lists(st.sampled_from(sorted(fields)), max_size=3, unique=True))
    return HistoryFilter(
        operation=operation,
        event=draw(st.sampled_from(["", "ev-1"])) if operation else "",
        newest=draw(st.booleans()),
        limit=draw(st.integers(1, 14)),
        **{name: draw(fields[name]) for name in chosen},
    )


def plainly(past: Past, wanted: HistoryFilter) -> list[HistoryEntry]:
    """The same, as one would say it."""
    operations = {operation.id: operation for operation in past.operations}

    def fits(row: HistoryEntry) -> bool:
        operation = operations.get(row.operation)
        brought_to = {host for _, host in operation.moves} if operation else set()
        return all(
            (
                not wanted.operation or row.operation == wanted.operation,
                not wanted.event or row.event in (wanted.event, ""),
                not wanted.groups or row.group in wanted.groups,
                not wanted.vm or wanted.vm in row.vms,
                not wanted.host or wanted.host in {row.host, *brought_to},
                not wanted.type or row.type == wanted.type,
                not wanted.cause or row.cause == wanted.cause,
                not wanted.by or row.by == wanted.by,
                not wanted.kinds or row.kind in wanted.kinds,
                wanted.since is None or row.time >= wanted.since,
                wanted.until is None or row.time < wanted.until,
                row.sequence > wanted.after,
                not wanted.before or row.sequence < wanted.before,
            )
        )

    found = [row for row in past.rows if fits(row)]
    return (found[::-1] if wanted.newest else found)[: wanted.limit]


@given(past=pasts(), wanted=filters())
@settings(max_examples=amount(300), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_filter_finds_exactly_the_matching_rows(make_store: MakeStore, past: Past, wanted: HistoryFilter) -> None:
    with make_store() as store:
        store.commit(past.changes)
        assert store.history(wanted) == plainly(past, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_vm_filter_matches_the_whole_name(store: Store, name: str) -> None:
    rows = [
        HistoryEntry(START, "scheduled", "operator", number + 1, vms=(each, "x")) for number, each in enumerate(NAMES)
    ]
    store.commit(Changes(history=rows))
    assert [row.vms[0] for row in store.history(HistoryFilter(vm=name))] == [name]


def test_a_reader_sees_every_earlier_commit(store: Store) -> None:
    reader = store.reader() or store
    for number in range(1, 4):
        row = HistoryEntry(START, "requested", "operator", number, operation=f"op-{number}")
        operation = Operation(f"op-{number}", CauseRequest("restart"), (), "operator", START)
        store.commit(Changes(operations={operation.id: operation}, history=[row]))
        assert reader.history(HistoryFilter(newest=True, limit=1)) == [row]
        assert reader.operation(operation.id) == operation
        assert reader.oldest() == 1


def test_a_store_in_memory_has_no_second_reader() -> None:
    store = SqliteStore(None)
    assert store.reader() is None
    store.close()


# --- Retention ------------------------------------------------------------------------------------------


class Life(NamedTuple):
    """An operation with an event and its rows, by days since the start."""

    began: int
    ended: int | None

    def changes(self, number: int, sequence: int) -> Changes:
        at = START + self.began * DAY
        ended_at = None if self.ended is None else START + self.ended * DAY
        operation = Operation(
            id=f"op-{number}",
            request=CauseRequest("restart", type="Reboot"),
            vms=("web-0",),
            requested_by="operator",
            requested_at=at,
            status=OperationStatus.PENDING if ended_at is None else OperationStatus.DONE,
            events=(f"ev-{number}",),
            ended_at=ended_at,
        )
        event = Event(
            id=f"ev-{number}",
            operation=operation.id,
            group="web",
            scope="web",
            type="Reboot",
            status=EventStatus.SCHEDULED if ended_at is None else EventStatus.COMPLETED,
            resources=("web-0",),
            not_before=at,
            description="",
            source=Source.USER,
            duration=None,
            created_at=at,
            ended_at=ended_at,
        )
        rollout = Rollout(
            f"ro-{number}",
            ("*",),
            RolloutSettings("Freeze"),
            "operator",
            at,
            RolloutStatus.RUNNING if ended_at is None else RolloutStatus.DONE,
            ended_at=ended_at,
        )
        return Changes(
            operations={operation.id: operation},
            rollouts={rollout.id: rollout},
            events={event.id: event},
            history=[HistoryEntry(at, "requested", "operator", sequence, operation=operation.id)],
            responses={f"k-{number}": StoredResponse(f"k-{number}", "f", at, 201, "{}")},
        )


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    # In order, as things come about; some not over.
    began = sorted(draw(st.lists(st.integers(0, 20), max_size=15)))
    return [Life(day, draw(st.none() | st.integers(day, day + 9))) for day in began]


@given(lived=lives(), cut=st.integers(0, 31), limit=st.integers(1, 6))
@settings(max_examples=amount(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_only_objects_that_ended_before_the_retention_are_removed(
    make_store: MakeStore, lived: list[Life], cut: int, limit: int
) -> None:
    with make_store() as store:
        for number, life in enumerate(lived):
            store.commit(life.changes(number, number + 1))
        live = store.load()
        before = START + cut * DAY
        rows = store.history(HistoryFilter())
        expired = (store.reader() or store).retention_cutoff(before, before)
        while store.remove_expired(expired, limit):
            # At every step: only a beginning is gone, and at most so much of it.
            left = store.history(HistoryFilter())
            assert left == rows[len(rows) - len(left) :]
            rows = left
        assert rows == [row for row in rows if row.time >= before] or len(rows) == 1
        assert len(rows) == max(sum(START + life.began * DAY >= before for life in lived), min(len(lived), 1))
        kept = {f"op-{number}" for number, life in enumerate(lived) if life.ended is None or life.ended >= cut}
        assert {operation.id for _, operation in store.operations(ALL)} == kept
        assert {event.operation for _, event in store.events(ALL)} == kept
        assert {rollout.id.replace("ro", "op") for _, rollout in store.rollouts(ALL)} == kept
        answers = {number for number in range(len(lived)) if store.stored_response(f"k-{number}")}
        assert answers == {number for number, life in enumerate(lived) if life.began >= cut}
        after = store.load()
        assert (after.operations, after.events, after.rollouts) == (live.operations, live.events, live.rollouts)
        assert after.sequence == len(lived)
        assert store.oldest() == (rows[0].sequence if rows else 1)


def test_the_sequence_continues_after_removal_of_all_but_one_row_and_a_restart(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.commit(Changes(history=[HistoryEntry(START, "enabled", "web", number) for number in range(1, 8)]))
    while store.remove_expired(store.retention_cutoff(START + DAY, START), 2):
        pass
    store.close()
    store = SqliteStore(tmp_path)
    assert (store.load().sequence, store.oldest()) == (7, 7)
    store.commit(Changes(history=[HistoryEntry(START, "enabled", "web", 8)]))
    assert [row.sequence for row in store.history(HistoryFilter())] == [7, 8]
    store.close()


def test_a_renewed_idempotent_response_is_kept(store: Store) -> None:
    for key in ("a", "b"):
        store.commit(Changes(responses={key: StoredResponse(key, "f", START, 201, "old")}))
    expired = store.retention_cutoff(START + DAY, START + DAY)
    store.commit(Changes(responses={"a": StoredResponse("a", "f", START + 2 * DAY, 201, "new")}))
    while store.remove_expired(expired, 10):
        pass
    assert store.stored_response("b") is None
    renewed = store.stored_response("a")
    assert renewed is not None
    assert renewed.body == "new"


def test_an_ended_event_of_a_live_operation_is_kept(store: Store) -> None:
    changes = Life(0, None).changes(0, 1)
    over = {key: event._replace(ended_at=START, status=EventStatus.CANCELLED) for key, event in changes.events.items()}
    changes.events = over
    store.commit(changes)
    while store.remove_expired(store.retention_cutoff(START + DAY, START + DAY), 10):
        pass
    assert store.event("ev-0") == over["ev-0"]


def test_an_undelivered_entry_is_removed_with_its_row(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.commit(
        Changes(history=[HistoryEntry(START + number * DAY, "enabled", "web", number) for number in range(1, 6)])
    )
    for number in range(1, 6):
        store._db.execute(
            "INSERT INTO undelivered (webhook, sequence, attempts, error, attempts_left) VALUES ('hook', ?, 0, '', 0)",
            (number,),
        )
    while store.remove_expired(store.retention_cutoff(START + 4 * DAY, START), 1):
        pass
    assert list(store._db.execute("SELECT sequence FROM undelivered")) == [(4,), (5,)]
    store.close()
