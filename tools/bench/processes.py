"""Child processes of the benchmark: started on a given core, and always ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER_CORE = 0
LOAD_CORE = 1
TERMINATE_TIMEOUT_SECONDS = 20
"""Time for a process to end after SIGTERM."""
ROOT = Path(__file__).resolve().parents[2]


def find_program(name: str) -> str | None:
    """Return the path of a program. nginx may be in a folder that is not in the PATH of a normal user."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")


def program(name: str) -> str:
    path = find_program(name)
    if path is None:
        raise SystemExit(f"{name} is not installed.")
    return path


class Processes:
    """The running processes."""

    def __init__(self) -> None:
        self._running: list[subprocess.Popen[bytes]] = []

    def start(
        self,
        command: Sequence[str],
        core: int,
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        nice: int = 0,
    ) -> subprocess.Popen[bytes]:
        """Start a program on one core. Its output goes to the log, or without a log to a pipe."""
        nice_command = ["nice", "-n", str(nice)] if nice else []
        output = log.open("ab") if log else None
        try:
            # In its own process group, Ctrl-C does not reach it: the benchmark ends it. A session of its own would
            # be wrong: the kernel divides CPU time between sessions, and `nice` would have no effect.
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *nice_command, *command],
                cwd=ROOT,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=output or subprocess.PIPE,
                stderr=output,
                process_group=0,
            )
        finally:
            if output:
                output.close()
        self._running.append(process)
        return process

    def output_of(self, command: Sequence[str], core: int, stdin: bytes = b"", timeout: float = 120) -> bytes:
        """Run a program to its end, and return its output."""
        process = self.start(command, core)
        printed, _ = process.communicate(stdin, timeout=timeout)
        self._running.remove(process)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed with exit code {process.returncode}.")
        return printed

    def module(self, name: str, *arguments: str) -> list[str]:
        """Return the command that runs a module of the benchmark in its own process."""
        return [sys.executable, "-m", f"tools.bench.{name}", *arguments]

    def cpu_seconds(self, process: subprocess.Popen[bytes]) -> float:
        """Return the CPU time of a process and its running children."""
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ticks = 0
        for number in (process.pid, *map(int, children)):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Terminate a process. If it does not end in time, kill its process group."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(TERMINATE_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()
        if process in self._running:
            self._running.remove(process)

    def end_all(self) -> None:
        for process in reversed(self._running[:]):
            self.end(process)
