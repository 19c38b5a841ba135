"""Nodes that fail at random, with clients on all of them: nothing happens that must never happen."""

from __future__ import annotations

import pytest

import torture
from depth import amount


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("seed", "nodes"), [(11, 3), pytest.param(12, 5, marks=pytest.mark.deep)])
def test_clients_of_failing_nodes_see_nothing_wrong(seed: int, nodes: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert torture.run(amount(120), seed, nodes, say=print) == [], capsys.readouterr().out


@pytest.mark.deep
@pytest.mark.timeout(900)
def test_the_checker_finds_a_service_that_does_not_check_who_leads() -> None:
    assert torture.run(60, 2, 3, fence=False, say=print) != []
