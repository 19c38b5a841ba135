"""The machine that the agent runs on: its processes, which boot this is, and how long ago the machine booted."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from forewarn.agent.clock import pause, real_seconds

# --- Processes ------------------------------------------------------------------------------------


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


def end_group(group: int) -> None:
    """End all processes of a group: ask first, and use force where that does not help."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)
        until = real_seconds() + GRACE_SECONDS
        while _has_members(group):
            if real_seconds() >= until:
                break
            pause(_LOOK_SECONDS)
        else:
            return


def started_at(process: Process) -> float | None:
    """When it was started, in seconds since 1970 by the machine's clock as it is set now."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_text().splitlines()
        boot = next(int(line.split()[1]) for line in lines if line.startswith("btime "))
        return boot + process.started / os.sysconf("SC_CLK_TCK")
    return None


# --- Boots ----------------------------------------------------------------------------------------


_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPTIME = Path("/proc/uptime")


def boot_id() -> str:
    """Another one after each start of the machine, or of the container: that has the machine's own, but a first
    process of its own. Where the system says nothing it is always the same, and no start is noticed.

    An agent that is itself the first process is alone in its container: what it looks after is not started with it.
    """
    try:
        machine = _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        machine = ""
    return f"{machine}.{_first_process_ticks()}"


def up_seconds() -> float:
    """Since the machine, or the container, was started; for ever where the system does not say."""
    try:
        machine = float(_UPTIME.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")
    return machine - _first_process_ticks() / os.sysconf("SC_CLK_TCK")


def _first_process_ticks() -> int:
    """When the first process was started, in ticks since the machine was."""
    if os.getpid() == 1:
        return 0
    first = find_process(1)
    return 0 if first is None else first.started
