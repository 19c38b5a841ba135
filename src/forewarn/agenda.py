"""What is due when. Entries that time has overtaken are harmless: whoever takes one looks again."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


class Agenda:
    """A heap of moments."""

    def __init__(self) -> None:
        self.sooner = asyncio.Event()
        """Set when something has become due earlier than all before it."""
        self._heap: list[tuple[datetime, str, int, str]] = []
        self._numbers = count()
        """What is due at one moment comes in the order in which it was noted: ids are random, and must not decide."""

    def add(self, moment: datetime, kind: str, key: str) -> None:
        heapq.heappush(self._heap, (moment, kind, next(self._numbers), key))
        if self._heap[0][0] == moment:
            self.sooner.set()

    def next(self) -> datetime | None:
        """The first moment at which something is due."""
        return self._heap[0][0] if self._heap else None

    def take(self, now: datetime) -> list[tuple[str, str]]:
        """All that is due by now, in its order, as (kind, key)."""
        due = []
        while self._heap and self._heap[0][0] <= now:
            _, kind, _, key = heapq.heappop(self._heap)
            due.append((kind, key))
        return due
