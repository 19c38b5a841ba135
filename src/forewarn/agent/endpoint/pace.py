"""How often an endpoint is asked: its limit is five requests a second, and nobody should come near it. Pure."""

from __future__ import annotations

from collections import deque

MOST_POLLS, MOST_REQUESTS = 4, 5
"""In any second. Polls leave one for an approval."""
STEP_SECONDS = 0.25
_WINDOW_SECONDS = 1.0


class Pace:
    """Of the requests of one client."""

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._begun: deque[float] = deque(maxlen=MOST_REQUESTS)

    def begin(self, now: float) -> None:
        """A request is sent at this moment of real seconds."""
        self._begun.append(now)

    def pause(self, now: float, began: float, *, at_once: bool) -> float:
        """Seconds until the next poll, after one that began then and went well.

        `at_once`: it was held by the endpoint, and has been worth it. Then the endpoint sets the pace; but one that
        says so each time does not set it above the limit.
        """
        rest = 0.0 if at_once else self._poll_seconds - (now - began)
        return max(rest, self.room(now, MOST_POLLS))

    def is_hold(self, now: float, began: float) -> bool:
        """Whether it took so long that another at once is no more than one in its time."""
        return now - began >= min(self._poll_seconds, 1.0)

    def room(self, now: float, most: int) -> float:
        """Seconds until another request makes no more than this many in a second."""
        begun = list(self._begun)
        if len(begun) < most:
            return 0.0
        return max(begun[-most] + _WINDOW_SECONDS - now, 0.0)
