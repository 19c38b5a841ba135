"""An isolated network namespace: the command to enter one, and its loopback interface."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sys

SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41

# The prefix of a command. Without root, a network namespace needs a user namespace.
IN_NAMESPACE = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]


def bring_up_loopback() -> None:
    """Bring the loopback up. Exit if there is any other interface, which would be the network of the machine."""
    interfaces = {name for _, name in socket.if_nameindex()}
    if interfaces != {"lo"}:
        sys.exit(f"not in a namespace of its own: {interfaces}")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))


if __name__ == "__main__":
    bring_up_loopback()
