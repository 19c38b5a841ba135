"""What a program says: line by line into the log, as it comes, and not without end."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.agent.handlers.handler import Job

MOST_LINES = 200
LONGEST_LINE = 2_000
_LONGEST_KEPT = 65_536
"""Of one line, for who reads it: a program may say a fact that is longer than what is worth a line of the log."""
_LAST_LINES = 5


class Output:
    """The output of one program."""

    def __init__(self, job: Job, on_line: Callable[[str], bool]) -> None:
        self._job = job
        self._on_line = on_line
        self._begun = bytearray()
        self._said = 0
        self._left_out = 0
        self.last: deque[str] = deque(maxlen=_LAST_LINES)

    def take(self, data: bytes) -> None:
        """Some more of it, not always whole lines."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._add(line)
            self._end_line()
        self._add(rest)

    def _add(self, part: bytes) -> None:
        self._begun += part[: max(0, _LONGEST_KEPT - len(self._begun))]

    def _end_line(self) -> None:
        line = self._begun.decode(errors="replace").rstrip("\r")
        self._begun.clear()
        if self._on_line(line):
            return
        short = line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "…"
        if short.strip():
            self.last.append(short)
        if self._said < MOST_LINES:
            self._said += 1
            self._job.say(short)
        else:
            self._left_out += 1

    def end(self) -> None:
        """Nothing more comes."""
        if self._begun:
            self._end_line()
        if self._left_out:
            self._job.warn(f"{self._left_out} more lines of output were left out", left_out=self._left_out)
