"""Identify processes, and end process groups."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL."""
_POLL_SECONDS = 0.05


class Process(NamedTuple):
    """A process, identified by id and start time, because ids are reused."""

    pid: int
    started: int
    """In clock ticks since boot."""

    @property
    def lives(self) -> bool:
        """Whether it is running. Zombies are not."""
        return find_process(self.pid) == self


def find_process(pid: int) -> Process | None:
    """Return the running process with this id."""
    fields = _stat(pid)
    return Process(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def _stat(pid: int | str) -> list[str]:
    """Return the fields of /proc/PID/stat from the third on; empty if there is no such process."""
    with suppress(OSError):
        # The second field is the program's name in parentheses, which may contain blanks and parentheses.
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
    """End all processes of a group with SIGTERM, then SIGKILL. `pause` waits for seconds."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        for _ in range(round(GRACE_SECONDS / _POLL_SECONDS)):
            if not _has_members(group):
                return
            pause(_POLL_SECONDS)


def started_at(process: Process) -> float | None:
    """Return the start time as a Unix timestamp."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + process.started / os.sysconf("SC_CLK_TCK")
    return None
