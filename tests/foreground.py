"""A program in the foreground of a terminal: Ctrl-C reaches it."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def start(command: Sequence[str], environment: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    """Start it with pipes, and with the default action for SIGINT.

    A suite that runs in the background (`nohup script/test &`) ignores SIGINT, and programs inherit that.
    """
    # A handler in this process becomes the default action in the program.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def running(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    """Start a program, and kill it at the end, so that a failed test does not wait for it."""
    with start(command, environment) as program:
        try:
            yield program
        finally:
            program.kill()
