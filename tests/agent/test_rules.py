"""The rule that matches an event."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from agent.events import NOW, make_event
from forewarn.agent.policy import Rule, choose_rule

MINUTES = timedelta(minutes=1)


@pytest.mark.parametrize(
    ("rule", "event", "fits"),
    [
        ({}, {}, True),
        ({"on": ("Reboot", "Redeploy")}, {}, True),
        ({"on": ("reboot",)}, {}, True),
        ({"on": ("Freeze",)}, {}, False),
        ({"on": ("Hibernate",)}, {"kind": "Hibernate"}, True),
        ({"source": "Platform"}, {}, True),
        ({"source": "User"}, {}, False),
        ({"source": "User"}, {"EventSource": None}, False),
        ({"description": ("memory", "undergoing")}, {"Description": "Host server is Undergoing maintenance."}, True),
        ({"description": ("memory",)}, {"Description": "Host server is undergoing maintenance."}, False),
        ({"description": ("memory",)}, {"Description": None}, False),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": 9}, True),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": 10}, True),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": 11}, False),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": -1}, False),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": None}, False),
        ({"max_duration": timedelta(seconds=10)}, {"DurationInSeconds": 10**30}, False),
        ({"min_notice": 10 * MINUTES}, {}, True),
        ({"min_notice": 15 * MINUTES}, {}, True),
        ({"min_notice": 16 * MINUTES}, {}, False),
        ({"min_notice": timedelta(seconds=1)}, {"status": "Started"}, False),
        ({"min_notice": timedelta(0)}, {"status": "Started"}, True),
    ],
)
def test_a_rule_matches(rule: dict[str, Any], event: dict[str, Any], fits: bool) -> None:
    assert Rule("r", **rule).matches(make_event(**event), NOW) is fits


def test_the_first_matching_rule_is_used() -> None:
    rules = (Rule("freeze", on=("Freeze",)), Rule("first"), Rule("second"))
    chosen = choose_rule(rules, make_event(), NOW)
    assert chosen is not None
    assert chosen.name == "first"
    assert choose_rule(rules[:1], make_event(), NOW) is None
