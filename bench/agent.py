"""The agent at rest: what it costs a machine, and how soon it acts when something is announced.

Memory and CPU are those of `forewarn agent run` and of its single file, each with rules, a handler and a state folder,
at one poll a second, side by side with what somebody would write instead: a shell that runs curl once a second. The
endpoint would hold polls; an event far ahead, which waits for its time, has the agents ask each second all the same.
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

from bench.connection import DOCUMENT
from bench.processes import LOAD_CORE
from bench.report import Outcome, below, spread
from bench.service import POLLER, Service, fleet_text
from forewarn.agent.status_server import connect

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from bench.stage import Stage

REST_SECONDS = 30
"""After the start, before memory is looked at and CPU is counted."""
COUNT_SECONDS = 60
SIGHT_SECONDS = 20
"""How long something that must happen is waited for."""
MEGABYTE = 1_000_000
MEMORY_GOAL_MB, CPU_GOAL_PERCENT, REACTION_GOAL_MS = 25, 0.5, 1000
SHELL = 'while :; do curl -s -H Metadata:true "$0" >/dev/null; sleep 1; done'


def measure(stage: Stage) -> Outcome:
    """Memory, CPU, and the time from a request to a handler's first instruction."""
    service = Service(stage.processes, stage.folder("agent"), fleet_text(1))
    service.start()
    single = service.folder / "agent.pyz"
    program = [sys.executable, "-m", "forewarn", "agent"]
    stage.processes.output_of([*program, "bundle", "--output", str(single)], LOAD_CORE)
    rest = _rest(stage, service, {"installed": program, "single file": [sys.executable, str(single)]})
    polling = _reaction(stage, service, program, holding=False)
    held = _reaction(stage, service, program, holding=True)
    service.stop()
    rows = []
    for name, found in rest.items():
        if name != "curl":
            rows.append(below(f"idle agent, {name}: memory", found["megabytes"], "MB", MEMORY_GOAL_MB))
            against = f"curl {rest['curl']['cpu_percent']:.2f} %"
            row = below(f"idle agent, {name}: CPU of a core", found["cpu_percent"], "%", CPU_GOAL_PERCENT, against)
            rows.append(row._replace(ratio=f"{found['cpu_percent'] / rest['curl']['cpu_percent']:.2f}"))
    for name, times in (("one poll a second", polling), ("long poll", held)):
        most = f"maximum {max(times):,.0f} ms"
        rows.append(below(f"from a request to the handler, {name}", median(times), "ms", REACTION_GOAL_MS, most))
    raw = {"rest": rest, "reaction_polling_ms": spread(polling), "reaction_held_ms": spread(held)}
    return Outcome(rows, raw)


# --- What it costs ------------------------------------------------------------------------------------


def _rest(stage: Stage, service: Service, programs: dict[str, list[str]]) -> dict[str, dict[str, float]]:
    far = _announce(service, notice="2h")
    running = {name: _start(stage, service, program, name) for name, program in programs.items()}
    url = f"http://{service.metadata[0]}:{service.metadata[1]}{DOCUMENT}"
    running["curl"] = stage.processes.start(["bash", "-c", SHELL, url], LOAD_CORE, log=service.folder / "curl.log")
    for name in programs:
        _wait(service, name, lambda found: len(found["events"]) == 1 and found["polling"]["answers"] > 1)
    stage.say(f"agent: at rest for {REST_SECONDS} s, then counted for {COUNT_SECONDS} s")
    time.sleep(REST_SECONDS)
    before = {name: _cpu_seconds(process) for name, process in running.items()}
    answers = {name: _status(service, name)["polling"]["answers"] for name in programs}
    begun = time.perf_counter()
    time.sleep(COUNT_SECONDS)
    seconds = time.perf_counter() - begun
    found: dict[str, dict[str, float]] = {}
    for name, process in running.items():
        cpu = (_cpu_seconds(process) - before[name]) / seconds
        found[name] = {"megabytes": _resident_bytes(process) / MEGABYTE, "cpu_percent": cpu * 100}
        if name in answers:
            polls = (_status(service, name)["polling"]["answers"] - answers[name]) / seconds
            found[name]["polls_per_second"] = polls
            if not 0.8 < polls < 1.2:
                raise RuntimeError(f"{name} has asked {polls:.2f} times a second.")
        stage.say(f"agent: {name}: {found[name]['megabytes']:.1f} MB, {found[name]['cpu_percent']:.2f} % of a core")
    for process in running.values():
        stage.processes.end(process)
    _cancel(service, far)
    return found


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """With what those have used that it has started and that have ended."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _resident_bytes(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) * 1024


# --- How soon it acts ---------------------------------------------------------------------------------


def _reaction(stage: Stage, service: Service, program: list[str], *, holding: bool) -> list[float]:
    """Milliseconds from sending the request that announces an event until the handler's program has begun."""
    name = "holding" if holding else "polling"
    far = None
    if not holding:
        far = _announce(service, notice="2h")
    pipe = service.folder / f"{name}.pipe"
    os.mkfifo(pipe)
    process = _start(stage, service, program, name, pipe)
    ahead = 0 if holding else 1
    _wait(service, name, lambda found: len(found["events"]) == ahead and found["polling"]["answers"])
    times = []
    with _read(pipe) as descriptor:
        for number in range(max(stage.rounds, 5)):
            # Not in step with the agent's second.
            time.sleep(0.37 * (number % 3) + 0.2)
            begun = time.perf_counter()
            made = _announce(service)
            _wait_for_byte(descriptor, begun)
            times.append((time.perf_counter() - begun) * 1000)
            _cancel(service, made)
            _wait(service, name, lambda found: len(found["events"]) == ahead)
    stage.say(f"agent: a handler begins after {median(times):.0f} ms, at most {max(times):.0f} ms ({name})")
    stage.processes.end(process)
    if far is not None:
        _cancel(service, far)
    return times


