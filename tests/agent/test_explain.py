"""The explanation of a config, and its warnings."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.configs import Words, config, named
from agent.events import NOW, make_event
from forewarn.agent.explain import _covers, as_json, config_warnings, explain
from forewarn.agent.plan import plan
from forewarn.agent.policy import Member, NamedHandler, PeersSettings, Rule

if TYPE_CHECKING:
    from forewarn.wire.document_reader import ScheduledEvent

M = timedelta(minutes=1)
PEERS = PeersSettings(("127.0.0.1", 0), b"s" * 16, (Member("web-0", "h", 1), Member("web-1", "h", 2)), 10 * M)


def test_a_complete_rule() -> None:
    rule = Rule(
        "web",
        on=("Reboot", "Redeploy", "Freeze"),
        source="Platform",
        description=("repair", "failure"),
        max_duration=timedelta(seconds=30),
        min_notice=5 * M,
        prepare=("pool", "web"),
        lead=10 * M,
        timeout=2 * M,
        approve="self",
        approve_lead=3 * M,
        on_failure="continue",
    )
    which = (
        'Reboot, Redeploy or Freeze, from Platform, with "repair" or "failure" in the description, '
        "with an interruption of at most 30s, with at least 5m of notice"
    )
    assert explain(config(rule)) == [
        "agent.toml: 1 rule, 2 handlers.",
        "",
        f"1. web: {which}",
        "   prepare  10m before NotBefore, or at once if less time is left, in at most 2m together:",
        "     1. pool (command, at most 1m): stop pool",
        "     2. web (command, at most 1m): stop web",
        "   failure  if one fails, the other handlers still run; the event is not approved",
        "   approve  3m before NotBefore, once all handlers have prepared, unless the event affects other VMs",
        "   undo     when the event is over or cancelled:",
        "     1. web (command, at most 1m): start web",
        "     2. pool (command, at most 1m): start pool",
        "",
        "The first matching rule applies. The agent logs and ignores events that match no rule.",
    ]


def test_a_minimal_rule() -> None:
    lines = explain(config(Rule("rule 1")))
    assert lines[2:6] == [
        "1. rule 1: any event except SpotRebalanceRecommendation",
        "   prepare  nothing",
        "   approve  never: the event starts at its NotBefore",
        "   undo     nothing",
    ]


def test_no_rules() -> None:
    assert explain(config()) == [
        "agent.toml: 0 rules, 0 handlers.",
        "",
        "Without rules, the agent logs all events and ignores them.",
    ]


@pytest.mark.parametrize(
    ("rule", "line"),
    [
        (
            Rule("a", approve="leader", prepare=("x",)),
            "all handlers have prepared on every affected VM; the first VM approves",
        ),
        (Rule("a", approve="self"), "as soon as the event is seen, unless the event affects other VMs"),
        (
            Rule("a", prepare=("x",), on_failure="stop"),
            "if one fails, the other handlers do not run; the event is not approved",
        ),
        (Rule("a", prepare=("x",), on_failure="approve"), "handlers still run, and the event is still approved"),
        (Rule("a", prepare=("x",)), "prepare  at once:"),
        (Rule("a", prepare=("x", "y"), undo=("x",)), "     1. x (command, at most 1m): start x"),
    ],
)
def test_each_choice_has_its_text(rule: Rule, line: str) -> None:
    assert any(line in each for each in explain(config(rule)))


def test_handlers_without_undo_are_not_listed() -> None:
    found = config(Rule("a", prepare=("x",)), handlers=(named("x", undo=""),))
    assert explain(found)[-3] == "   undo     nothing"


def test_peers_are_named() -> None:
    found = config(Rule("a", approve="leader", prepare=("x",)))._replace(peers=PEERS)
    assert explain(found)[-1] == "Peers: web-0, web-1. A peer without a response for 10m is unreachable."


def test_the_same_for_programs() -> None:
    found = as_json(config(Rule("a", prepare=("x", "y"), timeout=M)))
    assert [step["handler"] for step in found["rules"][0]["prepare"]] == ["x", "y"]
    assert [step["does"] for step in found["rules"][0]["undo"]] == ["start y", "start x"]
    assert found["rules"][0]["timeout_seconds"] == 60


@pytest.mark.parametrize(
    ("rules", "doubt"),
    [
        (
            [Rule("a", on=("Reboot",), prepare=("x",)), Rule("b", on=("reboot",), prepare=("x",), source="User")],
            "b never applies: earlier rules match all of its events (a).",
        ),
        (
            [
                Rule("a", on=("Reboot",), prepare=("x",)),
                Rule("b", on=("Freeze",), prepare=("x",)),
                Rule("c", on=("Freeze", "Reboot"), prepare=("x",)),
            ],
            "c never applies: earlier rules match all of its events (b and a).",
        ),
        (
            [Rule("a", on=("Reboot",), prepare=("x",)), Rule("b", on=("Reboot", "Freeze"), prepare=("x",))],
            "b never applies to Reboot: a matches it first.",
        ),
        (
            [Rule("a", description=("fail",), prepare=("x",)), Rule("b", description=("FAILURE",), prepare=("x",))],
            "b never applies: earlier rules match all of its events (a).",
        ),
        (
            [Rule("a", min_notice=M, prepare=("x",)), Rule("b", min_notice=2 * M, prepare=("x",))],
            "b never applies: earlier rules match all of its events (a).",
        ),
        (
            [Rule("a", on=("Rebot",), prepare=("x",))],
            "a: unknown event type 'Rebot'. Did you mean 'Reboot'?",
        ),
        ([Rule("a", prepare=("x",), approve_lead=M)], "a: approve_when has no effect without approve."),
        (
            [Rule("a", prepare=("x",)), Rule("b", prepare=("x",))],
            "b never applies: earlier rules match all of its events (a).",
        ),
        ([Rule("a", approve="leader", prepare=("x",))], 'a: approve = "leader" needs a [peers] table.'),
        ([Rule("a", prepare=("x", "y"), undo=("y",))], "a prepares x but does not undo it."),
        ([Rule("a", prepare=("mute",))], "a: handler mute does nothing on prepare."),
        ([Rule("a", prepare=("x",), undo=("x", "mute"))], "a: handler mute does nothing on undo."),
        (
            [Rule("a", on=("Reboot", "preempt"), prepare=("x",))],
            "a: its handlers may take 1m, but the notice of a Preempt can be 30s.",
        ),
        (
            [Rule("a", prepare=("x", "y"), lead=M)],
            "a: its handlers may take 2m, but they start 1m before NotBefore.",
        ),
    ],
)
def test_warnings(rules: list[Rule], doubt: str) -> None:
    mute = named("mute", prepare="", undo="")
    found = config(
        *rules, handlers=(mute,) if any("mute" in (*rule.prepare, *(rule.undo or ())) for rule in rules) else ()
    )
    assert config_warnings(found) == [doubt]
    assert explain(found)[-1] == f"warning: {doubt}"


@pytest.mark.parametrize(
    "rule",
    [
        Rule("a", on=("Preempt",), prepare=("x",), timeout=M / 2),
        Rule("a", on=("Preempt",), prepare=("x",), min_notice=M),
        Rule("a", on=("SpotRebalanceRecommendation",), prepare=("x",)),
        Rule("a", prepare=("x", "y"), lead=2 * M),
    ],
)
def test_handlers_with_enough_time_cause_no_warning(rule: Rule) -> None:
    assert config_warnings(config(rule)) == []


def test_an_unused_handler_is_a_warning() -> None:
    assert config_warnings(config(handlers=(named("x"),))) == ["No rule uses handler x."]


def test_unused_peers_are_a_warning() -> None:
    found = config(Rule("a", prepare=("x",)))._replace(peers=PEERS)
    assert config_warnings(found) == ['There is a [peers] table, but no rule has approve = "leader".']


@pytest.mark.parametrize(
    "rules",
    [
        [Rule("a", on=("Reboot",), prepare=("x",)), Rule("b", prepare=("x",))],
        [Rule("a", on=("Reboot",), source="User", prepare=("x",)), Rule("b", on=("Reboot",), prepare=("x",))],
        [Rule("a", description=("failure",), prepare=("x",)), Rule("b", description=("fail",), prepare=("x",))],
        [Rule("a", min_notice=2 * M, prepare=("x",)), Rule("b", min_notice=M, prepare=("x",))],
        [Rule("a", max_duration=M, prepare=("x",)), Rule("b", max_duration=2 * M, prepare=("x",))],
        [Rule("a", max_duration=M, prepare=("x",)), Rule("b", prepare=("x",))],
    ],
)
def test_reachable_rules_cause_no_warning(rules: list[Rule]) -> None:
    assert config_warnings(config(*rules)) == []


rules = st.builds(
    Rule,
    st.just("any"),
    on=st.lists(st.sampled_from(["Reboot", "reboot", "SpotRebalanceRecommendation"]), max_size=2).map(tuple),
    source=st.sampled_from(["", "User", "Platform"]),
    description=st.lists(st.sampled_from(["fail", "Failure", "repair"]), max_size=2).map(tuple),
    max_duration=st.sampled_from([None, timedelta(0), M, 2 * M]),
    min_notice=st.sampled_from([None, timedelta(0), M, 20 * M]),
)
events = st.builds(
    make_event,
    kind=st.sampled_from(["Reboot", "Freeze", "Preempt", "SpotRebalanceRecommendation"]),
    status=st.sampled_from(["Scheduled", "Started", "Advisory"]),
    notice=st.sampled_from([-M, timedelta(0), M, 20 * M]),
    Description=st.sampled_from(["", "a failure", "FAIL", "repair"]),
    EventSource=st.sampled_from(["User", "Platform", None]),
    DurationInSeconds=st.sampled_from([-1, 0, 60, 61, None]),
)


@given(rules, rules, events)
def test_a_rule_reported_as_unreachable_never_matches(earlier: Rule, later: Rule, event: ScheduledEvent) -> None:
    covered = all(_covers(earlier, later, kind) for kind in later.on or ("",))
    assert not (covered and later.matches(event, NOW)) or earlier.matches(event, NOW)


def test_a_custom_handler_whose_description_fails_is_explained() -> None:
    class Mute(Words):
        def describe(self, action: str) -> str:
            raise KeyError(action)

    mute = NamedHandler("mute", "mute.py", M, Mute(), {})
    whole = config(Rule("web", prepare=("mute",), undo=("mute",)), handlers=(mute,))
    says = "do something unknown (describe() failed: KeyError: 'prepare')"
    assert any(says in line for line in explain(whole))
    assert as_json(whole)["rules"][0]["prepare"][0]["does"] == says
    assert plan(whole, make_event(), NOW, "web-0").steps[0].does == says


def test_a_custom_handler_without_a_description_does_nothing() -> None:
    class Silent(Words):
        def describe(self, action: str) -> str:
            return None  # type: ignore[return-value]

    silent = NamedHandler("silent", "silent.py", M, Silent(), {})
    whole = config(Rule("web", prepare=("silent",)), handlers=(silent,))
    assert "     1. silent (silent.py, at most 1m): nothing" in explain(whole)
    assert plan(whole, make_event(), NOW, "web-0").steps[0].does == ""
