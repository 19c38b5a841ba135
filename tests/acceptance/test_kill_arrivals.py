"""kill -9 in the middle of requests, approvals and fleet files: no machine is touched without its notice."""

from __future__ import annotations

import random

import pytest

from depth import amount
from notice_process import ProcessWorld
from notice_steps import draw_with_kills
from notice_world import Variant

pytestmark = pytest.mark.timeout(900)

RUNS, STEPS = amount(40, 1), 30


@pytest.mark.parametrize("chooses", [False, True])
def test_kills_do_not_let_a_vm_be_touched_without_its_notice(chooses: bool) -> None:
    for seed in range(RUNS):
        steps = draw_with_kills(random.Random(seed), STEPS)  # noqa: S311 - a schedule
        with ProcessWorld(Variant(spares=False, chooses=chooses)) as world:
            violations = world.run(steps)
        assert not violations, "\n".join([f"seed {seed}", *world.log, *violations])
