"""The client side of the endpoint's protocol: the next request, and the meaning of a response. No input or output."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from forewarn.errors import (
    EndpointEmpty,
    EndpointFailing,
    EndpointGone,
    EndpointRejected,
    EndpointThrottled,
    EndpointUnmodified,
    EndpointUnreadable,
    EndpointWithoutEvents,
    UnreadableDocument,
)
from forewarn.wire.document_reader import LenientReadResult, read_document_leniently
from forewarn.wire.prefer_header import MAX_WAIT_SECONDS, parse_wait
from forewarn.wire.versions import KNOWN_VERSIONS, available_versions

if TYPE_CHECKING:
    from forewarn.agent.transport import EndpointResponse
    from forewarn.errors import EndpointError
    from forewarn.wire.document_reader import EventsDocument


# --- The meaning of a response --------------------------------------------------------------------


OK, NOT_MODIFIED, NOT_FOUND = 200, 304, 404
_BAD_REQUEST, _GONE, _THROTTLED, _SERVER_ERROR = 400, 410, 429, 500
_MAX_TEXT_LENGTH = 300


def document_in(response: EndpointResponse, before: EventsDocument | None = None) -> LenientReadResult:
    """Return the document in a response with status 200, or raise an EndpointError.

    Events that cannot be read are left out. If one of them is in `before`, it is kept in that form.
    """
    if not response.body.strip():
        raise EndpointEmpty
    try:
        document, problems = read_document_leniently(response.body, before.events if before is not None else ())
    except UnreadableDocument as error:
        raise EndpointUnreadable(problem=_clean(str(error)).rstrip(".")) from error
    return LenientReadResult(document, tuple(map(_clean, problems)))


def error_in(response: EndpointResponse) -> EndpointError:
    """Return the error for a status other than 200."""
    status, text, retry_after = response.status, error_text(response), _retry_after(response)
    if status == _GONE:
        return EndpointGone(retry_after=retry_after)
    if status == _THROTTLED:
        return EndpointThrottled(retry_after=retry_after)
    if status == NOT_FOUND:
        return EndpointWithoutEvents(problem=text)
    if status >= _SERVER_ERROR:
        return EndpointFailing(status=status, problem=text, retry_after=retry_after)
    if status >= _BAD_REQUEST:
        return EndpointRejected(status=status, problem=text)
    if response.headers.get("location"):
        return EndpointUnreadable(problem=f"a redirect ({status}), which is never followed")
    return EndpointUnreadable(problem=f"status {status}")


def rejects_version(response: EndpointResponse) -> bool:
    """Whether the endpoint rejects the api-version: with 404, or with 400 as the instance metadata service does."""
    if response.status == NOT_FOUND:
        return "version" in error_text(response).lower()
    return response.status == _BAD_REQUEST and b'"newest-versions"' in response.body


def error_text(response: EndpointResponse) -> str:
    """Return the body's `error` member, else the whole body, as one short line that is safe to print."""
    body = response.body.decode("utf-8", "replace")
    try:
        text = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = body
    return _clean(text if isinstance(text, str) else body) or "(no error text)"


def _clean(text: str) -> str:
    line = " ".join(text[: 2 * _MAX_TEXT_LENGTH].split())
    line = "".join(letter if letter.isprintable() else "?" for letter in line)
    return line if len(line) <= _MAX_TEXT_LENGTH else f"{line[:_MAX_TEXT_LENGTH]}…"


def _retry_after(response: EndpointResponse) -> float | None:
    """In seconds. The other form of the header, a date, is not used by any endpoint."""
    text = response.headers.get("retry-after", "").strip()
    return float(text[:9]) if text.isascii() and text.isdigit() else None


# --- The state of a poll --------------------------------------------------------------------------


EVENTS_PATH = "/metadata/scheduledevents"
NAME_PATH = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADERS = {"Metadata": "true", "User-Agent": "forewarn-agent", "Accept": "application/json"}
VERSIONS = tuple(reversed(available_versions(preview=False)))
"""Those that are generally available, the newest first."""
NEWEST_VERSION = max(KNOWN_VERSIONS)
"""It may be a preview."""
REJECTED_PAUSE = timedelta(days=1)
"""If the endpoint has rejected the newest version, it is requested again after this time."""
FAILED_PAUSE = timedelta(minutes=1)
"""The same after another failure, which says nothing about the version."""
_MAX_TAG_LENGTH = 1000
_MAX_UNCHANGED = 60
"""After this many unchanged responses in a row, request the whole document once: an ETag that does not change would
hide every event."""


class RejectedVersion(NamedTuple):
    """An api-version that an endpoint has rejected."""

    version: str
    endpoint: str
    """Its URL."""
    at: datetime


class PollRequest(NamedTuple):
    """A GET request for the document."""

    path: str
    headers: dict[str, str]
    wait_seconds: int
    """Duration of the long poll; 0: a normal poll."""
    tag: str
    version: str


class PollContent(NamedTuple):
    """The content of a response."""

    document: EventsDocument | None
    """None: the api-version was rejected; try an older one."""
    changed: bool = False
    went_back: bool = False
    """The incarnation is lower than the last one: the document is old, or incarnations have restarted."""
    held: bool = False
    """Whether the endpoint supported the requested long poll."""
    problems: tuple[str, ...] = ()
    """What could not be read in the document."""


