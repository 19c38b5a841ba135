"""Run inside a network namespace of its own: gives it 169.254.169.254, starts the service there on port 80,
and runs the command given as arguments. The namespace has no way out.

With IMDS_LOCKED, the address is locked as systemd 261 does it: a prohibit route for all sockets without its mark."""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from namespace import bring_up_loopback

SIOCSIFADDR = 0x8916
LINK_LOCAL = "169.254.169.254"


def give_address() -> None:
    """The metadata service's address on the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        address = struct.pack("16sHH4s8x", b"lo:imds", socket.AF_INET, 0, socket.inet_aton(LINK_LOCAL))
        fcntl.ioctl(control, SIOCSIFADDR, address)


def lock_address() -> None:
    """Prohibit the address, except for sockets with systemd's mark and for answers of the service."""
    for rule in (
        "add pref 32000 lookup local",
        "del pref 0",
        f"add pref 100 from {LINK_LOCAL} lookup local",
        "add pref 101 fwmark 0x7FFF0815 lookup local",
        f"add pref 200 to {LINK_LOCAL} prohibit",
    ):
        subprocess.run(["ip", "rule", *rule.split()], check=True)


def main() -> int:
    bring_up_loopback()
    give_address()
    if os.environ.get("IMDS_LOCKED"):
        lock_address()
    forewarn = str(Path(sys.executable).with_name("forewarn"))
    service = subprocess.Popen(
        [forewarn, "up", "--data", os.environ["FOREWARN_DATA"], "--metadata", f"{LINK_LOCAL}:80", "--rate-limit", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert service.stdout is not None
    for line in service.stdout:
        if line.startswith("Try"):
            break
    try:
        return subprocess.run(sys.argv[1:], timeout=60, check=False).returncode
    finally:
        service.terminate()
        service.wait()
        service.stdout.close()


if __name__ == "__main__":
    sys.exit(main())
