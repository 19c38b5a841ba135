"""The endpoint's protocol, seen from the client: what to request next, what an answer means, and what it changes.

No input or output.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import (
    EndpointEmpty,
    EndpointFailing,
    EndpointGone,
    EndpointNotHere,
    EndpointRefused,
    EndpointThrottled,
    EndpointUnmodified,
    EndpointUnreadable,
    UnreadableDocument,
)
from forewarn.wire.document_reader import Reading, read_what_can_be
from forewarn.wire.prefer_header import MAX_WAIT_SECONDS, parse_wait
from forewarn.wire.versions import available_versions

if TYPE_CHECKING:
    from forewarn.agent.transport import Answer
    from forewarn.errors import EndpointTrouble
    from forewarn.wire.document_reader import ToldDocument


# --- What an answer means -------------------------------------------------------------------------


OK, NOT_MODIFIED, NOT_FOUND = 200, 304, 404
_BAD_REQUEST, _GONE, _THROTTLED, _FAILING = 400, 410, 429, 500
_LONGEST_WORDS = 300


def document_in(answer: Answer, before: ToldDocument | None = None) -> Reading:
    """The document of an answer with status 200; an EndpointTrouble, if it has none.

    Of one with events that cannot be read, all others count, and of those what was told `before`.
    """
    if not answer.body.strip():
        raise EndpointEmpty
    try:
        document, problems = read_what_can_be(answer.body, before.events if before is not None else ())
    except UnreadableDocument as error:
        raise EndpointUnreadable(problem=_cleaned(str(error)).rstrip(".")) from error
    return Reading(document, tuple(map(_cleaned, problems)))


def trouble_in(answer: Answer) -> EndpointTrouble:
    """What a status other than 200 stands for."""
    status, said, later = answer.status, words_of(answer), _retry_after(answer)
    if status == _GONE:
        return EndpointGone(retry_after=later)
    if status == _THROTTLED:
        return EndpointThrottled(retry_after=later)
    if status == NOT_FOUND:
        return EndpointNotHere(problem=said)
    if status >= _FAILING:
        return EndpointFailing(status=status, problem=said, retry_after=later)
    if status >= _BAD_REQUEST:
        return EndpointRefused(status=status, problem=said)
    if answer.headers.get("location"):
        return EndpointUnreadable(problem=f"a redirect ({status}), which is never followed")
    return EndpointUnreadable(problem=f"status {status}")


def refuses_version(answer: Answer) -> bool:
    """Whether it is the version that is not to be had: 404 as the endpoint says it, or 400 as its sister does."""
    if answer.status == NOT_FOUND:
        return "version" in words_of(answer).lower()
    return answer.status == _BAD_REQUEST and b'"newest-versions"' in answer.body


def words_of(answer: Answer) -> str:
    """What it says: the `error` of its body, else the body, as one short line that is safe to print."""
    text = answer.body.decode("utf-8", "replace")
    try:
        said = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        said = text
    return _cleaned(said if isinstance(said, str) else text) or "(it says no more)"


def _cleaned(text: str) -> str:
    line = " ".join(text[: 2 * _LONGEST_WORDS].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _LONGEST_WORDS else f"{line[:_LONGEST_WORDS]}…"


def _retry_after(answer: Answer) -> float | None:
    """In seconds. The other form, a date, is not used by any endpoint."""
    text = answer.headers.get("retry-after", "").strip()
    return float(text[:9]) if text.isascii() and text.isdigit() else None


# --- The state of a poll --------------------------------------------------------------------------


EVENTS_PATH = "/metadata/scheduledevents"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true", "User-Agent": "forewarn-agent", "Accept": "application/json"}
VERSIONS = tuple(reversed(available_versions(preview=False)))
"""The newest first."""
_LONGEST_TAG = 1000
_MOST_UNCHANGED = 60
"""After so many answers in a row that nothing has changed, the whole document is asked for once: a tag that is not
kept up to date would hide every event."""


class Ask(NamedTuple):
    """A GET of the document."""

    path: str
    headers: dict[str, str]
    wait_seconds: int
    """How long the endpoint was asked to hold it; 0: not at all."""
    tag: str
    version: str


class AnswerContent(NamedTuple):
    """What an answer has told."""

    document: ToldDocument | None
    """None: the version was refused, and an older one is to be asked for."""
    changed: bool = False
    went_back: bool = False
    """Its incarnation is lower than that of the one before: an old document, or incarnations have begun anew."""
    held: bool = False
    """The endpoint has heeded the wait that it was asked for."""
    problems: tuple[str, ...] = ()
    """What could not be read of the document."""


class Watch:
    """Of one endpoint."""

    def __init__(self) -> None:
        self.tag = ""
        self.document: ToldDocument | None = None
        self.version = VERSIONS[0]
        self.version_worked = False
        self.holds: bool | None = None
        """Whether the endpoint holds polls; None: not known."""
        self._unchanged = 0

    def move(self) -> None:
        """Another endpoint, or the same one anew: only the document is still what was last told."""
        self.tag, self.holds, self._unchanged = "", None, 0
        self.version, self.version_worked = VERSIONS[0], False

    def ask(self, wait_seconds: int = 0) -> Ask:
        """What to send now. A poll can be held only for one that says which document it has."""
        tag = self.tag if self._unchanged < _MOST_UNCHANGED else ""
        headers = dict(HEADERS)
        wait = min(wait_seconds, MAX_WAIT_SECONDS) if tag and self.holds is not False else 0
        if tag:
            headers["If-None-Match"] = tag
        if wait > 0:
            headers["Prefer"] = f"wait={wait}"
        return Ask(self.path, headers, max(wait, 0), tag, self.version)

    @property
    def path(self) -> str:
        """Of the document, and of approvals."""
        return f"{EVENTS_PATH}?api-version={self.version}"

    def answered(self, ask: Ask, answer: Answer) -> AnswerContent:
        """Take an answer in; an EndpointTrouble, if it is none that tells something."""
        if self.steps_down(ask.version, answer):
            return AnswerContent(None)
        held = self._held(ask, answer)
        if answer.status == NOT_MODIFIED:
            if not ask.tag or self.document is None:
                self.tag = ""
                raise EndpointUnmodified
            self._unchanged += 1
            return AnswerContent(self.document, held=held)
        if answer.status != OK:
            raise trouble_in(answer)
        before = self.document
        document, problems = document_in(answer, before)
        self.tag, self._unchanged = _tag_of(answer), 0
        self.document = document
        self.version_worked = True
        went_back = before is not None and document.incarnation < before.incarnation
        return AnswerContent(document, changed=document != before, went_back=went_back, held=held, problems=problems)

    def steps_down(self, version: str, answer: Answer) -> bool:
        """Whether that version is not to be had, and an older one is to be tried: it then is the one to ask for.

        A 404 can mean many things. Where a version has worked before, only the words tell that it is the version. If
        the oldest is refused too, it is begun anew with the newest, and it is an EndpointNotHere.
        """
        refused = refuses_version(answer) or (answer.status == NOT_FOUND and not self.version_worked)
        if not refused:
            return False
        if version == self.version:
            self.tag = ""
            older = VERSIONS[VERSIONS.index(version) + 1 :]
            self.version, self.version_worked = (older or VERSIONS)[0], False
            if not older:
                raise EndpointNotHere(problem=trouble_in(answer).fields.get("problem", ""))
        return True

    def _held(self, ask: Ask, answer: Answer) -> bool:
        if not ask.wait_seconds or answer.status not in (OK, NOT_MODIFIED):
            return False
        self.holds = parse_wait([answer.headers.get("preference-applied", "")]) is not None
        return self.holds


def _tag_of(answer: Answer) -> str:
    """A tag that can be sent back; what cannot be one counts as none."""
    tag = answer.headers.get("etag", "")
    fits = len(tag) <= _LONGEST_TAG and tag.isascii() and tag.isprintable()
    return tag if fits else ""
