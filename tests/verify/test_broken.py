"""Servers that do one thing wrong: the checks say so by name, and say nothing of one that is right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from forewarn.verify.check import SECTIONS, Mark
from forewarn.verify.endpoint import Endpoint
from forewarn.verify.runner import CHECKS, CheckOutcome, Result, chosen, run
from forewarn.verify.session import Hooks, Session
from verify.broken import Fault, Running, running
from verify.faults import FAULTS, LIMITED, RIGHT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.verify.check import Check

TIMEOUT_SECONDS = 3
SLOW_SECONDS = 3
PROMPT_SECONDS = 1
RATE = ("requests/too-many", "requests/too-many-is-over-soon")


def verify(server: Running, checks: Iterable[Check]) -> dict[str, CheckOutcome]:
    """What comes of the checks, by name."""
    here, other, outside = (Endpoint(url, TIMEOUT_SECONDS) for url in (server.here, server.other, server.outside))
    for place in (here, other, outside):
        place.reach()
    hooks = Hooks(
        server.command("schedule", "type", "FOREWARN_EVENT_TYPE"),
        server.command("cancel", "id", "FOREWARN_EVENT_ID"),
        server.command("advance", "seconds", "FOREWARN_SECONDS"),
    )
    session = Session(
        here,
        hooks,
        other=other,
        outside=outside,
        vm="pool_0",
        prompt_seconds=PROMPT_SECONDS,
        slow_seconds=SLOW_SECONDS,
    )
    return {outcome.check.name: outcome for outcome in run(checks, session)}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_what_is_wrong_is_caught_by_name(fault: Fault) -> None:
    with running(fault) as server:
        outcomes = verify(server, chosen(fault.caught, list(Mark)))
    assert {name: outcome.result for name, outcome in outcomes.items()} == dict.fromkeys(fault.caught, Result.FAILED)
    for outcome in outcomes.values():
        assert outcome.right
        assert outcome.sent
        assert outcome.came


def test_a_server_that_is_right_passes_all() -> None:
    with running(RIGHT) as server:
        outcomes = verify(server, [check for check in CHECKS if check.name not in RATE])
    assert {name: outcome for name, outcome in outcomes.items() if outcome.result != Result.PASSED} == {}
    with running(LIMITED) as server:
        outcomes = verify(server, chosen(RATE, list(Mark)))
    assert {name: outcome for name, outcome in outcomes.items() if outcome.result != Result.PASSED} == {}


@pytest.mark.parametrize("name", sorted({name for fault in FAULTS for name in fault.caught} - set(RATE)))
def test_each_check_passes_by_itself(name: str) -> None:
    """With `--only` a check is made alone: it must not lean on what others have done."""
    with running(RIGHT) as server:
        assert verify(server, chosen([name], list(Mark)))[name].result == Result.PASSED


def test_every_check_can_fail() -> None:
    assert {check.name for check in CHECKS} == {name for fault in FAULTS for name in fault.caught}


def test_every_section_has_a_server_that_breaks_it() -> None:
    sections = {check.name: check.section for check in CHECKS}
    assert {sections[name] for fault in FAULTS for name in fault.caught} == set(SECTIONS)


def test_names_are_unique() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
