"""The part of systemd that a service of Type=notify talks to, and waiting for the log of a service."""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from forewarn.testing import ServiceProcess

SECONDS = 60
"""The timeout of every wait."""


class SystemdSocket:
    """Receives the notifications of a service."""

    def __init__(self, folder: Path, watchdog_seconds: float | None = None) -> None:
        self._path = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self._path)
        self._socket.settimeout(SECONDS)
        self.variables = {"NOTIFY_SOCKET": self._path}
        if watchdog_seconds is not None:
            self.variables["WATCHDOG_USEC"] = str(int(watchdog_seconds * 1e6))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def receive(self) -> dict[str, str]:
        """Wait for the next notification."""
        return dict(line.split("=", 1) for line in self._socket.recv(4096).decode().splitlines())

    def receive_within(self, seconds: float) -> dict[str, str] | None:
        """Return the next notification; None if none comes in this time."""
        self._socket.settimeout(seconds)
        try:
            return self.receive()
        except TimeoutError:
            return None
        finally:
            self._socket.settimeout(SECONDS)

    def wait_for(self, name: str) -> dict[str, str]:
        """Wait for a notification with this name, and skip those of the watchdog."""
        while "WATCHDOG" in (found := self.receive()) and name != "WATCHDOG":
            pass
        assert name in found, found
        return found


def wait_for_log(service: ServiceProcess, text: str, times: int = 1) -> str:
    """Wait until the text is in the output of the service. Return the last line with it."""
    pause = threading.Event()
    for _ in range(SECONDS * 50):
        lines = [line for line in service.output.splitlines() if text in line]
        if len(lines) >= times:
            return lines[-1]
        pause.wait(0.02)  # a thread reads the output
    raise AssertionError(f"{text!r} is not in the output:\n{service.output}")
