"""Section 5 of the contract: who is told of an event, and who may approve it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Need, Rules
from forewarn.verify.refusals import refused
from forewarn.verify.snapshot import SCHEDULED, STARTED

if TYPE_CHECKING:
    from forewarn.verify.endpoint import Endpoint
    from forewarn.verify.session import Session

rules = Rules(5, "scope")


def _given(place: Endpoint | None) -> Endpoint:
    assert place is not None  # noqa: S101 - the check says that it needs it
    return place


@rules("same-document", Mark.DOCUMENTED, "Every VM of the scope sees the same document.", Need.OTHER)
def same_document(session: Session) -> None:
    session.told()
    for _ in range(3):  # it may change in between
        here, there = session.look(), session.look(place=_given(session.other))
        if here.incarnation == there.incarnation:
            break
    there.reply.must(here.reply.body == there.reply.body, f"the same as at {session.here.url}: {here.reply.shown}")


@rules(
    "other-may-approve",
    Mark.DOCUMENTED,
    "Any VM of the scope may approve, for all machines of the event.",
    Need.SCHEDULE,
    Need.OTHER,
)
def other_may_approve(session: Session) -> None:
    session.clear()
    _, _, event_id = session.schedule_any("Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    reply = session.approve(event_id, place=_given(session.other))
    reply.must(reply.status == 200 and not reply.body, "200 and no body, though another VM asks")
    snapshot = session.look_for(lambda snapshot: snapshot.status(event_id) != SCHEDULED)
    snapshot.reply.must(snapshot.status(event_id) == STARTED, f"{event_id} Started, since another VM has approved it")


@rules(
    "outside-sees-nothing",
    Mark.DOCUMENTED,
    "A VM outside of the scope sees nothing of its events.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def outside_sees_nothing(session: Session) -> None:
    event_id = session.waiting()
    snapshot = session.look(place=_given(session.outside))
    snapshot.reply.must(snapshot.event(event_id) is None, f"a document without {event_id}")
    for event in snapshot.events:
        snapshot.reply.must(
            session.vm not in event.get("Resources", []), f"no event that names {session.vm}", came=str(event)
        )


@rules(
    "outside-cannot-approve",
    Mark.ASSUMED,
    "To a VM outside of the scope the id is unknown: 400, and it is not approved.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def outside_cannot_approve(session: Session) -> None:
    event_id = session.waiting()
    reply = session.approve(event_id, place=_given(session.outside))
    session.approved.discard(event_id)
    refused(reply, 400)
    snapshot = session.look()
    snapshot.reply.must(snapshot.status(event_id) == SCHEDULED, f"{event_id} still Scheduled")


@rules(
    "only-the-scope-counts",
    Mark.DOCUMENTED,
    "What happens in one scope does not change the incarnation of another.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def only_the_scope_counts(session: Session) -> None:
    outside = _given(session.outside)
    before = session.look(place=outside)
    session.schedule("Reboot")
    after = session.look(place=outside)
    right = f"what it was before a Reboot of another scope: {before.reply.shown}"
    after.reply.must(after.reply.body == before.reply.body, right)
