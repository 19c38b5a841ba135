"""Section 3 of the contract, third part: approvals, what they may look like and how they are answered."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Mark, Need, Rules
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.exchange import TRUE
from forewarn.verify.refusals import refused
from forewarn.verify.requests import MADE_UP
from forewarn.verify.session import approval
from forewarn.verify.snapshot import SCHEDULED, STARTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session

rules = Rules(3, "requests")

_TAKEN = "exactly 200, and no body at all"


def _taken(reply: Reply) -> None:
    reply.must(reply.status == 200 and reply.body == b"", _TAKEN)


def _post(session: Session, body: bytes, *headers: tuple[str, str]) -> Reply:
    return session.here.ask("POST", at(NEWEST), (*TRUE, *headers), body)


def _again(session: Session, body: Callable[[str], bytes], *headers: tuple[str, str]) -> None:
    """Approve in some form what is approved already: that is taken whatever has become of it, while it is there."""
    for _ in range(3):
        event_id = session.taken()
        reply = _post(session, body(event_id), *headers)
        if reply.status == 200 or event_id in session.look().ids:
            break  # else it was over in between
    _taken(reply)


@rules(
    "approval-unknown-among-known",
    Mark.ASSUMED,
    "Of several ids one is unknown: 400, and none is approved.",
    Need.SCHEDULE,
)
def approval_unknown_among_known(session: Session) -> None:
    event_id = session.waiting()
    refused(_post(session, approval(event_id, MADE_UP)), 400)
    snapshot = session.look()
    snapshot.reply.must(snapshot.status(event_id) == SCHEDULED, f"{event_id} still Scheduled, since none was approved")


@rules(
    "approval-taken",
    Mark.DOCUMENTED,
    "An approval of a known id is answered with exactly 200 and an empty body.",
    Need.SCHEDULE,
)
def approval_taken(session: Session) -> None:
    _taken(session.approve(session.waiting()))


@rules("approval-repeated", Mark.OBSERVED, "Clients approve again on every poll: 200 each time.", Need.SCHEDULE)
def approval_repeated(session: Session) -> None:
    _again(session, approval)
    _again(session, approval)


@rules("approval-of-started", Mark.DOCUMENTED, "An event that has started already is approved with 200.", Need.SCHEDULE)
def approval_of_started(session: Session) -> None:
    event_id = session.taken()
    session.look_for(lambda snapshot: snapshot.status(event_id) == STARTED)
    _again(session, approval)


@rules("approval-of-several", Mark.DOCUMENTED, "Several ids may be approved in one request.", Need.SCHEDULE)
def approval_of_several(session: Session) -> None:
    first = session.taken()
    _taken(session.approve(first, session.waiting(first)))


@rules("approval-id-any-case", Mark.ASSUMED, "Letter case of an id means nothing on the way in.", Need.SCHEDULE)
def approval_id_any_case(session: Session) -> None:
    _again(session, lambda event_id: approval(event_id.lower()))


def _with_incarnation(session: Session, *values: Any) -> None:
    for value in values:
        _again(session, partial(approval, DocumentIncarnation=value))


@rules(
    "approval-stale-incarnation",
    Mark.OBSERVED,
    "DocumentIncarnation may be sent along: a stale number is ignored.",
    Need.SCHEDULE,
)
def approval_stale_incarnation(session: Session) -> None:
    _with_incarnation(session, 0, 1_000_000)


@rules(
    "approval-incarnation-as-text",
    Mark.OBSERVED,
    'Old samples send DocumentIncarnation as text ("5"): ignored.',
    Need.SCHEDULE,
)
def approval_incarnation_as_text(session: Session) -> None:
    _with_incarnation(session, "5")


@rules("approval-unknown-members", Mark.ASSUMED, "Members that nobody knows are ignored.", Need.SCHEDULE)
def approval_unknown_members(session: Session) -> None:
    _again(session, partial(approval, Reason={"Because": [1, 2]}))


@rules(
    "approval-form-urlencoded",
    Mark.OBSERVED,
    "curl says that a body is form-urlencoded: Content-Type is not judged.",
    Need.SCHEDULE,
)
def approval_form_urlencoded(session: Session) -> None:
    _again(session, approval, ("Content-Type", "application/x-www-form-urlencoded"))


@rules("approval-as-json", Mark.OBSERVED, "Other clients say application/json.", Need.SCHEDULE)
def approval_as_json(session: Session) -> None:
    _again(session, approval, ("Content-Type", "application/json"))


@rules(
    "approval-without-content-type", Mark.OBSERVED, "Others say nothing: Content-Type is never required.", Need.SCHEDULE
)
def approval_without_content_type(session: Session) -> None:
    _again(session, approval)


@rules("approval-unknown-id", Mark.ASSUMED, "An unknown id is refused with 400.")
def approval_unknown_id(session: Session) -> None:
    refused(_post(session, approval(MADE_UP)), 400)


def _refused_bodies(session: Session, *bodies: bytes) -> None:
    for body in bodies:
        refused(_post(session, body), 400)


@rules("approval-malformed", Mark.DOCUMENTED, "A body that is not JSON is refused with 400.")
def approval_malformed(session: Session) -> None:
    _refused_bodies(session, b"", f"StartRequests={MADE_UP}".encode(), approval(MADE_UP)[:-1])


@rules("approval-of-nothing", Mark.DOCUMENTED, "No StartRequests, or an empty one, is refused with 400.")
def approval_of_nothing(session: Session) -> None:
    _refused_bodies(session, b"{}", b'{"StartRequests":[]}')


@rules("approval-wrong-types", Mark.DOCUMENTED, "StartRequests of the wrong types is refused with 400.")
def approval_wrong_types(session: Session) -> None:
    _refused_bodies(
        session,
        b"[]",
        b'{"StartRequests":{"EventId":"x"}}',
        b'{"StartRequests":["x"]}',
        b'{"StartRequests":[{}]}',
        b'{"StartRequests":[{"EventId":1}]}',
    )
