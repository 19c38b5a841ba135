"""Backs up or restores, and sends itself a signal at the Nth line of code that it reaches.

Each line of its input is an order: what to do, the folder, the file, the number of the line, and the signal. It forks a
process for each order, and prints the exit code. The process counts each line of the code once.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forewarn.cli.backup import clean_up_on_signals
from forewarn.clock import SystemClock
from forewarn.stores import sqlite_backup
from forewarn.system import files

if TYPE_CHECKING:
    from types import FrameType

WATCHED = {sqlite_backup.__file__, files.__file__}


def back_up(folder: Path, file: Path) -> None:
    sqlite_backup.back_up(folder, file, keep=2)


def restore(folder: Path, file: Path) -> None:
    with sqlite_backup.prepare_restore(folder, file) as prepared:
        prepared.finish(SystemClock().now(), cancel_pending=False)


def run(order: dict[str, Any]) -> None:
    seen: set[tuple[str, int]] = set()

    def trace(frame: FrameType, what: str, _: Any) -> Any:
        if frame.f_code.co_filename not in WATCHED:
            return None
        if order["signal"] != signal.SIGKILL and frame.f_code.co_name == "_staging":
            return None  # between two lines that create and remove the folder, a signal can leave it
        place = (frame.f_code.co_filename, frame.f_lineno)
        if what == "line" and place not in seen:
            seen.add(place)
            if len(seen) == order["line"]:
                os.kill(os.getpid(), order["signal"])
        return trace

    signal.alarm(60)
    clean_up_on_signals()
    sys.settrace(trace)
    {"backup": back_up, "restore": restore}[order["do"]](Path(order["folder"]), Path(order["file"]))


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            code = 2
            try:
                run(json.loads(line))
                code = 0
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:  # noqa: BLE001 - the parent must not continue here
                sys.excepthook(*sys.exc_info())
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
