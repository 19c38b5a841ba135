"""Decides what to do next: what a new document begins, changes and ends, and which instructions follow. Pure.

One instruction is one thing, so that each is on disk before the next is decided.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import LEADER, NEVER, STOP, before, choose_rule, notice_of
from forewarn.agent.state import (
    BEGUN,
    CAME_BACK,
    CANCELLED,
    FAILED,
    OVER,
    PREPARED,
    PREPARING,
    SKIPPED,
    TO_DO,
    UNDONE,
    Step,
    begin,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from forewarn.agent.policy import Rule
    from forewarn.agent.state import Work
    from forewarn.wire.document_reader import ToldEvent


# --- The next instruction -------------------------------------------------------------------------


class DecisionContext(NamedTuple):
    """What a decision depends on besides the work itself."""

    now: datetime
    """By the endpoint's clock."""
    seconds: float
    """Real seconds, which always run."""
    busy: frozenset[str] = frozenset()
    """Handlers that run at this moment."""
    approving: frozenset[str] = frozenset()
    """Events whose approval is under way."""
    leading: Mapping[str, str] = {}
    """For events that a leader approves: why this machine may not. Empty: it may."""
    begun_at: Mapping[str, float] = {}
    """When preparing for an event began, in real seconds."""
    undo_at: Mapping[str, float] = {}
    """When an undo that has failed may be tried again, in real seconds."""
    approve_at: Mapping[str, float] = {}
    """The same for an approval."""
    has_looked: bool = True
    """Whether the endpoint has told anything yet: until then nobody knows whether an event is still there."""
    stopping: bool = False


class Run(NamedTuple):
    """Have a handler prepare or undo."""

    work: Work
    step: int
    action: str


class Note(NamedTuple):
    """Nothing is done; the work goes on as this."""

    work: Work
    text: str


class Approve(NamedTuple):
    """Let the event start."""

    work: Work


class Finish(NamedTuple):
    """Everything is undone."""

    work: Work


Instruction = Run | Note | Approve | Finish


def next_instructions(works: Mapping[str, Work], context: DecisionContext) -> list[Instruction]:
    """At most one for each work, and at most one approval."""
    instructions: list[Instruction] = []
    # What is being approved may begin at any moment: nothing is begun beside it.
    if context.stopping or context.approving:
        return instructions
    busy, current = set(context.busy), dict(works)
    for work in works.values():
        others = [other for other in current.values() if other.id != work.id]
        instruction = _next_instruction(work, others, busy, context)
        if instruction is None:
            continue
        instructions.append(instruction)
        current[work.id] = instruction.work  # what is shared now is not undone beside it
        if isinstance(instruction, Run):
            busy.add(work.steps[instruction.step].handler)
    approvals = [instruction for instruction in instructions if isinstance(instruction, Approve)]
    runs = any(isinstance(instruction, Run) for instruction in instructions)
    return [instruction for instruction in instructions if instruction not in approvals] + (
        approvals[:1] if not runs else []
    )


def _next_instruction(work: Work, others: list[Work], busy: set[str], context: DecisionContext) -> Instruction | None:
    if work.done:
        return None
    if work.ending:
        return _undo(work, others, busy, context)
    return _prepare(work, others, busy, context) if context.has_looked else None


def due_at(work: Work) -> datetime | None:
    """When preparing begins; None: at once."""
    if work.rule.lead is None or work.event.not_before is None:
        return None
    return before(work.event.not_before, work.rule.lead)


def approval_due_at(work: Work) -> datetime | None:
    """When it may be approved at the earliest; None: as soon as it is prepared."""
    if work.rule.approve_lead is None or work.event.not_before is None:
        return None
    return before(work.event.not_before, work.rule.approve_lead)


def waits_for_time(work: Work) -> bool:
    """Whether a moment will come at which there is something to do, though nobody tells."""
    if work.done or work.ending or work.is_started:
        return False
    if not work.is_begun and due_at(work) is not None:
        return True
    return work.rule.approve != NEVER and not work.approved_at and approval_due_at(work) is not None


# --- Preparing ------------------------------------------------------------------------------------


