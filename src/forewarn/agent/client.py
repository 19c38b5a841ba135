"""The client: finds the endpoint, follows its document, retries when the endpoint fails, and approves."""

from __future__ import annotations

import logging
import math
import os
import random
import threading
from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.address import read_endpoint
from forewarn.agent.changes import Account
from forewarn.agent.clock import EndpointClock, real_seconds
from forewarn.agent.discovery import find_endpoint
from forewarn.agent.identity import ASK_SECONDS, NameResolver
from forewarn.agent.protocol import HEADERS, NOT_MODIFIED, OK, VERSIONS, Watch, document_in, trouble_in
from forewarn.agent.retry import SHORTEST_PAUSE, STEP_SECONDS, Pace, answer_seconds, pause_after, rest_seconds
from forewarn.agent.transport import EndpointConnection
from forewarn.errors import (
    BadPollSeconds,
    EndpointLeft,
    EndpointNotFound,
    EndpointTrouble,
    EndpointUnknown,
    EndpointUnmodified,
    NothingToApprove,
)
from forewarn.wire.document_reader import start_requests

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from forewarn.agent.address import Endpoint
    from forewarn.agent.changes import Change
    from forewarn.agent.identity import Me
    from forewarn.agent.transport import Answer
    from forewarn.wire.document_reader import ToldDocument, ToldEvent

_log = logging.getLogger("forewarn.agent.endpoint")


# --- Failures in a row ----------------------------------------------------------------------------


_MOST_PROBLEMS = 100


class TroubleStreak:
    """Troubles in a row."""

    def __init__(self) -> None:
        self.troubles = 0
        self.last: EndpointTrouble | None = None
        self.silences = 0
        """How many of them in a row were an answer of which no byte came."""
        self._since = 0.0

    def trouble(self, trouble: EndpointTrouble, now: float) -> None:
        """Another one, at this moment of real seconds."""
        if not self.troubles:
            self._since = now
            _log.warning("%s It is tried again.", _sentence(trouble), extra={"trouble": trouble.kind})
        self.troubles += 1
        self.last = trouble
        if trouble.kind == "timeout":
            self.silences += 1

    def answer(self) -> None:
        """Something came back, good or bad."""
        self.silences = 0

    def well(self, now: float) -> None:
        """It is as it should be."""
        if self.troubles:
            tries = "1 try" if self.troubles == 1 else f"{self.troubles} tries"
            _log.info("The endpoint answers again, after %.1f s and %s.", now - self._since, tries)
        self.troubles, self.last, self.silences = 0, None, 0


