"""Brings up the loopback of a network namespace that has nothing else."""

from __future__ import annotations

import fcntl
import socket
import struct
import sys

SIOCSIFFLAGS, UP_AND_RUNNING = 0x8914, 0x41

if {name for _, name in socket.if_nameindex()} != {"lo"}:
    sys.exit("not in a namespace of its own")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", UP_AND_RUNNING))
