"""Section 1 of the contract: api-versions of /metadata/scheduledevents."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.verify.check import CheckFailed, CheckRegistry, CheckSkipped, Mark, Requirement
from forewarn.verify.endpoint import NEWEST, target_for
from forewarn.verify.exchange import METADATA_TRUE, truncate
from forewarn.verify.observations import (
    MEMBERS,
    PREVIEW,
    RECOMMENDATION,
    SINCE,
    documents_with_events,
    each_poll_of_all_versions,
    poll_all_versions,
    schedule_recommendation,
)
from forewarn.verify.refusals import expect_error
from forewarn.verify.session import EVENT_TYPES, approval

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot

check = CheckRegistry(1, "versions")


@check("all-served", Mark.DOCUMENTED, "The server serves all seven versions from 2017-03-01 to 2020-07-01.")
def all_served(session: Session) -> None:
    try:
        poll_all_versions(session)
    except CheckSkipped:  # this check needs no events
        for version in MEMBERS:
            session.poll(version)


def _all_versions(session: Session) -> Iterator[tuple[str, Snapshot, Snapshot]]:
    """Yield each version, its document and the newest version's document of the same time."""
    for snapshots in each_poll_of_all_versions(session):
        for version, snapshot in snapshots.items():
            yield version, snapshot, snapshots[NEWEST]


@check(
    "members-per-version",
    Mark.DOCUMENTED,
    "At each api-version, an event has exactly the fields introduced in that version or earlier.",
)
def members_per_version(session: Session) -> None:
    for version, snapshot, _ in list(_all_versions(session)):
        for event in snapshot.events:
            expected = f"at {version} exactly the members {', '.join(MEMBERS[version])}"
            valid = set(event) == set(MEMBERS[version])
            snapshot.response.expect(valid, expected, actual=f"members {', '.join(event)}")


@check(
    "same-values",
    Mark.DOCUMENTED,
    "At an older api-version, the fields of an event have the same values as at the newest version.",
)
def same_values(session: Session) -> None:
    for _, snapshot, newest_snapshot in list(_all_versions(session)):
        for event in snapshot.events:
            newest = newest_snapshot.event(str(event.get("EventId"))) or {}
            for member in set(event) - {"Resources"}:
                expected = f"{member} = {newest.get(member)!r}, as at {NEWEST}"
                actual = f"{member} = {event[member]!r}"
                snapshot.response.expect(event[member] == newest.get(member), expected, actual=actual)


@check(
    "leading-underscore",
    Mark.DOCUMENTED,
    "VM names have a leading underscore at version 2017-03-01, and no underscore at later versions.",
)
def leading_underscore(session: Session) -> None:
    for version, snapshot, newest_snapshot in list(_all_versions(session)):
        for event in snapshot.events:
            newest = newest_snapshot.event(str(event.get("EventId"))) or {}
            names = [str(name) for name in newest.get("Resources", [])]
            if version == "2017-03-01":  # cloud service roles have no underscore
                names = [name if re.search(r"_IN_[0-9]+$", name) else f"_{name}" for name in names]
            expected = f"at {version} Resources {names}"
            snapshot.response.expect(event.get("Resources") == names, expected, actual=str(event))


def _expect_gated(session: Session, event_type: str) -> None:
    _, _, event_id = session.sample(event_type)
    snapshots = poll_all_versions(session, event_type)
    newest = snapshots[NEWEST]
    if newest.event(event_id) is None:
        response = newest.response
        raise CheckFailed(f"the {event_type} {event_id}", request=response.request.summary, actual=response.summary)
    for version, snapshot in snapshots.items():
        visible = version >= SINCE[event_type]
        expected = f"the {event_type} at {version}" if visible else f"no {event_type} at {version}"
        snapshot.response.expect((snapshot.event(event_id) is not None) == visible, expected)


@check(
    "preempt-gated",
    Mark.DOCUMENTED,
    "A Preempt is in the document at versions from 2017-11-01, and not at older versions.",
    Requirement.SCHEDULE,
)
def preempt_gated(session: Session) -> None:
    _expect_gated(session, "Preempt")


@check(
    "terminate-gated",
    Mark.OBSERVED,
    "A Terminate is in the document at versions from 2019-01-01, and not at older versions.",
    Requirement.SCHEDULE,
)
def terminate_gated(session: Session) -> None:
    _expect_gated(session, "Terminate")


@check("one-incarnation", Mark.ASSUMED, "DocumentIncarnation is the same at all versions.")
def one_incarnation(session: Session) -> None:
    for version, snapshot, newest in list(_all_versions(session)):
        expected = f"{newest.incarnation} at {version}, as at {NEWEST}"
        snapshot.response.expect(snapshot.incarnation == newest.incarnation, expected)


@check(
    "approval-across-versions",
    Mark.OBSERVED,
    "A client can read an event at one version and approve it at another version.",
    Requirement.SCHEDULE,
)
def approval_across_versions(session: Session) -> None:
    body = approval(session.approved_event())
    response = session.endpoint.request("POST", target_for("2019-08-01"), METADATA_TRUE, body)
    response.expect(response.status == 200, "200")


@check(
    "latest-rejected", Mark.DOCUMENTED, "The api-version `latest` gets 400. Only previews of the service accepted it."
)
def latest_rejected(session: Session) -> None:
    expect_error(session.endpoint.request(target=target_for("latest")), 400)


@check(
    "preview-or-not-found",
    Mark.OBSERVED,
    "The preview version 2024-07-09 gets 200 or 404, because one client expects this.",
)
def preview_or_not_found(session: Session) -> None:
    response = session.endpoint.request(target=target_for(PREVIEW))
    response.expect(response.status in (200, 404), "200, or 404 if the preview is not available")


@check(
    "advisory",
    Mark.OBSERVED,
    "At 2024-07-09, a SpotRebalanceRecommendation has the EventStatus Advisory, and no other event has it.",
    Requirement.SCHEDULE,
)
def advisory(session: Session) -> None:
    with suppress(CheckSkipped):
        session.sample("Preempt")
    schedule_recommendation(session)
    snapshot = session.poll(PREVIEW)
    for event in snapshot.events:
        is_recommendation = event.get("EventType") == RECOMMENDATION
        expected = f"{event.get('EventType')} {'with' if is_recommendation else 'without'} the EventStatus Advisory"
        valid = (event.get("EventStatus") == "Advisory") == is_recommendation
        snapshot.response.expect(valid, truncate(expected), actual=truncate(str(event)))


@check(
    "only-known-types",
    Mark.DOCUMENTED,
    "At versions up to 2020-07-01, the document has only the five known event types.",
    late=True,
)
def only_known_types(session: Session) -> None:
    for _, snapshot in documents_with_events(session):
        for event in snapshot.events:
            found = event.get("EventType")
            expected = f"one of {', '.join(EVENT_TYPES)}"
            snapshot.response.expect(found in EVENT_TYPES, expected, actual=truncate(f"EventType {found!r}"))
