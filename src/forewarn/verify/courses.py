"""Courses of events, each gone through once: what was seen on the way is what several checks judge."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from forewarn.verify.check import Need, Skip
from forewarn.verify.sight import SCHEDULED, STARTED

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply
    from forewarn.verify.sight import Sight
    from forewarn.verify.stage import Stage

_STEP_SECONDS = 300
_LONGEST_STEPS = 24
"""How long an event may stay Started before it counts as never removed: two hours, twelve times the median."""


@dataclass
class Course:
    """What was seen of one event."""

    event_id: str
    before: Sight
    told: Sight
    looks: list[Sight] = field(default_factory=list)
    """Every document since then, the first with it included."""
    brink: Sight | None = None
    """The last second before NotBefore."""
    due: Sight | None = None
    """At NotBefore."""
    started: Sight | None = None
    over: Sight | None = None
    """The first without it."""
    answer: Reply | None = None
    """To the approval."""

    def before_over(self) -> Sight:
        """The last document with it."""
        return [sight for sight in self.looks if sight.event(self.event_id) is not None][-1]


def _told(stage: Stage, *types: str) -> Course:
    stage.clear()
    before, told, event_id = stage.schedule_any(*types)
    if told.status(event_id) != SCHEDULED:
        raise Skip("the event that was made is Started already, so its beginning cannot be seen")
    return Course(event_id, before, told, [told])


def by_time(stage: Stage) -> Course:
    """An event that nobody approves, from the notice to its end."""
    return stage.once("by time", _by_time)


def _by_time(stage: Stage) -> Course:
    course = _told(stage, "Reboot", "Redeploy", "Freeze", "Terminate", "Preempt")
    left = stage.notice_left(course.told, course.event_id)
    if not stage.hooks.advance and left > stage.patience_seconds:
        raise Skip(f"its notice is {left:.0f} s: give {Need.ADVANCE}, or --patience {left + 60:.0f}s or more")

    def started(sight: Sight) -> bool:
        return sight.status(course.event_id) != SCHEDULED

    stage.pass_time(left // 2)
    course.looks.append(stage.look())
    left = stage.notice_left(course.looks[-1], course.event_id) if not started(course.looks[-1]) else 0
    if left > 1:
        stage.pass_time(left - 1)
        course.brink = stage.look()
        course.looks.append(course.brink)
        left = 1
    stage.pass_time(left, started)
    course.due = stage.look_for(started)
    course.looks.append(course.due)
    if course.due.status(course.event_id) == STARTED:
        course.started = course.due
    for _ in range(_LONGEST_STEPS):
        if course.looks[-1].event(course.event_id) is None:
            course.over = course.looks[-1]
            break
        stage.pass_time(_STEP_SECONDS, lambda sight: sight.event(course.event_id) is None)
        course.looks.append(stage.look())
    return course


def by_approval(stage: Stage) -> Course:
    """An event that is approved long before it is due."""
    return stage.once("by approval", _by_approval)


def _by_approval(stage: Stage) -> Course:
    course = _told(stage, "Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    course.answer = stage.approve(course.event_id)
    sight = stage.look_for(lambda sight: sight.status(course.event_id) != SCHEDULED)
    course.looks.append(sight)
    if sight.status(course.event_id) == STARTED:
        course.started = sight
    return course


def withdrawn(stage: Stage) -> Course:
    """An event that is cancelled while it is scheduled."""
    return stage.once("withdrawn", _withdrawn)


def _withdrawn(stage: Stage) -> Course:
    event_id = stage.waiting()
    told = stage.look()
    course = Course(event_id, told, told, [told])
    stage.cancel(event_id)
    sight = stage.look_for(lambda sight: sight.event(event_id) is None)
    course.looks.append(sight)
    if sight.event(event_id) is None:
        course.over = sight
    return course


@dataclass
class SharedCourse:
    """What was seen of work on hardware that two scopes share."""

    here: str
    there: str
    told: Sight
    after_one: Sight
    """The document here when it was approved here alone."""
    after_both: Sight


def shared(stage: Stage) -> SharedCourse:
    """A Freeze of hardware on which a VM of another scope is too."""
    return stage.once("shared", _shared)


def _shared(stage: Stage) -> SharedCourse:
    assert stage.outside is not None  # noqa: S101 - the check says that it needs it
    stage.clear()
    known = stage.look(place=stage.outside).ids
    _, _, here = stage.schedule("Freeze")
    theirs = stage.look(place=stage.outside)
    there = min(theirs.ids - known, default=None)
    if there is None:
        raise Skip("no VM of --outside is told of the Freeze: have the command freeze hardware that both are on")
    told = stage.look()
    stage.approve(here)
    after_one = stage.look()
    stage.approve(there, place=stage.outside)
    after_both = stage.look_for(lambda sight: sight.status(here) != SCHEDULED)
    return SharedCourse(here, there, told, after_one, after_both)


@dataclass
class DeletionCourse:
    """What was seen of two deletions told for the same moment."""

    first: str
    second: str
    after_one: Sight
    """When the first alone was approved."""
    after_both: Sight


def deletions(stage: Stage) -> DeletionCourse:
    """Two Terminates of one scope, approved one after the other."""
    return stage.once("deletions", _deletions)


def _deletions(stage: Stage) -> DeletionCourse:
    stage.clear()
    _, _, first = stage.schedule("Terminate")
    _, told, second = stage.schedule("Terminate")
    moments = [(told.event(event_id) or {}).get("NotBefore") for event_id in (first, second)]
    if moments[0] != moments[1] or not moments[0]:
        raise Skip("the two Terminates that were made are not told for the same moment")
    stage.approve(first)
    after_one = stage.look()
    stage.approve(second)
    after_both = stage.look_for(lambda sight: sight.status(second) != SCHEDULED)
    return DeletionCourse(first, second, after_one, after_both)


def changes(earlier: Sight, later: Sight) -> int:
    """How many events were added, removed, or have another status."""
    known = {str(event.get("EventId")): event.get("EventStatus") for event in earlier.events}
    now = {str(event.get("EventId")): event.get("EventStatus") for event in later.events}
    return sum(known.get(event_id) != now.get(event_id) for event_id in known.keys() | now.keys())
