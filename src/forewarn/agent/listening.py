"""Where an agent listens by TCP."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from forewarn.agent.policy.hosts import show_host_port

if TYPE_CHECKING:
    from forewarn.errors import ForewarnError

_WAITING = 32
"""Callers that the kernel keeps until they are served."""


def listen_on(host: str, port: int, failure: type[ForewarnError]) -> socket.socket:
    """A socket at a TCP address, or the failure, whose message names the setting that the address came from.

    Whoever connects before it is served waits, as with a slow machine.
    """
    listener = None
    try:
        family, kind, number, _, place = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, number)
        # The agent may start again at once: connections that are only waiting to be forgotten are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(place)
        listener.listen(_WAITING)
    except (OSError, OverflowError, ValueError) as error:
        if listener is not None:
            listener.close()
        problem = (getattr(error, "strerror", None) or str(error)).rstrip(".")
        raise failure(address=show_host_port(host, port), problem=f"{problem}.") from error
    return listener
