"""Nodes that fail at random, with clients on all of them: nothing happens that must never happen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import torture
from depth import amount
from safety_rules import RULES, copy_without

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "nodes"), [(11, 3), pytest.param(12, 5, marks=pytest.mark.deep)])
def test_clients_of_failing_nodes_see_nothing_wrong(seed: int, nodes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert torture.run(amount(120), seed, nodes, say=print) == [], capsys.readouterr().out


@pytest.mark.deep
@pytest.mark.timeout(900)
@pytest.mark.parametrize("schedule", torture.SCHEDULES)
def test_every_schedule(schedule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert torture.run(30, 13, 3, schedule, say=print) == [], capsys.readouterr().out


@pytest.mark.parametrize("rule", RULES)
def test_a_safety_rule_can_be_removed(rule: str, tmp_path: Path) -> None:
    """So that script/torture --without RULE shows something."""
    source = copy_without([rule], tmp_path)
    for edit in RULES[rule]:
        if edit.file.endswith(".py"):
            compile((source / "forewarn" / edit.file).read_text(), edit.file, "exec")


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_checker_finds_a_service_that_does_not_check_who_leads() -> None:
    assert torture.run(600, 2, 3, "users", without=["epoch-check"], say=print) != []
