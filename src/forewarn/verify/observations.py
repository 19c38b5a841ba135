"""Observations that several checks judge: the course of an event, and all documents of a run.

Each observation is made once per run.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from forewarn.verify.check import CheckFailed, CheckSkipped, EventMissing, Requirement
from forewarn.verify.endpoint import NEWEST, PATH, target_for
from forewarn.verify.session import EVENT_TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, Snapshot, read

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.endpoint import TargetEndpoint
    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session


_STEP_SECONDS = 300
_MAX_STEPS = 24
"""An event that is still Started after this many steps counts as never removed. That is two hours, twelve times the
median."""


@dataclass
class ObservedEvent:
    """The documents in which one event was observed."""

    event_id: str
    before: Snapshot
    """The last document without it."""
    first: Snapshot
    """The first document with it."""
    snapshots: list[Snapshot] = field(default_factory=list)
    """`first` and every later document."""
    at_not_before: Snapshot | None = None
    started: Snapshot | None = None
    """The first document in which it is Started."""
    removed: Snapshot | None = None
    """The first document after it was removed."""

    @property
    def replaced(self) -> bool:
        """Whether an event with another id appeared when this one disappeared."""
        gone = next((snapshot for snapshot in self.snapshots if snapshot.event(self.event_id) is None), None)
        return gone is not None and bool(gone.ids - self.last_present().ids)

    def last_present(self) -> Snapshot:
        """Return the last document that contains it."""
        return [snapshot for snapshot in self.snapshots if snapshot.event(self.event_id) is not None][-1]


def _schedule(session: Session, *types: str) -> ObservedEvent:
    session.cancel_scheduled()
    before, first, event_id = session.schedule_first_of(*types)
    if first.status(event_id) != SCHEDULED:
        raise CheckSkipped("the new event is Started already, so its start cannot be observed")
    return ObservedEvent(event_id, before, first, [first])


def observe_until_removed(session: Session) -> ObservedEvent:
    """Observe an event that is not approved, from its notice to its removal."""
    return session.cached("until removed", _observe_until_removed)


def _observe_until_removed(session: Session) -> ObservedEvent:
    observed = _schedule(session, "Reboot", "Redeploy", "Freeze", "Terminate", "Preempt")
    notice = session.remaining_notice(observed.first, observed.event_id)
    if not session.hooks.advance and notice > session.max_wait_seconds:
        raise CheckSkipped(
            f"the notice is {notice:.0f} s: give {Requirement.ADVANCE}, or --max-wait {notice + 60:.0f}s or more"
        )

    def not_scheduled(snapshot: Snapshot) -> bool:
        return snapshot.status(observed.event_id) != SCHEDULED

    session.advance(notice // 2)
    halfway = session.poll()
    observed.snapshots.append(halfway)
    notice = 0 if not_scheduled(halfway) else session.remaining_notice(halfway, observed.event_id)
    if notice > 1:
        session.advance(notice - 1)
        observed.snapshots.append(session.poll())
        notice = 1
    session.advance(notice, not_scheduled)
    observed.at_not_before = session.poll_until(not_scheduled)
    observed.snapshots.append(observed.at_not_before)
    if observed.at_not_before.status(observed.event_id) == STARTED:
        observed.started = observed.at_not_before
    for _ in range(_MAX_STEPS):
        if observed.snapshots[-1].event(observed.event_id) is None:
            observed.removed = observed.snapshots[-1]
            break
        session.advance(_STEP_SECONDS, lambda snapshot: snapshot.event(observed.event_id) is None)
        observed.snapshots.append(session.poll())
    return observed


def observe_approved(session: Session) -> ObservedEvent:
    """Observe an event that is approved long before NotBefore, up to its start."""
    return session.cached("approved", _observe_approved)


def _observe_approved(session: Session) -> ObservedEvent:
    observed = _schedule(session, "Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    session.approve(observed.event_id)
    snapshot = session.poll_until(lambda snapshot: snapshot.status(observed.event_id) != SCHEDULED)
    observed.snapshots.append(snapshot)
    if snapshot.status(observed.event_id) == STARTED:
        observed.started = snapshot
    return observed


def observe_approved_end(session: Session) -> str:
    """Return the id of an event that was approved, and that the server has removed since."""
    return session.cached("approved end", _observe_approved_end)


def _observe_approved_end(session: Session) -> str:
    session.cancel_scheduled()
    event_id = session.approved_event()
    for _ in range(_MAX_STEPS):
        if session.poll().event(event_id) is None:
            return event_id
        session.advance(_STEP_SECONDS, lambda snapshot: snapshot.event(event_id) is None)
    raise CheckSkipped("the approved event was not removed; see life/removed-when-complete")


def observe_cancelled(session: Session) -> ObservedEvent:
    """Observe an event that is cancelled while it is Scheduled."""
    return session.cached("cancelled", _observe_cancelled)


def _observe_cancelled(session: Session) -> ObservedEvent:
    event_id = session.unapproved_event()
    first = session.poll()
    observed = ObservedEvent(event_id, first, first, [first])
    session.cancel(event_id)
    snapshot = session.poll_until(lambda snapshot: snapshot.event(event_id) is None)
    observed.snapshots.append(snapshot)
    if snapshot.event(event_id) is None:
        observed.removed = snapshot
    return observed


@dataclass
class ObservedSharedFreeze:
    """A Freeze of hardware that two groups share. All documents are those of the first group."""

    event_id: str
    before_approval: Snapshot
    after_one: Snapshot
    """After the approval of the first group."""
    after_both: Snapshot


def observe_shared_freeze(session: Session) -> ObservedSharedFreeze:
    """Observe a Freeze that also affects a VM of another group. Both groups approve it, one after the other."""
    return session.cached("shared freeze", _observe_shared_freeze)


def _observe_shared_freeze(session: Session) -> ObservedSharedFreeze:
    assert session.other_group is not None  # noqa: S101 - the check requires it
    session.cancel_scheduled()
    known = session.poll(endpoint=session.other_group).ids
    _, _, event_id = session.schedule("Freeze")
    theirs = session.poll(endpoint=session.other_group)
    their_id = min(theirs.ids - known, default=None)
    if their_id is None:
        raise CheckSkipped(
            "--other-group shows no Freeze: the schedule command must freeze hardware that both VMs share"
        )
    before_approval = session.poll()
    session.approve(event_id)
    after_one = session.poll()
    session.approve(their_id, endpoint=session.other_group)
    after_both = session.poll_until(lambda snapshot: snapshot.status(event_id) != SCHEDULED)
    return ObservedSharedFreeze(event_id, before_approval, after_one, after_both)


@dataclass
class ObservedTerminates:
    """Two Terminates with the same NotBefore."""

    first: str
    second: str
    after_one: Snapshot
    """After the approval of the first."""
    after_both: Snapshot


def observe_terminates(session: Session) -> ObservedTerminates:
    """Observe two Terminates of one group that are approved one after the other."""
    return session.cached("terminates", _observe_terminates)


def _observe_terminates(session: Session) -> ObservedTerminates:
    session.cancel_scheduled()
    _, _, first = session.schedule("Terminate")
    _, snapshot, second = session.schedule("Terminate")
    times = [(snapshot.event(event_id) or {}).get("NotBefore") for event_id in (first, second)]
    if times[0] != times[1] or not times[0]:
        raise CheckSkipped("the two new Terminates do not have the same NotBefore")
    session.approve(first)
    after_one = session.poll()
    session.approve(second)
    after_both = session.poll_until(lambda snapshot: snapshot.status(second) != SCHEDULED)
    return ObservedTerminates(first, second, after_one, after_both)


def count_changes(earlier: Snapshot, later: Snapshot) -> int:
    """Count the events that were added, were removed or changed their status."""
    old = {str(event.get("EventId")): event.get("EventStatus") for event in earlier.events}
    new = {str(event.get("EventId")): event.get("EventStatus") for event in later.events}
    return sum(old.get(event_id) != new.get(event_id) for event_id in old.keys() | new.keys())


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
"""Members of an event in each api-version, in wire order."""
SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01"}
"""Event types that older api-versions do not show: type to its first version."""


# --- Recommendations ------------------------------------------------------------------------------


PREVIEW, RECOMMENDATION = "2024-07-09", "SpotRebalanceRecommendation"
"""The preview version, and the event type that only this version shows."""


def serves_preview(session: Session) -> bool:
    """Return whether the server serves the preview version."""
    return session.endpoint.request(target=target_for(PREVIEW)).status == 200


def schedule_recommendation(session: Session) -> tuple[Snapshot, str]:
    """Schedule a recommendation. Return the first document of the preview version with it, and its id."""

    def schedule(session: Session) -> tuple[Snapshot, str]:
        if not serves_preview(session):
            raise CheckSkipped(f"the server does not serve the preview version {PREVIEW}")
        try:
            _, snapshot, event_id = session.schedule(RECOMMENDATION, PREVIEW)
        except EventMissing as missing:  # a server can know the version and not the type
            raise CheckSkipped(f"the document at {PREVIEW} shows no new {RECOMMENDATION}") from missing
        return snapshot, event_id

    return session.cached("recommendation", schedule)


# --- One document in every version ----------------------------------------------------------------


def poll_all_versions(session: Session, event_type: str = "") -> dict[str, Snapshot]:
    """Return one document with events in every api-version. It has an event of this type, if one is given."""

    def poll(session: Session) -> dict[str, Snapshot]:
        if event_type:
            session.sample(event_type)
        else:
            _schedule_each(session, "Freeze", "Redeploy", "Reboot")
            session.document_with_events()
        for _ in range(3):  # the document may change in between
            snapshots = {version: session.poll(version) for version in MEMBERS}
            if session.poll().response.body == snapshots[NEWEST].response.body:
                break
        return snapshots

    return session.cached(f"all versions {event_type}", poll)


def each_poll_of_all_versions(session: Session) -> Iterator[dict[str, Snapshot]]:
    """Yield the result of `poll_all_versions`, also with a Preempt and a Terminate if they can be scheduled."""
    yield poll_all_versions(session)
    for event_type in SINCE if session.has(Requirement.SCHEDULE) else ():
        with suppress(CheckSkipped):
            yield poll_all_versions(session, event_type)


# --- All documents --------------------------------------------------------------------------------


def document_responses(session: Session) -> list[tuple[str, HttpResponse]]:
    """Return every response with a document, with its api-version. Poll each version and endpoint at least once."""
    for version in MEMBERS.keys() - {version for version, _ in _document_responses(session.endpoint)}:
        with suppress(CheckFailed):  # versions/all-served reports it
            session.poll(version)
    for endpoint in session.endpoints:
        if not _document_responses(endpoint):
            session.poll(endpoint=endpoint)
    return [found for endpoint in session.endpoints for found in _document_responses(endpoint)]


def _document_responses(endpoint: TargetEndpoint) -> list[tuple[str, HttpResponse]]:
    found = []
    for response in endpoint.responses:
        request = response.request
        parts = urlsplit(request.target)
        version = parse_qs(parts.query).get("api-version", [""])[0]
        if request.method == "GET" and parts.path.lower() == PATH and response.status == 200 and version in MEMBERS:
            found.append((version, response))
    return found


def documents(session: Session) -> list[tuple[str, Snapshot]]:
    """Return each different document of the run. Bodies that are no document are left to document/events-array."""
    found = []
    different = {(version, response.body): (version, response) for version, response in document_responses(session)}
    for version, response in different.values():
        with suppress(CheckFailed):
            found.append((version, read(response)))
    return found


def documents_with_events(session: Session) -> list[tuple[str, Snapshot]]:
    """Return the documents with events: every type that can be scheduled, and some of them Started."""
    if session.has(Requirement.SCHEDULE):
        _schedule_each(session, *reversed(EVENT_TYPES))
        for observe in (observe_approved, *([observe_shared_freeze] if session.other_group else [])):
            with suppress(CheckSkipped, CheckFailed):  # other checks report these
                observe(session)
    found = [(version, snapshot) for version, snapshot in documents(session) if snapshot.events]
    return found or [(NEWEST, session.document_with_events())]


def _schedule_each(session: Session, *types: str) -> None:
    """Schedule an event of each type, if possible. A server that holds one event at a time keeps the last one."""
    for event_type in types if session.has(Requirement.SCHEDULE) else ():
        with suppress(CheckSkipped):
            session.sample(event_type)
