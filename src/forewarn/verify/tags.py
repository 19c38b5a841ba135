"""Section 3 of the contract, second part: ETag and If-None-Match."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.verify.check import CheckRegistry, CheckSkipped, Mark, Requirement
from forewarn.verify.endpoint import NEWEST, target_for
from forewarn.verify.exchange import CONNECTION_CLOSE, METADATA_TRUE
from forewarn.verify.observations import document_responses
from forewarn.verify.session import EVENT_TYPES, approval
from forewarn.verify.snapshot import read

if TYPE_CHECKING:
    from forewarn.verify.exchange import HttpResponse
    from forewarn.verify.session import Session

check = CheckRegistry(3, "requests")


def _current_etag(session: Session) -> str:
    etag = session.recent().response.header("etag")
    if not etag:
        raise CheckSkipped("the document has no ETag; see requests/etag-present")
    return etag


def _poll_with_etag(session: Session, etag: str, *headers: tuple[str, str]) -> HttpResponse:
    return session.endpoint.request(headers=(*METADATA_TRUE, ("If-None-Match", etag), *headers))


def _expect_not_modified(session: Session, template: str, *headers: tuple[str, str]) -> None:
    """Expect 304 for the current ETag in this notation. Try again if the document changes in between."""
    for last in (False, True):
        response = _poll_with_etag(session, template.format(_current_etag(session).strip('"')), *headers)
        if response.status == 304 or last or response.header("etag") == _current_etag(session):
            break
        session.poll()
    response.expect(response.status == 304 and not response.body, "304 and no body")


@check("etag-present", Mark.ASSUMED, "The document has a quoted ETag.", late=True)
def etag_present(session: Session) -> None:
    for _, response in document_responses(session):
        etag = response.header("etag") or ""
        quoted = len(etag) > 2 and etag.startswith('"') and etag.endswith('"')
        response.expect(quoted, 'ETag: "…"', actual=f"ETag: {etag or 'missing'}")


@check("etag-not-modified", Mark.OBSERVED, "A GET with the current ETag in If-None-Match gets 304 without a body.")
def etag_not_modified(session: Session) -> None:
    _expect_not_modified(session, '"{}"', CONNECTION_CLOSE)  # until the close, so that no body is overlooked


@check("etag-unquoted", Mark.OBSERVED, "The ETag in If-None-Match may have no quotes.")
def etag_unquoted(session: Session) -> None:
    _expect_not_modified(session, "{}")


@check(
    "etag-zero",
    Mark.OBSERVED,
    "If-None-Match with the value 0 gets the document: a published sample sends 0 in its first request.",
)
def etag_zero(session: Session) -> None:
    read(_poll_with_etag(session, "0"))


@check("etag-outdated", Mark.OBSERVED, "If-None-Match with another ETag gets 200 and the document.")
def etag_outdated(session: Session) -> None:
    current = _current_etag(session)
    etags = [snapshot.response.header("etag") for _, snapshot in session.snapshots]
    old = [etag for etag in etags if etag not in (None, current)]
    for etag in {old[-1] if old else '"unknown"', '"unknown"'}:
        read(_poll_with_etag(session, str(etag)))


@check(
    "etag-follows-incarnation",
    Mark.ASSUMED,
    "The ETag changes if and only if the incarnation changes. All VMs of a group get the same ETag.",
)
def etag_follows_incarnation(session: Session) -> None:
    _current_etag(session)
    if len({snapshot.number for _, snapshot in session.snapshots}) < 2 and session.has(Requirement.SCHEDULE):
        with suppress(CheckSkipped):
            session.schedule_first_of(*EVENT_TYPES)
    session.poll()
    snapshots = list(session.snapshots)
    if session.same_group is not None:
        snapshots.append((NEWEST, session.poll(endpoint=session.same_group)))
    incarnations: dict[tuple[str, str], int] = {}
    etags: dict[tuple[str, int], str] = {}
    for version, snapshot in snapshots:
        etag = snapshot.response.header("etag") or ""
        first = incarnations.setdefault((version, etag), snapshot.number)
        expected = f"another ETag than at incarnation {first}"
        actual = f"ETag {etag} again at incarnation {snapshot.number}"
        snapshot.response.expect(first == snapshot.number, expected, actual=actual)
        known = etags.setdefault((version, snapshot.number), etag)
        expected = f"ETag {known}, because the incarnation is unchanged"
        snapshot.response.expect(known == etag, expected, actual=f"ETag {etag}")


@check(
    "etag-on-post-ignored",
    Mark.OBSERVED,
    "If-None-Match has no effect on an approval, because a published sample sends it there.",
    Requirement.SCHEDULE,
)
def etag_on_post_ignored(session: Session) -> None:
    event_id = session.approved_event()
    session.poll()
    headers = (*METADATA_TRUE, ("If-None-Match", _current_etag(session)))
    response = session.endpoint.request("POST", target_for(NEWEST), headers, approval(event_id))
    response.expect(response.status == 200, "200")
