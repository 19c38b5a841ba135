"""Runs programs of a handler, and kills itself at a given line of the code.

Each line of its input is an order: the folder, the place, the program. It forks a process for each order, and prints
the exit code. The process writes every new line of code that it reaches to the file `lines`, as
`module.function:line`. At the given place it kills itself with SIGKILL.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.jobs import LoneJob
from forewarn.agent.handlers import program
from forewarn.system import child_process, processes

if TYPE_CHECKING:
    from types import FrameType

WATCHED = {module.__file__: module.__name__.rpartition(".")[2] for module in (program, child_process, processes)}
WATCHED[subprocess.__file__] = "subprocess"
SECONDS = 300


def run(folder: Path, place: str, argv: list[str]) -> None:
    """In the process of its own."""
    seen: set[str] = set()
    # Not longer than that, whatever happens.
    signal.alarm(SECONDS)
    with (folder / "said").open("a") as said, (folder / "lines").open("a") as lines:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)

        def trace(frame: FrameType, what: str, _: Any) -> Any:
            name = WATCHED.get(frame.f_code.co_filename)
            # Of the standard library's: where the process is made.
            if name is None or (name == "subprocess" and frame.f_code.co_name not in ("_execute_child", "__init__")):
                return None
            here = f"{name}.{frame.f_code.co_qualname}:{frame.f_lineno}"
            if what == "line" and here not in seen:
                seen.add(here)
                lines.write(f"{here}\n")
                lines.flush()
                if here == place:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        ended = program.run_program(LoneJob(folder, seconds=SECONDS), argv, text="x" * 100_000)
        sys.settrace(None)
    os._exit(0 if ended.status == 0 else 1)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                run(Path(order["folder"]), order["place"], order["argv"])
            finally:
                sys.excepthook(*sys.exc_info())
                os._exit(2)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
