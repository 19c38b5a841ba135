"""Section 3 of the contract, third part: approvals."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import CheckRegistry, CheckSkipped, Mark, Requirement
from forewarn.verify.endpoint import NEWEST, target_for
from forewarn.verify.exchange import METADATA_TRUE
from forewarn.verify.observations import PREVIEW, observe_approved_end, schedule_recommendation
from forewarn.verify.refusals import expect_error
from forewarn.verify.requests import UNKNOWN_ID
from forewarn.verify.session import approval
from forewarn.verify.snapshot import SCHEDULED, STARTED

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot

check = CheckRegistry(3, "requests")


def _expect_accepted(response: HttpResponse) -> None:
    response.expect(response.status == 200, "200")


def _post(session: Session, body: bytes, *headers: tuple[str, str]) -> HttpResponse:
    return session.endpoint.request("POST", target_for(NEWEST), (*METADATA_TRUE, *headers), body)


def _approve_again(session: Session, body: Callable[[str], bytes], *headers: tuple[str, str]) -> None:
    """Expect 200 for another approval of an approved event. The server accepts it while the event exists."""
    for _ in range(3):
        event_id = session.approved_event()
        response = _post(session, body(event_id), *headers)
        if response.status == 200 or event_id in session.poll().ids:
            break  # otherwise the event was removed in between
    _expect_accepted(response)


@check(
    "approval-of-advisory",
    Mark.ASSUMED,
    "An approval of an Advisory gets 200, and has no effect, because clients approve whatever they see.",
    Requirement.SCHEDULE,
)
def approval_of_advisory(session: Session) -> None:
    snapshot, event_id = schedule_recommendation(session)
    _expect_accepted(session.approve(event_id, version=PREVIEW))
    after = session.poll(PREVIEW)
    expected = f"{event_id} as before the approval"
    valid = after.event(event_id) == snapshot.event(event_id)
    after.response.expect(valid, expected, actual=str(after.event(event_id)))


@check(
    "approval-unknown-among-known",
    Mark.ASSUMED,
    "If one id in an approval is unknown, the approval gets 400 and approves no event.",
    Requirement.SCHEDULE,
)
def approval_unknown_among_known(session: Session) -> None:
    event_id = session.unapproved_event()
    expect_error(_post(session, approval(event_id, UNKNOWN_ID)), 400)
    snapshot = session.poll()
    expected = f"{event_id} still Scheduled, because the approval was rejected"
    snapshot.response.expect(snapshot.status(event_id) == SCHEDULED, expected)


@check(
    "approval-accepted",
    Mark.DOCUMENTED,
    "An approval of a known id gets 200.",
    Requirement.SCHEDULE,
)
def approval_accepted(session: Session) -> None:
    _expect_accepted(session.approve(session.unapproved_event()))


@check("approval-empty-response", Mark.OBSERVED, "The response to an approval has no body.", Requirement.SCHEDULE)
def approval_empty_response(session: Session) -> None:
    response = _post(session, approval(session.approved_event()))
    response.expect(not 200 <= response.status < 300 or not response.body, "no body")


@check(
    "approval-repeated",
    Mark.OBSERVED,
    "A repeated approval gets 200, because clients approve again on every poll.",
    Requirement.SCHEDULE,
)
def approval_repeated(session: Session) -> None:
    _approve_again(session, approval)
    _approve_again(session, approval)


@check("approval-of-started", Mark.DOCUMENTED, "An approval of a Started event gets 200.", Requirement.SCHEDULE)
def approval_of_started(session: Session) -> None:
    event_id = session.approved_event()
    session.poll_until(lambda snapshot: snapshot.status(event_id) == STARTED)
    _approve_again(session, approval)


_START_WHEN_APPROVED = ("Reboot", "Redeploy", "Preempt")
_MAY_WAIT = ("Freeze", "Terminate")
"""An approved event of these types may wait for other groups, or for other events of its own group."""


@check(
    "approval-of-several",
    Mark.DOCUMENTED,
    "One request may approve several events.",
    Requirement.SCHEDULE,
    late=True,  # a Redeploy moves the VM
)
def approval_of_several(session: Session) -> None:
    first = session.unapproved_event()
    ids = (first, _another_event(session, first))
    _expect_accepted(session.approve(*ids))

    def waiting(snapshot: Snapshot) -> list[str]:
        return [event_id for event_id in ids if snapshot.status(event_id) == SCHEDULED]

    snapshot = session.poll_until(lambda snapshot: not waiting(snapshot))
    ignored = [event_id for event_id in waiting(snapshot) if session.scheduled[event_id] not in _MAY_WAIT]
    expected = f"{' and '.join(ignored)} Started, because one request approved {' and '.join(ids)}"
    snapshot.response.expect(not ignored, expected)
    if waiting(snapshot):
        raise CheckSkipped(
            "an approved Freeze or Terminate may wait for others: the schedule command must support two events "
            f"of the types {', '.join(_START_WHEN_APPROVED)}"
        )


def _another_event(session: Session, first: str) -> str:
    """Return another event that is Scheduled and not approved, if possible one that starts when it is approved."""
    snapshot = session.recent()
    for event_id, event_type in session.scheduled.items():
        usable = event_id != first and event_id not in session.approved and event_type in _START_WHEN_APPROVED
        if usable and snapshot.status(event_id) == SCHEDULED:
            return event_id
    _, snapshot, event_id = session.schedule_first_of(*_START_WHEN_APPROVED, *_MAY_WAIT)
    if snapshot.status(event_id) != SCHEDULED:
        raise CheckSkipped("the new event is not Scheduled, so it cannot be approved")
    return event_id


@check("approval-id-any-case", Mark.ASSUMED, "An approval may contain the id in any letter case.", Requirement.SCHEDULE)
def approval_id_any_case(session: Session) -> None:
    if _post(session, approval(UNKNOWN_ID)).status == 200:
        raise CheckSkipped("the server accepts every id; see requests/approval-unknown-id")
    _approve_again(session, lambda event_id: approval(event_id.swapcase()))


def _approve_with_incarnation(session: Session, *values: Any) -> None:
    for value in values:
        _approve_again(session, partial(approval, DocumentIncarnation=value))


@check(
    "approval-stale-incarnation",
    Mark.OBSERVED,
    "The server ignores the DocumentIncarnation in an approval, even if it is outdated.",
    Requirement.SCHEDULE,
)
def approval_stale_incarnation(session: Session) -> None:
    _approve_with_incarnation(session, 0, 1_000_000)


@check(
    "approval-incarnation-as-text",
    Mark.OBSERVED,
    'The server ignores a DocumentIncarnation that is a string ("5"), as in old samples.',
    Requirement.SCHEDULE,
)
def approval_incarnation_as_text(session: Session) -> None:
    _approve_with_incarnation(session, "5")


@check(
    "approval-unknown-members",
    Mark.ASSUMED,
    "The server ignores unknown fields of an approval.",
    Requirement.SCHEDULE,
)
def approval_unknown_members(session: Session) -> None:
    _approve_again(session, partial(approval, Reason={"Because": [1, 2]}))


@check(
    "approval-form-urlencoded",
    Mark.OBSERVED,
    "The server accepts an approval with the Content-Type form-urlencoded, which curl sends by default.",
    Requirement.SCHEDULE,
)
def approval_form_urlencoded(session: Session) -> None:
    _approve_again(session, approval, ("Content-Type", "application/x-www-form-urlencoded"))


@check(
    "approval-as-json",
    Mark.OBSERVED,
    "The server accepts an approval with the Content-Type application/json.",
    Requirement.SCHEDULE,
)
def approval_as_json(session: Session) -> None:
    _approve_again(session, approval, ("Content-Type", "application/json"))


@check(
    "approval-without-content-type",
    Mark.OBSERVED,
    "The server accepts an approval without Content-Type.",
    Requirement.SCHEDULE,
)
def approval_without_content_type(session: Session) -> None:
    _approve_again(session, approval)


@check(
    "approval-after-end",
    Mark.ASSUMED,
    "An approval that is repeated after the end of its event gets 200.",
    Requirement.SCHEDULE,
    Requirement.TIME,
    late=True,
)
def approval_after_end(session: Session) -> None:
    event_id = observe_approved_end(session)
    _expect_accepted(_post(session, approval(event_id)))


@check("approval-unknown-id", Mark.ASSUMED, "An approval of an unknown id gets 400.")
def approval_unknown_id(session: Session) -> None:
    expect_error(_post(session, approval(UNKNOWN_ID)), 400)


def _expect_rejected(session: Session, *bodies: bytes) -> None:
    for body in bodies:
        expect_error(_post(session, body), 400)


@check("approval-malformed", Mark.DOCUMENTED, "An approval whose body is not JSON gets 400.")
def approval_malformed(session: Session) -> None:
    _expect_rejected(session, b"", f"StartRequests={UNKNOWN_ID}".encode(), approval(UNKNOWN_ID)[:-1])


@check("approval-empty", Mark.DOCUMENTED, "An approval with a missing or empty StartRequests gets 400.")
def approval_empty(session: Session) -> None:
    _expect_rejected(session, b"{}", b'{"StartRequests":[]}')


@check("approval-wrong-types", Mark.DOCUMENTED, "An approval whose StartRequests has wrong types gets 400.")
def approval_wrong_types(session: Session) -> None:
    _expect_rejected(
        session,
        b"[]",
        b'{"StartRequests":{"EventId":"x"}}',
        b'{"StartRequests":["x"]}',
        b'{"StartRequests":[{}]}',
        b'{"StartRequests":[{"EventId":1}]}',
    )
