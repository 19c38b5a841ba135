"""A command on a terminal, which can ask questions there."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

from forewarn.testing.client import COMMAND

if TYPE_CHECKING:
    from forewarn.testing.client import ServiceClient


def on_terminal(service: ServiceClient, *arguments: str, answer: str = "") -> str:
    """Run a command on a terminal. If it asks a question, answer that. Return the output, with questions and answers.

    A question that has no answer fails the test.
    """
    main, terminal = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        env={**os.environ, **service.environment, "COLUMNS": "200"},
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    seen, answered = "", False
    try:
        while part := _read(main):
            seen += part
            if "[y/N]" in seen and not answered:
                assert answer, f"an unexpected question: {seen}"
                os.write(main, answer.encode() + b"\n")
                answered = True
    finally:
        process.kill()  # without effect if it has ended
        os.close(main)
        process.wait()
    assert answered == bool(answer), f"no question: {seen}"
    return seen.replace("\r\n", "\n")


def _read(main: int) -> str:
    try:
        return os.read(main, 10_000).decode()
    except OSError:  # the command has ended
        return ""
