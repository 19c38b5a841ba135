"""A network namespace of its own, with no way out: how to get into one, and its loopback up once inside."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41

# What to put before a command. Who is not root needs a user namespace to make a network namespace.
IN_NAMESPACE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def bring_up_loopback() -> None:
    """Only where there is nothing else: never on the machine's own network."""
    interfaces = {name for _, name in socket.if_nameindex()}
    if interfaces != {"lo"}:
        sys.exit(f"not in a namespace of its own: {interfaces}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))


if __name__ == "__main__":
    bring_up_loopback()
