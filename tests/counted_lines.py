"""The work of each turn of a service's event loop: in lines of Python, not in time."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

    from forewarn.testing.loop_thread import LoopThread

MAX_LINES = 100_000
"""About 20 ms."""


class Turns:
    """Counts the lines of Python that a loop executes in each of its iterations. Other threads do not count."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._counting = False
        self._lines = 0
        self.longest = 0
        self.count = 0

    def __enter__(self) -> Turns:
        self.longest = self.count = self._lines = 0
        self._loop.call(self._start)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call(self._stop)

    def _start(self) -> None:
        self._counting = True
        asyncio.get_running_loop().call_soon(self._next)
        sys.settrace(self._trace)

    def _stop(self) -> None:
        sys.settrace(None)
        self._counting = False

    def _next(self) -> None:
        """Run once in every iteration."""
        self.longest, self._lines = max(self.longest, self._lines), 0
        self.count += 1
        if self._counting:
            asyncio.get_running_loop().call_soon(self._next)

    def _trace(self, _: FrameType, event: str, __: object) -> Any:
        self._lines += event == "line"
        return self._trace
