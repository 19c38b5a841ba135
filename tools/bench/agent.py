"""The agent: its memory and CPU time while it is idle, and the time until a handler starts.

The benchmark measures `forewarn agent run` and the single-file agent, each with rules, a handler and a state folder.
The baseline is a shell loop that runs curl once a second. An event that is far ahead makes the agents poll once a
second. Without it they would use long polls.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tools.bench.connection import DOCUMENT
from tools.bench.processes import LOAD_CORE
from tools.bench.report import Outcome, below, spread
from tools.bench.service import POLLER, Service, fleet_text

from forewarn.agent.status_server import connect

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator

    from tools.bench.context import Context

WARM_UP_SECONDS = 30
MEASURED_SECONDS = 60
TIMEOUT_SECONDS = 20
"""Maximum time to wait for a status of the agent, or for the start of a handler."""
MEGABYTE = 1_000_000
MEMORY_GOAL_MB, CPU_GOAL_PERCENT, REACTION_GOAL_MS = 25, 0.5, 1000
CURL_LOOP = 'while :; do curl -s -H Metadata:true "$0" >/dev/null; sleep 1; done'


def measure(context: Context) -> Outcome:
    """Measure memory, CPU time, and the time from a request to the first instruction of a handler."""
    service = Service(context.processes, context.folder("agent"), fleet_text(1))
    service.start()
    single_file = service.folder / "agent.pyz"
    program = [sys.executable, "-m", "forewarn", "agent"]
    context.processes.output_of([*program, "bundle", "--output", str(single_file)], LOAD_CORE)
    idle = _measure_idle(context, service, {"installed": program, "single file": [sys.executable, str(single_file)]})
    polling = _measure_reaction(context, service, program, long_poll=False)
    long_poll = _measure_reaction(context, service, program, long_poll=True)
    service.stop()
    rows = []
    curl_cpu = idle["curl"]["cpu_percent"]
    for name, usage in idle.items():
        if name != "curl":
            rows.append(below(f"idle agent, {name}: memory", usage["megabytes"], "MB", MEMORY_GOAL_MB))
            cpu = usage["cpu_percent"]
            row = below(f"idle agent, {name}: CPU of a core", cpu, "%", CPU_GOAL_PERCENT, f"curl {curl_cpu:.2f} %")
            rows.append(row._replace(ratio=f"{cpu / curl_cpu:.2f}"))
    for name, times_ms in (("one poll a second", polling), ("long poll", long_poll)):
        maximum = f"maximum {max(times_ms):,.0f} ms"
        rows.append(below(f"from a request to the handler, {name}", median(times_ms), "ms", REACTION_GOAL_MS, maximum))
    raw = {"idle": idle, "reaction_polling_ms": spread(polling), "reaction_long_poll_ms": spread(long_poll)}
    return Outcome(rows, raw)


# --- Memory and CPU time ------------------------------------------------------------------------------


def _measure_idle(context: Context, service: Service, programs: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    far_operation = _request(service, "redeploy", notice="2h")
    running = {name: _start_agent(context, service, program, name) for name, program in programs.items()}
    url = f"http://{service.metadata[0]}:{service.metadata[1]}{DOCUMENT}"
    log = service.folder / "curl.log"
    running["curl"] = context.processes.start(["bash", "-c", CURL_LOOP, url], LOAD_CORE, log=log)
    for name in programs:
        _wait_for_status(service, name, lambda status: len(status["events"]) == 1 and _responses(status) > 1)
    context.log(f"agent: warm-up of {WARM_UP_SECONDS} s, then measured for {MEASURED_SECONDS} s")
    time.sleep(WARM_UP_SECONDS)
    cpu_before = {name: _cpu_seconds(process) for name, process in running.items()}
    responses_before = {name: _responses(_status(service, name)) for name in programs}
    started = time.perf_counter()
    time.sleep(MEASURED_SECONDS)
    seconds = time.perf_counter() - started
    usages: dict[str, dict[str, float]] = {}
    for name, process in running.items():
        cpu = (_cpu_seconds(process) - cpu_before[name]) / seconds
        usage = {"megabytes": _resident_bytes(process) / MEGABYTE, "cpu_percent": cpu * 100}
        if name in programs:
            polls = (_responses(_status(service, name)) - responses_before[name]) / seconds
            usage["polls_per_second"] = polls
            if not 0.8 < polls < 1.2:
                raise RuntimeError(f"The agent ({name}) polled {polls:.2f} times a second instead of once.")
        usages[name] = usage
        context.log(f"agent: {name}: {usage['megabytes']:.1f} MB, {usage['cpu_percent']:.2f} % of a core")
    for process in running.values():
        context.processes.end(process)
    _cancel(service, far_operation)
    return usages


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """Return the CPU time of the process, and of its children that have ended."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


