"""An event loop whose time a test can move, so that deadlines pass without sleeping."""

from __future__ import annotations

import asyncio


class MovedLoop(asyncio.SelectorEventLoop):
    """Its time is the real time plus the seconds that a test has added."""

    added_seconds = 0.0

    def time(self) -> float:
        return super().time() + self.added_seconds


def move_on(seconds: float) -> None:
    """Move the time. Due timers run before the next bytes are read or written."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, MovedLoop)
    loop.added_seconds += seconds
