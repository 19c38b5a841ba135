"""wrk, the load generator: 64 keep-alive connections from one thread, on the core for load."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from tools.bench.connection import DOCUMENT
from tools.bench.processes import LOAD_CORE, Processes, program

if TYPE_CHECKING:
    from pathlib import Path

CONNECTIONS = 64

# The script defines only `done`, so wrk sends prepared bytes and runs no Lua code during the measurement.
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
    """The result of one round."""

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

    def run(self, address: tuple[str, int], seconds: int, response_bytes: int, if_none_match: str = "") -> Load:
        """Run one round. Raise an error unless all responses succeed and have this size."""
        command = [program("wrk"), "-t1", f"-c{CONNECTIONS}", f"-d{seconds}s", "-s", str(self._script)]
        command += ["-H", "Metadata: true"]
        if if_none_match:
            command += ["-H", f"If-None-Match: {if_none_match}"]
        command.append(f"http://{address[0]}:{address[1]}{DOCUMENT}")
        printed = self._processes.output_of(command, LOAD_CORE).decode()
        result: dict[str, Any] = json.loads(printed.partition("RESULT ")[2])
        if result["errors"]:
            raise RuntimeError(f"wrk counted {result['errors']} errors: {printed}")
        # wrk counts the bytes of requests that are in progress at the end, but not the requests: a few per connection.
        surplus = result["bytes"] - result["requests"] * response_bytes
        if not 0 <= surplus <= 4 * CONNECTIONS * response_bytes:
            raise RuntimeError(f"Some responses do not have {response_bytes} bytes: {printed}")
        return Load(result["requests"], result["requests"] / result["seconds"], result["p50_ms"], result["p99_ms"])
