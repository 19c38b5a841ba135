"""Real seconds that a test can move on: a pause of an hour takes no time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from forewarn.agent import clock
from forewarn.agent.endpoint import patience

if TYPE_CHECKING:
    import pytest


class Shifted:
    """In the place of the module `time`, where the agent reads its own seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._by = 0.0
        self.pauses: list[float] = []
        monkeypatch.setattr(clock, "time", self)

    def monotonic(self) -> float:
        return time.monotonic() + self._by

    def pause(self, seconds: float) -> None:
        """Be there at once, and remember it."""
        self.pauses.append(seconds)
        self._by += seconds


def allow_seconds(monkeypatch: pytest.MonkeyPatch, first: float, *after_silence: float) -> None:
    """How long answers may take, where a test would wait too long for it."""
    monkeypatch.setattr(patience, "FIRST_ANSWER_SECONDS", first)
    monkeypatch.setattr(patience, "_AFTER_SILENCE", after_silence)
