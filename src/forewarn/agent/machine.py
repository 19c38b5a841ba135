"""The machine that the agent runs on: which boot this is, and how long ago the machine booted."""

from __future__ import annotations

import os
from pathlib import Path

from forewarn.system.processes import find_process

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
