"""Trouble with the endpoint, said once: when a spell of it begins, when it is over, and what cannot be read."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.errors import EndpointTrouble

_log = logging.getLogger("forewarn.agent.endpoint")
_MOST_COMPLAINTS = 100


class Spell:
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


class Complaints:
    """What is wrong with a document that can be read for the rest: each thing is said once, however often it comes."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def hear(self, problems: Iterable[str]) -> None:
        """Of one document. There is an end to it: who makes up new ones without end is not listened to any more."""
        for problem in problems:
            if problem not in self._said and len(self._said) < _MOST_COMPLAINTS:
                self._said.add(problem)
                _log.warning("The endpoint has told something that cannot be read: %s. The rest counts.", problem)


def _sentence(trouble: EndpointTrouble) -> str:
    text = str(trouble)
    return text if text.endswith((".", "!", "?")) else f"{text}."
