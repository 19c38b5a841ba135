"""What an answer means: its document, or the trouble that it stands for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forewarn.errors import (
    EndpointEmpty,
    EndpointFailing,
    EndpointGone,
    EndpointNotHere,
    EndpointRefused,
    EndpointThrottled,
    EndpointUnreadable,
    UnreadableDocument,
)
from forewarn.wire.document_reader import Reading, read_what_can_be

if TYPE_CHECKING:
    from forewarn.agent.endpoint.exchange import Answer
    from forewarn.errors import EndpointTrouble
    from forewarn.wire.document_reader import ToldDocument

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
