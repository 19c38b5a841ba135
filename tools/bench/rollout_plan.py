"""The time to plan a rollout on 5,000 hosts with 100,000 VMs."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from tools.bench.report import Outcome, Row, below, spread
from tools.bench.service import Service, fleet_text

if TYPE_CHECKING:
    from tools.bench.context import Context

HOSTS = 5000
GROUPS = 100
VMS_PER_GROUP = 1000
HOSTS_PER_GROUP = 500
REPETITIONS = 7
GOAL_SECONDS = 1.0


def fleet() -> str:
    """Return a fleet file: each group is on 500 hosts, and each host has VMs of ten groups."""
    lines = [f'[[host]]\nname = "h-{number}"' for number in range(HOSTS)]
    for group in range(GROUPS):
        lines.append(f'[[group]]\nname = "g{group}"\nkind = "availability-set"\nupdate_domains = {3 + group % 5}')
        first = group * HOSTS // GROUPS
        hosts = [f'"h-{(first + number) % HOSTS}"' for number in range(HOSTS_PER_GROUP)]
        lines.append(f'[[vm]]\nname = "g{group}-{{n}}"\ngroup = "g{group}"\ncount = {VMS_PER_GROUP}')
        lines.append(f"hosts = [{', '.join(hosts)}]")
    return "\n".join([*lines, fleet_text(1)])


def measure(context: Context) -> Outcome:
    """Request the same plan several times over one connection. The first request finds empty caches."""
    service = Service(context.processes, context.folder("rollout-plan"), fleet())
    service.start()
    control = service.control()
    durations, waves = [], 0
    for _ in range(REPETITIONS):
        started = time.perf_counter()
        plan = control.call("POST", "/v1/rollouts", {"hosts": ["h-*"], "max_unavailable": 50, "dry_run": True})
        durations.append(time.perf_counter() - started)
        waves = len(plan["waves"])
    control.close()
    service.stop()
    if sum(len(wave["hosts"]) for wave in plan["waves"]) != HOSTS:
        raise RuntimeError("The plan does not contain every host exactly once.")
    context.log(f"rollout-plan: {median(durations):.2f} s, first {durations[0]:.2f} s, {waves} waves")
    rows: list[Row] = [
        below(
            "plan a rollout, 100,000 VMs on 5,000 hosts",
            median(durations),
            "s",
            GOAL_SECONDS,
            f"first {durations[0]:.2f} s",
        )
    ]
    return Outcome(rows, {"seconds": durations, "waves": waves, **spread(durations)})
