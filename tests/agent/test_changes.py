"""Changes from one document to the next."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.raw_server import event
from forewarn.agent.changes import (
    CHANGED,
    GONE,
    OLD_DOCUMENT_SECONDS,
    SCHEDULED,
    STARTED,
    Change,
    ChangeTracker,
    compare,
)
from forewarn.errors import ChangeWithoutClient
from forewarn.wire.document_reader import EventsDocument, ScheduledEvent, read_document, start_requests

LATER = "Thu, 22 Jul 2021 05:50:17 GMT"


def make_event(number: int, status: str = "Scheduled", **changes: object) -> ScheduledEvent:
    raw = {**event(number, status), **changes}
    return read_document(json.dumps({"DocumentIncarnation": 0, "Events": [raw]})).events[0]


def said(changes: list[Change]) -> list[tuple[str, int]]:
    return [(change.kind, int(change.event.id[-4:])) for change in changes]


def document(incarnation: int, *events: ScheduledEvent) -> EventsDocument:
    return EventsDocument(incarnation, events)


def test_the_lifecycle_of_an_event_is_a_sequence_of_changes() -> None:
    account = ChangeTracker()
    course = [
        (),
        (make_event(1),),
        (make_event(1),),
        (make_event(1, NotBefore=LATER),),
        (make_event(1, "Started"),),
        (),
    ]
    lines = [account.update(document(number, *events), number) for number, events in enumerate(course)]
    assert [said(line) for line in lines] == [
        *([], [(SCHEDULED, 1)], [], [(CHANGED, 1)], [(STARTED, 1)], [(GONE, 1)]),
    ]
    assert lines[3][0].before == make_event(1)
    assert lines[4][0].before == make_event(1, NotBefore=LATER)
    (gone,) = lines[5]
    assert (gone.over, gone.cancelled, gone.waits) == (True, False, False)


def test_an_event_that_disappears_before_its_start_was_cancelled() -> None:
    (gone,) = compare([make_event(1)], [])
    assert (gone.kind, gone.over, gone.cancelled, gone.event) == (GONE, False, True, make_event(1))


def test_an_event_first_seen_as_started_is_a_start() -> None:
    (change,) = compare([], [make_event(1, "Started")])
    assert (change.kind, change.before, change.waits) == (STARTED, None, False)


def test_changes_have_the_order_of_the_document_with_removed_events_last() -> None:
    changes = compare(
        [make_event(1), make_event(2), make_event(3)],
        [make_event(9), make_event(3, "Started"), make_event(2), make_event(4)],
    )
    assert said(changes) == [(SCHEDULED, 9), (STARTED, 3), (SCHEDULED, 4), (GONE, 1)]


def test_an_event_that_is_listed_twice_is_one() -> None:
    assert said(compare([], [make_event(1), make_event(1, "Started")])) == [(SCHEDULED, 1)]


def test_an_older_document_repeats_no_change() -> None:
    account = ChangeTracker()
    account.update(document(1, make_event(1)), 0)
    account.update(document(2, make_event(1, "Started")), 1)
    assert account.update(document(1, make_event(1)), 2) == []
    assert account.update(document(2, make_event(1, "Started")), 3) == []
    assert said(account.update(document(3), 4)) == [(GONE, 1)]
    assert account.update(document(2, make_event(1, "Started")), 5) == []
    assert account.update(document(3), 6) == []


def test_a_document_with_an_older_incarnation_only_adds_new_and_started_events() -> None:
    account = ChangeTracker()
    account.update(document(192, make_event(1), make_event(2)), 0)
    assert said(account.update(document(1, make_event(3), make_event(2, "Started")), 1)) == [
        (SCHEDULED, 3),
        (STARTED, 2),
    ]
    assert account.update(document(1, make_event(3), make_event(2, "Started")), 2) == []


def test_an_older_incarnation_that_persists_is_accepted() -> None:
    account = ChangeTracker()
    account.update(document(192, make_event(1)), 0)
    assert account.update(document(0), 100) == []
    assert account.update(document(0), 100 + OLD_DOCUMENT_SECONDS - 0.1) == []
    assert said(account.update(document(0), 100 + OLD_DOCUMENT_SECONDS)) == [(GONE, 1)]
    assert said(account.update(document(1, make_event(2)), 111)) == [(SCHEDULED, 2)]
    assert said(account.update(document(2), 112)) == [(GONE, 2)]


def test_an_endpoint_can_continue_with_lower_incarnations() -> None:
    account = ChangeTracker()
    account.update(document(192, make_event(1)), 0)
    assert account.update(document(0), 1) == []
    assert said(account.update(document(1, make_event(2)), 5)) == [(SCHEDULED, 2)]
    assert said(account.update(document(1, make_event(2)), 11)) == [(GONE, 1)]


def test_the_count_of_older_documents_restarts_after_a_current_one() -> None:
    account = ChangeTracker()
    account.update(document(192, make_event(1)), 0)
    for now in (1, 12, 23):
        assert account.update(document(191), now) == []
        assert account.update(document(192, make_event(1)), now + 9) == []


def test_a_change_without_a_client_cannot_be_approved() -> None:
    with pytest.raises(ChangeWithoutClient):
        Change(SCHEDULED, make_event(1)).approve()


@pytest.mark.parametrize(
    ("change", "sent"),
    [
        (Change(SCHEDULED, make_event(1)), True),
        (Change(CHANGED, make_event(1, NotBefore=LATER), make_event(1)), True),
        (Change(STARTED, make_event(1, "Started")), False),
        (Change(GONE, make_event(1), make_event(1)), False),
    ],
)
def test_only_a_scheduled_event_can_be_approved(change: Change, sent: bool) -> None:
    approved: list[bytes] = []

    def send(one: ScheduledEvent) -> bool:
        approved.append(start_requests(one.id))
        return True

    assert change.bound_to(send).approve() is sent
    assert len(approved) == sent


DOCUMENTS = st.builds(
    lambda incarnation, events: document(
        incarnation, *(make_event(number, status) for number, status in events.items())
    ),
    st.integers(0, 6),
    st.dictionaries(st.integers(1, 4), st.sampled_from(["Scheduled", "Started"]), max_size=4),
)


@given(st.lists(st.tuples(DOCUMENTS, st.floats(0, 8)), max_size=20))
def test_each_event_has_a_valid_lifecycle_for_any_documents(course: list[tuple[EventsDocument, float]]) -> None:
    """Nothing goes that was not there, nothing is announced twice without having gone."""
    account, now = ChangeTracker(), 0.0
    there: dict[str, ScheduledEvent] = {}
    for one, later in course:
        now += later
        for change in account.update(one, now):
            assert (change.event.id in there) == (change.before is not None)
            assert change.before == there.get(change.event.id)
            if change.kind == GONE:
                del there[change.event.id]
            else:
                there[change.event.id] = change.event
    last = course[-1][0] if course else document(0)
    account.update(last, now + 1)
    account.update(last, now + 100)
    assert account.update(last, now + 101) == []
    assert not [change for change in compare(last.events, last.events) if change.kind != GONE]
