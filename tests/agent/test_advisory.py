"""Advice that a Spot VM may be evicted: it is prepared, never approved, and undone unless an eviction follows."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from agent.configs import config
from agent.events import ME, NOW, make_event
from agent.jobs import LoneJob, handler_of
from forewarn.agent.changes import GONE, SCHEDULED, Change
from forewarn.agent.cli.status import status_lines
from forewarn.agent.decisions import (
    DecisionContext,
    FinishWork,
    RunHandler,
    UpdateWork,
    approval_problem,
    next_instructions,
    waits_for_time,
    withheld_for,
)
from forewarn.agent.document_decisions import DocumentContext, DocumentDecision, apply_document, assume_restarts
from forewarn.agent.explain import config_warnings, explain
from forewarn.agent.handlers.handler import PREPARE, UNDO, as_variables
from forewarn.agent.plan import plan, plan_lines
from forewarn.agent.policy import Config, Rule
from forewarn.agent.state import (
    CAME_BACK,
    CANCELLED,
    OVER,
    PREPARED,
    PREPARING,
    UNDONE,
    from_json,
    new_work,
    to_json,
)
from forewarn.agent.status import describe_work, ready_reason
from forewarn.wire.document_reader import read_document_leniently

if TYPE_CHECKING:
    from pathlib import Path

    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent

TYPE = "SpotRebalanceRecommendation"
MINUTE = timedelta(minutes=1)
CONTEXT = DecisionContext(NOW, 0.0)
ON_ADVICE = Rule("advice", on=(TYPE,), prepare=("drain",), approve="self")
ON_EVICTION = Rule("eviction", on=("Preempt",), prepare=("drain", "stop"), approve="self")
TOMORROW = "Mon, 05 May 2031 12:00:00 GMT"
FORMS: tuple[dict[str, Any], ...] = (
    {},
    {"NotBefore": TOMORROW},
    {"NotBefore": "Sun, 04 May 2031 12:00:00 GMT", "EventStatus": "Scheduled"},
)
"""As vendors' clients know it: without a date, or with one that is no deadline. As Forewarn 0.1 showed it."""


def advice(**fields: Any) -> ScheduledEvent:
    return make_event("A1", TYPE, status="Advisory", **fields)


def eviction(status: str = "Scheduled", **fields: Any) -> ScheduledEvent:
    return make_event("P1", "Preempt", status=status, notice=MINUTE / 2, **fields)


def prepared(event: ScheduledEvent | None = None, rule: Rule = ON_ADVICE) -> EventWork:
    """Return the work of an advice whose handler has prepared."""
    return new_work(event or advice(), ME, rule, "boot").with_step(0, state=PREPARED)


def taken(works: list[EventWork], *events: ScheduledEvent, boot: str = "boot") -> DocumentDecision:
    rules = (ON_ADVICE, ON_EVICTION)
    listed_as = {ME: ME}.get
    context = DocumentContext(rules, lambda names: listed_as(names[0]), NOW, boot, 1e6, is_first=False)
    return apply_document({each.id: each for each in works}, events, context)


# --- Rules --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule("any"), False),
        (Rule("platform", source="Platform"), False),
        (Rule("others", on=("Preempt", "Reboot")), False),
        (Rule("named", on=(TYPE,)), True),
        (Rule("one of several", on=("Preempt", TYPE.lower())), True),
        (Rule("with notice", on=(TYPE,), min_notice=MINUTE), False),
    ],
)
def test_a_rule_must_name_the_type(rule: Rule, matches: bool, form: dict[str, Any]) -> None:
    assert rule.matches(advice(**form), NOW) is matches


def test_check_says_what_matches_and_what_has_no_effect() -> None:
    lines = explain(config(Rule("rule 1", prepare=("x",))))
    assert f"1. rule 1: any event except {TYPE}" in lines
    first = Rule("any", prepare=("x",))
    assert config_warnings(config(first, ON_ADVICE._replace(approve="never"))) == []
    settings = ON_ADVICE._replace(approve="self", approve_lead=MINUTE, lead=MINUTE, min_notice=MINUTE)
    assert config_warnings(config(settings)) == [
        f"advice never applies to {TYPE}: a recommendation has no notice.",
        "advice: approve has no effect: a recommendation needs no approval.",
        "advice: when has no effect: a recommendation has no deadline.",
    ]
    both = settings._replace(on=("Preempt", TYPE), min_notice=None, lead=None, timeout=MINUTE / 2)
    assert config_warnings(config(both)) == []
    lines = explain(config(ON_ADVICE))
    assert "   approve  never: a recommendation needs no approval" in lines
    assert "   undo     when the event has disappeared and no eviction follows:" in lines