class ProblemLog:
    """What is wrong with a document that can be read for the rest: each thing is said once, however often it comes."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def log_new(self, problems: Iterable[str]) -> None:
        """Of one document. There is an end to it: who makes up new ones without end is not listened to any more."""
        for problem in problems:
            if problem not in self._said and len(self._said) < _MOST_PROBLEMS:
                self._said.add(problem)
                _log.warning("The endpoint has told something that cannot be read: %s. The rest counts.", problem)


def _sentence(trouble: EndpointTrouble) -> str:
    text = str(trouble)
    return text if text.endswith((".", "!", "?")) else f"{text}."


# --- Where the endpoint is, and the two connections to it -----------------------------------------


LOST_AFTER_SECONDS = 30.0
GIVEN = "what was given"


class EndpointLocator:
    """Finds the endpoint when it is needed; and again, where nobody has said which it is, when it was away for long."""

    def __init__(self, given: str, find: Callable[..., Endpoint] = find_endpoint) -> None:
        self._given = given
        self._find = find
        self._settled = bool(given or os.environ.get("FOREWARN_ENDPOINT"))
        if given:
            read_endpoint(given, GIVEN)  # what cannot be one is said at once
        self._guard = threading.Lock()
        self._away_since: float | None = None
        self._look_again = False
        self._closed = False
        self.endpoint: Endpoint | None = None
        self.polls, self.others = EndpointConnection(), EndpointConnection()
        self.moved: Callable[[], object] = lambda: None
        """Called when it is another endpoint than before."""

    @property
    def closed(self) -> bool:
        return self._closed

    def found(self) -> Endpoint:
        """The endpoint; an EndpointTrouble while none is found."""
        with self._guard:
            if self._closed:
                raise EndpointLeft
            if self.endpoint is None or self._look_again:
                self._take(self._look())
            assert self.endpoint is not None  # noqa: S101 - just taken
            return self.endpoint

    def away(self, kind: str, now: float) -> None:
        """There was trouble of this kind. Who is only unreachable for long may have moved."""
        if kind != "unreachable":
            self._away_since = None
        elif self._away_since is None:
            self._away_since = now
        elif now - self._away_since >= LOST_AFTER_SECONDS and not self._settled:
            self._away_since, self._look_again = now, True

    def well(self) -> None:
        """It has answered."""
        self._away_since = None

    def close(self) -> None:
        """For good, from any thread: what is under way ends."""
        self._closed = True
        self.polls.close()
        self.others.close()

    def _look(self) -> Endpoint:
        try:
            return self._find(self._given, given_by=GIVEN)
        except EndpointNotFound as error:
            if self.endpoint is None:
                raise EndpointUnknown(problem=str(error)) from error
            return self.endpoint

    def _take(self, endpoint: Endpoint) -> None:
        before, self.endpoint = self.endpoint, endpoint
        self._look_again = False
        if before is not None and before.url == endpoint.url:
            return
        for connection in (self.polls, self.others):
            connection.turn_to(endpoint)
        if before is not None:
            _log.warning("The endpoint is looked for at %s now (%s).", endpoint.url, endpoint.origin)
            self.moved()


# --- The client -----------------------------------------------------------------------------------


LEAST_POLL_SECONDS, MOST_POLL_SECONDS = 0.25, 3600.0
HOLD_SECONDS = 20
"""How long `changes` lets a poll be held. With the time for an answer it is no more than a Preempt's 30 seconds, in
case that the connection is dead and nobody says so."""
_APPROVING_SECONDS = 60.0


class Polled(NamedTuple):
    """What came of one poll."""

    document: ToldDocument | None
    """What the endpoint tells now, also if it is the same as before; None: nothing was learned."""
    changed: bool
    """It is another document than the last."""
    went_back: bool
    """Its incarnation is lower than the last one's: it may be an old document, or incarnations have begun anew."""
    trouble: EndpointTrouble | None
    pause_seconds: float
    """How long to wait before the next poll."""


