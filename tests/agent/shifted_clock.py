"""A monotonic clock that a test can shift, so that a pause of an hour takes no time."""

from __future__ import annotations

import time
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any

from agent.raw_server import most_in_a_second
from forewarn.agent import clock, retry

if TYPE_CHECKING:
    import pytest


class Shifted:
    """Replaces the module `time` in the clock of the agent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._by = 0.0
        self.pauses: list[float] = []
        self._sent: list[float] = []
        monkeypatch.setattr(clock, "time", self)
        put_request = HTTPConnection.putrequest

        def put_and_count(connection: HTTPConnection, *arguments: Any, **options: Any) -> None:
            self._sent.append(self.monotonic())
            put_request(connection, *arguments, **options)

        monkeypatch.setattr(HTTPConnection, "putrequest", put_and_count)

    def monotonic(self) -> float:
        return time.monotonic() + self._by

    @property
    def most_sent_in_a_second(self) -> int:
        """Counted where requests are sent: on a busy machine a server may see them only after the client gave up."""
        return most_in_a_second(self._sent)

    def pause(self, seconds: float) -> None:
        """Shift the clock, and record the pause."""
        self.pauses.append(seconds)
        self._by += seconds


def allow_seconds(monkeypatch: pytest.MonkeyPatch, first: float, *after_silence: float) -> None:
    """Set short timeouts for responses."""
    monkeypatch.setattr(retry, "FIRST_RESPONSE_SECONDS", first)
    monkeypatch.setattr(retry, "_AFTER_TIMEOUTS", after_silence)
