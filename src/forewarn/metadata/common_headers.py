"""The headers that differ in every answer: the date, and a request id that no other answer has."""

from __future__ import annotations

import asyncio
import uuid
from email.utils import format_datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from forewarn.ports import Clock

# The last three digits of the ids, with the line's end: to count is to take the next one.
_ENDINGS = tuple(b"%03x\r\n" % number for number in range(4096))


class CommonHeaders:
    """Two header lines, made ahead: to format a date and a GUID would cost more than the rest of the answer.

    The date is refreshed at the turn of each second, or when a virtual clock has moved; ids begin with
    what is random and end with a count.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._id_start = str(uuid.uuid4())[:24]
        self._blocks = 0
        self._ready: Iterator[bytes] = iter(())

    def next(self) -> bytes:
        """The two header lines."""
        for line in self._ready:
            return line
        return self._refill()

    def refresh(self) -> None:
        """The date may have changed."""
        self._ready = iter(())

    async def keep(self) -> None:
        """Refresh at each second of the real time, for ever."""
        while True:
            into_second = self._clock.now().microsecond / 1_000_000
            await asyncio.sleep(1 - into_second)
            self.refresh()

    def _refill(self) -> bytes:
        self._blocks += 1
        date = format_datetime(self._clock.now(), usegmt=True)
        start = f"date: {date}\r\nx-ms-request-id: {self._id_start}{self._blocks:09x}".encode()
        self._ready = map(start.__add__, _ENDINGS)
        return next(self._ready)
