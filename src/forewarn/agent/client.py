"""The client: finds the endpoint, polls its document, retries when the endpoint fails, and approves events."""

from __future__ import annotations

import math
import os
import random
import threading
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.address import read_endpoint
from forewarn.agent.changes import ChangeTracker
from forewarn.agent.clock import EndpointClock, real_seconds
from forewarn.agent.discovery import find_endpoint
from forewarn.agent.identity import REQUEST_SECONDS, NameResolver, read_name
from forewarn.agent.protocol import HEADERS, NAME_PATH, NOT_MODIFIED, OK, PollState, document_in, error_in
from forewarn.agent.retry import (
    LONG_POLL_SECONDS,
    MIN_PAUSE,
    STEP_SECONDS,
    RequestPacer,
    pause_after,
    response_seconds,
    transfer_seconds,
)
from forewarn.agent.transport import EndpointConnection
from forewarn.errors import (
    BadPollSeconds,
    ClientClosed,
    EndpointError,
    EndpointNotFound,
    EndpointUnmodified,
    NoEndpointKnown,
    NothingToApprove,
)
from forewarn.system.logs import get_logger
from forewarn.wire.document_reader import start_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forewarn.agent.address import EndpointAddress
    from forewarn.agent.changes import Change
    from forewarn.agent.identity import MachineIdentity
    from forewarn.agent.protocol import RejectedVersion
    from forewarn.agent.transport import EndpointResponse
    from forewarn.wire.document_reader import EventsDocument, ScheduledEvent

_log = get_logger("forewarn.agent.endpoint")


# --- Failures in a row ----------------------------------------------------------------------------


_MAX_PROBLEMS = 100


class FailureStreak:
    """Failed requests in a row."""

    def __init__(self) -> None:
        self.failures = 0
        self.last: EndpointError | None = None
        self.timeouts = 0
        """How many of them in a row ended without any byte of a response."""
        self._since = 0.0

    def note_failure(self, error: EndpointError, now: float) -> None:
        """Count a failed request at `now`, in real seconds."""
        if not self.failures:
            self._since = now
            _log.warning(
                "endpoint_failed", "Request to the endpoint failed; retrying.", kind=error.kind, error=str(error)
            )
        self.failures += 1
        self.last = error
        if error.kind == "timeout":
            self.timeouts += 1

    def note_response(self) -> None:
        """Note that the endpoint sent a response, with any status."""
        self.timeouts = 0

    def note_success(self, now: float) -> None:
        """Note that a poll succeeded."""
        if self.failures:
            _log.info(
                "endpoint_recovered",
                "The endpoint responds again.",
                failed_requests=self.failures,
                failed_seconds=round(now - self._since, 1),
            )
        self.failures, self.last, self.timeouts = 0, None, 0