def test_a_preempt_is_never_taken_for_advice() -> None:
    """Microsoft's service does not send it; an eviction must not be missed because of its status."""
    odd = eviction("Advisory")
    assert Rule("any").matches(odd, NOW)
    assert taken([prepared()], odd).works["a1"].ending == ""
    assert not Rule("any").matches(make_event(kind="Hint", status="advisory"), NOW)


# --- Preparing, and no approval -----------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_it_is_prepared_at_once_and_never_approved(form: dict[str, Any]) -> None:
    rule = ON_ADVICE._replace(lead=5 * MINUTE, approve_lead=MINUTE)
    work = new_work(advice(**form), ME, rule, "boot")
    (instruction,) = next_instructions({work.id: work}, CONTEXT)
    assert isinstance(instruction, RunHandler)
    ready = work.with_step(0, state=PREPARED)
    for at in (NOW, NOW + timedelta(days=2)):
        context = CONTEXT._replace(now=at)
        assert next_instructions({ready.id: ready}, context) == []
        assert approval_problem(ready, context) == "a recommendation needs no approval"
        assert withheld_for(ready._replace(event=advice(resources=(ME, "web-1"), **form)), context) == []
    assert not waits_for_time(work)
    assert not waits_for_time(ready)


def test_a_later_date_does_not_postpone_it() -> None:
    before = prepared(advice(NotBefore="Sun, 04 May 2031 12:00:00 GMT"), ON_ADVICE._replace(lead=MINUTE))
    (after,) = taken([before], advice(NotBefore=TOMORROW)).works.values()
    assert after.ending == ""


@pytest.mark.parametrize("form", FORMS)
def test_the_plan_shows_no_approval_and_no_start(form: dict[str, Any]) -> None:
    found = plan(config(ON_ADVICE), advice(**form), NOW, ME)
    assert found.approval is not None
    assert (found.approval.at, found.approval.text) == (None, "never: a recommendation needs no approval")
    status = form.get("EventStatus", "Advisory")
    assert plan_lines(found) == [
        f"{TYPE} a1, {ME}: {status}, never starts",
        "  rule: advice",
        "  2031-05-04 12:00:00 UTC (now): drain would stop drain (at most 1m)",
        "  approval (self): never: a recommendation needs no approval",
        "  when the event has disappeared and no eviction follows: drain would start drain",
        "  note: if a handler fails, the other handlers do not run; the event is not approved",
    ]


def test_the_plan_says_why_another_rule_ignores_it() -> None:
    found = plan(config(Rule("any", prepare=("x",))), advice(), NOW, ME)
    assert found.reasons == (f"any: it does not name {TYPE} in on",)


# --- Undoing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS)
def test_it_is_undone_when_it_disappears(form: dict[str, Any]) -> None:
    (gone,) = taken([prepared(advice(**form))]).works.values()
    assert gone.ending == CANCELLED
    (instruction,) = next_instructions({gone.id: gone}, CONTEXT)
    assert isinstance(instruction, RunHandler)
    assert instruction.action == UNDO


def test_it_is_undone_when_another_vm_is_evicted() -> None:
    assert taken([prepared()], eviction(resources=("web-1",))).works["a1"].ending == CANCELLED


@pytest.mark.parametrize("still_advised", [False, True])
def test_an_eviction_that_follows_takes_over_the_preparation(still_advised: bool) -> None:
    listed = [advice()] if still_advised else []
    works = taken([prepared()], *listed, eviction()).works
    assert [(name, work.ending) for name, work in works.items()] == [("a1", ""), ("p1", "")]
    (shared,) = next_instructions(works, CONTEXT)
    assert isinstance(shared, UpdateWork)  # drain is not run again
    assert (shared.handler, shared.problem) == ("drain", "")
    works["p1"] = shared.work
    (instruction,) = next_instructions(works, CONTEXT)
    assert isinstance(instruction, RunHandler)
    assert (instruction.work.id, instruction.step, instruction.action) == ("p1", 1, PREPARE)


def test_it_is_undone_once_when_the_eviction_that_followed_is_over() -> None:
    held = taken([prepared()], eviction())
    assert [(news.kind, news.reason) for news in held.news if news.event.key == "a1"] == [("followed", "p1")]
    works = held.works
    works["p1"] = works["p1"].with_step(0, state=PREPARED).with_step(1, state=PREPARED)
    again = taken(list(works.values()), eviction("Started"))
    assert [news.kind for news in again.news] == ["started"]  # the agent reports once that it is followed
    ended = taken(list(again.works.values())).works
    assert {name: work.ending for name, work in ended.items()} == {"a1": CANCELLED, "p1": OVER}
    undone = []
    while ended:
        (*_, instruction) = next_instructions(ended, CONTEXT)
        if isinstance(instruction, FinishWork):
            del ended[instruction.work.id]
            continue
        assert isinstance(instruction, RunHandler)
        handler = instruction.work.steps[instruction.step].handler
        undone.append(handler)
        for work in ended.values():
            for index, step in enumerate(work.steps):
                if step.handler == handler:
                    ended[work.id] = work.with_step(index, state=UNDONE)
    assert undone == ["stop", "drain"]


