"""The longest delay of a poll while `forewarn fleet apply` adds, changes and removes 100,000 VMs."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, NamedTuple

from tools.bench.processes import LOAD_CORE
from tools.bench.report import Outcome, Row
from tools.bench.service import FOREWARN, Service, fleet_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.bench.context import Context

VMS = 100_000
GOAL_MS = 50
APPLY_TIMEOUT_SECONDS = 60

FLEETS = {
    "adding": fleet_text(VMS),
    "changing": fleet_text(VMS, size="Standard_D2s_v5"),
    "removing": fleet_text(1),
}


class Window(NamedTuple):
    """The polls in a period of time."""

    seconds: float
    polls: int
    longest_ms: float
    longest_at_seconds: float


def measure(context: Context) -> Outcome:
    """Apply three fleets. After each apply, measure the idle service for the same duration."""
    service = Service(context.processes, context.folder("fleet-apply"), fleet_text(1))
    service.start()
    rows, raw = [], {}
    for name, fleet in FLEETS.items():
        applying, idle = apply(context, service, name, fleet)
        delays = f"{applying.longest_ms:.1f} ms; idle: {idle.longest_ms:.1f} ms"
        context.log(f"fleet-apply: longest poll while {name} VMs: {delays}")
        rows.append(
            Row(
                f"longest poll while {name} 100,000 VMs",
                f"{applying.longest_ms:.1f} ms",
                f"idle {idle.longest_ms:.1f} ms",
                goal=f"≤ {GOAL_MS} ms",
                met=applying.longest_ms <= GOAL_MS,
            )
        )
        raw[name] = {"applying": applying._asdict(), "idle": idle._asdict()}
    service.stop()
    return Outcome(rows, raw)


def apply(
    context: Context,
    service: Service,
    name: str,
    fleet: str,
    polled: Service | None = None,
    wait: Callable[[], None] = lambda: None,
) -> tuple[Window, Window]:
    """Apply a fleet. Return the polls until then, and those of an equally long time without a change.

    `polled` is the node that is polled, if it is another one. `wait` returns when it has the fleet, too.
    """
    path = service.folder / f"{name}.toml"
    path.write_text(fleet)
    host, port = (polled or service).metadata
    client = context.processes.start(context.processes.module("poll_client", host, str(port)), LOAD_CORE)
    time.sleep(0.5)
    started = time.perf_counter()
    # The service has its core to itself, so the command shares the core of the client. `nice` lets the client go first.
    command = context.processes.start(
        [FOREWARN, "fleet", "apply", str(path)],
        LOAD_CORE,
        environment=service.environment,
        log=service.folder / "apply.log",
        nice=19,
    )
    if command.wait(APPLY_TIMEOUT_SECONDS):
        raise RuntimeError(f"forewarn fleet apply failed: {(service.folder / 'apply.log').read_text()}")
    wait()
    ended = time.perf_counter() + 0.2
    context.processes.end(command)
    idle_started = ended + 0.3
    idle_ended = idle_started + (ended - started)
    time.sleep(max(0, idle_ended - time.perf_counter()))
    client.terminate()
    printed, _ = client.communicate()
    context.processes.end(client)
    times = array("d")
    times.frombytes(printed)
    return _window(times, started, ended), _window(times, idle_started, idle_ended)


def _window(times: array[float], started: float, ended: float) -> Window:
    """Return the polls in progress between two times. `times` has the start and the end of each poll, in turn."""
    polls = [
        (poll_ended - poll_started, poll_started)
        for poll_started, poll_ended in zip(times[::2], times[1::2], strict=True)
        if poll_ended >= started and poll_started <= ended
    ]
    longest, longest_started = max(polls)
    return Window(ended - started, len(polls), longest * 1000, longest_started - started)
