"""wrk: 64 keep-alive connections from one thread on the load's core."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from bench.connection import DOCUMENT
from bench.processes import LOAD_CORE, Processes, program

if TYPE_CHECKING:
    from pathlib import Path

CONNECTIONS = 64

# Only `done` is defined: wrk then sends prepared bytes and calls no Lua while it measures.
SCRIPT = """
done = function(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\\nRESULT {"requests": %d, "seconds": %f, "bytes": %d, "p50_ms": %f, "p99_ms": %f, "errors": %d}\\n',
    summary.requests, summary.duration / 1e6, summary.bytes,
    latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
"""


class Load(NamedTuple):
    """What wrk saw in one round."""

    requests: int
    per_second: float
    p50_ms: float
    p99_ms: float


class Wrk:
    """Runs rounds of load."""

    def __init__(self, processes: Processes, folder: Path) -> None:
        self._processes = processes
        self._script = folder / "report.lua"
        self._script.write_text(SCRIPT)

    def run(self, address: tuple[str, int], seconds: int, answer_bytes: int, if_none_match: str = "") -> Load:
        """One round. Every answer must be as long as the one that was compared before, and none an error."""
        command = [program("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(self._script)]
        command += ["-H", "Metadata: true"]
        if if_none_match:
            command += ["-H", f"If-None-Match: {if_none_match}"]
        command.append(f"http://{address[0]}:{address[1]}{DOCUMENT}")
        printed = self._processes.output_of(command, LOAD_CORE).decode()
        found: dict[str, Any] = json.loads(printed.partition("RESULT ")[2])
        if found["errors"]:
            raise RuntimeError(f"wrk met {found['errors']} errors: {printed}")
        # What is under way when a round ends counts as bytes and not as a request: a few of each connection.
        surplus = found["bytes"] - found["requests"] * answer_bytes
        if not 0 <= surplus <= 4 * CONNECTIONS * answer_bytes:
            raise RuntimeError(f"Some answers were not {answer_bytes} bytes long: {printed}")
        return Load(found["requests"], found["requests"] / found["seconds"], found["p50_ms"], found["p99_ms"])
