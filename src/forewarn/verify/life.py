"""Section 4 of the contract: the life of an event."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from forewarn.verify.check import Departure, Mark, Need, NotTold, Rules, Skip
from forewarn.verify.courses import by_approval, by_time, changes, deletions, shared, withdrawn
from forewarn.verify.exchange import cut
from forewarn.verify.sight import SCHEDULED, STARTED, moment
from forewarn.verify.stage import TYPES

if TYPE_CHECKING:
    from forewarn.verify.sight import Sight
    from forewarn.verify.stage import Stage

rules = Rules(4, "life")

_MINUTE = 60


@rules("told", Mark.DOCUMENTED, "What is going to happen to a VM is in its document, as Scheduled.", Need.SCHEDULE)
def told(stage: Stage) -> None:
    try:
        _, sight, event_id = stage.schedule_any(*TYPES)
    except NotTold:
        sight = stage.look()
        raise Departure("a new event", sent=sight.reply.request.shown, came=sight.reply.shown) from None
    sight.reply.must(sight.status(event_id) == SCHEDULED, "an event that is Scheduled")


# --- Notice -----------------------------------------------------------------------------------------


def _notice(stage: Stage, event_type: str, least: int, most: int | None = None) -> None:
    before, sight, event_id = stage.sample(event_type)
    if sight.status(event_id) != SCHEDULED:
        raise Skip(f"the {event_type} that was made was Started at once")
    # It was told between the two documents: the least counts from the one, the most from the other.
    longest, shortest = stage.notice_left(sight, event_id, before), stage.notice_left(sight, event_id)
    right = f"NotBefore {least} s or more after it was told" + (f", at most {most} s" if most else "")
    came = f"NotBefore {longest:.0f} s after the Date of the last document without it"
    sight.reply.must(longest >= least and (most is None or shortest <= most + 1), right, came=came)


@rules("notice-of-freeze", Mark.DOCUMENTED, "A Freeze is told 15 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_freeze(stage: Stage) -> None:
    _notice(stage, "Freeze", 15 * _MINUTE)


@rules("notice-of-reboot", Mark.DOCUMENTED, "A Reboot is told 15 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_reboot(stage: Stage) -> None:
    _notice(stage, "Reboot", 15 * _MINUTE)


@rules("notice-of-redeploy", Mark.DOCUMENTED, "A Redeploy is told 10 minutes before, or earlier.", Need.SCHEDULE)
def notice_of_redeploy(stage: Stage) -> None:
    _notice(stage, "Redeploy", 10 * _MINUTE)


@rules("notice-of-preempt", Mark.DOCUMENTED, "A Preempt is told 30 seconds before, as well as can be.", Need.SCHEDULE)
def notice_of_preempt(stage: Stage) -> None:
    _notice(stage, "Preempt", 30)


@rules("notice-of-terminate", Mark.DOCUMENTED, "A Terminate is told 5 to 15 minutes before.", Need.SCHEDULE)
def notice_of_terminate(stage: Stage) -> None:
    _notice(stage, "Terminate", 5 * _MINUTE, 15 * _MINUTE)


# --- The incarnation --------------------------------------------------------------------------------


def _counted(earlier: Sight, later: Sight, what: str) -> None:
    """Hold a single change to one step of the incarnation."""
    if changes(earlier, later) != 1:
        raise Skip("more than one event changed at that moment")
    step = later.number - earlier.number
    right = f"DocumentIncarnation {earlier.number + 1}: one more, because an event {what}"
    later.reply.must(step == 1, right, came=f"DocumentIncarnation {later.incarnation}")


@rules("addition-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event is added.", Need.SCHEDULE)
def addition_counts(stage: Stage) -> None:
    course = by_approval(stage)
    _counted(course.before, course.told, "was added")


@rules("start-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event starts.", Need.SCHEDULE)
def start_counts(stage: Stage) -> None:
    course = by_approval(stage)
    if course.started is None:
        raise Skip("it was not seen to start; see life/starts-when-approved")
    _counted(course.told, course.started, "has started")


@rules("unchanged-is-equal", Mark.DOCUMENTED, "While nothing happens the document stays the same.")
def unchanged_is_equal(stage: Stage) -> None:
    first = stage.look()
    second = stage.look()
    if changes(first, second):
        raise Skip("something happened in between")
    second.reply.must(first.reply.body == second.reply.body, f"the same as just before: {cut(first.reply.shown)}")


# --- Approval and cancellation ----------------------------------------------------------------------


@rules(
    "starts-when-approved",
    Mark.DOCUMENTED,
    "A scheduled event that is approved starts, long before NotBefore.",
    Need.SCHEDULE,
)
def starts_when_approved(stage: Stage) -> None:
    course = by_approval(stage)
    last = course.looks[-1]
    last.reply.must(course.started is not None, f"{course.event_id} Started, since it was approved")


@rules("cancelled-is-removed", Mark.DOCUMENTED, "An event that is cancelled disappears.", Need.SCHEDULE, Need.CANCEL)
def cancelled_is_removed(stage: Stage) -> None:
    course = withdrawn(stage)
    last = course.looks[-1]
    last.reply.must(course.over is not None, f"a document without {course.event_id}, which was cancelled")


@rules(
    "cancellation-counts",
    Mark.DOCUMENTED,
    "DocumentIncarnation goes up by one when an event is cancelled.",
    Need.SCHEDULE,
    Need.CANCEL,
)
def cancellation_counts(stage: Stage) -> None:
    course = withdrawn(stage)
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
def shared_hardware_waits(stage: Stage) -> None:
    course = shared(stage)
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
def approval_alone_changes_nothing(stage: Stage) -> None:
    course = shared(stage)
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
def deletions_go_together(stage: Stage) -> None:
    course = deletions(stage)
    right = f"{course.first} still Scheduled, since {course.second} is not approved"
    course.after_one.reply.must(course.after_one.status(course.first) == SCHEDULED, right)
    for event_id in (course.first, course.second):
        right = f"{event_id} Started, since both are approved"
        course.after_both.reply.must(course.after_both.status(event_id) == STARTED, right)


# --- In the course of time --------------------------------------------------------------------------

_IN_TIME = (Need.SCHEDULE, Need.TIME)


@rules("never-early", Mark.DOCUMENTED, "Without approval an event does not start before NotBefore.", *_IN_TIME)
def never_early(stage: Stage) -> None:
    course = by_time(stage)
    for sight in course.looks:
        event = sight.event(course.event_id)
        not_before = moment((course.told.event(course.event_id) or {}).get("NotBefore"))
        if event is None or not_before is None or sight.now is None or sight.now >= not_before:
            continue
        right = f"Scheduled until {(course.told.event(course.event_id) or {}).get('NotBefore')}"
        came = f"{event.get('EventStatus')} at {sight.reply.header('date')}"
        sight.reply.must(event.get("EventStatus") == SCHEDULED, right, came=came)


@rules("starts-at-not-before", Mark.DOCUMENTED, "At NotBefore an event starts, approved or not.", *_IN_TIME)
def starts_at_not_before(stage: Stage) -> None:
    course = by_time(stage)
    last = course.due or course.looks[-1]
    came = f"{last.status(course.event_id) or 'no such event'} at {last.reply.header('date')}"
    last.reply.must(course.started is not None, f"{course.event_id} Started", came=came)


@rules("id-stays", Mark.DOCUMENTED, "The id of an event is the same from its notice to its end.", *_IN_TIME)
def id_stays(stage: Stage) -> None:
    course = by_time(stage)
    for earlier, later in pairwise(course.looks):
        if earlier.event(course.event_id) is None:
            break
        new = later.ids - earlier.ids
        gone = later.event(course.event_id) is None
        right = f"the event under its id {course.event_id}"
        later.reply.must(not (gone and new), right, came=f"EventId {', '.join(sorted(new))} instead")


@rules("not-before-never-back", Mark.DOCUMENTED, "NotBefore never moves backwards.", *_IN_TIME)
def not_before_never_back(stage: Stage) -> None:
    course = by_time(stage)
    found = [(sight, moment((sight.event(course.event_id) or {}).get("NotBefore"))) for sight in course.looks]
    known = [(sight, not_before) for sight, not_before in found if not_before is not None]
    for (_, earlier), (sight, later) in pairwise(known):
        sight.reply.must(later >= earlier, f"NotBefore {earlier} or later", came=f"NotBefore {later}")


@rules("resources-stay", Mark.ASSUMED, "Resources do not change while an event lives.", *_IN_TIME)
def resources_stay(stage: Stage) -> None:
    course = by_time(stage)
    names = (course.told.event(course.event_id) or {}).get("Resources")
    for sight in course.looks:
        event = sight.event(course.event_id)
        right = f"Resources {names}"
        sight.reply.must(event is None or event.get("Resources") == names, right, came=cut(str(event)))


@rules(
    "removed-in-the-end",
    Mark.DOCUMENTED,
    "An event that is over is not in the document any more; nothing is ever Completed.",
    *_IN_TIME,
)
def removed_in_the_end(stage: Stage) -> None:
    course = by_time(stage)
    for sight in course.looks:
        status = sight.status(course.event_id)
        sight.reply.must(status in (None, SCHEDULED, STARTED), "Scheduled, Started, or not there", came=str(status))
    last = course.looks[-1]
    last.reply.must(course.over is not None, "a document without the event, hours after it started")


@rules("removal-counts", Mark.DOCUMENTED, "DocumentIncarnation goes up by one when an event is removed.", *_IN_TIME)
def removal_counts(stage: Stage) -> None:
    course = by_time(stage)
    if course.over is None:
        raise Skip("it was never removed; see life/removed-in-the-end")
    _counted(course.before_over(), course.over, "was removed")


def _have_something_happen(stage: Stage) -> None:
    """These rules are about all documents: one event from its notice to its start is the least to look at."""
    stage.look()
    if stage.has(Need.SCHEDULE):
        with suppress(Skip):
            by_approval(stage)


@rules("incarnation-never-back", Mark.DOCUMENTED, "DocumentIncarnation does not go back while the service is enabled.")
def incarnation_never_back(stage: Stage) -> None:
    _have_something_happen(stage)
    for (_, earlier), (_, later) in pairwise(stage.sights):
        right = f"DocumentIncarnation {earlier.number} or more"
        later.reply.must(later.number >= earlier.number, right, came=f"DocumentIncarnation {later.number}")


@rules("equal-numbers-equal-documents", Mark.DOCUMENTED, "Equal numbers mean equal documents.")
def equal_numbers(stage: Stage) -> None:
    _have_something_happen(stage)
    known: dict[tuple[str, int], Sight] = {}
    for version, sight in stage.sights:
        first = known.setdefault((version, sight.number), sight)
        right = f"another DocumentIncarnation than {sight.number}, which was {cut(first.reply.shown)}"
        sight.reply.must(first.reply.body == sight.reply.body, right)
