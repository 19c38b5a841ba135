"""Planning a rollout over 5,000 hosts with 100,000 VMs."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

from bench.report import Outcome, Row, below, spread
from bench.service import Service, fleet_text

if TYPE_CHECKING:
    from bench.stage import Stage

HOSTS = 5000
GROUPS = 100
VMS_OF_GROUP = 1000
HOSTS_OF_GROUP = 500
TIMES = 7
GOAL_SECONDS = 1.0


def fleet() -> str:
    """Every group on 500 hosts, every host with VMs of ten groups, each with its own number of domains."""
    lines = [f'[[host]]\nname = "h-{number}"' for number in range(HOSTS)]
    for group in range(GROUPS):
        lines.append(f'[[group]]\nname = "g{group}"\nkind = "availability-set"\nupdate_domains = {3 + group % 5}')
        first = group * HOSTS // GROUPS
        hosts = [f'"h-{(first + number) % HOSTS}"' for number in range(HOSTS_OF_GROUP)]
        lines.append(
            f'[[vm]]\nname = "g{group}-{{n}}"\ngroup = "g{group}"\ncount = {VMS_OF_GROUP}\nhosts = [{", ".join(hosts)}]'
        )
    return "\n".join([*lines, fleet_text(1)])


def measure(stage: Stage) -> Outcome:
    """The same plan several times over one connection; the first has nothing to remember."""
    service = Service(stage.processes, stage.folder("plan"), fleet())
    service.start()
    control = service.control()
    took, waves = [], 0
    for _ in range(TIMES):
        begun = time.perf_counter()
        plan = control.call("POST", "/v1/rollouts", {"hosts": ["h-*"], "max_unavailable": 50, "dry_run": True})
        took.append(time.perf_counter() - begun)
        waves = len(plan["waves"])
    control.close()
    service.stop()
    if sum(len(wave["hosts"]) for wave in plan["waves"]) != HOSTS:
        raise RuntimeError("The plan does not have every host once.")
    stage.say(f"plan: {median(took):.2f} s, the first {took[0]:.2f} s, {waves} waves")
    rows: list[Row] = [
        below("plan a rollout, 100,000 VMs on 5,000 hosts", median(took), "s", GOAL_SECONDS, f"first {took[0]:.2f} s")
    ]
    return Outcome(rows, {"seconds": took, "waves": waves, **spread(took)})
