"""What is decided about events: cell by cell, and over arbitrary courses of events, handlers and kills."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.events import ME, NOW, make_event
from forewarn.agent.decisions import (
    ApproveEvent,
    DecisionContext,
    FinishWork,
    GiveUp,
    RunHandler,
    UpdateWork,
    approval_problem,
    end,
    next_instructions,
    undone,
    waits_for_time,
    withheld_for,
)
from forewarn.agent.document_decisions import (
    DocumentContext,
    DocumentDecision,
    apply_document,
    assume_restarts,
    restored,
)
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import Rule
from forewarn.agent.state import (
    BEGUN,
    CAME_BACK,
    CANCELLED,
    FAILED,
    GAVE_UP,
    OVER,
    POSTPONED,
    PREPARED,
    PREPARING,
    SKIPPED,
    TO_DO,
    UNDOING,
    UNDONE,
    EventWork,
    HandlerStep,
    from_json,
    new_work,
    to_json,
)
from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from forewarn.agent.decisions import Instruction
    from forewarn.wire.document_reader import ScheduledEvent

CONTEXT = DecisionContext(NOW, 0.0)
WEB = Rule("web", prepare=("leave-pool", "stop-web"), approve="self")
MINUTE = timedelta(minutes=1)
SENT = to_text(NOW)


def work(rule: Rule = WEB, *states: str, event: ScheduledEvent | None = None, **fields: Any) -> EventWork:
    """Return work whose steps are in these states. Other steps are still to do."""
    made = new_work(event or make_event(), ME, rule, "boot")
    for index, state in enumerate(states):
        made = made.with_step(index, state=state)
    return made._replace(**fields)


def instructions(*works: EventWork, context: DecisionContext = CONTEXT) -> list[Instruction]:
    return next_instructions({each.id: each for each in works}, context)


def runs(*works: EventWork, context: DecisionContext = CONTEXT) -> list[tuple[str, str]]:
    """Which handlers are run, and for what; nothing else may be ordered."""
    found = instructions(*works, context=context)
    assert all(isinstance(instruction, RunHandler) for instruction in found)
    return [
        (instruction.work.steps[instruction.step].handler, instruction.action)
        for instruction in found
        if isinstance(instruction, RunHandler)
    ]


# --- Preparing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((TO_DO, TO_DO), [("leave-pool", PREPARE)]),
        ((PREPARING, TO_DO), [("leave-pool", PREPARE)]),  # it was interrupted by a kill
        ((PREPARED, TO_DO), [("stop-web", PREPARE)]),
        ((FAILED, TO_DO), []),
    ],
)
def test_the_next_handler_to_prepare(states: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert runs(work(WEB, *states)) == expected


def test_a_rule_can_continue_after_a_failed_handler() -> None:
    assert runs(work(WEB._replace(on_failure="continue"), FAILED)) == [("stop-web", PREPARE)]


GIVES_UP = WEB._replace(on_failure="undo")


def test_a_rule_can_undo_everything_after_a_failed_handler() -> None:
    failed = work(GIVES_UP, PREPARED, FAILED)
    given_up = failed._replace(ending=GAVE_UP, failure="stop-web: no luck")
    failed = failed.with_step(1, problem="no luck")
    given_up = given_up.with_step(1, problem="no luck")
    assert instructions(failed, context=CONTEXT._replace(has_document=False)) == [GiveUp(given_up)]
    assert runs(given_up) == [("stop-web", UNDO)]
    assert runs(given_up.with_step(1, state=UNDONE)) == [("leave-pool", UNDO)]
    restored_work = work(GIVES_UP, UNDONE, UNDONE, ending=GAVE_UP)
    assert instructions(restored_work) == [FinishWork(restored_work)]
    assert approval_problem(restored_work, CONTEXT) == "a handler has failed"


def test_a_handler_that_was_not_run_leaves_nothing_to_undo() -> None:
    skipped = work(GIVES_UP._replace(undo=("report",)), SKIPPED)
    (instruction,) = instructions(skipped)
    assert instruction == GiveUp(skipped._replace(ending=GAVE_UP, failure=f"{skipped.steps[0].handler}: "))
    assert instructions(instruction.work) == [FinishWork(instruction.work)]


def test_work_that_was_given_up_is_not_prepared_again_while_the_event_exists() -> None:
    done = work(GIVES_UP, UNDONE, UNDONE, ending=GAVE_UP, done=True)
    around = DocumentContext((GIVES_UP,), lambda _: ME, NOW, "boot", 1e6, is_first=True)
    later = apply_document({done.id: done}, [make_event(notice=60 * MINUTE)], around)
    assert instructions(*later.works.values()) == []
    assert apply_document(later.works, [], around).works == {}


def test_events_that_were_given_up_do_not_wait_for_each_other() -> None:
    first, second = (work(GIVES_UP, PREPARED, FAILED, event=make_event(name), ending=GAVE_UP) for name in ("E1", "E2"))
    assert runs(first, second) == [("stop-web", UNDO)]
    healthy = work(WEB, PREPARED, PREPARED, event=make_event("E3"), approved_at=SENT)
    assert runs(first, healthy) == []


def test_nothing_is_run_twice_at_a_time() -> None:
    busy = CONTEXT._replace(busy=frozenset({"leave-pool"}))
    assert runs(work(WEB, PREPARING), context=busy) == []


@pytest.mark.parametrize(
    ("lead", "status", "passed", "begins"),
    [
        (5 * MINUTE, "Scheduled", 10 * MINUTE - timedelta(seconds=1), False),
        (5 * MINUTE, "Scheduled", 10 * MINUTE, True),
        (20 * MINUTE, "Scheduled", timedelta(0), True),  # less notice than the lead
        (5 * MINUTE, "Started", timedelta(0), True),  # another VM has approved it
        (None, "Scheduled", timedelta(0), True),
    ],
)
def test_the_start_of_the_preparation(lead: timedelta | None, status: str, passed: timedelta, begins: bool) -> None:
    waiting = work(WEB._replace(lead=lead), event=make_event(status=status))
    assert bool(runs(waiting, context=CONTEXT._replace(now=NOW + passed))) is begins


def test_the_minimum_time_is_a_valid_time() -> None:
    odd = make_event()._replace(not_before=datetime.min.replace(tzinfo=UTC))
    assert runs(work(WEB._replace(lead=5 * MINUTE), event=odd)) == [("leave-pool", PREPARE)]
    ready = work(WEB._replace(lead=5 * MINUTE, approve_lead=MINUTE), PREPARED, PREPARED, event=odd)
    assert instructions(ready) == [ApproveEvent(ready)]


def test_no_handler_starts_during_an_approval() -> None:
    other = work(Rule("other", prepare=("save",)), event=make_event("E2"))
    assert runs(other, context=CONTEXT._replace(approving=frozenset({"e1"}))) == []
    assert (
        runs(
            other._replace(ending=OVER).with_step(0, state=PREPARED),
            context=CONTEXT._replace(approving=frozenset({"e1"})),
        )
        == []
    )


def test_the_timeout_of_a_rule_fails_the_handlers_that_have_not_started() -> None:
    slow = work(WEB._replace(timeout=MINUTE), PREPARED)
    (instruction,) = instructions(slow, context=CONTEXT._replace(seconds=100.0, begun_at={slow.id: 40.0}))
    assert isinstance(instruction, UpdateWork)
    assert instruction.work.steps[1].state == SKIPPED
    assert runs(slow, context=CONTEXT._replace(seconds=99.0, begun_at={slow.id: 40.0})) == [("stop-web", PREPARE)]


def test_a_handler_that_another_event_has_prepared_is_shared() -> None:
    first = work(WEB, PREPARED, PREPARED, approved_at=SENT).with_step(0, memo={"was": "ready"}, table={"a": 1})
    second = work(Rule("other", prepare=("leave-pool",)), event=make_event("E2", "Freeze"))
    (instruction,) = instructions(first, second)
    assert isinstance(instruction, UpdateWork)
    assert instruction.work.steps == (HandlerStep("leave-pool", PREPARED, {"a": 1}, {"was": "ready"}),)


# --- Approving ----------------------------------------------------------------------------------------

DONE = work(WEB, PREPARED, PREPARED)


@pytest.mark.parametrize(
    ("given", "context", "approves"),
    [
        (DONE, CONTEXT, True),
        (work(Rule("r", approve="self")), CONTEXT, True),  # there is nothing to prepare
        (work(WEB._replace(approve="never"), PREPARED, PREPARED), CONTEXT, False),
        (work(WEB, PREPARED, FAILED), CONTEXT, False),
        (work(WEB._replace(on_failure="continue"), PREPARED, FAILED), CONTEXT, False),
        (work(WEB._replace(on_failure="approve"), FAILED, PREPARED), CONTEXT, True),
        (DONE._replace(approved_at=SENT), CONTEXT, False),
        (DONE._replace(approved_at=SENT), CONTEXT._replace(now=NOW + MINUTE - timedelta(seconds=1)), False),
        (DONE._replace(approved_at=SENT), CONTEXT._replace(now=NOW + MINUTE), True),
        (DONE._replace(approved_at=SENT), CONTEXT._replace(now=NOW + 15 * MINUTE), False),  # it starts by itself
        (DONE._replace(approved_at=SENT, event=make_event(NotBefore="")), CONTEXT._replace(now=NOW + MINUTE), True),
        (DONE._replace(event=make_event(status="Started")), CONTEXT, False),
        (DONE._replace(event=make_event(resources=("web-1", ME))), CONTEXT, False),
        (DONE, CONTEXT._replace(busy=frozenset({"of another event"})), False),
        (DONE, CONTEXT._replace(approving=frozenset({"e1"})), False),
        (DONE, CONTEXT._replace(approve_at={"e1": 1.0}), False),
        (DONE, CONTEXT._replace(approve_at={"e1": 0.0}), True),
        (DONE, CONTEXT._replace(has_document=False), False),
        (DONE, CONTEXT._replace(stopping=True), False),
        (work(WEB._replace(approve_lead=MINUTE), PREPARED, PREPARED), CONTEXT, False),
        (work(WEB._replace(approve_lead=MINUTE), PREPARED, PREPARED), CONTEXT._replace(now=NOW + 14 * MINUTE), True),
        (work(WEB._replace(approve_lead=MINUTE), PREPARED, PREPARED, event=make_event(NotBefore="")), CONTEXT, False),
        (work(WEB._replace(approve="leader"), PREPARED, PREPARED), CONTEXT, False),
        (
            work(WEB._replace(approve="leader"), PREPARED, PREPARED),
            CONTEXT._replace(leader_problems={"e1": "b first"}),
            False,
        ),
        (work(WEB._replace(approve="leader"), PREPARED, PREPARED), CONTEXT._replace(leader_problems={"e1": ""}), True),
    ],
)
def test_when_it_is_approved(given: EventWork, context: DecisionContext, approves: bool) -> None:
    assert instructions(given, context=context) == ([ApproveEvent(given)] if approves else [])
    assert bool(approval_problem(given, context)) is not approves or context.stopping or not context.has_document


def test_only_an_approval_that_nothing_else_prevents_is_withheld() -> None:
    shared = make_event(resources=("web-1", ME, "web-2"))
    ready = DONE._replace(event=shared)
    assert withheld_for(ready, CONTEXT) == ["web-1", "web-2"]
    assert withheld_for(DONE, CONTEXT) == []
    assert withheld_for(work(WEB, PREPARED, event=shared), CONTEXT) == []
    assert withheld_for(ready._replace(rule=WEB._replace(approve="leader")), CONTEXT) == []
    assert withheld_for(ready._replace(event=make_event(status="Started", resources=shared.resources)), CONTEXT) == []


# --- Undoing ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ((PREPARED, PREPARED), [("stop-web", UNDO)]),
        ((PREPARED, FAILED), [("stop-web", UNDO)]),
        ((PREPARED, PREPARING), [("stop-web", UNDO)]),  # it was interrupted: it may have done a part
        ((PREPARED, UNDOING), [("stop-web", UNDO)]),  # so was its undo
        ((PREPARED, UNDONE), [("leave-pool", UNDO)]),
        ((PREPARED, TO_DO), [("leave-pool", UNDO)]),
    ],
)
def test_it_is_undone_in_reverse(states: tuple[str, ...], expected: list[tuple[str, str]]) -> None:
    assert runs(work(WEB, *states, ending=OVER)) == expected


def test_nothing_is_undone_while_one_of_its_handlers_runs() -> None:
    assert runs(work(WEB, PREPARING, ending=CANCELLED), context=CONTEXT._replace(busy=frozenset({"leave-pool"}))) == []


def test_an_event_is_finished_when_everything_is_undone() -> None:
    over = work(WEB, UNDONE, UNDONE, ending=OVER)
    assert instructions(over) == [FinishWork(over)]
    assert instructions(over._replace(done=True)) == []


def test_a_failed_undo_is_retried_after_a_pause() -> None:
    failing = work(WEB, PREPARED, UNDOING, ending=OVER)
    assert runs(failing, context=CONTEXT._replace(undo_at={"e1": 5.0})) == []
    assert runs(failing, context=CONTEXT._replace(undo_at={"e1": 5.0}, seconds=5.0)) == [("stop-web", UNDO)]


def test_a_rule_can_name_the_handlers_to_undo() -> None:
    rule = WEB._replace(undo=("warm-up", "leave-pool"))
    over = end(work(rule, PREPARED, PREPARED), OVER)
    assert runs(over) == [("warm-up", UNDO)]
    over = over.with_step(2, state=UNDONE)
    assert runs(over) == [("leave-pool", UNDO)]
    over = over.with_step(0, state=UNDONE)
    assert instructions(over) == [FinishWork(over)]
    nothing = end(work(WEB._replace(undo=()), PREPARED, PREPARED), OVER)
    assert instructions(nothing) == [FinishWork(nothing)]


@pytest.mark.parametrize("state", [PREPARED, FAILED, PREPARING])
def test_handlers_that_another_event_needs_stay_prepared_with_those_before_them(state: str) -> None:
    over = work(WEB, PREPARED, PREPARED, ending=OVER)
    other = work(Rule("other", prepare=("stop-web",)), state, event=make_event("E2"))
    busy = CONTEXT._replace(busy=frozenset({"stop-web"}) if state == PREPARING else frozenset())
    assert runs(over, other, context=busy) == []


def test_a_shared_handler_is_released_before_it_is_undone() -> None:
    needs = work(WEB, PREPARED)
    over = work(Rule("other", prepare=("stop-web",)), PREPARED, event=make_event("E2"), ending=OVER)
    (instruction,) = instructions(needs, over)
    assert isinstance(instruction, UpdateWork)
    assert instruction.work.id == needs.id
    assert runs(over, needs) == [("stop-web", UNDO)], "the order of the works does not matter"


def test_a_handler_of_two_ended_events_is_undone_once() -> None:
    first = work(WEB, PREPARED, PREPARED, ending=OVER)
    second = work(Rule("other", prepare=("stop-web",)), PREPARED, event=make_event("E2"), ending=OVER)
    assert runs(first, second) == [("stop-web", UNDO)]
    changed = {each.id: each for each in undone({"e1": first, "e2": second}, "e1", 1)}
    assert [step.state for step in changed["e1"].steps] == [PREPARED, UNDONE]
    assert [step.state for step in changed["e2"].steps] == [UNDONE]


@pytest.mark.parametrize("states", [(PREPARED,), (FAILED,), (UNDOING,)])
def test_events_that_end_together_are_undone_in_one_order(states: tuple[str, ...]) -> None:
    """Only one of them has a handler that must be undone before the shared one."""
    pool = work(Rule("pool", prepare=("leave-pool",)), *states, event=make_event("E2"), ending=OVER)
    both = work(WEB, *states, PREPARED, ending=OVER)
    assert runs(pool, both) == runs(both, pool) == [("stop-web", UNDO)]
    waits = CONTEXT._replace(undo_at={"e1": 5.0})
    assert runs(pool, both, context=waits) == runs(both, pool, context=waits) == []
    both = both.with_step(1, state=UNDONE)
    assert runs(pool, both) == runs(both, pool) == [("leave-pool", UNDO)]


def test_contradictory_orders_of_undo_do_not_wait_for_each_other() -> None:
    orders = (("a", "b"), ("b", "c"), ("c", "a"))
    works = [
        work(Rule("r", prepare=order), PREPARED, PREPARED, event=make_event(f"E{number}"), ending=OVER)
        for number, order in enumerate(orders)
    ]
    assert runs(*works) == [("b", UNDO), ("a", UNDO)]
    assert runs(*works[:2]) == [("c", UNDO)]


@pytest.mark.parametrize("state", [FAILED, UNDOING])
def test_values_remembered_for_another_event_are_kept(state: str) -> None:
    """The first prepare stopped something and failed. The next prepare must not take that for the original state."""
    first = work(WEB, state, ending=OVER).with_step(0, memo={"was": "running"}, table={"kind": "process"})
    second = work(Rule("other", prepare=("leave-pool",)), event=make_event("E2"))
    (instruction,) = [each for each in instructions(second, first._replace(ending="")) if each.work.id == "e2"]
    assert isinstance(instruction, RunHandler)
    assert instruction.work.steps[0].memo == {"was": "running"}


@pytest.mark.parametrize("states", [(SKIPPED, TO_DO), (TO_DO, SKIPPED)])
def test_handlers_that_never_started_are_not_undone(states: tuple[str, ...]) -> None:
    given = work(WEB, *states)
    assert given.has_failed
    assert instructions(given._replace(ending=CANCELLED)) == [FinishWork(given._replace(ending=CANCELLED))]


def test_nothing_is_prepared_before_the_first_look() -> None:
    blind = CONTEXT._replace(has_document=False)
    assert runs(work(), context=blind) == []
    assert runs(work(WEB, PREPARED, ending=CAME_BACK), context=blind) == [("leave-pool", UNDO)]


# --- Taking documents in ------------------------------------------------------------------------------


TIMEOUTS = {"leave-pool": MINUTE, "stop-web": 2 * MINUTE}


def taken(
    known: list[EventWork],
    *events: ScheduledEvent,
    boot: str = "boot",
    up_seconds: float = 1e6,
    is_first: bool = False,
    now: datetime = NOW,
) -> DocumentDecision:
    around = DocumentContext(
        (WEB._replace(on=("Reboot",)),),
        lambda names: ME if ME in names else None,
        now,
        boot,
        up_seconds,
        is_first,
        TIMEOUTS,
    )
    return apply_document({each.id: each for each in known}, events, around)


def test_an_event_of_this_machine_is_assigned_to_its_rule() -> None:
    result = taken([], make_event(), make_event("E2", "Freeze"), make_event("E3", resources=("web-1",)))
    assert list(result.works) == ["e1"]
    assert list(result.ignored) == ["e2"]
    again = taken([*result.works.values()], make_event())
    assert again.works == result.works
    assert again.news == []


@pytest.mark.parametrize(("status", "why"), [("Scheduled", CANCELLED), ("Started", OVER)])
def test_an_event_that_disappeared_is_undone(status: str, why: str) -> None:
    result = taken([work(WEB, PREPARED, event=make_event(status=status))])
    assert result.works["e1"].ending == why


def test_an_event_without_started_handlers_is_removed() -> None:
    assert taken([work()]).works == {}


def test_an_event_that_stops_naming_this_machine_has_ended_for_it() -> None:
    begun = work(WEB, PREPARED, event=make_event(resources=(ME, "web-1")))
    assert taken([begun], make_event(resources=("web-1",))).works["e1"].ending == CANCELLED
    assert taken([work()], make_event(resources=("web-1",))).works == {}
    started = begun._replace(event=make_event(status="Started"))
    assert not taken([started], make_event(status="Started", resources=("web-1",))).works["e1"].ending


def test_a_rule_may_have_something_to_do_afterwards_only() -> None:
    rule = Rule("r", undo=("warm-up",))
    over = taken([work(rule, event=make_event(status="Started"))]).works["e1"]
    assert runs(over) == [("warm-up", UNDO)]
    assert taken([work(rule)]).works == {}, "what was cancelled has not happened"


def test_a_started_event_does_not_become_scheduled_again() -> None:
    started = work(WEB, PREPARED, PREPARED, event=make_event(status="Started"))
    assert taken([started], make_event()).works["e1"].is_started


def test_a_restarted_machine_is_restored_while_its_event_is_still_listed() -> None:
    before = work(WEB, PREPARED, PREPARED, approved_at=SENT)
    result = taken([before], make_event(status="Started"), boot="another")
    assert result.works["e1"].ending == CAME_BACK
    kept = result.works["e1"]._replace(done=True)
    assert taken([kept], make_event(status="Started"), boot="another").works["e1"].done, "it is not prepared anew"
    assert taken([kept], boot="another").works == {}


def test_a_machine_restarted_before_its_event_is_prepared_again() -> None:
    before = work(WEB, PREPARED, PREPARING).with_step(1, run="of before")
    result = taken([before], make_event(), boot="another")
    assert [(step.state, step.run) for step in result.works["e1"].steps] == [(PREPARING, ""), (PREPARING, "")]
    assert runs(result.works["e1"]) == [("leave-pool", PREPARE)]
    assert taken([result.works["e1"]], make_event(), boot="another").works == result.works


@pytest.mark.parametrize(
    ("up_seconds", "is_first", "left"), [(60, True, True), (60, False, False), (7200, True, False)]
)
def test_an_event_that_began_before_the_machine_did_needs_nothing(
    up_seconds: float, is_first: bool, left: bool
) -> None:
    result = taken([], make_event(status="Started"), up_seconds=up_seconds, is_first=is_first)
    assert result.works["e1"].done is left


@pytest.mark.parametrize(
    ("given", "boot", "undone"),
    [
        (work(WEB, PREPARED, approved_at=SENT), "another", True),
        (work(WEB, PREPARED, event=make_event(status="Started")), "another", True),
        (work(WEB, PREPARED, event=make_event(notice=timedelta(0))), "another", True),
        (work(WEB, PREPARED), "another", False),
        (work(WEB, PREPARED, approved_at=SENT), "boot", False),
        (work(WEB, approved_at=SENT), "another", False),
    ],
)
def test_a_machine_is_restored_after_a_start_even_if_the_endpoint_does_not_respond(
    given: EventWork, boot: str, undone: bool
) -> None:
    result = assume_restarts({"e1": given}, boot, NOW)
    assert result["e1"].ending == (CAME_BACK if undone else "")


# --- Postponed events ---------------------------------------------------------------------------------

LATE = WEB._replace(lead=5 * MINUTE, approve="never")
DUE = NOW + 10 * MINUTE
"""When the preparation for an event with 15 minutes of notice is due."""


def postponed(given: EventWork, by: timedelta) -> EventWork:
    return taken([given], make_event(notice=15 * MINUTE + by), now=DUE).works["e1"]


@pytest.mark.parametrize(
    ("rule", "by", "restores"),
    [
        (LATE, 6 * MINUTE, True),  # undo and prepare may take three minutes each
        (LATE, 6 * MINUTE - timedelta(seconds=1), False),
        (LATE, -MINUTE, False),
        (LATE._replace(timeout=MINUTE), 4 * MINUTE, True),
        (LATE._replace(timeout=MINUTE), 4 * MINUTE - timedelta(seconds=1), False),
        (LATE._replace(lead=None), timedelta(days=1), False),  # the rule prepares as early as it can
        (LATE._replace(undo=()), timedelta(days=1), False),  # it could not be undone
    ],
)
def test_a_postponed_event_is_undone_if_there_is_time(rule: Rule, by: timedelta, restores: bool) -> None:
    result = postponed(work(rule, PREPARED, PREPARED), by)
    assert result.ending == (POSTPONED if restores else "")
    assert bool(runs(result)) is restores


def test_an_approved_event_stays_prepared() -> None:
    """It may start at any time."""
    assert not postponed(work(LATE, PREPARED, PREPARED, approved_at=SENT), timedelta(days=1)).ending


def test_a_restored_machine_waits_and_prepares_again() -> None:
    undone_work = postponed(work(LATE, PREPARED, PREPARED), 60 * MINUTE).with_step(0, state=UNDONE)
    undone_work = undone_work.with_step(1, state=UNDONE)
    assert instructions(undone_work) == [FinishWork(undone_work)]
    again = restored(undone_work)
    assert again == new_work(undone_work.event, ME, LATE, "boot")
    assert instructions(again, context=CONTEXT._replace(now=DUE)) == []
    assert waits_for_time(again)
    assert runs(again, context=CONTEXT._replace(now=DUE + 60 * MINUTE)) == [("leave-pool", PREPARE)]


@pytest.mark.parametrize("what", ["due", "started", "approved", "earlier"])
def test_the_undo_of_a_postponed_event_stops_when_its_time_has_come(what: str) -> None:
    rule = LATE._replace(undo=("warm-up", "stop-web", "leave-pool"))
    undoing = postponed(work(rule, PREPARED, PREPARED), 60 * MINUTE)
    undoing = undoing.with_step(2, state=UNDONE).with_step(1, state=UNDOING, memo={"was": "running"}, run="x")
    assert waits_for_time(undoing)
    event, now = undoing.event, DUE
    if what == "due":
        now = DUE + 60 * MINUTE
    elif what == "started":
        event = make_event(status="Started")
    elif what == "approved":
        undoing = undoing._replace(approved_at=SENT)
    else:
        event = make_event()
    result = taken([undoing], event, now=now).works["e1"]
    assert result.ending == ""
    assert [(step.state, step.memo) for step in result.steps] == [
        (PREPARED, {}),
        (PREPARING, {"was": "running"}),
        (PREPARED, {}),  # it has no prepare
    ]
    assert runs(result) == [("stop-web", PREPARE)]


def test_an_event_that_ends_while_it_is_postponed_is_undone_for_good() -> None:
    undoing = postponed(work(LATE, PREPARED, PREPARED), 60 * MINUTE)
    assert taken([undoing], now=DUE).works["e1"].ending == CANCELLED


# --- Changed ids --------------------------------------------------------------------------------------


def test_a_started_event_with_another_id_is_the_same_event() -> None:
    before = work(WEB, PREPARED, PREPARED, approved_at=SENT, event=make_event("e1"))
    result = taken([before], make_event("e2", status="Started"))
    assert list(result.works) == ["e1"]
    kept = result.works["e1"]
    assert (kept.event.id, kept.first_id, kept.ending, kept.is_started) == ("e2", "e1", "", True)
    assert [news.kind for news in result.news] == ["renamed", "started"]
    assert from_json(to_json(kept)) == kept
    third = taken([kept], make_event("e3", status="Started")).works["e1"]
    assert (third.event.id, third.first_id) == ("e3", "e1")
    assert taken([third]).works["e1"].ending == OVER


@pytest.mark.parametrize(
    "other",
    [
        make_event("E2"),  # a new event is scheduled first
        make_event("E2", "Redeploy", status="Started"),
        make_event("E2", status="Started", resources=(ME, "web-1")),
        make_event("E2", status="Started", EventSource="User"),
        make_event("E2", status="Started", Description="another"),
    ],
)
def test_another_event_is_another_event(other: ScheduledEvent) -> None:
    assert taken([work(WEB, PREPARED, PREPARED)], other).works["e1"].ending == CANCELLED


def test_each_event_succeeds_one_event() -> None:
    first, second = (work(WEB, PREPARED, event=make_event(name)) for name in ("E1", "E2"))
    result = taken([first, second], make_event("E3", status="Started"))
    assert [(each.event.id, each.ending) for each in result.works.values()] == [("E3", ""), ("E2", CANCELLED)]
    assert taken([first], make_event(), make_event("E3", status="Started")).works["e1"].event.id == "E1"


def test_a_machine_that_is_back_is_not_prepared_for_a_changed_id() -> None:
    back = work(WEB, UNDONE, UNDONE, event=make_event(status="Started"), ending=CAME_BACK, done=True)
    result = taken([back], make_event("E2", status="Started"))
    assert list(result.works) == ["e1"]
    assert result.works["e1"].done


def test_ids_are_compared_without_letter_case() -> None:
    before = work(WEB, PREPARED, event=make_event("ab-1"))
    result = taken([before], make_event("AB-1"))
    assert result.works == {"ab-1": before._replace(event=make_event("AB-1"))}
    assert result.news == []


def test_work_is_the_same_after_it_was_written_and_read() -> None:
    rule = Rule(
        "r", ("Reboot",), "User", ("word",), MINUTE, MINUTE, ("a",), MINUTE, MINUTE, "self", MINUTE, "stop", ("a",)
    )
    for each in (work(rule), work(WEB, PREPARED, FAILED, approved_at=SENT, ending=OVER).with_step(0, memo={"n": [1]})):
        assert from_json(to_json(each)) == each


# --- Any course ---------------------------------------------------------------------------------------

RULES = (
    Rule("reboot", on=("Reboot",), prepare=("a", "b", "c"), approve="self"),
    Rule("freeze", on=("Freeze",), prepare=("b",), lead=5 * MINUTE),
    Rule("redeploy", on=("Redeploy",), prepare=("c", "a"), on_failure="approve", approve="self"),
    Rule("preempt", on=("Preempt",), prepare=("a", "c"), on_failure="undo", approve="self"),
    Rule("advice", on=("SpotRebalanceRecommendation",), prepare=("a",), lead=MINUTE, approve="self"),
)
TYPES = tuple(kind for rule in RULES for kind in rule.on)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("tell"), st.sampled_from(TYPES), st.integers(0, 2)),
        st.tuples(
            st.sampled_from(("start", "gone", "kill", "reboot", "hour", "postpone")), st.just(""), st.integers(0, 2)
        ),
        st.tuples(st.sampled_from(("ends", "fails")), st.sampled_from("abc"), st.just(0)),
    ),
    max_size=60,
)


def is_advice(kind: str) -> bool:
    return kind == "SpotRebalanceRecommendation"


class Machine:
    """A machine with three handlers, an endpoint, and an agent that can be killed at any time.

    It checks that no handler runs twice at the same time.
    """

    def __init__(self) -> None:
        self.shown: dict[str, ScheduledEvent] = {}
        self.disk: dict[str, EventWork] = {}
        self.running: dict[str, tuple[str, int, str]] = {}
        self.touched: set[str] = set()
        self.boot, self.first, self.now = 0, True, NOW
        self.approved: list[str] = []

    def move(self, what: str, word: str, number: int) -> None:
        event_id = f"e{number}"
        if what == "tell" and event_id not in self.shown and event_id not in self.disk:
            self.shown[event_id] = make_event(event_id, word, status="Advisory" if is_advice(word) else "Scheduled")
        elif what == "start" and event_id in self.shown and not is_advice(self.shown[event_id].type):
            self.shown[event_id] = make_event(event_id, self.shown[event_id].type, status="Started")
        elif what == "gone":
            self.shown.pop(event_id, None)
        elif what in ("kill", "reboot"):
            self.running, self.first = {}, True
            self.boot += what == "reboot"
        elif what == "hour":
            self.now += 60 * MINUTE
        elif what == "postpone" and event_id in self.shown and event_id not in self.approved:
            notice = self.now - NOW + 45 * MINUTE
            if self.shown[event_id].status == "Scheduled":
                self.shown[event_id] = make_event(event_id, self.shown[event_id].type, notice=notice)
        elif what in ("ends", "fails") and word in self.running:
            self.end(word, failed=what == "fails")
        self.turn()

    def end(self, handler: str, *, failed: bool) -> None:
        event_id, step, action = self.running.pop(handler)
        if action == UNDO and not failed:
            self.touched.discard(handler)
            self.disk |= {work.id: work for work in undone(self.disk, event_id, step)}
        elif event_id in self.disk:
            state = UNDOING if action == UNDO else FAILED if failed else PREPARED
            self.disk[event_id] = self.disk[event_id].with_step(step, state=state)

    def turn(self) -> None:
        around = DocumentContext(
            RULES, lambda names: ME if ME in names else None, self.now, str(self.boot), 1e6, self.first
        )
        self.disk, self.first = apply_document(self.disk, self.shown.values(), around).works, False
        for _ in range(50):
            found = next_instructions(self.disk, DecisionContext(self.now, 0.0, frozenset(self.running)))
            if not found:
                return
            for instruction in found:
                self.carry_out(instruction)
        raise AssertionError("it spins")

    def carry_out(self, instruction: Instruction) -> None:
        work = instruction.work
        if isinstance(instruction, RunHandler):
            handler = work.steps[instruction.step].handler
            assert handler not in self.running, "twice at a time"
            state = PREPARING if instruction.action == PREPARE else UNDOING
            self.disk[work.id] = work.with_step(instruction.step, state=state)
            self.running[handler] = (work.id, instruction.step, instruction.action)
            if instruction.action == PREPARE:
                self.touched.add(handler)
            else:
                assert handler in self.touched, "undone though nothing was prepared"
                for other in self.disk.values():
                    if other.id == work.id:
                        later = [step for step in other.steps[instruction.step + 1 :] if step.state in BEGUN]
                        assert not later, "undone before what was prepared after it"
                    elif not other.ending:
                        assert not other.begun_step(handler), "undone though another event needs it"
        elif isinstance(instruction, ApproveEvent):
            assert not self.running
            assert self.shown[work.id].status == "Scheduled"
            assert work.id not in self.approved
            assert all(step.state in (PREPARED, FAILED) for step in work.steps)
            assert work.rule.name == "redeploy" or not work.has_failed
            self.approved.append(work.id)
            self.disk[work.id] = work._replace(approved_at=to_text(self.now))
        elif isinstance(instruction, (UpdateWork, GiveUp)):
            self.disk[work.id] = instruction.work
        elif work.ending in (CAME_BACK, GAVE_UP):
            self.disk[work.id] = work._replace(done=True)
        elif work.ending == POSTPONED:
            self.disk[work.id] = restored(work)
        else:
            del self.disk[work.id]
            if work.id in self.approved:
                self.approved.remove(work.id)


@given(MOVES)
def test_every_preparation_is_undone_in_the_end(moves: list[tuple[str, str, int]]) -> None:
    machine = Machine()
    for move in moves:
        machine.move(*move)
        noted = {step.handler for each in machine.disk.values() for step in each.steps if step.state in BEGUN}
        assert machine.touched <= noted, "what was touched is on disk"
    machine.shown = {}
    for _ in range(40):
        machine.move("none", "", 0)
        for handler in list(machine.running):
            machine.end(handler, failed=False)
    assert machine.disk == {}
    assert machine.touched == set()
