"""No machine is touched without its notice: VMs that come to a host with work ahead of it, and downtime.

`notice_world` executes steps, and `notice_checker` judges from outside. Each row is a way by which a VM was once
touched without its notice. The random runs find these ways, too, and look for others.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import amount
from notice_steps import DOWNTIME_STEPS, STEPS, VARIANTS
from notice_world import Step, World

pytestmark = pytest.mark.timeout(900)

RUNS, QUICK_RUNS, STEPS_OF_RUN = 300, 8, 40
UPDATE_A: Step = ("request", "host-update", "A", {"type": "Reboot"})
UPDATE_C: Step = ("request", "host-update", "C", {"type": "Reboot"})
REPAIR_C: Step = ("request", "emergency-repair", "C")
ADD_TO_A = ("change", "web-2", {"group": "web", "host": "A", "update_domain": 0})
MOVE_TO_A = ("change", "y", {"host": "A"})
SET_ON_C: Step = ("file", "apply", "change", "set_0", {"host": "C"})
"""So that work on C waits for the notice of this VM, and the next VM that moves still goes to C."""
FULL_NOTICE: Step = ("advance", 1200)
EVICTED: tuple[Step, ...] = (("request", "eviction", "sp"), ("advance", 600))
ELSEWHERE_WORK: tuple[Step, ...] = (("request", "host-update", "B", {"type": "Reboot"}), UPDATE_C)

WAYS_THERE: dict[str, tuple[Step, ...]] = {
    "redeploy": (("request", "redeploy", "y"), ("approve", 0)),
    "migration": (("request", "live-migration", "y"), ("approve", 0)),
    "failure": (("request", "hardware-failure", "B"),),
}
ROWS: dict[str, tuple[str, tuple[Step, ...]]] = {
    **{
        f"on its way by a {way}, then the host is {work}{there}": ("spares", (*first, *steps, then, FULL_NOTICE))
        for way, steps in WAYS_THERE.items()
        for work, then in (("updated", UPDATE_C), ("repaired", REPAIR_C), ("in a rollout", ("rollout", "C")))
        for there, first in (("", ()), (" with another VM", (SET_ON_C,)))
    },
    "deallocated, host update, start": (
        "spares",
        (*EVICTED, UPDATE_A, ("request", "start", "sp"), FULL_NOTICE),
    ),
    "deallocated, rollout, start": (
        "spares",
        (*EVICTED, ("rollout", "A"), ("request", "start", "sp"), FULL_NOTICE),
    ),
    "deallocated, host update, start, fabric without spares": (
        "no spares",
        (*EVICTED, UPDATE_A, ("request", "start", "sp"), FULL_NOTICE),
    ),
    **{
        f"a file {edit} a VM while work is pending: {way}": (
            "spares",
            (UPDATE_A, ("file", way, *keys), FULL_NOTICE),
        )
        for way in ("apply", "part", "reload", "up")
        for edit, keys in (("adds", ADD_TO_A), ("moves", MOVE_TO_A))
    },
    **{
        f"a file {edit} a VM while work is in progress: {way}": (
            "spares",
            (("work takes", 20), UPDATE_A, ("advance", 960), ("file", way, *keys)),
        )
        for way in ("apply", "part", "reload", "up")
        for edit, keys in (("adds", ADD_TO_A), ("moves", MOVE_TO_A))
    },
    "a start is in progress, then host update": (
        "spares",
        (*EVICTED, ("request", "start", "sp"), UPDATE_A, FULL_NOTICE),
    ),
    "a start is in progress, then a rollout": (
        "spares",
        (*EVICTED, ("request", "start", "sp"), ("rollout", "A"), FULL_NOTICE),
    ),
    "start on a degraded host, fabric without spares": (
        "no spares",
        (
            *EVICTED,
            ("work takes", 20),
            *ELSEWHERE_WORK,
            ("request", "degraded-hardware", "A"),
            ("request", "start", "sp"),
            FULL_NOTICE,
        ),
    ),
    "start on a failed host, fabric without spares": (
        "no spares",
        (
            *EVICTED,
            ("work takes", 20),
            *ELSEWHERE_WORK,
            ("request", "hardware-failure", "A"),
            ("request", "start", "sp"),
            FULL_NOTICE,
        ),
    ),
    "the service is down over NotBefore: a VM": ("downtime", (("request", "restart", "x"), ("kill", 1200))),
    "the service is down over NotBefore: a host": ("downtime", (UPDATE_A, ("kill", 1200))),
    "the service is stopped over NotBefore": ("downtime", (UPDATE_A, ("restart", 1200))),
    "on its way to a host that fails": (
        "spares",
        (("request", "hardware-failure", "B"), ("request", "hardware-failure", "C"), ("advance", 600)),
    ),
    "on its way to a host that degrades": (
        "spares",
        (("request", "hardware-failure", "B"), ("request", "degraded-hardware", "C"), ("advance", 600)),
    ),
    "moved by a file to the host where it is already being moved, which then degrades": (
        "spares",
        (
            ("file", "apply", "change", "web-2", {"group": "web", "host": "C", "update_domain": 0}),
            ("request", "degraded-hardware", "B"),
            ("approve", 0),
            ("file", "apply", "change", "y", {"host": "C"}),
            ("request", "degraded-hardware", "C"),
            ("advance", 600),
        ),
    ),
    "starting on a host that fails": (
        "no spares",
        (*EVICTED, ("request", "start", "sp"), ("request", "hardware-failure", "A"), ("advance", 600)),
    ),
    "the fabric chooses the host": (
        "chooses",
        (("request", "redeploy", "y"), ("approve", 0), ("advance", 900), UPDATE_A, FULL_NOTICE),
    ),
    "the fabric chooses a host with pending work": (
        "chooses",
        (("request", "redeploy", "y"), ("approve", 0), UPDATE_A, FULL_NOTICE),
    ),
    "a VM that is not notified moves into an enabled group": (
        "spares",
        (UPDATE_A, ("file", "apply", "change", "quiet", {"group": "web", "update_domain": 0}), FULL_NOTICE),
    ),
    "hosts in turn, one has failed": (
        "spares",
        (
            ("request", "hardware-failure", "B"),
            ("advance", 900),
            ("file", "apply", "change", "n-0", {"hosts": ["B", "C"]}),
        ),
    ),
    "hosts in turn, one has pending work": (
        "spares",
        (
            UPDATE_A,
            ("file", "apply", "change", "web-2", {"group": "web", "hosts": ["A", "C"], "update_domain": 0}),
            FULL_NOTICE,
        ),
    ),
    **{
        f"a file puts a VM on a host that {state}": (
            "spares",
            (("request", cause, "C"), ("file", "apply", "change", "y", {"host": "C"})),
        )
        for state, cause in (("has failed", "hardware-failure"), ("is degraded", "degraded-hardware"))
    },
    "a file puts a VM back on its failed host": (
        "spares",
        (
            ("request", "hardware-failure", "A"),
            ("advance", 900),
            ("file", "apply", "change", "web-2", {"group": "web", "host": "C", "update_domain": 1}),
        ),
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_no_vm_is_touched_without_its_notice(row: str) -> None:
    variant, steps = ROWS[row]
    with World(VARIANTS[variant]) as world:
        violations = world.run(steps)
    assert not violations, "\n".join([*world.log, *violations])


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_vm_is_touched_without_its_notice_whatever_happens(variant: str) -> None:
    @settings(max_examples=amount(RUNS, QUICK_RUNS), suppress_health_check=list(HealthCheck), print_blob=True)
    @given(st.lists(DOWNTIME_STEPS if variant == "downtime" else STEPS, max_size=STEPS_OF_RUN))
    def run(steps: list[Step]) -> None:
        with World(VARIANTS[variant]) as world:
            violations = world.run(steps)
        assert not violations, "\n".join([*world.log, *violations])

    run()
