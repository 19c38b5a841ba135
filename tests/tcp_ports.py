"""Ports for programs that cannot choose a free one themselves."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress

FIRST, LAST = 16384, 32767
"""Below the range from which the system takes ports for outgoing connections and for listeners on port 0."""


def free_port() -> int:
    """Return a port that no other program gets by chance before the caller uses it."""
    while True:
        port = FIRST + secrets.randbelow(LAST - FIRST + 1)
        with suppress(OSError), socket.create_server(("", port)):
            return port
