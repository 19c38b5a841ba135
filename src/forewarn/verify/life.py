"""Section 4 of the contract: the lifecycle of an event, and a day without polls."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from forewarn.verify.check import CheckFailed, CheckRegistry, CheckSkipped, EventMissing, Mark, Requirement
from forewarn.verify.exchange import METADATA_TRUE, truncate
from forewarn.verify.observations import (
    PREVIEW,
    count_changes,
    observe_approved,
    observe_cancelled,
    observe_shared_freeze,
    observe_terminates,
    observe_until_removed,
    serves_preview,
)
from forewarn.verify.session import EVENT_TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, parse_date, read

if TYPE_CHECKING:
    from forewarn.verify.observations import ObservedEvent
    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot


check = CheckRegistry(4, "life")

_MINUTE = 60


@check("event-appears", Mark.DOCUMENTED, "The document shows an upcoming event as Scheduled.", Requirement.SCHEDULE)
def event_appears(session: Session) -> None:
    try:
        _, snapshot, event_id = session.schedule_first_of(*EVENT_TYPES)
    except EventMissing:
        response = session.poll().response
        raise CheckFailed("a new event", request=response.request.summary, actual=response.summary) from None
    snapshot.response.expect(snapshot.status(event_id) == SCHEDULED, "a Scheduled event")


# --- Notice ---------------------------------------------------------------------------------------


def _expect_notice(session: Session, event_type: str, minimum: int, maximum: int | None = None) -> None:
    before, snapshot, event_id = session.sample(event_type)
    if snapshot.status(event_id) != SCHEDULED:
        raise CheckSkipped(f"the new {event_type} is already Started")
    # The event appeared between the two documents, so the exact notice is between these values.
    longest = session.remaining_notice(snapshot, event_id, before)
    shortest = session.remaining_notice(snapshot, event_id)
    expected = f"NotBefore at least {minimum} s after the notice" + (f", at most {maximum} s" if maximum else "")
    actual = f"NotBefore {longest:.0f} s after the Date of the last document without the event"
    valid = longest >= minimum and (maximum is None or shortest <= maximum + 1)
    snapshot.response.expect(valid, expected, actual=actual)


@check("notice-of-freeze", Mark.DOCUMENTED, "A Freeze has at least 15 minutes of notice.", Requirement.SCHEDULE)
def notice_of_freeze(session: Session) -> None:
    _expect_notice(session, "Freeze", 15 * _MINUTE)


@check("notice-of-reboot", Mark.DOCUMENTED, "A Reboot has at least 15 minutes of notice.", Requirement.SCHEDULE)
def notice_of_reboot(session: Session) -> None:
    _expect_notice(session, "Reboot", 15 * _MINUTE)


@check("notice-of-redeploy", Mark.DOCUMENTED, "A Redeploy has at least 10 minutes of notice.", Requirement.SCHEDULE)
def notice_of_redeploy(session: Session) -> None:
    _expect_notice(session, "Redeploy", 10 * _MINUTE)


@check("notice-of-preempt", Mark.DOCUMENTED, "A Preempt has at least 30 seconds of notice.", Requirement.SCHEDULE)
def notice_of_preempt(session: Session) -> None:
    _expect_notice(session, "Preempt", 30)


@check("notice-of-terminate", Mark.DOCUMENTED, "A Terminate has 5 to 15 minutes of notice.", Requirement.SCHEDULE)
def notice_of_terminate(session: Session) -> None:
    _expect_notice(session, "Terminate", 5 * _MINUTE, 15 * _MINUTE)


# --- The incarnation ------------------------------------------------------------------------------


def _expect_increment(earlier: Snapshot, later: Snapshot, change: str) -> None:
    """Expect that one change increments the incarnation by one."""
    if count_changes(earlier, later) != 1:
        raise CheckSkipped("more than one event changed at the same time")
    expected = f"DocumentIncarnation {earlier.number + 1}: one more, because an event {change}"
    actual = f"DocumentIncarnation {later.incarnation}"
    later.response.expect(later.number - earlier.number == 1, expected, actual=actual)


@check(
    "addition-increments",
    Mark.DOCUMENTED,
    "DocumentIncarnation increases by one when an event is added.",
    Requirement.SCHEDULE,
)
def addition_increments(session: Session) -> None:
    observed = observe_approved(session)
    _expect_increment(observed.before, observed.first, "was added")


@check(
    "start-increments",
    Mark.DOCUMENTED,
    "DocumentIncarnation increases by one when an event starts.",
    Requirement.SCHEDULE,
)
def start_increments(session: Session) -> None:
    observed = observe_approved(session)
    if observed.replaced:
        raise CheckSkipped("an event with another id appeared in its place; see life/id-unchanged")
    if observed.started is None:
        raise CheckSkipped("no document shows the approved event as Started; see life/starts-when-approved")
    _expect_increment(observed.first, observed.started, "started")


@check("unchanged-document", Mark.DOCUMENTED, "The document does not change while nothing happens.")
def unchanged_document(session: Session) -> None:
    first = session.poll()
    second = session.poll()
    if count_changes(first, second):
        raise CheckSkipped("an event changed between two polls")
    expected = f"the same document as in the previous poll: {truncate(first.response.summary)}"
    second.response.expect(first.response.body == second.response.body, expected)


# --- Approval and cancellation --------------------------------------------------------------------


@check(
    "starts-when-approved",
    Mark.DOCUMENTED,
    "An approved event starts without waiting for NotBefore.",
    Requirement.SCHEDULE,
)
def starts_when_approved(session: Session) -> None:
    observed = observe_approved(session)
    expected = f"{observed.event_id} Started, because it was approved"
    observed.snapshots[-1].response.expect(observed.started is not None, expected)


@check(
    "cancelled-is-removed",
    Mark.DOCUMENTED,
    "A cancelled event disappears from the document.",
    Requirement.SCHEDULE,
    Requirement.CANCEL,
)
def cancelled_is_removed(session: Session) -> None:
    observed = observe_cancelled(session)
    expected = f"a document without {observed.event_id}, which was cancelled"
    observed.snapshots[-1].response.expect(observed.removed is not None, expected)


@check(
    "cancellation-increments",
    Mark.DOCUMENTED,
    "DocumentIncarnation increases by one when an event is cancelled.",
    Requirement.SCHEDULE,
    Requirement.CANCEL,
)
def cancellation_increments(session: Session) -> None:
    observed = observe_cancelled(session)
    if observed.removed is None:
        raise CheckSkipped("the event did not disappear; see life/cancelled-is-removed")
    _expect_increment(observed.first, observed.removed, "was removed")


@check(
    "shared-hardware-waits",
    Mark.DOCUMENTED,
    "An operation that affects several groups starts when every affected group has approved.",
    Requirement.SCHEDULE,
    Requirement.OTHER_GROUP,
)
def shared_hardware_waits(session: Session) -> None:
    observed = observe_shared_freeze(session)
    after_one, after_both = observed.after_one, observed.after_both
    expected = "still Scheduled, because the other group has not approved"
    after_one.response.expect(after_one.status(observed.event_id) == SCHEDULED, expected)
    expected = "Started, because both groups have approved"
    after_both.response.expect(after_both.status(observed.event_id) == STARTED, expected)


@check(
    "partial-approval-changes-nothing",
    Mark.ASSUMED,
    "An approval that does not start the event changes neither the document nor the incarnation.",
    Requirement.SCHEDULE,
    Requirement.OTHER_GROUP,
)
def partial_approval_changes_nothing(session: Session) -> None:
    observed = observe_shared_freeze(session)
    after_one = observed.after_one
    if after_one.status(observed.event_id) != SCHEDULED:
        raise CheckSkipped("the approval of one group started the event; see life/shared-hardware-waits")
    before = observed.before_approval.response
    expected = f"the same document as before the approval: {truncate(before.summary)}"
    after_one.response.expect(after_one.response.body == before.body, expected)


@check(
    "terminates-start-together",
    Mark.DOCUMENTED,
    "An approved Terminate waits for the other Terminates with the same NotBefore.",
    Requirement.SCHEDULE,
)
def terminates_start_together(session: Session) -> None:
    observed = observe_terminates(session)
    after_one, after_both = observed.after_one, observed.after_both
    expected = f"{observed.first} still Scheduled, because {observed.second} is not approved"
    after_one.response.expect(after_one.status(observed.first) == SCHEDULED, expected)
    for event_id in (observed.first, observed.second):
        expected = f"{event_id} Started, because both are approved"
        after_both.response.expect(after_both.status(event_id) == STARTED, expected)


# --- As time passes -------------------------------------------------------------------------------

_TIME = (Requirement.SCHEDULE, Requirement.TIME)


@check("no-early-start", Mark.DOCUMENTED, "An event that is not approved does not start before NotBefore.", *_TIME)
def no_early_start(session: Session) -> None:
    observed = observe_until_removed(session)
    announced = (observed.first.event(observed.event_id) or {}).get("NotBefore")
    not_before = parse_date(announced)
    for snapshot in observed.snapshots:
        event = snapshot.event(observed.event_id)
        if event is None or not_before is None or snapshot.now is None or snapshot.now >= not_before:
            continue
        status = event.get("EventStatus")
        actual = f"{status} at {snapshot.response.header('date')}"
        snapshot.response.expect(status == SCHEDULED, f"Scheduled until {announced}", actual=actual)


@check("starts-at-not-before", Mark.DOCUMENTED, "An event starts at NotBefore, even if nobody has approved it.", *_TIME)
def starts_at_not_before(session: Session) -> None:
    observed = observe_until_removed(session)
    last = observed.at_not_before or observed.snapshots[-1]
    actual = f"{last.status(observed.event_id) or 'no such event'} at {last.response.header('date')}"
    last.response.expect(observed.started is not None, f"{observed.event_id} Started", actual=actual)


@check(
    "id-unchanged",
    Mark.DOCUMENTED,
    "An event keeps its id from the notice to its removal.",
    Requirement.SCHEDULE,
)
def id_unchanged(session: Session) -> None:
    all_observed = [observe_approved(session)]
    if session.has(Requirement.TIME):
        with suppress(CheckSkipped):
            all_observed.append(observe_until_removed(session))
    for observed in all_observed:
        _expect_one_id(observed)
    if all(observed.started is None for observed in all_observed):
        raise CheckSkipped("no event was seen to start; see life/starts-when-approved")


def _expect_one_id(observed: ObservedEvent) -> None:
    for earlier, later in pairwise(observed.snapshots):
        if earlier.event(observed.event_id) is None:
            break
        new = later.ids - earlier.ids
        gone = later.event(observed.event_id) is None
        actual = f"EventId {', '.join(sorted(new))} instead"
        later.response.expect(not (gone and new), f"the event with its id {observed.event_id}", actual=actual)


@check("not-before-never-decreases", Mark.DOCUMENTED, "NotBefore never changes to an earlier time.", *_TIME)
def not_before_never_decreases(session: Session) -> None:
    observed = observe_until_removed(session)
    times = [
        (snapshot, parse_date((snapshot.event(observed.event_id) or {}).get("NotBefore")))
        for snapshot in observed.snapshots
    ]
    known = [(snapshot, not_before) for snapshot, not_before in times if not_before is not None]
    for (_, earlier), (snapshot, later) in pairwise(known):
        snapshot.response.expect(later >= earlier, f"NotBefore {earlier} or later", actual=f"NotBefore {later}")


@check("resources-unchanged", Mark.ASSUMED, "The Resources of an event do not change.", *_TIME)
def resources_unchanged(session: Session) -> None:
    observed = observe_until_removed(session)
    names = (observed.first.event(observed.event_id) or {}).get("Resources")
    for snapshot in observed.snapshots:
        event = snapshot.event(observed.event_id)
        valid = event is None or event.get("Resources") == names
        snapshot.response.expect(valid, f"Resources {names}", actual=truncate(str(event)))


@check(
    "removed-when-complete",
    Mark.DOCUMENTED,
    "A completed event disappears from the document. It never has the status Completed.",
    *_TIME,
)
def removed_when_complete(session: Session) -> None:
    observed = observe_until_removed(session)
    for snapshot in observed.snapshots:
        status = snapshot.status(observed.event_id)
        valid = status in (None, SCHEDULED, STARTED)
        snapshot.response.expect(valid, "Scheduled, Started, or no such event", actual=str(status))
    last = observed.snapshots[-1]
    last.response.expect(observed.removed is not None, "a document without the event, two hours after its start")


@check(
    "removal-increments",
    Mark.DOCUMENTED,
    "DocumentIncarnation increases by one when an event is removed.",
    *_TIME,
)
def removal_increments(session: Session) -> None:
    observed = observe_until_removed(session)
    if observed.removed is None:
        raise CheckSkipped("the event was not removed; see life/removed-when-complete")
    if observed.replaced:
        raise CheckSkipped("an event with another id appeared in its place; see life/id-unchanged")
    _expect_increment(observed.last_present(), observed.removed, "was removed")


def _collect_documents(session: Session) -> None:
    """Make sure that there are documents to compare: at least one event from its notice to its start."""
    session.poll()
    if session.has(Requirement.SCHEDULE):
        with suppress(CheckSkipped):
            observe_approved(session)


@check(
    "incarnation-never-decreases",
    Mark.DOCUMENTED,
    "DocumentIncarnation never decreases while the service is enabled.",
)
def incarnation_never_decreases(session: Session) -> None:
    _collect_documents(session)
    for (_, earlier), (_, later) in pairwise(session.snapshots):
        expected = f"DocumentIncarnation {earlier.number} or more"
        actual = f"DocumentIncarnation {later.number}"
        later.response.expect(later.number >= earlier.number, expected, actual=actual)


@check("equal-incarnation-equal-document", Mark.DOCUMENTED, "Documents with the same DocumentIncarnation are equal.")
def equal_incarnation_equal_document(session: Session) -> None:
    _collect_documents(session)
    known: dict[tuple[str, int], Snapshot] = {}
    for version, snapshot in session.snapshots:
        first = known.setdefault((version, snapshot.number), snapshot)
        summary = truncate(first.response.summary)
        expected = f"another DocumentIncarnation than {snapshot.number}, which was already used for {summary}"
        snapshot.response.expect(first.response.body == snapshot.response.body, expected)


# --- A day without polls --------------------------------------------------------------------------


inactivity_check = CheckRegistry(4, "life")

_INACTIVITY_SECONDS = 86_400 + 3_600


def _advance_without_polls(session: Session) -> None:
    """Let more than a day pass without a poll, and forget the documents before it."""
    session.advance(_INACTIVITY_SECONDS)
    session.snapshots.clear()


def _poll_after_inactivity(session: Session) -> tuple[Snapshot, Snapshot]:
    """Return the last document before a day without polls, and the first document after it."""
    if session.poll().incarnation == 0:
        if not session.has(Requirement.SCHEDULE):
            raise CheckSkipped(f"the incarnation is still 0: give {Requirement.SCHEDULE}")
        session.schedule_first_of(*EVENT_TYPES)
    session.cancel_scheduled()
    before = session.poll()
    _advance_without_polls(session)
    return before, session.poll()


@inactivity_check(
    "inactivity-resets-incarnation",
    Mark.OBSERVED,
    "After a day without a request, the service is disabled. The next GET enables it, with incarnation 0.",
    Requirement.ADVANCE,
    late=True,
)
def inactivity_resets_incarnation(session: Session) -> None:
    before, after = session.cached("inactivity", _poll_after_inactivity)
    actual = f"DocumentIncarnation {after.incarnation}; it was {before.incarnation} before"
    # The incarnation may count events that are still active: a recommendation is one, and never starts.
    active = after.events or (session.poll(PREVIEW).events if serves_preview(session) else [])
    after.response.expect(after.incarnation == 0 or bool(active), "DocumentIncarnation 0", actual=actual)


@inactivity_check(
    "inactivity-no-notice",
    Mark.DOCUMENTED,
    "The document never shows an operation that was requested while the service was disabled.",
    Requirement.SCHEDULE,
    Requirement.ADVANCE,
    late=True,
)
def inactivity_no_notice(session: Session) -> None:
    session.cached("inactivity", _poll_after_inactivity)
    _advance_without_polls(session)
    session.hooks.run(session.hooks.schedule, FOREWARN_EVENT_TYPE="Reboot", FOREWARN_VM=session.vm)
    snapshot = session.poll()
    scheduled = [event for event in snapshot.events if event.get("EventStatus") == SCHEDULED]
    expected = "no notice of an operation that was requested while the service was disabled"
    snapshot.response.expect(not scheduled, expected)


@inactivity_check(
    "inactivity-changes-etag",
    Mark.ASSUMED,
    "After a day without a request, the ETag is different, even if the incarnation is the same.",
    Requirement.ADVANCE,
    late=True,
)
def inactivity_changes_etag(session: Session) -> None:
    session.cached("inactivity", _poll_after_inactivity)
    etag = session.poll().response.header("etag") or '"0"'
    _advance_without_polls(session)
    read(session.endpoint.request(headers=(*METADATA_TRUE, ("If-None-Match", etag))))
