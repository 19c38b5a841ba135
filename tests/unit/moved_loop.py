"""An event loop whose time a test moves: deadlines pass at once, and nothing sleeps."""

from __future__ import annotations

import asyncio


class MovedLoop(asyncio.SelectorEventLoop):
    """Its time is real time and what a test has added to it."""

    added_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.added_seconds


def move_on(seconds: float) -> None:
    """What is due by then happens before the next bytes are read or written."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    loop.added_seconds += seconds
