"""Section 5 of the contract: who is told of an event, and who may approve it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Need, Rules
from forewarn.verify.refusals import refused
from forewarn.verify.sight import SCHEDULED, STARTED

if TYPE_CHECKING:
    from forewarn.verify.endpoint import Endpoint
    from forewarn.verify.stage import Stage

rules = Rules(5, "scope")


def _given(place: Endpoint | None) -> Endpoint:
    assert place is not None  # noqa: S101 - the check says that it needs it
    return place


@rules("same-document", Mark.DOCUMENTED, "Every VM of the scope sees the same document.", Need.OTHER)
def same_document(stage: Stage) -> None:
    stage.told()
    for _ in range(3):  # it may change in between
        here, there = stage.look(), stage.look(place=_given(stage.other))
        if here.incarnation == there.incarnation:
            break
    there.reply.must(here.reply.body == there.reply.body, f"the same as at {stage.here.url}: {here.reply.shown}")


@rules(
    "other-may-approve",
    Mark.DOCUMENTED,
    "Any VM of the scope may approve, for all machines of the event.",
    Need.SCHEDULE,
    Need.OTHER,
)
def other_may_approve(stage: Stage) -> None:
    stage.clear()
    _, _, event_id = stage.schedule_any("Reboot", "Redeploy", "Terminate", "Preempt", "Freeze")
    reply = stage.approve(event_id, place=_given(stage.other))
    reply.must(reply.status == 200 and not reply.body, "200 and no body, though another VM asks")
    sight = stage.look_for(lambda sight: sight.status(event_id) != SCHEDULED)
    sight.reply.must(sight.status(event_id) == STARTED, f"{event_id} Started, since another VM has approved it")


@rules(
    "outside-sees-nothing",
    Mark.DOCUMENTED,
    "A VM outside of the scope sees nothing of its events.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def outside_sees_nothing(stage: Stage) -> None:
    event_id = stage.waiting()
    sight = stage.look(place=_given(stage.outside))
    sight.reply.must(sight.event(event_id) is None, f"a document without {event_id}")
    for event in sight.events:
        sight.reply.must(stage.vm not in event.get("Resources", []), f"no event that names {stage.vm}", came=str(event))


@rules(
    "outside-cannot-approve",
    Mark.ASSUMED,
    "To a VM outside of the scope the id is unknown: 400, and it is not approved.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def outside_cannot_approve(stage: Stage) -> None:
    event_id = stage.waiting()
    reply = stage.approve(event_id, place=_given(stage.outside))
    stage.approved.discard(event_id)
    refused(reply, 400)
    sight = stage.look()
    sight.reply.must(sight.status(event_id) == SCHEDULED, f"{event_id} still Scheduled")


@rules(
    "only-the-scope-counts",
    Mark.DOCUMENTED,
    "What happens in one scope does not change the incarnation of another.",
    Need.SCHEDULE,
    Need.OUTSIDE,
)
def only_the_scope_counts(stage: Stage) -> None:
    outside = _given(stage.outside)
    before = stage.look(place=outside)
    stage.schedule("Reboot")
    after = stage.look(place=outside)
    right = f"what it was before a Reboot of another scope: {before.reply.shown}"
    after.reply.must(after.reply.body == before.reply.body, right)