def _prepare(work: Work, others: list[Work], busy: set[str], context: DecisionContext) -> Instruction | None:
    due = due_at(work)
    if not work.is_begun and due is not None and context.now < due and not work.is_started:
        return None
    for index, step in enumerate(work.steps):
        if step.state == PREPARED:
            continue
        if step.state in (FAILED, SKIPPED):
            if work.rule.on_failure == STOP:
                return None
            continue
        if step.handler in busy:
            return None
        if _limit_passed(work, context):
            problem = "the rule's time limit was over before its turn"
            state = SKIPPED if step.state == TO_DO else FAILED
            return Note(work.with_step(index, state=state, problem=problem), f"{step.handler} failed: {problem}")
        for held in filter(None, (other.held(step.handler) for other in others)):
            # What it remembers is how the machine was before: that must not be lost, however far the other came.
            shared = work.with_step(index, table=held.table, memo={**step.memo, **held.memo})
            if held.state == PREPARED:
                return Note(shared.with_step(index, state=PREPARED), f"{step.handler} is prepared already")
            return Run(shared, index, PREPARE)
        return Run(work, index, PREPARE)
    return None if approval_problem(work, context) else Approve(work)


def _limit_passed(work: Work, context: DecisionContext) -> bool:
    begun = context.begun_at.get(work.id)
    return work.rule.timeout is not None and begun is not None and seconds_left(work, begun, context.seconds) <= 0


def seconds_left(work: Work, begun_at: float, seconds: float) -> float:
    """Until the rule's time limit."""
    if work.rule.timeout is None:
        return float("inf")
    return begun_at + work.rule.timeout.total_seconds() - seconds


SAYS_NEVER = "the rule says never"
HAS_STARTED = "it has started"
NO_MOMENT = "its NotBefore is not known"
NOBODY_HEARD = "the others have not been heard"


def approval_problem(work: Work, context: DecisionContext) -> str:
    """Why it is not approved now, in words; empty: it may be."""
    rule, event = work.rule, work.event
    if rule.approve == NEVER:
        return SAYS_NEVER
    if work.approved_at:
        return "it is approved"
    if work.ending or work.is_started:
        return HAS_STARTED if work.is_started else "it is gone"
    if not work.is_prepared:
        return "a handler has failed" if work.has_failed else "it is not prepared yet"
    if context.busy:
        return f"{', '.join(sorted(context.busy))} runs"
    due = approval_due_at(work)
    if rule.approve_lead is not None and (due is None or context.now < due):
        return "its time has not come" if due else NO_MOMENT
    if work.id in context.approving:
        return "it is being approved"
    if context.seconds < context.approve_at.get(work.id, 0):
        return "the endpoint did not take it; it is tried again"
    if rule.approve == LEADER:
        return context.leading.get(work.id, NOBODY_HEARD)
    also = [name for name in event.resources if name != work.me]
    return f'it would start for {", ".join(also)} too: approve = "leader" asks them' if also else ""


# --- Undoing --------------------------------------------------------------------------------------


def _undo(work: Work, others: list[Work], busy: set[str], context: DecisionContext) -> Instruction | None:
    if any(step.handler in busy and step.state in BEGUN for step in work.steps):
        return None  # one of its own still runs, or another event's turn of the same
    for index in undo_order(work):
        step = work.steps[index]
        if step.state not in BEGUN:
            continue
        # It waits for who needs it: what was prepared before it may need it too, and is not undone either.
        is_needed = any(other.held(step.handler) for other in others if not other.ending)
        is_late = context.seconds < context.undo_at.get(work.id, 0)
        return None if is_needed or is_late else Run(work, index, UNDO)
    return Finish(work)


def limit_seconds(instruction: Run, timeout: timedelta, begun_at: float, seconds: float) -> float:
    """How long a handler may take: its own limit, and no longer than the rule leaves for preparing."""
    own = timeout.total_seconds()
    return own if instruction.action == UNDO else min(own, seconds_left(instruction.work, begun_at, seconds))


def with_outcome(
    works: Mapping[str, Work], event_id: str, index: int, action: str, problem: str = "", seconds: float = 0.0
) -> list[Work]:
    """What has changed when a handler has prepared or undone; with a problem: has failed to."""
    work, changed = works[event_id], {}
    changes: dict[str, Any] = {"problem": problem, "seconds": seconds}
    if action == PREPARE:
        not_done = SKIPPED if work.steps[index].state == TO_DO else FAILED
        changes["state"] = not_done if problem else PREPARED
    elif not problem:
        changed = {other.id: other for other in undone(works, event_id, index)}
    return list({**changed, event_id: changed.get(event_id, work).with_step(index, **changes)}.values())


def undone(works: Mapping[str, Work], event_id: str, index: int) -> list[Work]:
    """What has changed when a step was undone: so it is for every other event that waited for the same."""
    handler = works[event_id].steps[index].handler
    return [
        work.with_step(place, state=UNDONE, problem="")
        for work in works.values()
        if work.ending and not work.done
        for place, step in enumerate(work.steps)
        if step.handler == handler and step.state in BEGUN
    ]


