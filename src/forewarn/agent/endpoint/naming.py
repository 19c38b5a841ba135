"""Asking the endpoint for this machine's name, until it is known."""

from __future__ import annotations

import math
import socket
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.endpoint.answers import OK
from forewarn.agent.endpoint.watch import NAME_PATH
from forewarn.agent.identity import find_me
from forewarn.errors import EndpointTrouble

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.endpoint.exchange import Answer
    from forewarn.agent.identity import Me

_MOST_TRIES, _MOST_SECONDS = 8, 8.0
"""Of the 30 seconds that a Preempt leaves, enough must remain."""
ASK_SECONDS = 4.0
ASK_AGAIN_SECONDS = 30.0
"""After that the host name will do, but it is only a guess: the endpoint is asked again from time to time."""
_LONGEST_NAME = 300
_BAD_REQUEST, _THROTTLED, _FAILING = 400, 429, 500


class Naming:
    """Who this machine is. An answer settles it; a trouble that goes on does so for a while."""

    def __init__(self, given: str) -> None:
        self._given = given
        self._tries = 0
        self._since = 0.0
        self._ask_at = math.inf
        self.last: Me = find_me(given, lambda: None, socket.gethostname())
        self.settled = bool(given)

    def me(self, ask: Callable[[str], Answer]) -> Me:
        """The name that was given, or that the endpoint says; the host name, as long as neither is there."""
        if not self.settled or real_seconds() >= self._ask_at:
            self._since = self._since or real_seconds()
            try:
                answer = ask(NAME_PATH)
            except EndpointTrouble:
                self._failed()
            else:
                self._take(answer)
        return self.last

    def _take(self, answer: Answer) -> None:
        name = answer.body.decode("utf-8", "replace").strip() if answer.status == OK else ""
        self._ask_at = math.inf
        if name and len(name) <= _LONGEST_NAME and name.isprintable():
            self.last = find_me(self._given, lambda: name, socket.gethostname())
            self.settled = True
        elif _BAD_REQUEST <= answer.status < _FAILING and answer.status not in (410, _THROTTLED):
            self.settled = True  # it has no names to give, and will not have any
        else:
            self._failed()

    def _failed(self) -> None:
        self._tries += 1
        if self._tries >= _MOST_TRIES or real_seconds() - self._since >= _MOST_SECONDS:
            self.settled, self._ask_at = True, real_seconds() + ASK_AGAIN_SECONDS
