"""How long to wait: before the next try when something went wrong, and for an answer."""

from __future__ import annotations

SHORTEST_PAUSE, LONGEST_PAUSE = 0.5, 10.0
"""A Preempt leaves 30 seconds: whoever pauses longer may see it too late."""
_FIRST_PAUSE = 1.0
_LEAST_SHARE = 0.7

FIRST_ANSWER_SECONDS = 130.0
"""The first call of a machine is held for up to two minutes."""
ANSWER_SECONDS = 10.0
_AFTER_SILENCE = (ANSWER_SECONDS, 25.0)


def pause_after(kind: str, in_a_row: int, luck: float, retry_after: float | None = None) -> float:
    """Seconds to wait after this many troubles in a row, the last of this kind.

    `luck`, from 0 to 1, spreads machines that all lost the endpoint at the same moment.
    """
    full = min(_FIRST_PAUSE * 2.0 ** min(max(in_a_row, 1) - 1, 16), LONGEST_PAUSE)
    pause = full * (_LEAST_SHARE + (1 - _LEAST_SHARE) * min(max(luck, 0.0), 1.0))
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
