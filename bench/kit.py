"""The test kit: how long a test waits for a service of its own, and for fifteen minutes to pass."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from bench.report import Outcome, below, spread
from forewarn.testing import Service, ServiceProcess

if TYPE_CHECKING:
    from bench.stage import Stage

TIMES = 31
PROCESSES = 3
READY_GOAL_MS = 100
NOTICE_GOAL_MS = 50


def measure(stage: Stage) -> Outcome:
    """Against a process of `forewarn up`, which is what a test would start without the kit."""
    ready, notice, ended = zip(*(_once() for _ in range(TIMES)), strict=True)
    process = [_process_ready(stage, number) for number in range(PROCESSES)]
    stage.say(f"kit: ready {median(ready):.1f} ms, a process {median(process):.0f} ms; notice {median(notice):.1f} ms")
    beside = f"a process {median(process):.0f} ms"
    rows = [
        below("test kit: service, VM and endpoint ready", median(ready), "ms", READY_GOAL_MS, beside),
        below("test kit: a restart and its 15 minutes", median(notice), "ms", NOTICE_GOAL_MS),
        below("test kit: service stopped", median(ended), "ms", READY_GOAL_MS),
    ]
    raw = {
        "ready": spread(list(ready)),
        "notice": spread(list(notice)),
        "ended": spread(list(ended)),
        "process": process,
    }
    return Outcome(rows, raw)


def _once() -> tuple[float, float, float]:
    """Milliseconds until it is ready, for the notice, and until it has ended."""
    begun = time.perf_counter()
    with Service() as forewarn:
        vm = forewarn.vm("web-0")
        endpoint = vm.endpoint
        ready = time.perf_counter()
        event = vm.restart()
        forewarn.advance(minutes=15)
        passed = time.perf_counter()
        if event.status != "Started" or not endpoint:
            raise RuntimeError(f"{event} has not started")
        ending = time.perf_counter()
    ended = time.perf_counter()
    return (ready - begun) * 1000, (passed - ready) * 1000, (ended - ending) * 1000


def _process_ready(stage: Stage, number: int) -> float:
    folder = stage.folder(f"kit-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    begun = time.perf_counter()
    with ServiceProcess(folder).start("--clock", "virtual"):
        return (time.perf_counter() - begun) * 1000
