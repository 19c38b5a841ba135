"""Section 1 of the contract: the versions of /metadata/scheduledevents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from forewarn.verify.check import Departure, Mark, Need, Rules, Skip
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.exchange import TRUE, cut
from forewarn.verify.observations import MEMBERS, SINCE, each_in_all_versions, in_all_versions, with_events
from forewarn.verify.refusals import refused
from forewarn.verify.session import TYPES, approval

if TYPE_CHECKING:
    from forewarn.verify.session import Session

rules = Rules(1, "versions")


@rules("all-served", Mark.DOCUMENTED, "Each of the seven versions from 2017-03-01 to 2020-07-01 is served.")
def all_served(session: Session) -> None:
    try:
        in_all_versions(session)
    except Skip:  # without events it can be seen as well
        for version in MEMBERS:
            session.look(version)


@rules(
    "members-of-each", Mark.DOCUMENTED, "A version shows the members that it and its predecessors brought, no other."
)
def members_of_each(session: Session) -> None:
    seen = [pair for scene in each_in_all_versions(session) for pair in scene.items()]
    for version, snapshot in seen:
        for event in snapshot.events:
            right = f"at {version} exactly the members {', '.join(MEMBERS[version])}"
            snapshot.reply.must(set(event) == set(MEMBERS[version]), right, came=f"members {', '.join(event)}")


@rules("same-values-in-each", Mark.DOCUMENTED, "What an older version shows of an event is what the newest shows.")
def same_values(session: Session) -> None:
    for seen, snapshot in [(scene, snapshot) for scene in each_in_all_versions(session) for snapshot in scene.values()]:
        for event in snapshot.events:
            newest = seen[NEWEST].event(str(event.get("EventId"))) or {}
            for member in set(event) - {"Resources"}:
                right = f"{member} = {newest.get(member)!r}, as at {NEWEST}"
                snapshot.reply.must(event[member] == newest.get(member), right, came=f"{member} = {event[member]!r}")


@rules(
    "underscore", Mark.DOCUMENTED, "At 2017-03-01 names of machines have a leading underscore, later they have none."
)
def underscore(session: Session) -> None:
    for seen, version, snapshot in [
        (scene, *pair) for scene in each_in_all_versions(session) for pair in scene.items()
    ]:
        for event in snapshot.events:
            newest = seen[NEWEST].event(str(event.get("EventId"))) or {}
            names = [str(name) for name in newest.get("Resources", [])]
            if version == "2017-03-01":  # roles of a cloud service are no machines of one's own
                names = [name if re.search(r"_IN_[0-9]+$", name) else f"_{name}" for name in names]
            snapshot.reply.must(event.get("Resources") == names, f"at {version} Resources {names}", came=str(event))


def _gated(session: Session, event_type: str) -> None:
    _, _, event_id = session.sample(event_type)
    seen = in_all_versions(session, event_type)
    if (newest := seen[NEWEST]).event(event_id) is None:
        came = newest.reply.shown
        raise Departure(f"a {event_type} that is still there", sent=newest.reply.request.shown, came=came)
    for version, snapshot in seen.items():
        shown = version >= SINCE[event_type]
        right = f"the {event_type} at {version}" if shown else f"no {event_type} at {version}"
        snapshot.reply.must((snapshot.event(event_id) is not None) == shown, right)


@rules("preempt-gated", Mark.DOCUMENTED, "Preempt is shown from 2017-11-01 on, and unseen before.", Need.SCHEDULE)
def preempt_gated(session: Session) -> None:
    _gated(session, "Preempt")


@rules("terminate-gated", Mark.OBSERVED, "Terminate is shown from 2019-01-01 on, and unseen before.", Need.SCHEDULE)
def terminate_gated(session: Session) -> None:
    _gated(session, "Terminate")


@rules("one-incarnation", Mark.ASSUMED, "One DocumentIncarnation serves all versions.")
def one_incarnation(session: Session) -> None:
    for seen, version, snapshot in [
        (scene, *pair) for scene in each_in_all_versions(session) for pair in scene.items()
    ]:
        right = f"{seen[NEWEST].incarnation} at {version}, as at {NEWEST}"
        snapshot.reply.must(snapshot.incarnation == seen[NEWEST].incarnation, right)


@rules("approval-in-another", Mark.OBSERVED, "What was read in one version can be approved in another.", Need.SCHEDULE)
def approval_in_another(session: Session) -> None:
    reply = session.here.ask("POST", at("2019-08-01"), TRUE, approval(session.taken()))
    reply.must(reply.status == 200, "200")


@rules("latest-refused", Mark.DOCUMENTED, "`latest` was taken in previews and is malformed now: 400.")
def latest_refused(session: Session) -> None:
    refused(session.here.ask(target=at("latest")), 400)


@rules("preview-or-not-found", Mark.OBSERVED, "The preview 2024-07-09 is served or not found: a client takes no other.")
def preview_or_not_found(session: Session) -> None:
    reply = session.here.ask(target=at("2024-07-09"))
    reply.must(reply.status in (200, 404), "200, or 404 where the preview is not available")


@rules(
    "only-known-types",
    Mark.DOCUMENTED,
    "Up to 2020-07-01 there are five types of events, and no other is shown.",
    late=True,
)
def only_known_types(session: Session) -> None:
    for _, snapshot in with_events(session):
        for event in snapshot.events:
            right = f"one of {', '.join(TYPES)}"
            snapshot.reply.must(
                event.get("EventType") in TYPES, right, came=cut(f"EventType {event.get('EventType')!r}")
            )
