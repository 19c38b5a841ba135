"""The machine that the agent runs on: the id of its boot, and its uptime."""

from __future__ import annotations

import os
from pathlib import Path

from forewarn.system.processes import find_process

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_UPTIME = Path("/proc/uptime")


def boot_id() -> str:
    """Return an id that changes with each boot of the machine or start of the container.

    A container shares the machine's boot id, so the start of its first process is part of the id. Without system
    information, the id is constant and restarts are not noticed.

    An agent that is the first process of a container ignores its own start: its work is outside of the container.
    """
    try:
        machine = _BOOT_ID.read_text("ascii").strip()
    except (OSError, ValueError):
        machine = ""
    return f"{machine}.{_first_process_ticks()}"


def uptime_seconds() -> float:
    """Seconds since the machine or container started; infinite if the system does not provide it."""
    try:
        machine = float(_UPTIME.read_text("ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return float("inf")
    return machine - _first_process_ticks() / os.sysconf("SC_CLK_TCK")


def _first_process_ticks() -> int:
    """Return when the first process started, in clock ticks since boot."""
    if os.getpid() == 1:
        return 0
    first = find_process(1)
    return 0 if first is None else first.started
