"""Section 3 of the contract, second part: the entity tag."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Need, Rules, Skip
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.exchange import CLOSE, TRUE
from forewarn.verify.observations import replies
from forewarn.verify.session import TYPES, approval
from forewarn.verify.snapshot import read

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply
    from forewarn.verify.session import Session

rules = Rules(3, "requests")


def _tag(session: Session) -> str:
    tag = session.seen().reply.header("etag")
    if not tag:
        raise Skip("the document comes without an ETag; see requests/etag-given")
    return tag


def _with(session: Session, tag: str, *headers: tuple[str, str]) -> Reply:
    return session.here.ask(headers=(*TRUE, ("If-None-Match", tag), *headers))


def _unchanged(session: Session, form: str, *headers: tuple[str, str]) -> None:
    """Hold the tag, in this form, to 304; a document that has changed since is looked at again."""
    for last in (False, True):
        reply = _with(session, form.format(_tag(session).strip('"')), *headers)
        if reply.status == 304 or last or reply.header("etag") == _tag(session):
            break
        session.look()
    reply.must(reply.status == 304 and not reply.body, "304 and no body")


@rules("etag-given", Mark.ASSUMED, "The document comes with an ETag in quotes.", late=True)
def etag_given(session: Session) -> None:
    for _, reply in replies(session):
        tag = reply.header("etag") or ""
        fine = len(tag) > 2 and tag.startswith('"') and tag.endswith('"')
        reply.must(fine, 'ETag: "…"', came=f"ETag: {tag or 'missing'}")


@rules("etag-not-modified", Mark.OBSERVED, "A GET with the current ETag in If-None-Match: 304, no body.")
def etag_not_modified(session: Session) -> None:
    _unchanged(session, '"{}"', CLOSE)  # so that a body behind it cannot be overlooked


@rules("etag-bare", Mark.OBSERVED, "The ETag is known without its quotes too.")
def etag_bare(session: Session) -> None:
    _unchanged(session, "{}")


@rules(
    "etag-first-zero", Mark.OBSERVED, "A sample begins with a bare 0, and must get the document: 0 is never the tag."
)
def etag_first_zero(session: Session) -> None:
    read(_with(session, "0"))


@rules("etag-outdated", Mark.OBSERVED, "A tag that is not the current one gets 200 and the document.")
def etag_outdated(session: Session) -> None:
    current = _tag(session)
    old = [tag for _, snapshot in session.snapshots if (tag := snapshot.reply.header("etag")) not in (None, current)]
    for tag in {old[-1] if old else '"none-of-yours"', '"none-of-yours"'}:
        read(_with(session, str(tag)))


@rules(
    "etag-names-the-document",
    Mark.ASSUMED,
    "The ETag changes when the incarnation does, and only then; it is the same for every VM of the scope.",
)
def etag_names_the_document(session: Session) -> None:
    _tag(session)
    if len({snapshot.number for _, snapshot in session.snapshots}) < 2 and session.has(Need.SCHEDULE):
        with suppress(Skip):
            session.schedule_any(*TYPES)
    session.look()
    seen = list(session.snapshots)
    if session.other is not None:
        seen.append((NEWEST, session.look(place=session.other)))
    incarnations: dict[tuple[str, str], int] = {}
    tags: dict[tuple[str, int], str] = {}
    for version, snapshot in seen:
        tag = snapshot.reply.header("etag") or ""
        first = incarnations.setdefault((version, tag), snapshot.number)
        right = f"another ETag than that of incarnation {first}"
        snapshot.reply.must(first == snapshot.number, right, came=f"ETag {tag} again, at {snapshot.number}")
        known = tags.setdefault((version, snapshot.number), tag)
        snapshot.reply.must(known == tag, f"ETag {known} while the incarnation stays", came=f"ETag {tag}")


@rules(
    "etag-on-post-ignored",
    Mark.OBSERVED,
    "A sample sends If-None-Match with its approvals: it means nothing there.",
    Need.SCHEDULE,
)
def etag_on_post_ignored(session: Session) -> None:
    event_id = session.taken()
    session.look()
    headers = (*TRUE, ("If-None-Match", _tag(session)))
    reply = session.here.ask("POST", at(NEWEST), headers, approval(event_id))
    reply.must(reply.status == 200 and not reply.body, "200 and no body")
