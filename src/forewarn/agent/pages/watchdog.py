"""Tells systemd that the agent has started, how it is, and that it does not hang."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from forewarn.agent.clock import real_seconds
from forewarn.agent.pages.health import hanging

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""How systemd says that it wants to hear, and where."""


class Watchdog:
    """Speaks to whoever started the agent, if that is systemd and it wants to hear."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        place = environment.get("NOTIFY_SOCKET", "")
        # A name that begins with @ is one in the kernel's own list, not in the file system.
        self._place = f"\0{place[1:]}" if place.startswith("@") else place
        wanted = environment.get("WATCHDOG_USEC", "") if environment.get("WATCHDOG_PID", "") in ("", _me()) else ""
        self._pause_seconds = int(wanted) / 1e6 / 3 if wanted.isdigit() and int(wanted) else None
        self.due_at: float | None = None
        """When it should be told next, in real seconds; None: never."""
        if self._place and self._pause_seconds is not None:
            self.due_at = real_seconds() + self._pause_seconds

    def started(self) -> None:
        self.tell("READY=1")

    def stopping(self) -> None:
        self.due_at = None
        self.tell("STOPPING=1")

    def beat(self, look: Callable[[], Mapping[str, Any] | None]) -> None:
        """If it is time: that the agent is well. If it is not, nothing is said, and systemd starts it again."""
        if self.due_at is None or self._pause_seconds is None or real_seconds() < self.due_at:
            return
        self.due_at = real_seconds() + self._pause_seconds
        snapshot = look()
        if snapshot is not None and not hanging(snapshot):
            self.tell(f"WATCHDOG=1\nSTATUS={_summary(snapshot)}")

    def tell(self, text: str) -> None:
        if not self._place:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.sendto(text.encode("utf-8", "backslashreplace"), self._place)


def _summary(snapshot: Mapping[str, Any]) -> str:
    mine = [event for event in snapshot.get("events") or [] if event.get("mine")]
    told = ", ".join(f"{event.get('type')} {event.get('phase')}" for event in mine) or "nothing is coming"
    trouble = (snapshot.get("polling") or {}).get("trouble")
    # In one line: what follows a line's end would be an order to systemd.
    return " ".join((f"{told}; the endpoint {trouble}" if trouble else told).split())


def _me() -> str:
    return str(os.getpid())
