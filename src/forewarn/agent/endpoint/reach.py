"""Where the endpoint is, and the two connections to it: one for polls, which may be held, and one for all else."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING

from forewarn.agent.endpoint.address import read_endpoint
from forewarn.agent.endpoint.exchange import Line
from forewarn.agent.endpoint.finding import find_endpoint
from forewarn.errors import EndpointLeft, EndpointNotFound, EndpointUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.address import Endpoint

LOST_AFTER_SECONDS = 30.0
GIVEN = "what was given"
_log = logging.getLogger("forewarn.agent.endpoint")


class Reach:
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
        self.polls, self.others = Line(), Line()
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
        for line in (self.polls, self.others):
            line.turn_to(endpoint)
        if before is not None:
            _log.warning("The endpoint is looked for at %s now (%s).", endpoint.url, endpoint.origin)
            self.moved()
