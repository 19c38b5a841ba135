"""When to send the next request: backoff after a failure, timeouts, and a rate limit.

The endpoint allows five requests per second. The client stays below that.
"""

from __future__ import annotations

import threading
from collections import deque

from forewarn.core.durations import backoff_seconds

# --- Backoff and timeouts -------------------------------------------------------------------------


MIN_PAUSE, MAX_PAUSE = 0.5, 10.0
"""A Preempt has 30 seconds of notice: after a longer pause the client could see it too late."""
_SPREAD = (0.7, 1.0)

FIRST_RESPONSE_SECONDS = 130.0
"""The endpoint can take up to two minutes for a machine's first request."""
RESPONSE_SECONDS = 10.0
_AFTER_TIMEOUTS = (RESPONSE_SECONDS, 25.0)
LONG_POLL_SECONDS = 20
"""Maximum duration of a long poll. Together with the response timeout it stays below a Preempt's 30 seconds of
notice, in case the connection is dead."""


def pause_after(kind: str, in_a_row: int, jitter: float, retry_after: float | None = None) -> float:
    """Return the pause in seconds after this many failures in a row, the last of this kind.

    `jitter`, from 0 to 1, spreads the machines that lost the endpoint at the same time.
    """
    pause = backoff_seconds(in_a_row, maximum=MAX_PAUSE, spread=_SPREAD, jitter=jitter)
    if kind == "throttled":
        pause = max(pause, 1.0)
    if retry_after is not None and retry_after > pause:
        pause = retry_after
    return min(max(pause, MIN_PAUSE), MAX_PAUSE)


def response_seconds(has_document: bool, timeouts: int) -> float:
    """Return the timeout of a request, after this many requests in a row without any byte of a response.

    The endpoint may be enabling this machine again, so it gets more time. It does not get the two minutes of the first
    request: the connection may be dead, and a Preempt has only 30 seconds of notice.
    """
    if not has_document:
        return FIRST_RESPONSE_SECONDS
    return _AFTER_TIMEOUTS[min(timeouts, len(_AFTER_TIMEOUTS) - 1)]


def transfer_seconds() -> float:
    """Return the timeout from the first byte of a response to its end."""
    return _AFTER_TIMEOUTS[0]


# --- Rate limit -----------------------------------------------------------------------------------


MAX_REQUESTS, MAX_REQUESTS_OF_A_KIND = 5, 4
"""In any second. Polls leave one request for an approval, and other requests leave one for a poll."""
STEP_SECONDS = 0.25
_WINDOW_SECONDS = 1.05
"""A second as the endpoint counts it, with a margin for network delays."""


class RequestPacer:
    """Limits the rate of requests of one client, across its threads."""

    def __init__(self, poll_seconds: float) -> None:
        self._poll_seconds = poll_seconds
        self._lock = threading.Lock()
        self._sent: deque[float] = deque(maxlen=MAX_REQUESTS)
        self._sent_by_kind: dict[bool, deque[float]] = {
            is_poll: deque(maxlen=MAX_REQUESTS_OF_A_KIND) for is_poll in (True, False)
        }

    def admit(self, now: float, *, is_poll: bool) -> float:
        """Return 0 if a request may be sent at `now` (in real seconds), and count it; else the seconds until the next
        try."""
        with self._lock:
            wait_seconds = self._wait_seconds(now, is_poll=is_poll)
            if not wait_seconds:
                self._sent.append(now)
                self._sent_by_kind[is_poll].append(now)
            return wait_seconds

    def pause(self, now: float, began: float, *, at_once: bool) -> float:
        """Return the seconds until the next poll, after a successful poll that started at `began`.

        `at_once`: it was a long poll with a result, so the next one may follow at once, but within the rate limit.
        """
        pause = 0.0 if at_once else self._poll_seconds - (now - began)
        with self._lock:
            return max(pause, self._wait_seconds(now, is_poll=True))

    def took_long(self, now: float, began: float) -> bool:
        """Whether the poll took so long that an immediate next one keeps the normal rate."""
        return now - began >= min(self._poll_seconds, 1.0)

    def _wait_seconds(self, now: float, *, is_poll: bool) -> float:
        """Return the seconds until another request is within the rate limit."""
        full = [times[0] for times in (self._sent, self._sent_by_kind[is_poll]) if len(times) == times.maxlen]
        return max((time + _WINDOW_SECONDS - now for time in full if now < time + _WINDOW_SECONDS), default=0.0)
