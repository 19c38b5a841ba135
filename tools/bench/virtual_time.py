"""A restart in virtual time, with its notice of fifteen minutes and its settle time of ten minutes."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from tools.bench.report import Outcome, below, spread
from tools.bench.service import POLLER, Service, fleet_text

if TYPE_CHECKING:
    from tools.bench.connection import Control
    from tools.bench.context import Context

REPETITIONS = 21
GOAL_MS = 50


def measure(context: Context) -> Outcome:
    """Request a restart, advance to its start and to its end. All requests use one connection."""
    service = Service(context.processes, context.folder("virtual-time"), fleet_text(1))
    service.start("--clock", "virtual")
    control = service.control()
    durations_ms = [_run_once(control) * 1000 for _ in range(REPETITIONS)]
    control.close()
    service.stop()
    context.log(f"virtual-time: median {median(durations_ms):.1f} ms, maximum {max(durations_ms):.1f} ms")
    row = below(
        "a 15-minute event in virtual time", median(durations_ms), "ms", GOAL_MS, f"maximum {max(durations_ms):.1f} ms"
    )
    return Outcome([row], {"milliseconds": durations_ms, **spread(durations_ms)})


def _run_once(control: Control) -> float:
    started = time.perf_counter()
    event_id = control.restart(POLLER)
    control.call("POST", "/v1/clock/advance", {"by": "15m"})
    seconds = time.perf_counter() - started
    _check_status(control, event_id, "started")
    started = time.perf_counter()
    control.call("POST", "/v1/clock/advance", {"by": "10m"})
    seconds += time.perf_counter() - started
    _check_status(control, event_id, "completed")
    return seconds


def _check_status(control: Control, event_id: str, expected: str) -> None:
    status = control.call("GET", f"/v1/events/{event_id}")["status"]
    if status != expected:
        raise RuntimeError(f"Event {event_id} is {status}, not {expected}.")