class ProblemLog:
    """Logs each problem of a document once, even if it is in every document."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log_new(self, problems: Iterable[str]) -> None:
        """Log the problems of one document. The number is limited, so an endpoint cannot fill the log."""
        for problem in problems:
            if problem not in self._logged and len(self._logged) < _MAX_PROBLEMS:
                self._logged.add(problem)
                _log.warning(
                    "event_unreadable",
                    "A part of the document cannot be read; the agent uses everything else.",
                    error=problem,
                )


# --- The endpoint's address and the connections to it ---------------------------------------------


SEARCH_AGAIN_SECONDS = 30.0
_GIVEN_ENDPOINT = "what was given"


class EndpointLocator:
    """Finds the endpoint at first use. Searches again after a long failure, unless the user has given the endpoint."""

    def __init__(self, given: str, find: Callable[..., EndpointAddress] = find_endpoint) -> None:
        self._given = given
        self._find = find
        self._is_given = bool(given or os.environ.get("FOREWARN_ENDPOINT"))
        if given:
            read_endpoint(given, _GIVEN_ENDPOINT)  # reject an invalid address at once
        self._guard = threading.Lock()
        self._unreachable_since: float | None = None
        self._search_again = False
        self._closed = False
        self.endpoint: EndpointAddress | None = None
        self.polls, self.requests = EndpointConnection(), EndpointConnection()
        self.on_move: Callable[[], object] = lambda: None
        """Called when the endpoint has changed."""

    @property
    def closed(self) -> bool:
        return self._closed

    def get(self) -> EndpointAddress:
        """Return the endpoint, or raise an EndpointError if there is none."""
        with self._guard:
            if self._closed:
                raise ClientClosed
            if self.endpoint is None or self._search_again:
                self._take(self._search())
            assert self.endpoint is not None  # noqa: S101 - _take has set it
            return self.endpoint

    def note_failure(self, kind: str, now: float) -> None:
        """Note a failed request. An endpoint that stays unreachable may have moved."""
        if kind != "unreachable":
            self._unreachable_since = None
        elif self._unreachable_since is None:
            self._unreachable_since = now
        elif now - self._unreachable_since >= SEARCH_AGAIN_SECONDS and not self._is_given:
            self._unreachable_since, self._search_again = now, True

    def note_success(self) -> None:
        """Note that the endpoint responded."""
        self._unreachable_since = None

    def close(self) -> None:
        """Close both connections, from any thread. Running requests end."""
        self._closed = True
        self.polls.close()
        self.requests.close()

    def _search(self) -> EndpointAddress:
        try:
            return self._find(self._given, given_by=_GIVEN_ENDPOINT)
        except EndpointNotFound as error:
            if self.endpoint is None:
                raise NoEndpointKnown(problem=str(error)) from error
            return self.endpoint

    def _take(self, endpoint: EndpointAddress) -> None:
        before, self.endpoint = self.endpoint, endpoint
        self._search_again = False
        if before is not None and before.url == endpoint.url:
            return
        for connection in (self.polls, self.requests):
            connection.set_endpoint(endpoint)
        if before is not None:
            _log.warning("endpoint_changed", "Using another endpoint.", endpoint=endpoint.url, origin=endpoint.origin)
            self.on_move()


# --- The client -----------------------------------------------------------------------------------


MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.25, 3600.0
_APPROVAL_RETRY_SECONDS = 60.0


class PollResult(NamedTuple):
    """The result of one poll."""

    document: EventsDocument | None
    """The current document, even if it has not changed; None: no result."""
    changed: bool
    """Whether the document differs from the last one."""
    went_back: bool
    """Whether the incarnation is lower than the last one: the document may be old, or incarnations have restarted."""
    error: EndpointError | None
    pause_seconds: float
    """Time to wait before the next poll."""


class Client:
    """Client for Scheduled Events of the machine that it runs on. Safe to use from several threads."""

    def __init__(
        self,
        endpoint: str = "",
        vm_name: str = "",
        *,
        poll_seconds: float = 1.0,
        preview_versions: bool = False,
        pause: Callable[[float], object] | None = None,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Create a client. It sends no request before its first use.

        If `endpoint` is empty, it uses FOREWARN_ENDPOINT or searches for the endpoint. If `vm_name` is empty, it uses
        FOREWARN_VM_NAME, the name from the endpoint, or the host name.

        With `preview_versions`, polls also try an api-version that is a preview. It can have other types of events.

        Tests use `pause` and `jitter`: `pause` replaces the sleep function, `jitter` the random factor of delays.
        """
        if not (math.isfinite(poll_seconds) and MIN_POLL_SECONDS <= poll_seconds <= MAX_POLL_SECONDS):
            raise BadPollSeconds(value=poll_seconds, minimum=MIN_POLL_SECONDS, maximum=MAX_POLL_SECONDS)
        self.clock = EndpointClock()
        """The endpoint's clock, from its last response. Compare NotBefore with this clock."""
        self._state = PollState(preview_versions=preview_versions)
        self._streak = FailureStreak()
        self._problem_log = ProblemLog()
        self._pacer = RequestPacer(poll_seconds)
        self._locator = EndpointLocator(endpoint)
        self._locator.on_move = self._state.reset
        self._name_resolver = NameResolver(vm_name.strip() or os.environ.get("FOREWARN_VM_NAME", "").strip())
        self._polling = threading.RLock()
        self._pause = pause
        self._jitter = jitter

    # --- Endpoint and identity --------------------------------------------------------------------

    @property
    def endpoint(self) -> EndpointAddress:
        """The endpoint. Found at first use; if it was not given, searched for again after 30 s of failures."""
        return self._locator.get()

    @property
    def me(self) -> MachineIdentity:
        """This machine's name in events. Until the endpoint has returned a name, it is the host name."""
        return self._get_identity(self._locator.requests)

    def request_name(self) -> str:
        """Request this machine's name from the endpoint, also if another name was given. Empty: it has no names.

        Raise an EndpointError if that fails.
        """
        return read_name(self._request_path(self._locator.requests, NAME_PATH))

    @property
    def known(self) -> tuple[EndpointAddress | None, MachineIdentity | None]:
        """The endpoint and this machine's name, as far as they are known now. Sends no request."""
        return self._locator.endpoint, self._name_resolver.last if self._name_resolver.is_known else None

    @property
    def offers_long_poll(self) -> bool | None:
        """Whether the endpoint supports long polls; None: not known yet."""
        return self._state.supports_long_poll

    @property
    def api_version(self) -> str | None:
        """The api-version in use; None: not known yet."""
        return self._state.version if self._state.version_worked else None

    @property
    def rejected_version(self) -> RejectedVersion | None:
        """The preview version that the endpoint has rejected. A later client can start with it."""
        return self._state.rejected

    @rejected_version.setter
    def rejected_version(self, rejected: RejectedVersion | None) -> None:
        self._state.rejected = rejected

    @property
    def connections(self) -> tuple[EndpointConnection, EndpointConnection]:
        """The connection for polls and the one for other requests. Other threads may abort them."""
        return self._locator.polls, self._locator.requests

    # --- Single requests --------------------------------------------------------------------------

    def document(self) -> EventsDocument:
        """Request the whole document once. Raise an EndpointError if that fails."""
        response = self._request_any_version("GET", None)
        if response.status == OK:
            document, problems = document_in(response, self._state.document)
            self._problem_log.log_new(problems)
            self._state.version_worked = True
            return document
        raise EndpointUnmodified if response.status == NOT_MODIFIED else error_in(response)

    def approve(self, *events_or_ids: ScheduledEvent | str) -> None:
        """Start these events now, for all machines that they name, with one request.

        An id in another letter case than in the last document is sent as in the document.

        Raise an EndpointError if the endpoint does not accept it. If the endpoint does not know one of the events, the
        error's kind is "rejected" and no event is approved.
        """
        ids = [given if isinstance(given, str) else getattr(given, "id", None) for given in events_or_ids]
        named = [event_id for event_id in ids if event_id and isinstance(event_id, str)]
        if not ids or len(named) < len(ids):
            raise NothingToApprove(given=", ".join(map(repr, events_or_ids)) or "Nothing")
        self._approve([self._as_received(event_id) for event_id in named], timeouts=0)

    def poll(self, wait_seconds: int = 0) -> PollResult:
        """Poll once, with the ETag of the last document. Return errors in the result; do not raise them.

        `wait_seconds` makes it a long poll of at most that time. An endpoint without long polls responds at once.
        """
        with self._polling:
            try:
                return self._poll(wait_seconds)
            except EndpointError as error:
                return self._failed(error)

    # --- Changes of events ------------------------------------------------------------------------

    def changes(self, mine: bool = True) -> Iterator[Change]:
        """Yield every change of an event once, starting with the current events. End when the client is closed.

        The iterator survives all errors of the endpoint. With `mine=False`, include events of other machines.
        """
        tracker = ChangeTracker()
        while not self._locator.closed:
            changes, pause_seconds = self.poll_changes(tracker, mine=mine)
            yield from changes
            try:
                self._pause_on(self._locator.polls, pause_seconds)
            except ClientClosed:
                return

    def poll_changes(self, tracker: ChangeTracker, *, mine: bool = True) -> tuple[list[Change], float]:
        """Poll once for `changes`: return the new changes and the pause before the next poll."""
        with self._polling:
            # Use a long poll only if the tracker has seen the last document: another caller may have polled in between.
            result = self.poll(LONG_POLL_SECONDS if tracker.is_up_to_date_with(self._state.document) else 0)
        if result.document is None:
            return [], result.pause_seconds
        me = self._get_identity(self._locator.polls) if mine and result.document.events else self._name_resolver.last
        if mine and result.document.events and not self._name_resolver.is_known:
            # The name is not known yet. Using the host name could hide an event of this machine.
            return [], max(result.pause_seconds, MIN_PAUSE)
        changes = tracker.update(result.document, real_seconds())
        if mine:
            changes = [change for change in changes if change.concerns(me)]
        return [change.bound_to(self.send_approval) for change in changes], result.pause_seconds

    def send_approval(self, event: ScheduledEvent) -> bool:
        """Approve an event and retry while the endpoint fails. Return False if the event is gone."""
        began, tries, timeouts = real_seconds(), 0, 0
        while True:
            try:
                return self._approve_if_there(event.id, timeouts)
            except EndpointError as error:
                lasting = error.kind in ("rejected", "closed")
                if lasting or real_seconds() - began > _APPROVAL_RETRY_SECONDS:
                    raise
                tries += 1
                timeouts += error.kind == "timeout"
                pause = pause_after(error.kind, tries, self._jitter(), error.retry_after)
            self._pause_on(self._locator.requests, pause)

    def _approve_if_there(self, event_id: str, timeouts: int) -> bool:
        try:
            self._approve([event_id], timeouts)
        except EndpointError as error:
            # If this request fails too, its error is raised and the caller retries.
            if error.kind == "rejected" and self.document().event(event_id) is None:
                return False
            raise
        return True

    # --- Closing ----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the client, from any thread. Running requests and `changes` end."""
        self._locator.close()

    @property
    def closed(self) -> bool:
        """Whether the client is closed."""
        return self._locator.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- Internals --------------------------------------------------------------------------------

    def _poll(self, wait_seconds: int) -> PollResult:
        endpoint = self._locator.get()
        state, began = self._state, real_seconds()
        request = state.make_request(wait_seconds, endpoint.url, self.clock.now())
        limit = response_seconds(state.version_worked, self._streak.timeouts) + request.wait_seconds
        response = self._send(self._locator.polls, "GET", request.path, request.headers, None, limit)
        self._streak.note_response()
        content = state.read_response(request, response)
        now = real_seconds()
        if content.document is None:
            return PollResult(None, False, False, None, STEP_SECONDS)
        self._problem_log.log_new(content.problems)
        self._streak.note_success(now)
        self._locator.note_success()
        at_once = content.held and (content.changed or self._pacer.took_long(now, began))
        pause = self._pacer.pause(now, began, at_once=at_once)
        return PollResult(content.document, content.changed, content.went_back, None, pause)

    def _failed(self, error: EndpointError) -> PollResult:
        if error.kind == "closed":
            return PollResult(None, False, False, error, MIN_PAUSE)
        now, streak = real_seconds(), self._streak
        streak.note_failure(error, now)
        self._locator.note_failure(error.kind, now)
        pause = pause_after(error.kind, streak.failures, self._jitter(), error.retry_after)
        return PollResult(None, False, False, error, pause)

    def _as_received(self, event_id: str) -> str:
        """Return the id as the last document has it: some endpoints compare ids exactly."""
        event = None if self._state.document is None else self._state.document.event(event_id)
        return event_id if event is None else event.id

    def _approve(self, ids: list[str], timeouts: int) -> None:
        response = self._request_any_version("POST", start_requests(*ids), timeouts)
        # Azure responds 200. Accept 202 and 204 too, from other implementations.
        if not OK <= response.status < 300:
            raise error_in(response)

    def _request_any_version(self, method: str, body: bytes | None, timeouts: int = 0) -> EndpointResponse:
        """Send the request with the api-version that works; if none is known, try one after the other."""
        self._locator.get()
        headers = dict(HEADERS, **{"Content-Type": "application/json"}) if body else HEADERS
        for _ in self._state.versions:
            version, path = self._state.version, self._state.path
            limit = response_seconds(self._state.version_worked, timeouts)
            response = self._send(self._locator.requests, method, path, headers, body, limit)
            if not self._state.try_older_version(version, response):
                return response
            self._pause_on(self._locator.requests, STEP_SECONDS)
        raise error_in(response)

    def _send(
        self,
        connection: EndpointConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limit: float,
    ) -> EndpointResponse:
        def admit() -> None:
            while wait_seconds := self._pacer.admit(real_seconds(), is_poll=connection is self._locator.polls):
                self._pause_on(connection, wait_seconds)

        response = connection.exchange(method, path, headers, body, limit, transfer_seconds(), admit)
        if response.date is not None:
            self.clock.set(response.date)
        return response

    def _get_identity(self, connection: EndpointConnection) -> MachineIdentity:
        return self._name_resolver.me(partial(self._request_path, connection))

    def _request_path(self, connection: EndpointConnection, path: str) -> EndpointResponse:
        self._locator.get()
        return self._send(connection, "GET", path, HEADERS, None, REQUEST_SECONDS)

    def _pause_on(self, connection: EndpointConnection, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._pause is not None:
            self._pause(seconds)
        elif connection.wait(seconds):
            raise ClientClosed