# --- Reaction time ------------------------------------------------------------------------------------


def _measure_reaction(context: Context, service: Service, program: list[str], *, long_poll: bool) -> list[float]:
    """Return the milliseconds from the request for a restart until the program of the handler runs."""
    name = "long-poll" if long_poll else "polling"
    # Not a restart: a VM can have only one at a time.
    far_operation = None if long_poll else _request(service, "redeploy", notice="2h")
    far_events = 0 if long_poll else 1
    pipe = service.folder / f"{name}.pipe"
    os.mkfifo(pipe)
    process = _start_agent(context, service, program, name, pipe)
    _wait_for_status(service, name, lambda status: len(status["events"]) == far_events and _responses(status) > 0)
    times_ms = []
    with _open_pipe(pipe) as descriptor:
        for number in range(max(context.rounds, 5)):
            # Requests must not arrive at the same phase of the polling interval every time.
            time.sleep(0.37 * (number % 3) + 0.2)
            started = time.perf_counter()
            operation = _request(service, "restart")
            _wait_for_byte(descriptor)
            times_ms.append((time.perf_counter() - started) * 1000)
            _cancel(service, operation)
            _wait_for_status(service, name, lambda status: len(status["events"]) == far_events)
    summary = f"median {median(times_ms):.0f} ms, maximum {max(times_ms):.0f} ms"
    context.log(f"agent: time until the handler starts ({name}): {summary}")
    context.processes.end(process)
    if far_operation is not None:
        _cancel(service, far_operation)
    return times_ms


@contextmanager
def _open_pipe(pipe: Path) -> Iterator[int]:
    # Opened for writing too, so that the pipe stays open when a writer closes it.
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for_byte(descriptor: int) -> None:
    if not select.select([descriptor], [], [], TIMEOUT_SECONDS)[0]:
        raise RuntimeError(f"The handler did not start within {TIMEOUT_SECONDS} s.")
    os.read(descriptor, 100)


# --- An agent -----------------------------------------------------------------------------------------


def _start_agent(
    context: Context, service: Service, program: list[str], name: str, pipe: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start an agent. Its handler writes to the pipe, if there is one."""
    config = service.folder / f"{name}.toml"
    command = f'["sh", "-c", "echo >> \'{pipe}\'"]' if pipe else '["true"]'
    config.write_text(
        '[[rule]]\nname = "far ahead"\nmin_notice = "1h"\nprepare = ["report"]\nwhen = "5m"\n\n'
        '[[rule]]\nname = "now"\nprepare = ["report"]\n\n'
        f'[handler.report]\nkind = "command"\nprepare = {command}\n'
    )
    arguments = ["run", "--config", str(config), "--state", str(_state_folder(service, name)), "--log", "json"]
    environment = {  # not the variables of the service, which the agent would compare with its own
        **{name: value for name, value in service.environment.items() if not name.startswith("FOREWARN_")},
        "FOREWARN_ENDPOINT": f"http://{service.metadata[0]}:{service.metadata[1]}",
        "FOREWARN_VM_NAME": POLLER,
    }
    if ".pyz" in "".join(program):
        environment.pop("PYTHONPATH", None)
    log = service.folder / f"{name}.log"
    return context.processes.start([*program, *arguments], LOAD_CORE, environment=environment, log=log)


def _state_folder(service: Service, name: str) -> Path:
    return service.folder / f"state of {name}"


def _status(service: Service, name: str) -> dict[str, Any]:
    with connect(_state_folder(service, name)) as connection:
        connection.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        response = b"".join(iter(lambda: connection.recv(65536), b""))
    status: dict[str, Any] = json.loads(response.partition(b"\r\n\r\n")[2])
    return status


def _responses(status: dict[str, Any]) -> int:
    """Return how many responses of the endpoint the agent has received."""
    count: int = status["polling"]["responses"]
    return count


def _wait_for_status(service: Service, name: str, condition: Callable[[dict[str, Any]], bool]) -> None:
    deadline = time.perf_counter() + TIMEOUT_SECONDS
    while time.perf_counter() < deadline:
        try:
            if condition(_status(service, name)):
                return
        except OSError:
            pass  # the agent has not started yet
        time.sleep(0.02)
    log = (service.folder / f"{name}.log").read_text()[-2000:]
    raise RuntimeError(f"The agent did not reach the expected status within {TIMEOUT_SECONDS} s: {log}")


def _request(service: Service, cause: str, **options: str) -> str:
    """Request an operation on the poller. Return its id."""
    with closing(service.control()) as control:
        response = control.call("POST", "/v1/operations", {"cause": cause, "vms": [POLLER], **options})
    return str(response["operations"][0]["id"])


def _cancel(service: Service, operation: str) -> None:
    with closing(service.control()) as control:
        control.call("POST", f"/v1/operations/{operation}/cancel")
