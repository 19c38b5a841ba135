"""Section 3 of the contract, second part: the entity tag."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from forewarn.verify.check import Mark, Need, Rules, Skip
from forewarn.verify.endpoint import NEWEST, at
from forewarn.verify.exchange import CLOSE, TRUE
from forewarn.verify.gallery import replies
from forewarn.verify.sight import read
from forewarn.verify.stage import TYPES, approval

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply
    from forewarn.verify.stage import Stage

rules = Rules(3, "requests")


def _tag(stage: Stage) -> str:
    tag = stage.seen().reply.header("etag")
    if not tag:
        raise Skip("the document comes without an ETag; see requests/etag-given")
    return tag


def _with(stage: Stage, tag: str, *headers: tuple[str, str]) -> Reply:
    return stage.here.ask(headers=(*TRUE, ("If-None-Match", tag), *headers))


def _unchanged(stage: Stage, form: str, *headers: tuple[str, str]) -> None:
    """Hold the tag, in this form, to 304; a document that has changed since is looked at again."""
    for last in (False, True):
        reply = _with(stage, form.format(_tag(stage).strip('"')), *headers)
        if reply.status == 304 or last or reply.header("etag") == _tag(stage):
            break
        stage.look()
    reply.must(reply.status == 304 and not reply.body, "304 and no body")


@rules("etag-given", Mark.ASSUMED, "The document comes with an ETag in quotes.", late=True)
def etag_given(stage: Stage) -> None:
    for _, reply in replies(stage):
        tag = reply.header("etag") or ""
        fine = len(tag) > 2 and tag.startswith('"') and tag.endswith('"')
        reply.must(fine, 'ETag: "…"', came=f"ETag: {tag or 'missing'}")


@rules("etag-not-modified", Mark.OBSERVED, "A GET with the current ETag in If-None-Match: 304, no body.")
def etag_not_modified(stage: Stage) -> None:
    _unchanged(stage, '"{}"', CLOSE)  # so that a body behind it cannot be overlooked


@rules("etag-bare", Mark.OBSERVED, "The ETag is known without its quotes too.")
def etag_bare(stage: Stage) -> None:
    _unchanged(stage, "{}")


@rules(
    "etag-first-zero", Mark.OBSERVED, "A sample begins with a bare 0, and must get the document: 0 is never the tag."
)
def etag_first_zero(stage: Stage) -> None:
    read(_with(stage, "0"))


@rules("etag-outdated", Mark.OBSERVED, "A tag that is not the current one gets 200 and the document.")
def etag_outdated(stage: Stage) -> None:
    current = _tag(stage)
    old = [tag for _, sight in stage.sights if (tag := sight.reply.header("etag")) not in (None, current)]
    for tag in {old[-1] if old else '"none-of-yours"', '"none-of-yours"'}:
        read(_with(stage, str(tag)))


@rules(
    "etag-names-the-document",
    Mark.ASSUMED,
    "The ETag changes when the incarnation does, and only then; it is the same for every VM of the scope.",
)
def etag_names_the_document(stage: Stage) -> None:
    _tag(stage)
    if len({sight.number for _, sight in stage.sights}) < 2 and stage.has(Need.SCHEDULE):
        with suppress(Skip):
            stage.schedule_any(*TYPES)
    stage.look()
    seen = list(stage.sights)
    if stage.other is not None:
        seen.append((NEWEST, stage.look(place=stage.other)))
    incarnations: dict[tuple[str, str], int] = {}
    tags: dict[tuple[str, int], str] = {}
    for version, sight in seen:
        tag = sight.reply.header("etag") or ""
        first = incarnations.setdefault((version, tag), sight.number)
        right = f"another ETag than that of incarnation {first}"
        sight.reply.must(first == sight.number, right, came=f"ETag {tag} again, at {sight.number}")
        known = tags.setdefault((version, sight.number), tag)
        sight.reply.must(known == tag, f"ETag {known} while the incarnation stays", came=f"ETag {tag}")


@rules(
    "etag-on-post-ignored",
    Mark.OBSERVED,
    "A sample sends If-None-Match with its approvals: it means nothing there.",
    Need.SCHEDULE,
)
def etag_on_post_ignored(stage: Stage) -> None:
    event_id = stage.taken()
    stage.look()
    headers = (*TRUE, ("If-None-Match", _tag(stage)))
    reply = stage.here.ask("POST", at(NEWEST), headers, approval(event_id))
    reply.must(reply.status == 200 and not reply.body, "200 and no body")
