"""Processes of this machine: which one a number means, and the end of a group of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_SECONDS = 5.0
"""Between the request to end and the end by force."""
_LOOK_SECONDS = 0.05


class Process(NamedTuple):
    """One process. A number alone may mean another one later; with the moment of its start it cannot."""

    pid: int
    started: int
    """In clock ticks since the machine was started."""

    @property
    def lives(self) -> bool:
        """Whether it still runs. One that has ended and was not collected yet does not."""
        return find_process(self.pid) == self


def find_process(pid: int) -> Process | None:
    """The process that has this number now, unless it has ended."""
    fields = _stat(pid)
    return Process(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def _stat(pid: int | str) -> list[str]:
    """The fields of /proc/PID/stat from the third on; nothing when there is no such process."""
    with suppress(OSError):
        # The second field is the program's name in brackets, and may itself hold brackets and blanks.
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return []


def _has_members(group: int) -> bool:
    for entry in os.listdir("/proc"):  # noqa: PTH208 - a Path for each process costs more than reading it
        if entry.isdecimal():
            fields = _stat(entry)
            if fields and fields[2] == str(group) and fields[0] not in "ZX":
                return True
    return False


def end_group(group: int, pause: Callable[[float], None]) -> None:
    """End all processes of a group: ask first, and use force where that does not help. `pause` waits for seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        for _ in range(round(GRACE_SECONDS / _LOOK_SECONDS)):
            if not _has_members(group):
                return
            pause(_LOOK_SECONDS)


def started_at(process: Process) -> float | None:
    """When it was started, in seconds since 1970 by the machine's clock as it is set now."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + process.started / os.sysconf("SC_CLK_TCK")
    return None
