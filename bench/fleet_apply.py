"""The longest a poll is held up while `forewarn fleet apply` adds, changes and removes 100,000 VMs."""

from __future__ import annotations

import time
from array import array
from typing import TYPE_CHECKING, NamedTuple

from bench.processes import LOAD_CORE
from bench.report import Outcome, Row
from bench.service import FOREWARN, Service, fleet_text

if TYPE_CHECKING:
    from bench.stage import Stage

VMS = 100_000
GOAL_MS = 50
APPLY_SECONDS = 60

APPLIES = {
    "adding": fleet_text(VMS),
    "changing": fleet_text(VMS, size="Standard_D2s_v5"),
    "removing": fleet_text(1),
}


class Window(NamedTuple):
    """The polls of some seconds."""

    seconds: float
    polls: int
    longest_ms: float
    longest_at_seconds: float


def measure(stage: Stage) -> Outcome:
    """Three applies, each with as long a time without one after it."""
    service = Service(stage.processes, stage.folder("apply"), fleet_text(1))
    service.start()
    rows, raw = [], {}
    for name, fleet in APPLIES.items():
        applied, idle = _apply(stage, service, name, fleet)
        stage.say(f"apply: {name} held a poll for {applied.longest_ms:.1f} ms; without {idle.longest_ms:.1f} ms")
        rows.append(
            Row(
                f"longest poll while {name} 100,000 VMs",
                f"{applied.longest_ms:.1f} ms",
                f"idle {idle.longest_ms:.1f} ms",
                goal=f"≤ {GOAL_MS} ms",
                met=applied.longest_ms <= GOAL_MS,
            )
        )
        raw[name] = {"applying": applied._asdict(), "idle": idle._asdict()}
    service.stop()
    return Outcome(rows, raw)


def _apply(stage: Stage, service: Service, name: str, fleet: str) -> tuple[Window, Window]:
    path = service.folder / f"{name}.toml"
    path.write_text(fleet)
    host, port = service.metadata
    poller = stage.processes.start(stage.processes.module("poller", host, str(port)), LOAD_CORE)
    time.sleep(0.5)
    begun = time.perf_counter()
    # On the poller's core, since the service must have its own to itself; the poller goes before it.
    command = stage.processes.start(
        [FOREWARN, "fleet", "apply", str(path)],
        LOAD_CORE,
        environment=service.environment,
        log=service.folder / "apply.log",
        nice=19,
    )
    if command.wait(APPLY_SECONDS):
        raise RuntimeError(f"forewarn fleet apply failed: {(service.folder / 'apply.log').read_text()}")
    ended = time.perf_counter() + 0.2
    stage.processes.end(command)
    idle_begun = ended + 0.3
    idle_ended = idle_begun + (ended - begun)
    time.sleep(max(0, idle_ended - time.perf_counter()))
    poller.terminate()
    printed, _ = poller.communicate()
    stage.processes.end(poller)
    moments = array("d")
    moments.frombytes(printed)
    return _window(moments, begun, ended), _window(moments, idle_begun, idle_ended)


def _window(moments: array[float], begun: float, ended: float) -> Window:
    """What the polls took that were under way between two moments. Pairs of when one began and when it ended."""
    polls = [
        (end - start, start)
        for start, end in zip(moments[::2], moments[1::2], strict=True)
        if end >= begun and start <= ended
    ]
    longest, at = max(polls)
    return Window(ended - begun, len(polls), longest * 1000, at - begun)
