"""The test kit: the time to start a service for a test, and to advance its clock by fifteen minutes."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from tools.bench.report import Outcome, below, spread

from forewarn.testing import Service, ServiceProcess

if TYPE_CHECKING:
    from tools.bench.context import Context

REPETITIONS = 31
PROCESSES = 3
READY_GOAL_MS = 100
NOTICE_GOAL_MS = 50


def measure(context: Context) -> Outcome:
    """Measure the kit, and compare it with a process of `forewarn up`, which a test without the kit would start."""
    ready, notice, stopped = zip(*(_run_once() for _ in range(REPETITIONS)), strict=True)
    process = [_process_ready(context, number) for number in range(PROCESSES)]
    baseline = f"a process {median(process):.0f} ms"
    context.log(f"test-kit: ready {median(ready):.1f} ms, {baseline}; notice {median(notice):.1f} ms")
    rows = [
        below("test kit: service, VM and endpoint ready", median(ready), "ms", READY_GOAL_MS, baseline),
        below("test kit: a restart and its 15 minutes", median(notice), "ms", NOTICE_GOAL_MS),
        below("test kit: service stopped", median(stopped), "ms", READY_GOAL_MS),
    ]
    raw = {
        "ready": spread(list(ready)),
        "notice": spread(list(notice)),
        "stopped": spread(list(stopped)),
        "process": process,
    }
    return Outcome(rows, raw)


def _run_once() -> tuple[float, float, float]:
    """Return the milliseconds to start the service, to pass the notice, and to stop the service."""
    started = time.perf_counter()
    with Service() as forewarn:
        vm = forewarn.vm("web-0")
        endpoint = vm.endpoint
        ready = time.perf_counter()
        event = vm.restart()
        forewarn.advance(minutes=15)
        advanced = time.perf_counter()
        if event.status != "Started" or not endpoint:
            raise RuntimeError(f"Event {event} has not started.")
        stopping = time.perf_counter()
    stopped = time.perf_counter()
    return (ready - started) * 1000, (advanced - ready) * 1000, (stopped - stopping) * 1000


def _process_ready(context: Context, number: int) -> float:
    folder = context.folder(f"test-kit-{number}")
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    with ServiceProcess(folder).start("--clock", "virtual"):
        return (time.perf_counter() - started) * 1000
