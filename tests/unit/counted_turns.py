"""An event loop that counts what each of its turns does: in calls of functions, not in time."""

from __future__ import annotations

import asyncio
import selectors
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Turns(selectors.DefaultSelector):
    """Selects as usual. A turn of the loop is what it does between two selects."""

    calls = longest = 0

    def select(self, timeout: float | None = None) -> Any:
        self.longest = max(self.longest, self.calls)
        found = super().select(timeout)
        self.calls = 0
        return found

    def on_event(self, _: object, event: str, __: object) -> None:
        self.calls += event in ("call", "c_call")


class CountedLoop(asyncio.SelectorEventLoop):
    """Counts calls of functions while a test measures."""

    def __init__(self) -> None:
        self.turns = _Turns()
        super().__init__(self.turns)


@contextmanager
def longest_turn() -> Iterator[_Turns]:
    """Yield the turns of the running loop. Afterwards, `longest` is the number of calls of the longest one."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, CountedLoop)
    loop.turns.calls = loop.turns.longest = 0
    before = sys.getprofile()
    sys.setprofile(loop.turns.on_event)
    try:
        yield loop.turns
    finally:
        sys.setprofile(before)
        loop.turns.longest = max(loop.turns.longest, loop.turns.calls)
