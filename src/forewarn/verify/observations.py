"""What several checks judge: the course of an event from notice to end, and the documents of a run.

Each course runs once.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from forewarn.verify.check import Departure, Need, Skip
from forewarn.verify.endpoint import NEWEST, PATH
from forewarn.verify.session import TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, Snapshot, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.endpoint import Endpoint
    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot


_STEP_SECONDS = 300
_LONGEST_STEPS = 24
"""How long an event may stay Started before it counts as never removed: two hours, twelve times the median."""


@dataclass
class Course:
    """The documents in which one event was seen."""

    event_id: str
    before: Snapshot
    told: Snapshot
    looks: list[Snapshot] = field(default_factory=list)
    """Every document since then, with the first that has it."""
    brink: Snapshot | None = None
    """The last second before NotBefore."""
    due: Snapshot | None = None
    """At NotBefore."""
    started: Snapshot | None = None
    over: Snapshot | None = None
    """The first without it."""
    answer: Reply | None = None
    """To the approval."""

    def before_over(self) -> Snapshot:
        """The last document with it."""
        return [snapshot for snapshot in self.looks if snapshot.event(self.event_id) is not None][-1]


def _told(session: Session, *types: str) -> Course:
    session.clear()
    before, told, event_id = session.schedule_any(*types)
    if told.status(event_id) != SCHEDULED:
        raise Skip("the event that was made is Started already, so its beginning cannot be seen")
    return Course(event_id, before, told, [told])


def by_time(session: Session) -> Course:
    """An event that nobody approves, from the notice to its end."""
    return session.once("by time", _by_time)


def _by_time(session: Session) -> Course:
    course = _told(session, "Reboot", "Redeploy", "Freeze", "Terminate", "Preempt")
    left = session.notice_left(course.told, course.event_id)
    if not session.hooks.advance and left > session.patience_seconds:
        raise Skip(f"its notice is {left:.0f} s: give {Need.ADVANCE}, or --patience {left + 60:.0f}s or more")

    def started(snapshot: Snapshot) -> bool:
        return snapshot.status(course.event_id) != SCHEDULED

    session.pass_time(left // 2)
    course.looks.append(session.look())
    left = session.notice_left(course.looks[-1], course.event_id) if not started(course.looks[-1]) else 0
    if left > 1:
        session.pass_time(left - 1)
        course.brink = session.look()
        course.looks.append(course.brink)
        left = 1
    session.pass_time(left, started)
    course.due = session.look_for(started)
    course.looks.append(course.due)
    if course.due.status(course.event_id) == STARTED:
        course.started = course.due
    for _ in range(_LONGEST_STEPS):
        if course.looks[-1].event(course.event_id) is None:
            course.over = course.looks[-1]
            break
        session.pass_time(_STEP_SECONDS, lambda snapshot: snapshot.event(course.event_id) is None)
        course.looks.append(session.look())
    return course


def by_approval(session: Session) -> Course:
    """An event that is approved long before it is due."""
    return session.once("by approval", _by_approval)


def _by_approval(session: Session) -> Course:
    course = _told(session, "Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    course.answer = session.approve(course.event_id)
    snapshot = session.look_for(lambda snapshot: snapshot.status(course.event_id) != SCHEDULED)
    course.looks.append(snapshot)
    if snapshot.status(course.event_id) == STARTED:
        course.started = snapshot
    return course


def withdrawn(session: Session) -> Course:
    """An event that is cancelled while it is scheduled."""
    return session.once("withdrawn", _withdrawn)


def _withdrawn(session: Session) -> Course:
    event_id = session.waiting()
    told = session.look()
    course = Course(event_id, told, told, [told])
    session.cancel(event_id)
    snapshot = session.look_for(lambda snapshot: snapshot.event(event_id) is None)
    course.looks.append(snapshot)
    if snapshot.event(event_id) is None:
        course.over = snapshot
    return course


@dataclass
class SharedCourse:
    """The documents of a Freeze of hardware that two scopes share."""

    here: str
    there: str
    told: Snapshot
    after_one: Snapshot
    """The document here when it was approved here alone."""
    after_both: Snapshot


def shared(session: Session) -> SharedCourse:
    """A Freeze of hardware on which a VM of another scope is too."""
    return session.once("shared", _shared)


def _shared(session: Session) -> SharedCourse:
    assert session.outside is not None  # noqa: S101 - the check says that it needs it
    session.clear()
    known = session.look(place=session.outside).ids
    _, _, here = session.schedule("Freeze")
    theirs = session.look(place=session.outside)
    there = min(theirs.ids - known, default=None)
    if there is None:
        raise Skip("no VM of --outside is told of the Freeze: have the command freeze hardware that both are on")
    told = session.look()
    session.approve(here)
    after_one = session.look()
    session.approve(there, place=session.outside)
    after_both = session.look_for(lambda snapshot: snapshot.status(here) != SCHEDULED)
    return SharedCourse(here, there, told, after_one, after_both)


@dataclass
class DeletionCourse:
    """The documents of two Terminates with the same NotBefore."""

    first: str
    second: str
    after_one: Snapshot
    """When the first alone was approved."""
    after_both: Snapshot


def deletions(session: Session) -> DeletionCourse:
    """Two Terminates of one scope, approved one after the other."""
    return session.once("deletions", _deletions)


def _deletions(session: Session) -> DeletionCourse:
    session.clear()
    _, _, first = session.schedule("Terminate")
    _, told, second = session.schedule("Terminate")
    moments = [(told.event(event_id) or {}).get("NotBefore") for event_id in (first, second)]
    if moments[0] != moments[1] or not moments[0]:
        raise Skip("the two Terminates that were made are not told for the same moment")
    session.approve(first)
    after_one = session.look()
    session.approve(second)
    after_both = session.look_for(lambda snapshot: snapshot.status(second) != SCHEDULED)
    return DeletionCourse(first, second, after_one, after_both)


def changes(earlier: Snapshot, later: Snapshot) -> int:
    """How many events were added, removed, or have another status."""
    known = {str(event.get("EventId")): event.get("EventStatus") for event in earlier.events}
    now = {str(event.get("EventId")): event.get("EventStatus") for event in later.events}
    return sum(known.get(event_id) != now.get(event_id) for event_id in known.keys() | now.keys())


# --- Members of an event --------------------------------------------------------------------------


FIRST_MEMBERS = ("EventId", "EventStatus", "EventType", "ResourceType", "Resources", "NotBefore")
MEMBERS = {
    "2017-03-01": FIRST_MEMBERS,
    "2017-08-01": FIRST_MEMBERS,
    "2017-11-01": FIRST_MEMBERS,
    "2019-01-01": FIRST_MEMBERS,
    "2019-04-01": (*FIRST_MEMBERS, "Description"),
    "2019-08-01": (*FIRST_MEMBERS, "Description", "EventSource"),
    "2020-07-01": (*FIRST_MEMBERS, "Description", "EventSource", "DurationInSeconds"),
}
"""What an event has in each version, in the order of the wire."""
SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
"""The types that older versions do not show, by the first version that does."""


# --- One document in every version ----------------------------------------------------------------


def in_all_versions(session: Session, event_type: str = "") -> dict[str, Snapshot]:
    """One document with events, as every version shows it; with an event of this type, if one is given."""

    def walk(session: Session) -> dict[str, Snapshot]:
        if event_type:
            session.sample(event_type)
        else:
            _make(session, "Freeze", "Redeploy", "Reboot")
            session.told()
        for _ in range(3):  # a change in between spoils it; a server under test is not that busy
            seen = {version: session.look(version) for version in MEMBERS}
            if session.look().reply.body == seen[NEWEST].reply.body:
                break
        return seen

    return session.once(f"in all versions {event_type}", walk)


def each_in_all_versions(session: Session) -> Iterator[dict[str, Snapshot]]:
    """The same for a document with each of the later types that the server can make, too."""
    yield in_all_versions(session)
    for event_type in SINCE if session.has(Need.SCHEDULE) else ():
        with suppress(Skip):
            yield in_all_versions(session, event_type)


# --- All documents --------------------------------------------------------------------------------


def replies(session: Session) -> list[tuple[str, Reply]]:
    """Every answer with a document, by version: of each version, and of each VM that can be asked."""
    for version in MEMBERS.keys() - {version for version, _ in _replies(session.here)}:
        session.look(version)
    for place in session.places:
        if not _replies(place):
            session.look(place=place)
    return [found for place in session.places for found in _replies(place)]


def _replies(place: Endpoint) -> list[tuple[str, Reply]]:
    found = []
    for reply in place.answers:
        parts = urlsplit(reply.request.target)
        version = parse_qs(parts.query).get("api-version", [""])[0]
        if reply.request.method == "GET" and parts.path.lower() == PATH and reply.status == 200 and version in MEMBERS:
            found.append((version, reply))
    return found


def documents(session: Session) -> list[tuple[str, Snapshot]]:
    """The documents in them, each once; what cannot be read as one is left to document/events-array."""
    found = []
    for version, reply in {(version, reply.body): (version, reply) for version, reply in replies(session)}.values():
        with suppress(Departure):
            found.append((version, read(reply)))
    return found


def with_events(session: Session) -> list[tuple[str, Snapshot]]:
    """The documents with events: of every type that the server can make, and some of them Started."""
    if session.has(Need.SCHEDULE):
        _make(session, *reversed(TYPES))
        for course in (by_approval, *([shared] if session.outside else [])):
            with suppress(Skip, Departure):  # other checks say what is wrong with it
                course(session)
    found = [(version, snapshot) for version, snapshot in documents(session) if snapshot.events]
    return found or [(NEWEST, session.told())]


def _make(session: Session, *types: str) -> None:
    """Make an event of each type, if the server can. A server that has one event at a time keeps the last."""
    for event_type in types if session.has(Need.SCHEDULE) else ():
        with suppress(Skip):
            session.sample(event_type)