def test_an_eviction_without_a_rule_keeps_the_preparation_too() -> None:
    context = DocumentContext((ON_ADVICE,), lambda _: ME, NOW, "boot", 1e6, is_first=False)
    work = prepared()
    found = apply_document({work.id: work}, [eviction()], context)
    assert found.works["a1"].ending == ""
    assert list(found.ignored) == ["p1"]
    assert apply_document(found.works, [], context).works["a1"].ending == CANCELLED


def test_an_eviction_after_the_undo_has_begun_is_prepared_by_itself() -> None:
    gone = taken([prepared()]).works
    works = taken(list(gone.values()), eviction()).works
    assert works["a1"].ending == CANCELLED
    (first, *_) = next_instructions({"p1": works["p1"]}, CONTEXT)
    assert isinstance(first, RunHandler)


def test_a_machine_that_the_eviction_has_restarted_is_restored() -> None:
    works = taken([prepared()], eviction()).works
    works["p1"] = works["p1"].with_step(0, state=PREPARED)
    back = taken(list(works.values()), eviction("Started"), boot="second").works
    assert {name: work.ending for name, work in back.items()} == {"a1": CAME_BACK, "p1": CAME_BACK}


@pytest.mark.parametrize("listed", [[], [advice()]])
def test_a_machine_restarted_before_the_eviction_is_prepared_again(listed: list[ScheduledEvent]) -> None:
    again = taken([prepared()], *listed, eviction(), boot="second").works["a1"]
    assert (again.ending, again.steps[0].state) == ("", PREPARING)


def test_after_a_restart_without_a_response_it_is_undone() -> None:
    """A shared handler of an eviction would otherwise stay prepared."""
    (back,) = assume_restarts({"a1": prepared()}, "second", NOW).values()
    assert back.ending == CAME_BACK


def test_the_state_file_keeps_that_an_eviction_follows() -> None:
    held = taken([prepared()], eviction()).works["a1"]
    assert from_json(to_json(held)) == held
    older = to_json(held)
    del older["followed_by"]
    assert taken([from_json(older)], eviction()).works["a1"] == held


# --- The document, the library, and the status --------------------------------------------------------


@pytest.mark.parametrize("date", ["", TOMORROW, "0001-01-01T00:00:00Z", "unknown"])
def test_any_not_before_is_accepted(date: str) -> None:
    body = {"DocumentIncarnation": 1, "Events": [{**advice().raw, "NotBefore": date}]}
    document, problems = read_document_leniently(json.dumps(body))
    assert [event.status for event in document.events] == ["Advisory"]
    assert problems == ()


@pytest.mark.parametrize("form", FORMS)
def test_handlers_get_no_deadline(form: dict[str, Any], tmp_path: Path) -> None:
    job = LoneJob(tmp_path, event=advice(**form))
    assert as_variables(job)["FOREWARN_EVENT_NOT_BEFORE"] == ""
    handler_of('kind = "log"\njournal = false').prepare(job)
    assert job.said == [f"{TYPE} a1: no description"]


@pytest.mark.parametrize("form", FORMS)
def test_a_change_has_nothing_to_approve(form: dict[str, Any]) -> None:
    change = Change(SCHEDULED, advice(**form)).bound_to(lambda _: pytest.fail("it was approved"))
    assert not change.waits
    assert change.approve() is False
    gone = Change(GONE, advice(**form), advice(**form))
    assert (gone.cancelled, gone.over) == (True, False)


def test_the_status_says_what_comes_next() -> None:
    shown = describe_work(prepared(), CONTEXT)
    assert (shown["status"], shown["phase"]) == ("Advisory", "prepared")
    assert (shown["not_before"], shown["next_at"]) == (None, None)
    assert shown["next"] == "undoes its preparation when the event has disappeared and no eviction follows"
    assert shown["approval"] == {"mode": "self", "sent_at": None, "reason": "a recommendation needs no approval"}
    lines = status_lines({"events": [shown]}, NOW)
    assert f"{TYPE} a1  Advisory" in lines
    dated = describe_work(prepared(advice(NotBefore=TOMORROW)), CONTEXT)
    assert (dated["not_before"], dated["next_at"]) == (None, None)  # no alert takes it for a deadline


def test_advice_without_a_rule_does_not_block_new_work() -> None:
    assert ready_reason([], [advice()], NOW, Config()) == ""
    assert ready_reason([], [advice()], NOW, config(ON_EVICTION)) == ""
    assert ready_reason([prepared()], [], NOW, config(ON_ADVICE)) == f"{TYPE} a1: prepared"
