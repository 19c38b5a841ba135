"""Section 4 of the contract: the life of an event, and a day without requests."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from forewarn.verify.check import Departure, Mark, Need, NotTold, Rules, Skip
from forewarn.verify.exchange import TRUE, cut
from forewarn.verify.observations import by_approval, by_time, changes, deletions, shared, withdrawn
from forewarn.verify.session import TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, moment, read

if TYPE_CHECKING:
    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot


rules = Rules(4, "life")

_MINUTE = 60


@rules("told", Mark.DOCUMENTED, "What is going to happen to a VM is in its document, as Scheduled.", Need.SCHEDULE)
def told(session: Session) -> None:
    try:
        _, snapshot, event_id = session.schedule_any(*TYPES)
    except NotTold:
        snapshot = session.look()
        raise Departure("a new event", sent=snapshot.reply.request.shown, came=snapshot.reply.shown) from None
    snapshot.reply.must(snapshot.status(event_id) == SCHEDULED, "an event that is Scheduled")


# --- Notice ---------------------------------------------------------------------------------------


def _notice(session: Session, event_type: str, least: int, most: int | None = None) -> None:
    before, snapshot, event_id = session.sample(event_type)
    if snapshot.status(event_id) != SCHEDULED:
        raise Skip(f"the {event_type} that was made was Started at once")
    # It was told between the two documents: the least counts from the one, the most from the other.
    longest, shortest = session.notice_left(snapshot, event_id, before), session.notice_left(snapshot, event_id)
    right = f"NotBefore {least} s or more after it was told" + (f", at most {most} s" if most else "")
    came = f"NotBefore {longest:.0f} s after the Date of the last document without it"
    snapshot.reply.must(longest >= least and (most is None or shortest <= most + 1), right, came=came)


@rules("notice-of-freeze", Mark.DOCUMENTED, "A Freeze is told 15 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_freeze(session: Session) -> None:
    _notice(session, "Freeze", 15 * _MINUTE)


@rules("notice-of-reboot", Mark.DOCUMENTED, "A Reboot is told 15 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_reboot(session: Session) -> None:
    _notice(session, "Reboot", 15 * _MINUTE)


@rules("notice-of-redeploy", Mark.DOCUMENTED, "A Redeploy is told 10 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_redeploy(session: Session) -> None:
    _notice(session, "Redeploy", 10 * _MINUTE)


@rules("notice-of-preempt", Mark.DOCUMENTED, "A Preempt is told 30 seconds before, as well as can be.", Need.SCHEDULE)
def notice_of_preempt(session: Session) -> None:
    _notice(session, "Preempt", 30)


@rules("notice-of-terminate", Mark.DOCUMENTED, "A Terminate is told 5 to 15 minutes before.", Need.SCHEDULE)
def notice_of_terminate(session: Session) -> None:
    _notice(session, "Terminate", 5 * _MINUTE, 15 * _MINUTE)


# --- The incarnation ------------------------------------------------------------------------------


def _counted(earlier: Snapshot, later: Snapshot, what: str) -> None:
    """Hold a single change to one step of the incarnation."""
    if changes(earlier, later) != 1:
        raise Skip("more than one event changed at that moment")
    step = later.number - earlier.number
    right = f"DocumentIncarnation {earlier.number + 1}: one more, because an event {what}"
    later.reply.must(step == 1, right, came=f"DocumentIncarnation {later.incarnation}")


@rules("addition-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event is added.", Need.SCHEDULE)
def addition_counts(session: Session) -> None:
    course = by_approval(session)
    _counted(course.before, course.told, "was added")


@rules("start-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event starts.", Need.SCHEDULE)
def start_counts(session: Session) -> None:
    course = by_approval(session)
    if course.started is None:
        raise Skip("it was not seen to start; see life/starts-when-approved")
    _counted(course.told, course.started, "has started")


@rules("unchanged-is-equal", Mark.DOCUMENTED, "While nothing happens the document stays the same.")
def unchanged_is_equal(session: Session) -> None:
    first = session.look()
    second = session.look()
    if changes(first, second):
        raise Skip("something happened in between")
    second.reply.must(first.reply.body == second.reply.body, f"the same as just before: {cut(first.reply.shown)}")


# --- Approval and cancellation --------------------------------------------------------------------


@rules(
    "starts-when-approved",
    Mark.DOCUMENTED,
    "A scheduled event that is approved starts, long before NotBefore.",
    Need.SCHEDULE,
)
def starts_when_approved(session: Session) -> None:
    course = by_approval(session)
    last = course.looks[-1]
    last.reply.must(course.started is not None, f"{course.event_id} Started, since it was approved")


@rules("cancelled-is-removed", Mark.DOCUMENTED, "An event that is cancelled disappears.", Need.SCHEDULE, Need.CANCEL)
def cancelled_is_removed(session: Session) -> None:
    course = withdrawn(session)
    last = course.looks[-1]
    last.reply.must(course.over is not None, f"a document without {course.event_id}, which was cancelled")


@rules(
    "cancellation-counts",
    Mark.DOCUMENTED,
    "DocumentIncarnation goes up by one when an event is cancelled.",
    Need.SCHEDULE,
    Need.CANCEL,
)
def cancellation_counts(session: Session) -> None:
    course = withdrawn(session)
    if course.over is None:
        raise Skip("it has not disappeared; see life/cancelled-is-removed")
    _counted(course.told, course.over, "was removed")


@rules(
    "shared-hardware-waits",
    Mark.DOCUMENTED,
    "On shared hardware the start waits until every scope on it has approved.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def shared_hardware_waits(session: Session) -> None:
    course = shared(session)
    right = "still Scheduled, since the other scope on the hardware has not approved"
    course.after_one.reply.must(course.after_one.status(course.here) == SCHEDULED, right)
    right = "Started, since both scopes have approved"
    course.after_both.reply.must(course.after_both.status(course.here) == STARTED, right)


@rules(
    "approval-alone-changes-nothing",
    Mark.ASSUMED,
    "An approval that starts nothing yet changes nothing in the document, the incarnation included.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def approval_alone_changes_nothing(session: Session) -> None:
    course = shared(session)
    if course.after_one.status(course.here) != SCHEDULED:
        raise Skip("the approval started it; see life/shared-hardware-waits")
    right = f"the same as before the approval: {cut(course.told.reply.shown)}"
    course.after_one.reply.must(course.after_one.reply.body == course.told.reply.body, right)


@rules(
    "deletions-go-together",
    Mark.DOCUMENTED,
    "Of deletions told for the same moment, one that is approved waits for the others.",
    Need.SCHEDULE,
)
def deletions_go_together(session: Session) -> None:
    course = deletions(session)
    right = f"{course.first} still Scheduled, since {course.second} is not approved"
    course.after_one.reply.must(course.after_one.status(course.first) == SCHEDULED, right)
    for event_id in (course.first, course.second):
        right = f"{event_id} Started, since both are approved"
        course.after_both.reply.must(course.after_both.status(event_id) == STARTED, right)


# --- In the course of time ------------------------------------------------------------------------

_IN_TIME = (Need.SCHEDULE, Need.TIME)


@rules("never-early", Mark.DOCUMENTED, "Without approval an event does not start before NotBefore.", *_IN_TIME)
def never_early(session: Session) -> None:
    course = by_time(session)
    for snapshot in course.looks:
        event = snapshot.event(course.event_id)
        not_before = moment((course.told.event(course.event_id) or {}).get("NotBefore"))
        if event is None or not_before is None or snapshot.now is None or snapshot.now >= not_before:
            continue
        right = f"Scheduled until {(course.told.event(course.event_id) or {}).get('NotBefore')}"
        came = f"{event.get('EventStatus')} at {snapshot.reply.header('date')}"
        snapshot.reply.must(event.get("EventStatus") == SCHEDULED, right, came=came)


@rules("starts-at-not-before", Mark.DOCUMENTED, "At NotBefore an event starts, approved or not.", *_IN_TIME)
def starts_at_not_before(session: Session) -> None:
    course = by_time(session)
    last = course.due or course.looks[-1]
    came = f"{last.status(course.event_id) or 'no such event'} at {last.reply.header('date')}"
    last.reply.must(course.started is not None, f"{course.event_id} Started", came=came)


@rules("id-stays", Mark.DOCUMENTED, "The id of an event is the same from its notice to its end.", *_IN_TIME)
def id_stays(session: Session) -> None:
    course = by_time(session)
    for earlier, later in pairwise(course.looks):
        if earlier.event(course.event_id) is None:
            break
        new = later.ids - earlier.ids
        gone = later.event(course.event_id) is None
        right = f"the event under its id {course.event_id}"
        later.reply.must(not (gone and new), right, came=f"EventId {', '.join(sorted(new))} instead")


@rules("not-before-never-back", Mark.DOCUMENTED, "NotBefore never moves backwards.", *_IN_TIME)
def not_before_never_back(session: Session) -> None:
    course = by_time(session)
    found = [(snapshot, moment((snapshot.event(course.event_id) or {}).get("NotBefore"))) for snapshot in course.looks]
    known = [(snapshot, not_before) for snapshot, not_before in found if not_before is not None]
    for (_, earlier), (snapshot, later) in pairwise(known):
        snapshot.reply.must(later >= earlier, f"NotBefore {earlier} or later", came=f"NotBefore {later}")


@rules("resources-stay", Mark.ASSUMED, "Resources do not change while an event lives.", *_IN_TIME)
def resources_stay(session: Session) -> None:
    course = by_time(session)
    names = (course.told.event(course.event_id) or {}).get("Resources")
    for snapshot in course.looks:
        event = snapshot.event(course.event_id)
        right = f"Resources {names}"
        snapshot.reply.must(event is None or event.get("Resources") == names, right, came=cut(str(event)))


@rules(
    "removed-in-the-end",
    Mark.DOCUMENTED,
    "An event that is over is not in the document any more; nothing is ever Completed.",
    *_IN_TIME,
)
def removed_in_the_end(session: Session) -> None:
    course = by_time(session)
    for snapshot in course.looks:
        status = snapshot.status(course.event_id)
        snapshot.reply.must(status in (None, SCHEDULED, STARTED), "Scheduled, Started, or not there", came=str(status))
    last = course.looks[-1]
    last.reply.must(course.over is not None, "a document without the event, hours after it started")


@rules("removal-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event is removed.", *_IN_TIME)
def removal_counts(session: Session) -> None:
    course = by_time(session)
    if course.over is None:
        raise Skip("it was never removed; see life/removed-in-the-end")
    _counted(course.before_over(), course.over, "was removed")


def _have_something_happen(session: Session) -> None:
    """These rules are about all documents: one event from its notice to its start is the least to look at."""
    session.look()
    if session.has(Need.SCHEDULE):
        with suppress(Skip):
            by_approval(session)


@rules("incarnation-never-back", Mark.DOCUMENTED, "DocumentIncarnation does not go back while the service is enabled.")
def incarnation_never_back(session: Session) -> None:
    _have_something_happen(session)
    for (_, earlier), (_, later) in pairwise(session.snapshots):
        right = f"DocumentIncarnation {earlier.number} or more"
        later.reply.must(later.number >= earlier.number, right, came=f"DocumentIncarnation {later.number}")


@rules("equal-numbers-equal-documents", Mark.DOCUMENTED, "Equal numbers mean equal documents.")
def equal_numbers(session: Session) -> None:
    _have_something_happen(session)
    known: dict[tuple[str, int], Snapshot] = {}
    for version, snapshot in session.snapshots:
        first = known.setdefault((version, snapshot.number), snapshot)
        right = f"another DocumentIncarnation than {snapshot.number}, which was {cut(first.reply.shown)}"
        snapshot.reply.must(first.reply.body == snapshot.reply.body, right)


# --- A day without requests -----------------------------------------------------------------------


inactivity_rules = Rules(4, "life")

_A_DAY_SECONDS = 86_400 + 3_600


def _silence(session: Session) -> None:
    """Let more than a day pass without a request; what was seen before counts no more."""
    session.pass_time(_A_DAY_SECONDS)
    session.snapshots.clear()


def _disabled(session: Session) -> tuple[Snapshot, Snapshot]:
    """The last document before a day of silence, and the first after it."""
    if session.look().incarnation == 0:
        if not session.has(Need.SCHEDULE):
            raise Skip(f"the incarnation is 0 already: give {Need.SCHEDULE}")
        session.schedule_any(*TYPES)
    session.clear()
    before = session.look()
    _silence(session)
    return before, session.look()


@inactivity_rules(
    "silence-restarts",
    Mark.OBSERVED,
    "After a day without a GET the service is disabled; the next GET enables it anew, and the incarnation begins at 0.",
    Need.ADVANCE,
    late=True,
)
def silence_restarts(session: Session) -> None:
    before, after = session.once("silence", _disabled)
    came = f"DocumentIncarnation {after.incarnation}, which was {before.incarnation} before"
    after.reply.must(after.incarnation == 0 or bool(after.events), "DocumentIncarnation 0", came=came)


@inactivity_rules(
    "silence-no-notice",
    Mark.DOCUMENTED,
    "While the service is disabled, nothing is told: an operation of that time is not in the document.",
    Need.SCHEDULE,
    Need.ADVANCE,
    late=True,
)
def silence_no_notice(session: Session) -> None:
    session.once("silence", _disabled)
    _silence(session)
    session.hooks.run(session.hooks.schedule, FOREWARN_EVENT_TYPE="Reboot", FOREWARN_VM=session.vm)
    snapshot = session.look()
    told = [event for event in snapshot.events if event.get("EventStatus") == SCHEDULED]
    snapshot.reply.must(not told, "no notice of what was asked for while nobody listened")


@inactivity_rules(
    "tag-names-the-enabling",
    Mark.ASSUMED,
    "The ETag names the enabling too: one from before a silence does not match, though the incarnation is the same.",
    Need.ADVANCE,
    late=True,
)
def tag_names_the_enabling(session: Session) -> None:
    session.once("silence", _disabled)
    tag = session.look().reply.header("etag") or '"0"'
    _silence(session)
    read(session.here.ask(headers=(*TRUE, ("If-None-Match", tag))))
