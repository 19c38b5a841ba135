"""Listening sockets."""

from __future__ import annotations

import contextlib
import errno
import socket
from typing import Any

from forewarn.errors import CannotListen
from forewarn.system.addresses import read_host_port, show_host_port


def open_socket(address: str) -> socket.socket:
    """Listen on HOST:PORT. Raises CannotListen with a hint."""
    try:
        host, port = read_host_port(address)
    except ValueError as error:
        raise CannotListen(address=address, problem=str(error)) from None
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # asyncio sets TCP_NODELAY only if the protocol is given.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    except OSError as error:
        raise CannotListen(address=address, problem=_describe_error(error, host, port)) from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CannotListen(address=address, problem=_describe_error(error, host, port)) from error
    listener.setblocking(False)
    return listener


def start_listening(listener: socket.socket, backlog: int) -> None:
    """Start to listen. Another socket may have taken the address since it was bound: raises CannotListen then."""
    try:
        listener.listen(backlog)
    except OSError as error:
        host, port = listener.getsockname()[:2]
        raise CannotListen(address=show_host_port(host, port), problem=_describe_error(error, host, port)) from error


def _describe_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return "another program or setting uses this port. Stop the program, or choose another port."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have this address. Add it first, for example: ip address add {host}/32 dev lo"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs root or CAP_NET_BIND_SERVICE."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return "the limit of open files is reached. Raise it, for example with LimitNOFILE= in the systemd unit."
    if isinstance(error, socket.gaierror):
        return f"{host!r} does not resolve to an address of this machine."
    return str(error)


def address_of(listener: socket.socket) -> str:
    """Return the actual HOST:PORT, also for port 0."""
    return show_host_port(*listener.getsockname()[:2])


def overlap(first: tuple[Any, ...], second: tuple[Any, ...]) -> bool:
    """Return whether listeners on these two addresses (host, port, ...) would get the same connections."""
    (host, port), (other_host, other_port) = first[:2], second[:2]
    # "::" also gets the connections to IPv4 addresses.
    both_ipv4 = ":" not in host + other_host
    everywhere = "::" in (host, other_host) or (both_ipv4 and "0.0.0.0" in (host, other_host))  # noqa: S104
    return port == other_port and (host == other_host or everywhere)


def release(reserved: dict[str, socket.socket]) -> None:
    """Close reserved sockets that are not needed."""
    for listener in reserved.values():
        with contextlib.suppress(OSError):
            listener.close()
