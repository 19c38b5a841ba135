"""When to send the next request: backoff after a failure, timeouts, and a rate limit.

The endpoint allows five requests a second. The client stays below that.
"""

from __future__ import annotations

import threading
from collections import deque

from forewarn.core.durations import backoff_seconds

# --- Backoff and timeouts -------------------------------------------------------------------------


SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""A Preempt leaves 30 seconds: whoever pauses longer may see it too late."""
_SPREAD = (0.7, 1.0)

FIRST_ANSWER_SECONDS = 130.0
"""The first call of a machine is held for up to two minutes."""
ANSWER_SECONDS = 10.0
_AFTER_SILENCE = (ANSWER_SECONDS, 25.0)


def pause_after(kind: str, in_a_row: int, luck: float, retry_after: float | None = None) -> float:
    """Seconds to wait after this many troubles in a row, the last of this kind.

    `luck`, from 0 to 1, spreads machines that all lost the endpoint at the same moment.
    """
    pause = backoff_seconds(in_a_row, longest=LONGEST_PAUSE, spread=_SPREAD, luck=luck)
    if kind == "throttled":
        pause = max(pause, 1.0)
    if retry_after is not None and retry_after > pause:
        pause = retry_after
    return min(max(pause, SHORTEST_PAUSE), LONGEST_PAUSE)


def answer_seconds(has_document: bool, silences: int) -> float:
    """How long an exchange may take, after so many in a row to which not a byte came back.

    Who is silent may be enabling this machine anew, and is given more time; but not the two minutes of the first call,
    since it may as well be this connection that is dead, and a Preempt leaves 30 seconds.
    """
    if not has_document:
        return FIRST_ANSWER_SECONDS
    return _AFTER_SILENCE[min(silences, len(_AFTER_SILENCE) - 1)]


def rest_seconds() -> float:
    """How long an answer may take from its first byte on."""
    return _AFTER_SILENCE[0]


# --- Rate limit -----------------------------------------------------------------------------------


MOST_REQUESTS, MOST_OF_A_KIND = 5, 4
"""In any second. Polls leave one for an approval, and all else leaves one for a poll."""
STEP_SECONDS = 0.25
_WINDOW_SECONDS = 1.05
"""A second as the endpoint counts it: some requests are longer on their way than others."""


class Pace:
    """Of the requests of one client, whatever thread they come from."""

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._guard = threading.Lock()
        self._sent: deque[float] = deque(maxlen=MOST_REQUESTS)
        self._sent_by_kind: dict[bool, deque[float]] = {
            is_poll: deque(maxlen=MOST_OF_A_KIND) for is_poll in (True, False)
        }

    def admit(self, now: float, *, is_poll: bool) -> float:
        """0: a request may be sent at this moment of real seconds, and is counted. Else seconds until to ask again."""
        with self._guard:
            room = self._room(now, is_poll=is_poll)
            if not room:
                self._sent.append(now)
                self._sent_by_kind[is_poll].append(now)
            return room

    def pause(self, now: float, began: float, *, at_once: bool) -> float:
        """Seconds until the next poll, after one that began then and went well.

        `at_once`: it was held by the endpoint, and has been worth it. Then the endpoint sets the pace; but one that
        says so each time does not set it above the limit.
        """
        rest = 0.0 if at_once else self._poll_seconds - (now - began)
        with self._guard:
            return max(rest, self._room(now, is_poll=True))

    def is_hold(self, now: float, began: float) -> bool:
        """Whether it took so long that another at once is no more than one in its time."""
        return now - began >= min(self._poll_seconds, 1.0)

    def _room(self, now: float, *, is_poll: bool) -> float:
        """Seconds until another request makes no more than there may be in a second."""
        full = [moments[0] for moments in (self._sent, self._sent_by_kind[is_poll]) if len(moments) == moments.maxlen]
        return max((moment + _WINDOW_SECONDS - now for moment in full if now < moment + _WINDOW_SECONDS), default=0.0)