class PollState:
    """The state of polling one endpoint.

    With `preview_versions`, the newest version is tried by single polls, until one of them gets a document. The version
    that works is used meanwhile, also for approvals.
    """

    def __init__(self, *, preview_versions: bool = False) -> None:
        self.tag = ""
        self.document: EventsDocument | None = None
        self.version = VERSIONS[0]
        self.version_worked = False
        self.rejected: RejectedVersion | None = None
        """The newest version, if the endpoint rejected it when it was last requested."""
        self._newest = NEWEST_VERSION if preview_versions else VERSIONS[0]
        self._requested: RejectedVersion | None = None
        """The last request with the newest version, in the form in which a rejection is recorded."""
        self._is_rejected = False
        """Whether that request was rejected. It counts only if the endpoint accepts an older version right after it."""
        self.supports_long_poll: bool | None = None
        """None: not known yet."""
        self._unchanged = 0

    def reset(self) -> None:
        """Start again with another endpoint. Keep only the last document."""
        self.tag, self.supports_long_poll, self._unchanged = "", None, 0
        self.version, self.version_worked = VERSIONS[0], False

    @property
    def versions(self) -> tuple[str, ...]:
        """The versions to try, the newest first."""
        return (self._newest, *VERSIONS) if self.version == self._newest != VERSIONS[0] else VERSIONS

    def make_request(self, wait_seconds: int = 0, endpoint: str = "", now: datetime | None = None) -> PollRequest:
        """Return the next request. A long poll needs the ETag of the last document.

        `endpoint` and `now`, its time, decide whether the newest version is tried.
        """
        if now is not None and self._newest != VERSIONS[0]:
            is_due = self.version != self._newest and self._is_newest_due(endpoint, now)
            if is_due or self.version == self._newest:
                self._requested = RejectedVersion(self._newest, endpoint, now)
            if is_due:
                # Without the ETag: a 304 would hide events that only this version has.
                return PollRequest(_path(self._newest), dict(HEADERS), 0, "", self._newest)
        tag = self.tag if self._unchanged < _MAX_UNCHANGED else ""
        headers = dict(HEADERS)
        wait = min(wait_seconds, MAX_WAIT_SECONDS) if tag and self.supports_long_poll is not False else 0
        if tag:
            headers["If-None-Match"] = tag
        if wait > 0:
            headers["Prefer"] = f"wait={wait}"
        return PollRequest(self.path, headers, max(wait, 0), tag, self.version)

    @property
    def path(self) -> str:
        """The path for polls and approvals."""
        return _path(self.version)

    def _is_newest_due(self, endpoint: str, now: datetime) -> bool:
        """Whether to request the newest version now. A clock that was moved far counts, too."""
        return not any(
            last is not None and last[:2] == (self._newest, endpoint) and abs(now - last.at) < pause
            for last, pause in ((self.rejected, REJECTED_PAUSE), (self._requested, FAILED_PAUSE))
        )

    def read_response(self, request: PollRequest, response: EndpointResponse) -> PollContent:
        """Read a response, or raise an EndpointError."""
        is_trial = request.version != self.version and request.version == self._newest
        if response.status in (_BAD_REQUEST, NOT_FOUND) and is_trial:
            self._is_rejected = True
            return PollContent(None)
        if self.try_older_version(request.version, response, is_poll=True):
            return PollContent(None)
        held = self._was_held(request, response)
        if response.status == NOT_MODIFIED:
            if not request.tag or self.document is None:
                self.tag = ""
                raise EndpointUnmodified
            self._unchanged += 1
            self._note_success(request.version)
            return PollContent(self.document, held=held)
        if response.status != OK:
            raise error_in(response)
        before = self.document
        document, problems = document_in(response, before)
        self.tag, self._unchanged = _tag_of(response), 0
        self.document = document
        self._note_success(request.version)
        went_back = before is not None and document.incarnation < before.incarnation
        return PollContent(document, changed=document != before, went_back=went_back, held=held, problems=problems)

    def _note_success(self, version: str) -> None:
        if version == self._newest != VERSIONS[0]:
            self.version, self.rejected = version, None
        elif self._is_rejected:
            self.rejected = self._requested
        self.version_worked, self._is_rejected = True, False

    def try_older_version(self, version: str, response: EndpointResponse, *, is_poll: bool = False) -> bool:
        """Whether the endpoint rejects the api-version and an older one is to be tried next.

        A 404 has several meanings. If the version has worked before, only the error text shows that the version is
        rejected. A preview can be withdrawn: there, any 400 or 404 of a poll is a rejection. If the oldest version is
        rejected, start again with the newest and raise EndpointWithoutEvents.
        """
        refused = rejects_version(response) or (response.status == NOT_FOUND and not self.version_worked)
        if is_poll and version not in VERSIONS:
            refused = response.status in (_BAD_REQUEST, NOT_FOUND)
        if not refused:
            return False
        if version == self.version:
            self.tag = ""
            self._is_rejected = self._is_rejected or version not in VERSIONS
            older = self.versions[self.versions.index(version) + 1 :]
            self.version, self.version_worked = (older or VERSIONS)[0], False
            if not older:
                self._is_rejected = False
                raise EndpointWithoutEvents(problem=error_in(response).fields.get("problem", ""))
        return True

    def _was_held(self, request: PollRequest, response: EndpointResponse) -> bool:
        if not request.wait_seconds or response.status not in (OK, NOT_MODIFIED):
            return False
        self.supports_long_poll = parse_wait([response.headers.get("preference-applied", "")]) is not None
        return self.supports_long_poll


def _path(version: str) -> str:
    return f"{EVENTS_PATH}?api-version={version}"


def _tag_of(response: EndpointResponse) -> str:
    """Return the response's ETag; empty if it is not a valid header value."""
    tag = response.headers.get("etag", "")
    fits = len(tag) <= _MAX_TAG_LENGTH and tag.isascii() and tag.isprintable()
    return tag if fits else ""
