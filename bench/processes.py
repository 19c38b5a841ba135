"""Programs that the benchmark starts, each on a core of its own, and ends, whatever happens."""

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
END_SECONDS = 20
"""How long a program may take to end after SIGTERM."""
ROOT = Path(__file__).resolve().parent.parent


def program(name: str) -> str:
    """Where a program is; administrators' programs may lie outside of a user's PATH."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise SystemExit(f"{name} is not installed. script/bench says how to get it.")
    return found


class Processes:
    """Everything that was started and still runs."""

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
        """Start a program on one core; what it prints goes to the log, or else to a pipe."""
        niced = ["nice", "-n", str(nice)] if nice else []
        output = log.open("ab") if log else None
        try:
            # A group of its own: Ctrl-C reaches the benchmark alone, which then ends each by its id. Not a session
            # of its own: the kernel would share the cores out by session, and niceness would not count.
            process = subprocess.Popen(
                ["taskset", "-c", str(core), *niced, *command],
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

    def output_of(self, command: Sequence[str], core: int, given: bytes = b"", seconds: float = 120) -> bytes:
        """Run a program to its end and return what it printed."""
        process = self.start(command, core)
        printed, _ = process.communicate(given, timeout=seconds)
        self._running.remove(process)
        if process.returncode:
            raise RuntimeError(f"{command[0]} ended with {process.returncode}")
        return printed

    def module(self, name: str, *arguments: str) -> list[str]:
        """The command line of a module of the benchmark that runs as a process of its own."""
        return [sys.executable, "-m", f"bench.{name}", *arguments]

    def cpu_seconds(self, process: subprocess.Popen[bytes]) -> float:
        """The time that a program and those it started have computed so far."""
        listed = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ticks = 0
        for number in (process.pid, *map(int, listed)):
            fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """End a program politely, and when that does not help, with all that it started."""
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(END_SECONDS)
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
