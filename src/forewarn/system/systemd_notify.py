"""Notifications to systemd: a service of Type=notify reports its start, its reloads and its end, and that it runs."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

NOTIFY_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""How systemd requests notifications. Programs that the service starts must not see them."""


class SystemdNotifier:
    """Sends notifications, if systemd requests them."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # An address that begins with @ is in the abstract namespace, not in the file system.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        is_mine = environment.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        interval = environment.get("WATCHDOG_USEC", "") if address and is_mine else ""
        self.watchdog_seconds = int(interval) / 1e6 / 3 if interval.isdigit() and int(interval) else None
        """How often to call `alive`: three times in the interval of the watchdog. None: never."""

    def ready(self, status: str = "") -> None:
        """The start, or a reload, is complete. `systemctl status` shows the text from then on."""
        self._send("READY=1" + _assignment(status))

    def waiting(self, status: str, seconds: float) -> None:
        """The start waits, and may take so much longer. Otherwise systemd ends it after TimeoutStartSec."""
        self._send(f"EXTEND_TIMEOUT_USEC={seconds * 1e6:.0f}" + _assignment(status))

    def reloading(self, monotonic_seconds: float) -> None:
        """A reload begins, at this time of the monotonic clock."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={int(monotonic_seconds * 1e6)}")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def alive(self, status: str) -> None:
        """Reset the watchdog. `systemctl status` shows the text."""
        self._send("WATCHDOG=1" + _assignment(status))

    def _send(self, text: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
            connection.sendto(text.encode("utf-8", "backslashreplace"), self._address)


def _assignment(status: str) -> str:
    # One line: systemd would read the next line as another assignment.
    return f"\nSTATUS={' '.join(status.split())}" if status else ""