class Client:
    """Scheduled Events, as the machine that it runs on is told of them. Several threads may use one client."""

    def __init__(
        self,
        endpoint: str = "",
        vm_name: str = "",
        *,
        poll_seconds: float = 1.0,
        pause: Callable[[float], object] | None = None,
        luck: Callable[[], float] = random.random,
    ) -> None:
        """Without an endpoint it is FOREWARN_ENDPOINT, or the one that is found; without a name it is
        FOREWARN_VM_NAME, or what the endpoint says, or the host name. Nothing is asked before it is needed.

        `pause` and `luck` are for tests: what waits instead of the clock, and what spreads the pauses.
        """
        if not (math.isfinite(poll_seconds) and LEAST_POLL_SECONDS <= poll_seconds <= MOST_POLL_SECONDS):
            raise BadPollSeconds(value=poll_seconds, least=LEAST_POLL_SECONDS, most=MOST_POLL_SECONDS)
        self.clock = EndpointClock()
        """What time it is for the endpoint, by its last answer: NotBefore is a moment of this clock."""
        self._watch = Watch()
        self._streak = TroubleStreak()
        self._problem_log = ProblemLog()
        self._pace = Pace(poll_seconds)
        self._locator = EndpointLocator(endpoint)
        self._locator.moved = self._watch.move
        self._name_resolver = NameResolver(vm_name.strip() or os.environ.get("FOREWARN_VM_NAME", "").strip())
        self._polling = threading.RLock()
        self._pause = pause
        self._luck = luck

    # --- Who and where ----------------------------------------------------------------------------

    @property
    def endpoint(self) -> Endpoint:
        """Where it asks. Found at first use; again after 30 s of being unreachable, if it was not given."""
        return self._locator.found()

    @property
    def me(self) -> Me:
        """This machine, as events name it. As long as the endpoint does not say it, it is the host name."""
        return self._named(self._locator.others)

    @property
    def known(self) -> tuple[Endpoint | None, Me | None]:
        """Where it asks and who this is, as far as that is known by now: nobody is asked for it."""
        return self._locator.endpoint, self._name_resolver.last if self._name_resolver.settled else None

    @property
    def offers_long_poll(self) -> bool | None:
        """Whether the endpoint holds polls until something changes; None: not known yet."""
        return self._watch.holds

    @property
    def lines(self) -> tuple[EndpointConnection, EndpointConnection]:
        """The connection for polls, and the one for all else: other threads may cut them."""
        return self._locator.polls, self._locator.others

    # --- One request ------------------------------------------------------------------------------

    def document(self) -> ToldDocument:
        """Ask for the whole document, once. An EndpointTrouble, if it does not come."""
        answer = self._through_versions("GET", None)
        if answer.status == OK:
            document, problems = document_in(answer, self._watch.document)
            self._problem_log.log_new(problems)
            self._watch.version_worked = True
            return document
        raise EndpointUnmodified if answer.status == NOT_MODIFIED else trouble_in(answer)

    def approve(self, *events_or_ids: ToldEvent | str) -> None:
        """Let these events start now, for all machines that they name: one request for all of them.

        An EndpointTrouble, if it was not taken: of kind "refused" with the endpoint's words, if it knows one of them
        not, or no more; then none of them is approved.
        """
        ids = [given if isinstance(given, str) else getattr(given, "id", None) for given in events_or_ids]
        named = [event_id for event_id in ids if event_id and isinstance(event_id, str)]
        if not ids or len(named) < len(ids):
            raise NothingToApprove(given=", ".join(map(repr, events_or_ids)) or "Nothing")
        self._approve(named, silences=0)

    def poll(self, wait_seconds: int = 0) -> Polled:
        """Ask once, with the tag of the last document, and say what came of it: troubles are not raised.

        With `wait_seconds` the endpoint is asked to hold the poll until something changes, at most so long; one that
        does not know how answers at once, and is not asked again.
        """
        with self._polling:
            try:
                return self._poll(wait_seconds)
            except EndpointTrouble as trouble:
                return self._troubled(trouble)

    # --- All that happens -------------------------------------------------------------------------

    def changes(self, mine: bool = True) -> Iterator[Change]:
        """Everything that happens to events, each thing once, from those that are there now on. It lives through all
        troubles of the endpoint and ends when the client is closed. `mine=False`: events of other machines too."""
        account = Account()
        while not self._locator.closed:
            changes, pause_seconds = self.turn(account, mine=mine)
            yield from changes
            try:
                self._rest(self._locator.polls, pause_seconds)
            except EndpointLeft:
                return

    def turn(self, account: Account, *, mine: bool = True) -> tuple[list[Change], float]:
        """One turn of `changes`: what is new by this account, and how long to pause before the next."""
        with self._polling:
            # To be held is for one who knows all that there is to know: another may have polled in between.
            polled = self.poll(HOLD_SECONDS if account.is_at(self._watch.document) else 0)
        if polled.document is None:
            return [], polled.pause_seconds
        me = self._named(self._locator.polls) if mine and polled.document.events else self._name_resolver.last
        if mine and polled.document.events and not self._name_resolver.settled:
            # The name could not be had this time. To take the host name for it might hide what is coming.
            return [], max(polled.pause_seconds, SHORTEST_PAUSE)
        changes = account.take(polled.document, real_seconds())
        if mine:
            changes = [change for change in changes if change.concerns(me)]
        return [change.of(self.send_approval) for change in changes], polled.pause_seconds

    def send_approval(self, event: ToldEvent) -> bool:
        """Approve an event that was told, through troubles of the endpoint. False: it was gone by then."""
        began, tries, silences = real_seconds(), 0, 0
        while True:
            try:
                return self._approve_if_there(event.id, silences)
            except EndpointTrouble as trouble:
                lasting = trouble.kind in ("refused", "closed")
                if lasting or real_seconds() - began > _APPROVING_SECONDS:
                    raise
                tries += 1
                silences += trouble.kind == "timeout"
                pause = pause_after(trouble.kind, tries, self._luck(), trouble.retry_after)
            self._rest(self._locator.others, pause)

    def _approve_if_there(self, event_id: str, silences: int) -> bool:
        try:
            self._approve([event_id], silences)
        except EndpointTrouble as trouble:
            # To look may fail too: that is then the trouble, and it is all tried again.
            if trouble.kind == "refused" and self.document().event(event_id) is None:
                return False
            raise
        return True

    # --- Life -------------------------------------------------------------------------------------

    def close(self) -> None:
        """End it, from any thread: what is under way ends with it, and so does `changes`."""
        self._locator.close()

    @property
    def closed(self) -> bool:
        """Whether it was ended."""
        return self._locator.closed

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- How --------------------------------------------------------------------------------------

    def _poll(self, wait_seconds: int) -> Polled:
        self._locator.found()
        watch, began = self._watch, real_seconds()
        ask = watch.ask(wait_seconds)
        limit = answer_seconds(watch.version_worked, self._streak.silences) + ask.wait_seconds
        answer = self._send(self._locator.polls, "GET", ask.path, ask.headers, None, limit)
        self._streak.answer()
        content = watch.answered(ask, answer)
        now = real_seconds()
        if content.document is None:
            return Polled(None, False, False, None, STEP_SECONDS)
        self._problem_log.log_new(content.problems)
        self._streak.well(now)
        self._locator.well()
        at_once = content.held and (content.changed or self._pace.is_hold(now, began))
        pause = self._pace.pause(now, began, at_once=at_once)
        return Polled(content.document, content.changed, content.went_back, None, pause)

    def _troubled(self, trouble: EndpointTrouble) -> Polled:
        if trouble.kind == "closed":
            return Polled(None, False, False, trouble, SHORTEST_PAUSE)
        now, streak = real_seconds(), self._streak
        streak.trouble(trouble, now)
        self._locator.away(trouble.kind, now)
        pause = pause_after(trouble.kind, streak.troubles, self._luck(), trouble.retry_after)
        return Polled(None, False, False, trouble, pause)

    def _approve(self, ids: list[str], silences: int) -> None:
        answer = self._through_versions("POST", start_requests(*ids), silences)
        # Exactly 200 is what is answered; that others mean the same with 202 or 204 is no reason to doubt it.
        if not OK <= answer.status < 300:
            raise trouble_in(answer)

    def _through_versions(self, method: str, body: bytes | None, silences: int = 0) -> Answer:
        """Ask with the version that works; if none is known to, with one after the other."""
        self._locator.found()
        headers = dict(HEADERS, **{"Content-Type": "application/json"}) if body else HEADERS
        for _ in VERSIONS:
            version, path = self._watch.version, self._watch.path
            limit = answer_seconds(self._watch.version_worked, silences)
            answer = self._send(self._locator.others, method, path, headers, body, limit)
            if not self._watch.steps_down(version, answer):
                return answer
            self._rest(self._locator.others, STEP_SECONDS)
        raise trouble_in(answer)

    def _send(
        self,
        connection: EndpointConnection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
        limit: float,
    ) -> Answer:
        def admit() -> None:
            while room := self._pace.admit(real_seconds(), is_poll=connection is self._locator.polls):
                self._rest(connection, room)

        answer = connection.exchange(method, path, headers, body, limit, rest_seconds(), admit)
        if answer.date is not None:
            self.clock.set(answer.date)
        return answer

    def _named(self, connection: EndpointConnection) -> Me:
        def ask(path: str) -> Answer:
            self._locator.found()
            return self._send(connection, "GET", path, HEADERS, None, ASK_SECONDS)

        return self._name_resolver.me(ask)

    def _rest(self, connection: EndpointConnection, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._pause is not None:
            self._pause(seconds)
        elif connection.rest(seconds):
            raise EndpointLeft
