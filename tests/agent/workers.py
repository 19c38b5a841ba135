"""Processes that tests stop and start. They write their pid to a file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from agent.jobs import LoneJob
from forewarn.system.processes import find_process

if TYPE_CHECKING:
    from pathlib import Path

# Writes its pid when it is ready, and the signal when it ends. With `deaf` it ignores signals.
WORKER = """
import os, signal, sys
folder, manner = sys.argv[1:]
signal.alarm(120)
def end(number, _):
    if manner == "deaf":
        return
    open(folder + "/ended", "w").write(signal.Signals(number).name)
    sys.exit(0)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, end)
print("says", flush=True)
with open(folder + "/new.pid", "w") as file:
    file.write(str(os.getpid()))
os.rename(folder + "/new.pid", folder + "/pid")
while True:
    signal.pause()
"""


class Worker:
    """A worker process, started by the test or by the tested handler."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "worker.py").write_text(WORKER)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def pid_file(self) -> Path:
        return self.folder / "pid"

    def argv(self, manner: str = "polite") -> list[str]:
        return [sys.executable, "-S", str(self.folder / "worker.py"), str(self.folder), manner]

    def start(self, manner: str = "polite") -> int:
        process = subprocess.Popen(self.argv(manner), stdout=subprocess.PIPE)
        self._processes.append(process)
        return self.until_ready(0)

    def until_ready(self, before: int) -> int:
        """Wait until it has written a new pid, and return it."""
        job = LoneJob(self.folder)
        while not self.pid or self.pid == before:
            assert not job.wait(0.01)
            assert job.seconds_left() > 0, "it never came up"
        return self.pid

    @property
    def pid(self) -> int:
        with suppress(FileNotFoundError, ValueError):
            return int(self.pid_file.read_text())
        return 0

    def collect(self) -> None:
        """Reap ended processes, so that their pids are free."""
        for process in self._processes:
            process.poll()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        if self.pid and find_process(self.pid):
            os.kill(self.pid, signal.SIGKILL)
