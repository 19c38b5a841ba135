"""The plan for an event: steps and times."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.configs import config, named
from agent.events import ME, NOW, make_event
from depth import amount
from forewarn.agent.decisions import (
    ApproveEvent,
    DecisionContext,
    FinishWork,
    RunHandler,
    limit_seconds,
    next_instructions,
    with_outcome,
)
from forewarn.agent.document_decisions import DocumentContext, apply_document
from forewarn.agent.explain import explain
from forewarn.agent.handlers.handler import PREPARE
from forewarn.agent.plan import plan, plan_json, plan_lines
from forewarn.agent.policy import Config, Member, PeersSettings, Rule

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent

M = timedelta(minutes=1)
PEERS = PeersSettings(("127.0.0.1", 0), b"s" * 16, (Member(ME, "h", 1), Member("web-1", "h", 2)), M)
RULE = Rule("web", on=("Reboot",), prepare=("pool", "web"), approve="self")


def test_now() -> None:
    found = plan(config(RULE), make_event(), NOW, ME)
    assert found.rule == RULE
    assert [(step.handler, step.does, step.earliest, step.latest) for step in found.steps] == [
        ("pool", "stop pool", NOW, NOW + M),
        ("web", "stop web", NOW, NOW + 2 * M),
    ]
    assert found.approval is not None
    assert found.approval.at == NOW
    assert [step.does for step in found.undo] == ["start web", "start pool"]


def test_a_lead_before_not_before() -> None:
    rule = RULE._replace(lead=5 * M, approve_lead=2 * M)
    found = plan(config(rule), make_event(notice=15 * M), NOW, ME)
    assert found.steps[0].earliest == NOW + 10 * M
    assert found.approval is not None
    assert found.approval.at == NOW + 13 * M
    late = plan(config(rule), make_event(notice=3 * M), NOW, ME)
    assert late.steps[0].earliest == NOW


def test_the_limit_of_the_rule_is_for_all_of_it() -> None:
    rule = RULE._replace(timeout=timedelta(seconds=90))
    found = plan(config(rule), make_event(), NOW, ME)
    assert found.steps[-1].latest == NOW + timedelta(seconds=90)


def test_handlers_that_may_take_longer_than_there_is_are_named() -> None:
    found = plan(config(RULE), make_event(notice=timedelta(seconds=30)), NOW, ME)
    assert "if all handlers take their whole time limit, they end 1m30s after NotBefore" in found.reasons
    enough = plan(config(RULE), make_event(), NOW, ME)
    assert not any("after NotBefore" in reason for reason in enough.reasons)


@pytest.mark.parametrize(
    ("rule", "resources", "status", "words"),
    [
        (RULE, (ME, "web-1"), "Scheduled", "no: the event affects web-0 and web-1, not only this VM"),
        (RULE, (ME,), "Started", "no: the event has started"),
        (RULE._replace(approve="never"), (ME,), "Scheduled", "never: the event starts at its NotBefore"),
        (RULE._replace(approve="leader"), (ME, "web-1"), "Scheduled", 'no: approve = "leader" needs a [peers] table'),
        (RULE._replace(approve_lead=timedelta(0)), (ME,), "Scheduled", "no: the event starts at its NotBefore"),
    ],
)
def test_why_it_would_not_be_approved(rule: Rule, resources: tuple[str, ...], status: str, words: str) -> None:
    found = plan(config(rule), make_event(resources=resources, status=status), NOW, ME)
    assert found.approval is not None
    assert found.approval.at is None
    assert found.approval.text.startswith(words)


def test_a_leader_approves_for_several() -> None:
    led = config(RULE._replace(approve="leader"))._replace(peers=PEERS)
    for resources in ((ME, "web-1"), ("web-1", ME), (ME,)):
        found = plan(led, make_event(resources=resources), NOW, ME)
        assert found.approval is not None
        assert found.approval.at == NOW
    stranger = plan(led, make_event(resources=(ME, "db-0")), NOW, ME).approval
    assert stranger is not None
    assert stranger.at is None
    assert stranger.text == "no: db-0 is not in [peers] members"


def test_a_started_event_is_prepared_at_once() -> None:
    found = plan(config(RULE._replace(lead=5 * M)), make_event(status="Started"), NOW, ME)
    assert found.steps[0].earliest == NOW
    assert "the event has already started" in found.reasons
    odd = plan(
        config(RULE._replace(lead=5 * M)), make_event(EventStatus="Started"), NOW, ME
    )  # with a NotBefore all the same
    assert odd.event.not_before is not None
    assert odd.steps[0].earliest == NOW


def test_a_handler_with_only_undo_does_not_run_for_a_cancelled_event() -> None:
    whole = config(Rule("after", undo=("web",)))
    assert plan_lines(plan(whole, make_event(), NOW, ME))[-1] == "  when the event is over: web would start web"
    assert "   undo     when the event is over:" in explain(whole)
    both = config(Rule("both", prepare=("web",)))
    assert "  when the event is over or cancelled: web would start web" in plan_lines(plan(both, make_event(), NOW, ME))
    assert "   undo     when the event is over or cancelled:" in explain(both)


def test_without_a_matching_rule_each_rule_gives_its_reason() -> None:
    rules = (
        Rule("freeze", on=("Freeze", "Preempt")),
        Rule("mine", source="User"),
        Rule("short", max_duration=M),
        Rule("slow", min_notice=20 * M),
        Rule("word", description=("repair",)),
        Rule("words", description=("repair", "failure"), source="User"),
    )
    found = plan(config(*rules), make_event(), NOW, ME)
    assert found.rule is None
    source = "it matches events from User; this one is from Platform"
    words = 'the description does not contain "repair" or "failure"'
    assert list(found.reasons) == [
        "freeze: it matches Freeze or Preempt, not Reboot",
        f"mine: {source}",
        "short: it matches interruptions of at most 1m; the duration of this one is unknown",
        "slow: it needs 20m of notice; 15m are left",
        'word: the description does not contain "repair"',
        f"words: {source}; {words}",
    ]
    long = plan(config(rules[2]), make_event(DurationInSeconds=61), NOW, ME)
    assert long.reasons == ("short: it matches interruptions of at most 1m; this one takes 1m1s",)


def test_an_event_of_another_machine_is_left_alone() -> None:
    found = plan(config(RULE), make_event(resources=("web-1", "web-2")), NOW, "")
    assert found.reasons == ("it affects web-1 and web-2, not this VM",)


def test_the_plan_for_people() -> None:
    event = make_event("4CAEA225-A741-474D-A72E-428C86FCD853")
    found = plan(config(RULE._replace(lead=5 * M), handlers=(named("pool", 30),)), event, NOW, ME)
    alone = "as soon as all handlers have prepared, unless the event affects other VMs"
    assert plan_lines(found) == [
        f"Reboot {event.id.lower()}, web-0: Scheduled, starts at 2031-05-04 12:15:00 UTC (in 15m) or later",
        "  rule: web",
        "  2031-05-04 12:10:00 UTC (in 10m): pool would stop pool (at most 30s)",
        "  then: web would stop web (at most 1m)",
        f"  approval (self), earliest at 2031-05-04 12:10:00 UTC (in 10m): {alone}",
        "  when the event is over or cancelled: web would start web",
        "  when the event is over or cancelled: pool would start pool",
        "  note: if a handler fails, the other handlers do not run; the event is not approved",
    ]
    assert plan_lines(plan(config(), event, NOW, ME))[1:] == ["  ignored:", "    there are no rules"]
    assert "has started" in plan_lines(plan(config(RULE), make_event(status="Started"), NOW, ME))[0]


def test_the_plan_for_programs() -> None:
    found = plan_json(plan(config(RULE), make_event(), NOW, ME))
    assert found["rule"] == "web"
    assert found["prepare"][1] == {
        "handler": "web",
        "kind": "command",
        "does": "stop web",
        "earliest": "2031-05-04T12:00:00.000000Z",
        "latest": "2031-05-04T12:02:00.000000Z",
        "timeout_seconds": 60.0,
    }
    assert found["approval"]["at"] == "2031-05-04T12:00:00.000000Z"
    assert plan_json(plan(config(), make_event(), NOW, ME))["approval"] is None


def test_names_ignore_letter_case_and_duplicates() -> None:
    found = plan(config(RULE), make_event(EventStatus="scheduled", Resources=[ME, ME]), NOW, ME)
    assert found.approval is not None
    assert found.approval.at == NOW


def test_an_event_without_a_time_is_not_approved_relative_to_it() -> None:
    found = plan(config(RULE._replace(approve_lead=M)), make_event(NotBefore=""), NOW, ME)
    assert found.approval is not None
    assert found.approval.at is None
    assert "its NotBefore is unknown" in plan_lines(found)[0]


# --- The plan is what the decisions make ----------------------------------------------------------------


TICK = timedelta(seconds=30)
LONGEST = timedelta(minutes=40)


class Course(NamedTuple):
    """What came of the decisions."""

    begun: dict[str, datetime]
    ended: dict[str, datetime]
    approved_at: datetime | None
    undone: list[str]


def course(whole: Config, event: ScheduledEvent, *, slow: bool, cancelled: bool = False) -> Course:
    """As the loop has it: one look each 30 seconds, handlers that run meanwhile, an event that starts and goes."""
    works: dict[str, EventWork] = {}
    begun: dict[str, datetime] = {}
    ended: dict[str, datetime] = {}
    undone: list[str] = []
    running: dict[str, tuple[RunHandler, datetime]] = {}
    begun_at: dict[str, float] = {}
    approved_at = None
    gone_at = NOW if cancelled else NOW + LONGEST
    now = NOW
    while now <= NOW + LONGEST:
        seconds = (now - NOW).total_seconds()
        starts = not cancelled and event.not_before is not None and now >= event.not_before > NOW
        shown = event._replace(status="Started", not_before=None) if starts else event
        around = DocumentContext(whole.rules, lambda _: ME, now, "boot", 10**6, is_first=False)
        if cancelled and now == NOW:
            works = apply_document({}, [event], around).works
            works = {each.id: each for each in map(prepared, works.values())}
        works = apply_document(works, [] if now >= gone_at else [shown], around).works
        busy = True
        while busy:
            for handler, (run, until) in list(running.items()):
                if now >= until:
                    del running[handler]
                    if run.action == PREPARE:
                        ended[handler] = now
                    changed = with_outcome(works, run.work.id, run.step, run.action)
                    works.update((each.id, each) for each in changed)
            context = DecisionContext(
                now, seconds, frozenset(running), leader_problems={"e1": ""} if whole.peers else {}, begun_at=begun_at
            )
            instructions = next_instructions(works, context)
            busy = bool(instructions)
            for instruction in instructions:
                if isinstance(instruction, FinishWork):
                    return Course(begun, ended, approved_at, undone)
                works[instruction.work.id] = instruction.work
                if isinstance(instruction, ApproveEvent):
                    approved_at = now
                    works[instruction.work.id] = instruction.work._replace(approved_at="then")
                elif isinstance(instruction, RunHandler):
                    handler = instruction.work.steps[instruction.step].handler
                    first = begun_at.setdefault(instruction.work.id, seconds)
                    limit = limit_seconds(instruction, whole.handlers[handler].timeout, first, seconds)
                    running[handler] = (
                        instruction,
                        now + timedelta(seconds=limit if slow and instruction.action == PREPARE else 0),
                    )
                    if instruction.action == PREPARE:
                        begun[handler] = now
                    else:
                        undone.append(handler)
        now += TICK
    return Course(begun, ended, approved_at, undone)


def prepared(work: EventWork) -> EventWork:
    return work._replace(steps=tuple(step._replace(state="prepared") for step in work.steps))


lengths = st.sampled_from([None, 0 * M, M, 5 * M, 30 * M])
names = st.lists(st.sampled_from("abcd"), max_size=3, unique=True).map(tuple)
rules = st.builds(
    lambda **fields: Rule("web", **fields),  # from Rule itself, what is not said here would be made up
    prepare=names,
    lead=lengths,
    timeout=st.sampled_from([None, M, 1.5 * M, 4 * M]),
    approve=st.sampled_from(["self", "leader", "never"]),
    approve_lead=lengths,
    on_failure=st.sampled_from(["stop", "continue", "approve", "undo"]),
    undo=st.none() | names,
)
configs = st.builds(
    lambda rules, peers: config(*rules, handlers=(named("a", 30), named("b", 150)))._replace(peers=peers),
    st.tuples(rules, rules).map(lambda two: (two[0]._replace(on=("Reboot",), min_notice=5 * M), two[1])),
    st.sampled_from([None, PEERS]),
)
events = st.builds(
    make_event,
    kind=st.sampled_from(["Reboot", "Freeze"]),
    status=st.sampled_from(["Scheduled", "Scheduled", "Started"]),
    resources=st.sampled_from([(ME,), (ME,), (ME, ME), (ME, "web-1"), ("web-1", ME)]),
    notice=st.sampled_from([-M, 0 * M, M, 15 * M, 25 * M]),
)


@settings(max_examples=amount(2000, 400))
@given(configs, events | events | events | events.map(lambda event: event._replace(not_before=None)))
def test_the_plan_matches_the_decisions(whole: Config, event: ScheduledEvent) -> None:
    found = plan(whole, event, NOW, ME)
    quick, slow = course(whole, event, slow=False), course(whole, event, slow=True)
    assert {step.handler: step.earliest for step in found.steps} == quick.begun
    assert [step.handler for step in found.steps] == list(quick.begun)
    assert (found.approval and found.approval.at) == quick.approved_at
    assert [step.handler for step in found.undo] == quick.undone
    last = max(slow.ended.values(), default=None)  # what had no turn has failed then
    assert [step.latest for step in found.steps] == [slow.ended.get(step.handler, last) for step in found.steps]
    if found.rule is not None and found.undo:
        gone = course(whole, event, slow=False, cancelled=True)
        assert (found.undo_when == "is over or cancelled") == (gone.undone == quick.undone)