@contextmanager
def _read(pipe: Path) -> Iterator[int]:
    # For writing too: then the end of one writer is not the end of the pipe.
    descriptor = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _wait_for_byte(descriptor: int, begun: float) -> None:
    if not select.select([descriptor], [], [], SIGHT_SECONDS)[0]:
        raise RuntimeError(f"The handler was not run within {time.perf_counter() - begun:.0f} s.")
    os.read(descriptor, 100)


# --- An agent -----------------------------------------------------------------------------------------


def _start(
    stage: Stage, service: Service, program: list[str], name: str, pipe: Path | None = None
) -> subprocess.Popen[bytes]:
    config = service.folder / f"{name}.toml"
    tell = f'["sh", "-c", "echo >> \'{pipe}\'"]' if pipe else '["true"]'
    config.write_text(
        '[[rule]]\nname = "far ahead"\nmin_notice = "1h"\nprepare = ["tell"]\nwhen = "5m"\n\n'
        '[[rule]]\nname = "now"\nprepare = ["tell"]\n\n'
        f'[handler.tell]\nkind = "command"\nprepare = {tell}\n'
    )
    command = [*program, "run", "--config", str(config), "--state", str(_folder(service, name)), "--log", "json"]
    environment = {
        **service.environment,
        "FOREWARN_ENDPOINT": f"http://{service.metadata[0]}:{service.metadata[1]}",
        "FOREWARN_VM_NAME": POLLER,
    }
    if ".pyz" in "".join(program):
        environment.pop("PYTHONPATH", None)
    return stage.processes.start(command, LOAD_CORE, environment=environment, log=service.folder / f"{name}.log")


def _folder(service: Service, name: str) -> Path:
    return service.folder / f"state of {name}"


def _status(service: Service, name: str) -> dict[str, Any]:
    with connect(_folder(service, name)) as line:
        line.sendall(b"GET /status HTTP/1.0\r\n\r\n")
        answer = b"".join(iter(lambda: line.recv(65536), b""))
    found: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return found


def _wait(service: Service, name: str, holds: Any) -> None:
    """Until what the agent says of itself is so."""
    until = time.perf_counter() + SIGHT_SECONDS
    while time.perf_counter() < until:
        try:
            if holds(_status(service, name)):
                return
        except OSError:
            pass  # it is not there yet
        time.sleep(0.02)
    raise RuntimeError(f"The agent did not get so far: {(service.folder / f'{name}.log').read_text()[-2000:]}")


def _announce(service: Service, **options: str) -> str:
    """A restart; the operation's id."""
    with closing(service.control()) as control:
        made = control.call("POST", "/v1/operations", {"cause": "restart", "vms": [POLLER], **options})
    return str(made["operations"][0]["id"])


def _cancel(service: Service, operation: str) -> None:
    with closing(service.control()) as control:
        control.call("POST", f"/v1/operations/{operation}/cancel")
