"""The lifecycle table, cell by cell (docs/explanation/contract.md, section 4)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import TRANSITIONS, Event, EventStatus, Source, Trigger, due, first_status, may_start, step
from forewarn.errors import (
    EventAlreadyStarted,
    EventEnded,
    EventIsAdvisory,
    EventNotDue,
    EventNotStarted,
    ForewarnError,
)

NOW = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)
LATER = NOW + timedelta(minutes=15)

EVENT = Event(
    id="4caea225-a741-474d-a72e-428c86fcd853",
    operation="op",
    group="web",
    scope="web",
    type="Reboot",
    status=EventStatus.SCHEDULED,
    resources=("web-0",),
    not_before=LATER,
    description="",
    source=Source.USER,
    duration=None,
    created_at=NOW,
)

S, T = EventStatus, Trigger

# Written out by hand from the contract, not from the table it checks.
CELLS: list[tuple[EventStatus, Trigger, EventStatus | type[ForewarnError]]] = [
    (S.SCHEDULED, T.APPROVE, S.SCHEDULED),
    (S.SCHEDULED, T.START, S.STARTED),
    (S.SCHEDULED, T.FINISH, EventNotStarted),
    (S.SCHEDULED, T.CANCEL, S.CANCELLED),
    (S.SCHEDULED, T.POSTPONE, S.SCHEDULED),
    (S.STARTED, T.APPROVE, S.STARTED),
    (S.STARTED, T.START, S.STARTED),
    (S.STARTED, T.FINISH, S.COMPLETED),
    (S.STARTED, T.CANCEL, EventAlreadyStarted),
    (S.STARTED, T.POSTPONE, EventAlreadyStarted),
    (S.ADVISORY, T.APPROVE, S.ADVISORY),
    (S.ADVISORY, T.START, EventIsAdvisory),
    (S.ADVISORY, T.FINISH, EventIsAdvisory),
    (S.ADVISORY, T.CANCEL, S.CANCELLED),
    (S.ADVISORY, T.POSTPONE, EventIsAdvisory),
    (S.COMPLETED, T.APPROVE, EventEnded),
    (S.COMPLETED, T.START, EventEnded),
    (S.COMPLETED, T.FINISH, S.COMPLETED),
    (S.COMPLETED, T.CANCEL, EventEnded),
    (S.COMPLETED, T.POSTPONE, EventEnded),
    (S.CANCELLED, T.APPROVE, EventEnded),
    (S.CANCELLED, T.START, EventEnded),
    (S.CANCELLED, T.FINISH, EventEnded),
    (S.CANCELLED, T.CANCEL, S.CANCELLED),
    (S.CANCELLED, T.POSTPONE, EventEnded),
]


@pytest.mark.parametrize(("status", "trigger", "outcome"), CELLS)
def test_cell(status: EventStatus, trigger: Trigger, outcome: EventStatus | type[ForewarnError]) -> None:
    event = EVENT._replace(status=status)
    if isinstance(outcome, EventStatus):
        after = step(event, trigger, LATER, by="web-0")
        assert after.status is outcome
        assert after.id == event.id
        assert after.not_before == event.not_before
    else:
        with pytest.raises(outcome, match=EVENT.id):
            step(event, trigger, LATER)


def test_every_cell_is_written_out() -> None:
    assert {(status, trigger) for status, trigger, _ in CELLS} == set(TRANSITIONS)
    assert len(TRANSITIONS) == len(EventStatus) * len(Trigger)


def test_without_approval_nothing_starts_before_its_time() -> None:
    just_before = LATER - timedelta(microseconds=1)
    assert not may_start(EVENT, just_before)
    with pytest.raises(EventNotDue, match="cannot start before"):
        step(EVENT, T.START, just_before)
    assert step(EVENT, T.START, LATER).started_at == LATER


def test_an_approval_starts_the_event_and_the_first_approver_is_kept() -> None:
    approved = step(EVENT, T.APPROVE, NOW, by="web-0")
    assert (approved.approved_at, approved.approved_by) == (NOW, "web-0")
    assert may_start(approved, NOW)
    assert step(approved, T.APPROVE, LATER, by="web-1") is approved
    assert step(approved, T.START, NOW).status is S.STARTED


@pytest.mark.parametrize(
    ("event", "moment"),
    [
        (EVENT, LATER),
        (EVENT._replace(approved_at=NOW, approved_by="web-0"), None),
        (EVENT._replace(status=S.STARTED), None),
        (EVENT._replace(status=S.COMPLETED), None),
    ],
)
def test_due(event: Event, moment: datetime | None) -> None:
    assert due(event) == moment


def test_an_ended_event_has_its_end_time() -> None:
    assert step(EVENT, T.CANCEL, NOW).ended_at == NOW
    assert step(EVENT._replace(status=S.STARTED), T.FINISH, LATER).ended_at == LATER


def test_not_before_only_moves_later() -> None:
    later = LATER + timedelta(hours=1)
    assert step(EVENT, T.POSTPONE, NOW, until=later).not_before == later
    assert step(EVENT, T.POSTPONE, NOW, until=LATER) is EVENT
    assert step(EVENT, T.POSTPONE, NOW, until=NOW) is EVENT


def test_an_advisory_never_starts_and_an_approval_changes_nothing() -> None:
    advice = EVENT._replace(type="SpotRebalanceRecommendation", status=S.ADVISORY, not_before=NOW)
    assert advice.status.live
    assert due(advice) is None
    assert not may_start(advice, LATER)
    assert step(advice, T.APPROVE, NOW, by="web-0") is advice
    # A store of an earlier release can hold an approved one.
    assert not may_start(advice._replace(approved_at=NOW, approved_by="web-0"), LATER)


@pytest.mark.parametrize("event_type", EVENT_TYPES)
def test_only_a_recommendation_is_an_advisory(event_type: str) -> None:
    assert (first_status(event_type) is S.ADVISORY) == (event_type == "SpotRebalanceRecommendation")
