"""Section 5 of the contract: which VMs see an event, and which may approve it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.verify.check import CheckRegistry, Mark, Requirement
from forewarn.verify.observations import documents_with_events
from forewarn.verify.refusals import expect_error
from forewarn.verify.snapshot import SCHEDULED, STARTED

if TYPE_CHECKING:
    from forewarn.verify.endpoint import TargetEndpoint
    from forewarn.verify.session import Session

check = CheckRegistry(5, "scope")


def _required(endpoint: TargetEndpoint | None) -> TargetEndpoint:
    assert endpoint is not None  # noqa: S101 - the check requires it
    return endpoint


@check("same-document", Mark.DOCUMENTED, "All VMs of a group get the same document.", Requirement.SAME_GROUP)
def same_document(session: Session) -> None:
    session.document_with_events()
    for _ in range(3):  # the document may change in between
        own, other = session.poll(), session.poll(endpoint=_required(session.same_group))
        if own.incarnation == other.incarnation:
            break
    expected = f"the same document as at {session.endpoint.url}: {own.response.summary}"
    other.response.expect(own.response.body == other.response.body, expected)


@check(
    "same-group-can-approve",
    Mark.DOCUMENTED,
    "Any VM of the group may approve an event. The approval applies to all VMs of the event.",
    Requirement.SCHEDULE,
    Requirement.SAME_GROUP,
)
def same_group_can_approve(session: Session) -> None:
    session.cancel_scheduled()
    _, _, event_id = session.schedule_first_of("Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    response = session.approve(event_id, endpoint=_required(session.same_group))
    response.expect(response.status == 200, "200 for another VM of the group")
    snapshot = session.poll_until(lambda snapshot: snapshot.status(event_id) != SCHEDULED)
    expected = f"{event_id} Started, because another VM of the group approved it"
    snapshot.response.expect(snapshot.status(event_id) == STARTED, expected)


@check(
    "other-group-sees-nothing",
    Mark.DOCUMENTED,
    "A VM of another group does not see the group's events.",
    Requirement.SCHEDULE,
    Requirement.OTHER_GROUP,
)
def other_group_sees_nothing(session: Session) -> None:
    event_id = session.unapproved_event()
    snapshot = session.poll(endpoint=_required(session.other_group))
    snapshot.response.expect(snapshot.event(event_id) is None, f"a document without {event_id}")
    for event in snapshot.events:
        expected = f"no event with {session.vm} in Resources"
        snapshot.response.expect(session.vm not in event.get("Resources", []), expected, actual=str(event))


@check(
    "resources-of-own-group",
    Mark.DOCUMENTED,
    "Resources names VMs of the group, and no VM of another group.",
    Requirement.OTHER_GROUP,
    late=True,
)
def resources_of_own_group(session: Session) -> None:
    name = session.vm_name(_required(session.other_group))
    documents_with_events(session)
    for _, snapshot in session.snapshots:
        for event in snapshot.events:
            named = [str(each).removeprefix("_") for each in event.get("Resources") or []]
            snapshot.response.expect(name not in named, f"Resources without {name}", actual=str(event))


@check(
    "other-group-cannot-approve",
    Mark.ASSUMED,
    "An approval by a VM of another group approves nothing. It gets 400, like an approval of an unknown id.",
    Requirement.SCHEDULE,
    Requirement.OTHER_GROUP,
)
def other_group_cannot_approve(session: Session) -> None:
    event_id = session.unapproved_event()
    response = session.approve(event_id, endpoint=_required(session.other_group))
    session.approved.discard(event_id)
    expect_error(response, 400)
    snapshot = session.poll()
    snapshot.response.expect(snapshot.status(event_id) == SCHEDULED, f"{event_id} still Scheduled")


@check(
    "incarnation-per-group",
    Mark.DOCUMENTED,
    "An event of one group does not change the incarnation of another group.",
    Requirement.SCHEDULE,
    Requirement.OTHER_GROUP,
)
def incarnation_per_group(session: Session) -> None:
    other_group = _required(session.other_group)
    session.cancel_scheduled()  # a server may reject a second restart of a VM while the first is pending
    before = session.poll(endpoint=other_group)
    session.schedule("Reboot")
    after = session.poll(endpoint=other_group)
    expected = f"the same document as before the other group's Reboot: {before.response.summary}"
    after.response.expect(after.response.body == before.response.body, expected)
