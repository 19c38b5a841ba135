"""A restart with its fifteen minutes of notice and ten of settling, in virtual time."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from bench.report import Outcome, below, spread
from bench.service import POLLER, Service, fleet_text

if TYPE_CHECKING:
    from bench.connection import Control
    from bench.stage import Stage

TIMES = 21
GOAL_MS = 50


def measure(stage: Stage) -> Outcome:
    """All requests over one connection: the restart, fifteen minutes (it starts), ten minutes (it is gone)."""
    service = Service(stage.processes, stage.folder("virtual"), fleet_text(1))
    service.start("--clock", "virtual")
    control = service.control()
    took_ms = [_once(control) * 1000 for _ in range(TIMES)]
    control.close()
    service.stop()
    stage.say(f"virtual: {median(took_ms):.1f} ms, {max(took_ms):.1f} ms at most")
    row = below("a 15-minute event in virtual time", median(took_ms), "ms", GOAL_MS, f"maximum {max(took_ms):.1f} ms")
    return Outcome([row], {"milliseconds": took_ms, **spread(took_ms)})


def _once(control: Control) -> float:
    begun = time.perf_counter()
    event_id = control.restart(POLLER)
    control.call("POST", "/v1/clock/advance", {"by": "15m"})
    seconds = time.perf_counter() - begun
    _check(control, event_id, "started")
    begun = time.perf_counter()
    control.call("POST", "/v1/clock/advance", {"by": "10m"})
    seconds += time.perf_counter() - begun
    _check(control, event_id, "completed")
    return seconds


def _check(control: Control, event_id: str, wanted: str) -> None:
    found = control.call("GET", f"/v1/events/{event_id}")["status"]
    if found != wanted:
        raise RuntimeError(f"Event {event_id} is {found}, not {wanted}")
