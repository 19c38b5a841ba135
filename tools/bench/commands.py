"""CPU time of short commands, compared with a Python that does nothing."""

from __future__ import annotations

import os
import sys
from operator import truediv
from statistics import median
from typing import TYPE_CHECKING

from tools.bench.report import Outcome, at_most, spread
from tools.bench.service import FOREWARN, Service, fleet_text

if TYPE_CHECKING:
    from tools.bench.context import Context

VMS = 200
GOALS = {"--version": 5, "vm list": 10}
TITLES = {"--version": "`forewarn --version`, CPU time", "vm list": f"`forewarn vm list`, {VMS} VMs, CPU time"}


def measure(context: Context) -> Outcome:
    """Run each command once per round, in turn, so that a change of the machine's speed affects all of them."""
    service = Service(context.processes, context.folder("commands"), fleet_text(VMS))
    service.start()
    commands = {"python": [sys.executable, "-c", "pass"]}
    commands |= {name: [FOREWARN, *name.split()] for name in GOALS}
    # Without variables of the caller that change how Python starts. The first run of each compiles the modules.
    environment = {name: value for name, value in service.environment.items() if not name.startswith("PYTHON")}
    del environment["FOREWARN_METADATA"], environment["FOREWARN_CONTROL"]
    environment["PYTHONPYCACHEPREFIX"] = str(service.folder / "compiled")
    for command in commands.values():
        _cpu_seconds(command, environment)
    seconds: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(context.rounds):
        for name, command in commands.items():
            seconds[name].append(_cpu_seconds(command, environment))
    service.stop()
    python = median(seconds["python"])
    rows = []
    for name, goal in GOALS.items():
        own = median(seconds[name])
        ratio = median(map(truediv, seconds[name], seconds["python"]))
        context.log(f"commands: {name} {own * 1000:.0f} ms of CPU time, {ratio:.1f} times python -c pass")
        baseline = f"`python -c pass` {python * 1000:.0f} ms"
        rows.append(at_most(TITLES[name], f"{own * 1000:.0f} ms", baseline, ratio, goal))
    return Outcome(rows, {name: spread(values) for name, values in seconds.items()})


def _cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    """Run a command, and return its user and system time."""
    discard = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
    pid = os.posix_spawn(command[0], command, environment, file_actions=discard)
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        raise RuntimeError(f"{' '.join(command)} failed with status {status}")
    return usage.ru_utime + usage.ru_stime