def undo_order(work: Work) -> list[int]:
    """Which steps are undone, the first first."""
    places = {step.handler: index for index, step in enumerate(work.steps)}
    return [places[name] for name in work.rule.undo_order if name in places]


def end(work: Work, why: str) -> Work:
    """It is to be undone from now on. What only the rule's own undo names is undone as well."""
    known = {step.handler for step in work.steps}
    extra = tuple(Step(name, PREPARED) for name in work.rule.undo or () if name not in known)
    return work._replace(ending=why, steps=work.steps + extra)


# --- Taking in a document -------------------------------------------------------------------------


JUST_BOOTED_SECONDS = 15 * 60
"""A machine that was started so recently, and finds an event begun that it has never heard of, comes back from it."""


class DocumentContext(NamedTuple):
    """What else decides."""

    rules: tuple[Rule, ...]
    listed_as: Callable[[tuple[str, ...]], str | None]
    """Which of some names is this machine's."""
    now: datetime
    boot: str
    up_seconds: float
    is_first: bool
    """Whether the agent has just begun to look, so that it may have missed how an event began."""


class Taken(NamedTuple):
    """What came of a document."""

    works: dict[str, Work]
    news: list[tuple[ToldEvent, str]]
    """What is worth a line in the log."""
    left_alone: dict[str, ToldEvent]
    """Events of this machine that no rule is for."""


def take_in(works: Mapping[str, Work], events: Iterable[ToldEvent], around: DocumentContext) -> Taken:
    """What there is to do now that these events are told."""
    found: dict[str, Work] = {}
    taken = Taken(found, [], {})
    listed = {event.id: event for event in events}
    for known in works.values():
        kept = _go_on(known, listed.get(known.id), around, taken.news)
        if kept is not None:
            found[known.id] = kept
    for event in listed.values():
        me = around.listed_as(event.resources)
        if event.id in found or me is None:
            continue
        rule = choose_rule(around.rules, event, around.now)
        if rule is None:
            taken.left_alone[event.id] = event
            continue
        work = begin(event, me, rule, around.boot)
        if work.is_started and around.is_first and around.up_seconds < JUST_BOOTED_SECONDS:
            found[event.id] = work._replace(done=True, ending=CAME_BACK)
            taken.news.append((event, "has begun before this machine was started: nothing is left to prepare"))
        else:
            found[event.id] = work
            taken.news.append((event, f"{_seen_first(work)}, taken by {work.rule.name}"))
    return taken


def presume(works: Mapping[str, Work], boot: str, now: datetime) -> dict[str, Work]:
    """What to take for true when the endpoint says nothing: a machine that was started anew when the event could have
    begun has come back from it, and must not wait for ever to be restored."""
    found = {}
    for work in works.values():
        is_back = work.is_begun and not work.ending and work.boot != boot and _may_have_begun(work, now)
        found[work.id] = end(work, CAME_BACK) if is_back else work
    return found


def _may_have_begun(work: Work, now: datetime) -> bool:
    return work.is_started or bool(work.approved_at) or notice_of(work.event, now) == timedelta(0)


def _seen_first(work: Work) -> str:
    return "has started" if work.is_started else "is scheduled"


def _go_on(
    work: Work, event: ToldEvent | None, around: DocumentContext, news: list[tuple[ToldEvent, str]]
) -> Work | None:
    """None: there is nothing left of it."""
    boot = around.boot
    me = None if event is None else around.listed_as(event.resources)
    if event is None or (me is None and not work.is_started):  # it is gone, or not about this machine any more
        # It may have started and ended while nobody looked.
        why = OVER if _may_have_begun(work, around.now) else CANCELLED
        if why == OVER and work.rule.undo and not work.steps and not work.done:
            news.append((work.event, f"is {why}"))
            return end(work, why)  # there was nothing to prepare, and yet there is something to do afterwards
        if work.done or not work.is_begun:
            news.append((work.event, f"is {why}"))
            return None
        if work.ending:
            return work
        news.append((work.event, f"is {why}"))
        return end(work, why)
    if work.is_started and not has_started(event):
        event = work.event  # a document from before: what has started does not go back to be scheduled
    if not work.is_started and has_started(event):
        news.append((event, "has started"))
    work = work._replace(event=event, me=me or work.me)
    if work.boot == boot or work.ending or not work.is_begun:
        return work._replace(boot=boot)
    if work.is_started:
        news.append((event, "this machine is back from it"))
        return end(work, CAME_BACK)
    # It was started anew by something else, and the event is still to come: what was stopped may run again.
    news.append((event, "this machine was started anew before it: it is prepared again"))
    again = tuple(step._replace(state=PREPARING, run="") if step.state in BEGUN else step for step in work.steps)
    return work._replace(steps=again, boot=boot)
