"""Servers with one defect: the matching checks fail. A correct server passes every check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forewarn.verify.check import SECTIONS, Mark
from forewarn.verify.endpoint import TargetEndpoint
from forewarn.verify.runner import CHECKS, CheckOutcome, CheckResult, run, select_checks
from forewarn.verify.session import HookCommands, Session
from verify.broken_server import Defect, RunningServer, running
from verify.defects import CORRECT, DEFECTS, RATE_LIMITED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.verify.check import Check

TIMEOUT_SECONDS = 3
SLOW_CLIENT_SECONDS = 3
REACTION_SECONDS = 1
TESTED = {name for defect in DEFECTS for name in defect.failing_checks}
RATE = ("requests/rate-limit", "requests/rate-limit-recovers")


def verify(server: RunningServer, checks: Iterable[Check]) -> dict[str, CheckOutcome]:
    """Run the checks. Return the outcomes by name."""
    endpoint, same_group, other_group = (
        TargetEndpoint(url, TIMEOUT_SECONDS) for url in (server.endpoint, server.same_group, server.other_group)
    )
    for each in (endpoint, same_group, other_group):
        each.probe()
    hooks = HookCommands(
        server.command("schedule", "type", "FOREWARN_EVENT_TYPE"),
        server.command("cancel", "id", "FOREWARN_EVENT_ID"),
        server.command("advance", "seconds", "FOREWARN_SECONDS"),
    )
    session = Session(
        endpoint,
        hooks,
        same_group=same_group,
        other_group=other_group,
        vm="pool_0",
        reaction_seconds=REACTION_SECONDS,
        slow_client_seconds=SLOW_CLIENT_SECONDS,
    )
    return {outcome.check.name: outcome for outcome in run(checks, session)}


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_fails_its_checks(defect: Defect) -> None:
    with running(defect) as server:
        outcomes = verify(server, select_checks(defect.failing_checks, list(Mark)))
    assert {name: outcome.result for name, outcome in outcomes.items()} == dict.fromkeys(
        defect.failing_checks, CheckResult.FAILED
    )
    for outcome in outcomes.values():
        assert outcome.expected
        assert outcome.request
        assert outcome.actual


def test_a_correct_server_passes_every_check() -> None:
    with running(CORRECT) as server:
        outcomes = verify(server, [check for check in CHECKS if check.name not in RATE])
    assert {name: outcome for name, outcome in outcomes.items() if outcome.result != CheckResult.PASSED} == {}
    with running(RATE_LIMITED) as server:
        outcomes = verify(server, select_checks(RATE, list(Mark)))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.result != CheckResult.PASSED} == {}


@pytest.mark.parametrize("name", sorted(TESTED - set(RATE)))
def test_each_check_passes_alone(name: str) -> None:
    """A check that `--only` selects must not depend on other checks."""
    with running(CORRECT) as server:
        assert verify(server, select_checks([name], list(Mark)))[name].result == CheckResult.PASSED


def test_every_check_can_fail() -> None:
    assert {check.name for check in CHECKS} == TESTED


def test_every_section_has_a_defect() -> None:
    sections = {check.name: check.section for check in CHECKS}
    assert {sections[name] for name in TESTED} == set(SECTIONS)


def test_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
