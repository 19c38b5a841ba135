"""How often an endpoint is asked: its limit is five requests a second, and nobody should come near it."""

from __future__ import annotations

import threading
from collections import deque

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
