"""Section 3 of the contract, third part: approvals, what they may look like and how they are answered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Mark, Need, Rules
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.exchange import TRUE
from forewarn.verify.refusals import refused
from forewarn.verify.requests import MADE_UP
from forewarn.verify.sight import SCHEDULED, STARTED
from forewarn.verify.stage import approval

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.exchange import Reply
    from forewarn.verify.stage import Stage

rules = Rules(3, "requests")

_TAKEN = "exactly 200, and no body at all"


def _taken(reply: Reply) -> None:
    reply.must(reply.status == 200 and reply.body == b"", _TAKEN)


def _post(stage: Stage, body: bytes, *headers: tuple[str, str]) -> Reply:
    return stage.here.ask("POST", at(NEWEST), (*TRUE, *headers), body)


def _again(stage: Stage, body: Callable[[str], bytes], *headers: tuple[str, str]) -> None:
    """Approve in some form what is approved already: that is taken whatever has become of it, while it is there."""
    for _ in range(3):
        event_id = stage.taken()
        reply = _post(stage, body(event_id), *headers)
        if reply.status == 200 or event_id in stage.look().ids:
            break  # else it was over in between
    _taken(reply)


@rules(
    "approval-unknown-among-known",
    Mark.ASSUMED,
    "Of several ids one is unknown: 400, and none is approved.",
    Need.SCHEDULE,
)
def approval_unknown_among_known(stage: Stage) -> None:
    event_id = stage.waiting()
    refused(_post(stage, approval(event_id, MADE_UP)), 400)
    sight = stage.look()
    sight.reply.must(sight.status(event_id) == SCHEDULED, f"{event_id} still Scheduled, since none was approved")


@rules(
    "approval-taken",
    Mark.DOCUMENTED,
    "An approval of a known id is answered with exactly 200 and an empty body.",
    Need.SCHEDULE,
)
def approval_taken(stage: Stage) -> None:
    _taken(stage.approve(stage.waiting()))


@rules("approval-repeated", Mark.OBSERVED, "Clients approve again on every poll: 200 each time.", Need.SCHEDULE)
def approval_repeated(stage: Stage) -> None:
    _again(stage, approval)
    _again(stage, approval)


@rules("approval-of-started", Mark.DOCUMENTED, "An event that has started already is approved with 200.", Need.SCHEDULE)
def approval_of_started(stage: Stage) -> None:
    event_id = stage.taken()
    stage.look_for(lambda sight: sight.status(event_id) == STARTED)
    _again(stage, approval)


@rules("approval-of-several", Mark.DOCUMENTED, "Several ids may be approved in one request.", Need.SCHEDULE)
def approval_of_several(stage: Stage) -> None:
    first = stage.taken()
    _taken(stage.approve(first, stage.waiting(first)))


@rules("approval-id-any-case", Mark.ASSUMED, "Letter case of an id means nothing on the way in.", Need.SCHEDULE)
def approval_id_any_case(stage: Stage) -> None:
    _again(stage, lambda event_id: approval(event_id.lower()))


def _with_incarnation(stage: Stage, *values: Any) -> None:
    for value in values:
        _again(stage, partial(approval, DocumentIncarnation=value))


@rules(
    "approval-stale-incarnation",
    Mark.OBSERVED,
    "DocumentIncarnation may be sent along: a stale number is ignored.",
    Need.SCHEDULE,
)
def approval_stale_incarnation(stage: Stage) -> None:
    _with_incarnation(stage, 0, 1_000_000)


@rules(
    "approval-incarnation-as-text",
    Mark.OBSERVED,
    'Old samples send DocumentIncarnation as text ("5"): ignored.',
    Need.SCHEDULE,
)
def approval_incarnation_as_text(stage: Stage) -> None:
    _with_incarnation(stage, "5")


@rules("approval-unknown-members", Mark.ASSUMED, "Members that nobody knows are ignored.", Need.SCHEDULE)
def approval_unknown_members(stage: Stage) -> None:
    _again(stage, partial(approval, Reason={"Because": [1, 2]}))


@rules(
    "approval-form-urlencoded",
    Mark.OBSERVED,
    "curl says that a body is form-urlencoded: Content-Type is not judged.",
    Need.SCHEDULE,
)
def approval_form_urlencoded(stage: Stage) -> None:
    _again(stage, approval, ("Content-Type", "application/x-www-form-urlencoded"))


@rules("approval-as-json", Mark.OBSERVED, "Other clients say application/json.", Need.SCHEDULE)
def approval_as_json(stage: Stage) -> None:
    _again(stage, approval, ("Content-Type", "application/json"))


@rules(
    "approval-without-content-type", Mark.OBSERVED, "Others say nothing: Content-Type is never required.", Need.SCHEDULE
)
def approval_without_content_type(stage: Stage) -> None:
    _again(stage, approval)


@rules("approval-unknown-id", Mark.ASSUMED, "An unknown id is refused with 400.")
def approval_unknown_id(stage: Stage) -> None:
    refused(_post(stage, approval(MADE_UP)), 400)


def _refused_bodies(stage: Stage, *bodies: bytes) -> None:
    for body in bodies:
        refused(_post(stage, body), 400)


@rules("approval-malformed", Mark.DOCUMENTED, "A body that is not JSON is refused with 400.")
def approval_malformed(stage: Stage) -> None:
    _refused_bodies(stage, b"", f"StartRequests={MADE_UP}".encode(), approval(MADE_UP)[:-1])


@rules("approval-of-nothing", Mark.DOCUMENTED, "No StartRequests, or an empty one, is refused with 400.")
def approval_of_nothing(stage: Stage) -> None:
    _refused_bodies(stage, b"{}", b'{"StartRequests":[]}')


@rules("approval-wrong-types", Mark.DOCUMENTED, "StartRequests of the wrong types is refused with 400.")
def approval_wrong_types(stage: Stage) -> None:
    _refused_bodies(
        stage,
        b"[]",
        b'{"StartRequests":{"EventId":"x"}}',
        b'{"StartRequests":["x"]}',
        b'{"StartRequests":[{}]}',
        b'{"StartRequests":[{"EventId":1}]}',
    )
