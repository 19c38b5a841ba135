"""The steps that a random run of a notice world draws from, and a seeded run for people.

`python tests/notice_steps.py COUNT [FIRST [VARIANT ...]]` runs seeds, and prints what they found. With a single seed,
it also prints the steps that are needed for it.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from notice_world import HOSTS, NEW_VMS, VMS, Step, Variant, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from notice_checker import Violation

VARIANTS = {
    "spares": Variant(),
    "no spares": Variant(spares=False),
    "chooses": Variant(spares=False, chooses=True),
    "downtime": Variant(real_clock=True),
}
WAYS = ("apply", "apply", "part", "part", "part", "reload", "up")
REBOOT = {"type": "Reboot"}
NEW_KEYS: tuple[dict[str, Any], ...] = (
    *({"host": host} for host in HOSTS),
    *({"group": "web", "host": host, "update_domain": domain} for host in HOSTS for domain in (0, 1)),
    {"hosts": ["A", "B", "C"]},
    {},
)
MOVED_KEYS: tuple[dict[str, Any], ...] = (
    *({"host": host} for host in HOSTS),
    *({"host": host} for host in HOSTS),
    {"group": "web", "update_domain": 0},
    {"group": "web", "update_domain": 1},
    {"group": None, "update_domain": None},
)
SHORT = {"type": "Reboot", "notice": "2m", "overrides": ["notice"]}
TABLE: tuple[tuple[int, tuple[Any, ...]], ...] = (
    (6, ("request", ("restart", "redeploy", "live-migration"), VMS)),
    (3, ("request", ("eviction",), ("sp",))),
    (5, ("request", ("start",), (*VMS, "sp", "sp"))),
    (1, ("request", ("delete", "scale-in"), ("set_0",))),
    (5, ("request", ("host-update",), HOSTS, (REBOOT, REBOOT, {"type": "Freeze"}, SHORT))),
    (3, ("request", ("emergency-repair", "degraded-hardware"), HOSTS)),
    (2, ("request", ("hardware-failure",), HOSTS)),
    (2, ("rollout", HOSTS, HOSTS)),
    (3, ("return", HOSTS)),
    (1, ("listen", ("quiet",))),
    (3, ("approve", tuple(range(4)))),
    (1, ("cancel", tuple(range(4)))),
    (1, ("postpone", tuple(range(4)), ("7m", "2d"))),
    (2, ("work takes", (0, 1, 3, 20))),
    (1, ("fabric fails", (1, 2))),
    (2, ("file", WAYS, ("change",), NEW_VMS, NEW_KEYS)),
    (4, ("file", WAYS, ("change",), VMS, MOVED_KEYS)),
    (1, ("file", WAYS, ("remove",), (*VMS, *NEW_VMS))),
    (1, ("restart",)),
    (1, ("kill",)),
    (12, ("advance", (1, 60, 120, 300, 600, 900, 900, 3600, 9 * 24 * 3600))),
)
"""Steps with their weights. A tuple within a step is what the step draws from."""
KILL_TABLE = tuple(
    (weight if parts[0] not in ("restart", "fabric fails", "work takes") else 0, parts) for weight, parts in TABLE
)
"""For a service in its own process, where a start takes longer and a kill falls into the middle of a step."""
KILLED_STEPS = ("request", "rollout", "return", "approve", "cancel", "file")
KILLED_SHARE = 0.3
"""How many of these steps are interrupted by a kill."""
DOWNTIME_TABLE = (*TABLE, (3, ("kill", (5, 60, 1200))), (3, ("restart", (5, 60, 1200))))


def _strategy(table: tuple[tuple[int, tuple[Any, ...]], ...]) -> st.SearchStrategy[Step]:
    rows = [
        st.tuples(st.just(parts[0]), *map(st.sampled_from, parts[1:])) for weight, parts in table for _ in range(weight)
    ]
    return st.one_of(rows)


STEPS = _strategy(TABLE)
DOWNTIME_STEPS = _strategy(DOWNTIME_TABLE)


def draw(rng: random.Random, count: int, table: tuple[tuple[int, tuple[Any, ...]], ...] = TABLE) -> list[Step]:
    """Draw steps: the same for the same seed."""
    rows = rng.choices([parts for _, parts in table], [weight for weight, _ in table], k=count)
    return [(parts[0], *(rng.choice(part) for part in parts[1:])) for parts in rows]


def draw_with_kills(rng: random.Random, count: int) -> list[Step]:
    """Draw steps, some of which are interrupted by a kill."""
    steps = draw(rng, count, KILL_TABLE)
    return [
        ("kill during", rng.randrange(4), *step)
        if step[0] in KILLED_STEPS and step[1] not in ("up", "reload") and rng.random() < KILLED_SHARE
        else step
        for step in steps
    ]


def kind(violation: Violation) -> str:
    """Describe a violation shortly, so that those of the same kind have the same text."""
    arrival = violation.arrival
    came = f"{arrival.how} {arrival.by}".strip()
    if arrival.by:
        came += " before the request" if violation.began_in_between else " after the request"
    return f"{violation.cause}{' of a rollout' if violation.rollout else ''}; {came}"


def run_seed(seed: int, variant: str, count: int = 40) -> tuple[World, list[Step]]:
    """Run the steps of a seed, until the first violation."""
    rng = random.Random(f"{seed} {variant}")  # noqa: S311 - a schedule
    steps = draw(rng, count, DOWNTIME_TABLE if variant == "downtime" else TABLE)
    done: list[Step] = []
    with World(VARIANTS[variant]) as world:
        for step in steps:
            done.append(step)
            world.do(step)
            if world.checker.violations:
                break
    return world, done


def shortest(steps: list[Step], variant: str, found: str) -> list[Step]:
    """Leave out every step without which the same kind of violation is found."""
    position = len(steps) - 1
    while position >= 0:
        fewer = [*steps[:position], *steps[position + 1 :]]
        with World(VARIANTS[variant]) as world:
            world.run(fewer)
        if any(kind(violation) == found for violation in world.checker.violations):
            steps = fewer
        position -= 1
    return steps


def main() -> None:
    count, first = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    variants = sys.argv[3:] or [*VARIANTS]
    say: Callable[[str], None] = lambda text: print(text, flush=True)  # noqa: E731, T201
    seen: dict[tuple[str, str], int] = {}
    for seed in range(first, first + count):
        for variant in variants:
            try:
                world, steps = run_seed(seed, variant)
            except Exception as error:  # noqa: BLE001 - the other seeds are worth running
                say(f"seed {seed}, {variant}: {type(error).__name__}: {error}")
                continue
            for violation in world.checker.violations[:1]:
                found = kind(violation)
                if (variant, found) not in seen:
                    say(f"seed {seed}, {variant}: {found}\n    {violation}")
                    for step in shortest(steps, variant, found) if count == 1 else ():
                        say(f"        {step}")
                seen[variant, found] = seen.get((variant, found), 0) + 1
    for (variant, found), times in sorted(seen.items()):
        say(f"{times:4} {variant}: {found}")


if __name__ == "__main__":
    main()
