"""A program that is started and left to itself."""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from forewarn.agent.clock import real_seconds
from forewarn.agent.handlers.program import find_program
from forewarn.errors import HandlerFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forewarn.agent.handlers.handler import Job

_WATCHED_SECONDS = 0.5
_LOOK_SECONDS = 0.05


def start_detached(job: Job, argv: Sequence[str], directory: str, log: str) -> int:
    """Start a program in a session of its own; its number. It has failed if it fails at once."""
    import subprocess  # an agent at rest runs no programs

    place = directory or "/"
    program = find_program(argv[0], os.environ, place)
    with ExitStack() as files:
        try:
            output = os.open(log or os.devnull, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            files.callback(os.close, output)
            process = subprocess.Popen(  # noqa: S603 - the config says what is run
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=place,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise HandlerFailed(problem=f"{argv[0]} could not be started: {error}.") from error
    # Whoever started it must collect it when it ends, however much later that is.
    threading.Thread(target=process.wait, name=f"collects {process.pid}", daemon=True).start()
    until = real_seconds() + _WATCHED_SECONDS
    while process.returncode is None and real_seconds() < until and not job.wait(_LOOK_SECONDS):
        pass
    if process.returncode:
        raise HandlerFailed(problem=f"{argv[0]} was started, and ended at once with {process.returncode}.")
    job.say(f"{argv[0]} was started as process {process.pid}", pid=process.pid)
    return process.pid
