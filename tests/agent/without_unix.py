"""Runs a Python program as on Windows: without the modules and functions that only Unix has.

    python without_unix.py PROGRAM [ARGUMENTS]

PROGRAM is a file, a single-file bundle, or the name of a module.
"""

from __future__ import annotations

import os
import runpy
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

MODULES = frozenset(("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"))
MISSING = {
    os: ("O_CLOEXEC", "O_DIRECTORY", "fchmod", "fork", "geteuid", "getuid", "killpg", "memfd_create", "sysconf"),
    select: ("poll", "epoll"),
    signal: ("SIGKILL", "SIGHUP", "pidfd_send_signal"),
    socket: ("AF_UNIX",),
}


class NoUnixModules:
    """Finds none of the modules that only Unix has."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: Any = None) -> None:
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def main() -> None:
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, NoUnixModules())
    for module, names in MISSING.items():
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    program, sys.argv = sys.argv[1], sys.argv[1:]
    if os.path.exists(program):  # noqa: PTH110 - without modules that a program should import itself
        runpy.run_path(program, run_name="__main__")
    else:
        runpy.run_module(program, run_name="__main__")


if __name__ == "__main__":
    main()
