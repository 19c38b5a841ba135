"""Decides what the agent does next: which handlers it runs, and what it approves. Pure.

Each instruction is one action, so that its result is on disk before the agent decides the next one.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import deadline_of, is_advisory
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import LEADER, NEVER, SELF, STOP, UNDO_NOW, subtract
from forewarn.agent.state import (
    BEGUN,
    FAILED,
    GAVE_UP,
    POSTPONED,
    PREPARED,
    SKIPPED,
    TO_DO,
    UNDONE,
    HandlerStep,
)
from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from forewarn.agent.state import EventWork


# --- The next instruction -------------------------------------------------------------------------


class DecisionContext(NamedTuple):
    """What a decision depends on, besides the work itself."""

    now: datetime
    """The time by the endpoint's clock."""
    seconds: float
    """Real seconds, which always advance."""
    busy: frozenset[str] = frozenset()
    """Handlers that are running."""
    approving: frozenset[str] = frozenset()
    """Events whose approval request is in progress."""
    leader_problems: Mapping[str, str] = {}
    """For events that a leader approves: why this machine may not approve. Empty: it may."""
    begun_at: Mapping[str, float] = {}
    """When preparation for an event began, in real seconds."""
    undo_at: Mapping[str, float] = {}
    """When a failed undo may be retried, in real seconds."""
    approve_at: Mapping[str, float] = {}
    """When a failed approval may be retried, in real seconds."""
    has_document: bool = True
    """Whether the agent has received a document. Before that, it cannot know whether an event still exists."""
    stopping: bool = False


class RunHandler(NamedTuple):
    """Run a handler's prepare or undo."""

    work: EventWork
    step: int
    action: str


class UpdateWork(NamedTuple):
    """Record a handler's step as done or failed without running the handler."""

    work: EventWork
    handler: str
    problem: str = ""
    """Why the step has failed. Empty: another event has already prepared the handler."""


class ApproveEvent(NamedTuple):
    """Approve the event."""

    work: EventWork


class GiveUp(NamedTuple):
    """Undo everything now, because a handler has failed. The work has this ending already."""

    work: EventWork


class FinishWork(NamedTuple):
    """Mark the work for an event as done: every handler is undone."""

    work: EventWork


Instruction = RunHandler | UpdateWork | ApproveEvent | GiveUp | FinishWork


def next_instructions(works: Mapping[str, EventWork], context: DecisionContext) -> list[Instruction]:
    """Return at most one instruction per event; approvals only if there is nothing else to do first.

    A leader approves one event at a time, because the peers' answers must be fresh for each.
    """
    instructions: list[Instruction] = []
    # An event that is being approved may start at any time: start no handler now.
    if context.stopping or context.approving:
        return instructions
    approvals: list[ApproveEvent] = []
    busy, begun, order = set(context.busy), _BegunSteps(works), _UndoOrder(works)
    for work in works.values():
        instruction = _next_instruction(work, begun, order, busy, context)
        if isinstance(instruction, ApproveEvent):
            approvals.append(instruction)
        elif instruction is not None:
            instructions.append(instruction)
            begun.add(instruction.work)  # a step that this event now shares must not be undone for another one
            if isinstance(instruction, RunHandler):
                busy.add(work.steps[instruction.step].handler)
    own = [approval for approval in approvals if approval.work.rule.approve == SELF]
    return [*(instructions or own or approvals[:1])]


class _BegunSteps:
    """The begun steps of all events, by handler. A document may have hundreds of events."""

    def __init__(self, works: Mapping[str, EventWork]) -> None:
        self._by_handler: dict[str, dict[str, tuple[EventWork, HandlerStep]]] = {}
        for work in works.values():
            self.add(work)

    def add(self, work: EventWork) -> None:
        """Add the begun steps of an event, in place of its earlier ones."""
        for step in work.steps:
            if (begun := work.begun_step(step.handler)) is not None:
                self._by_handler.setdefault(step.handler, {})[work.id] = (work, begun)

    def of_others(self, handler: str, work: EventWork) -> Iterator[tuple[EventWork, HandlerStep]]:
        """Yield the other events for which the handler has begun, each with its step."""
        own = work.id
        return (found for event_id, found in self._by_handler.get(handler, {}).items() if event_id != own)


class _UndoOrder:
    """Which handlers must be undone before others, over all events that have ended."""

    def __init__(self, works: Mapping[str, EventWork]) -> None:
        self._before: dict[str, set[str]] = {}
        for work in works.values():
            if work.ending and not work.done:
                steps = (work.steps[index] for index in undo_order(work))
                begun = [step.handler for step in steps if step.state in BEGUN]
                for first, then in pairwise(begun):
                    self._before.setdefault(then, set()).add(first)

    def must_wait(self, handler: str) -> bool:
        """Whether another handler must be undone first. Orders that contradict each other do not count."""
        return any(not self._is_before(handler, first) for first in self._before.get(handler, ()))

    def _is_before(self, first: str, then: str) -> bool:
        seen: set[str] = set()
        to_visit = [then]
        while to_visit:
            handler = to_visit.pop()
            if handler not in seen:
                seen.add(handler)
                to_visit += self._before.get(handler, ())
        return first in seen


def _next_instruction(
    work: EventWork, begun: _BegunSteps, order: _UndoOrder, busy: set[str], context: DecisionContext
) -> Instruction | None:
    if work.done:
        return None
    if work.ending:
        return _undo(work, begun, order, busy, context)
    if work.has_failed and work.rule.on_failure == UNDO_NOW:
        # If nothing has begun, handlers that only the rule's `undo` names have nothing to undo.
        failed = next(step for step in work.steps if step.state in (FAILED, SKIPPED))
        work = work._replace(failure=f"{failed.handler}: {failed.problem}")
        return GiveUp(end(work, GAVE_UP) if work.is_begun else work._replace(ending=GAVE_UP))
    return _prepare(work, begun, busy, context) if context.has_document else None


def due_at(work: EventWork) -> datetime | None:
    """Return when preparation starts; None: at once."""
    deadline = deadline_of(work.event)
    return None if work.rule.lead is None or deadline is None else subtract(deadline, work.rule.lead)


def approval_due_at(work: EventWork) -> datetime | None:
    """Return the earliest time of the approval; None: as soon as the event is prepared."""
    deadline = deadline_of(work.event)
    return None if work.rule.approve_lead is None or deadline is None else subtract(deadline, work.rule.approve_lead)


def waits_for_time(work: EventWork) -> bool:
    """Whether something becomes due at a later time, without a change of the document."""
    if work.done or work.ending not in ("", POSTPONED) or work.is_started:
        return False
    if (work.ending or not work.is_begun) and due_at(work) is not None:
        return True
    return work.rule.approve != NEVER and not work.approved_at and approval_due_at(work) is not None


# --- Preparing ------------------------------------------------------------------------------------


def _prepare(work: EventWork, begun: _BegunSteps, busy: set[str], context: DecisionContext) -> Instruction | None:
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
            problem = "the rule's timeout passed before this handler could run"
            state = SKIPPED if step.state == TO_DO else FAILED
            return UpdateWork(work.with_step(index, state=state, problem=problem), step.handler, problem)
        for _, begun_step in begun.of_others(step.handler, work):
            # The memo describes the machine before any change. Keep it, even if the other event's handler has not
            # finished.
            shared = work.with_step(index, table=begun_step.table, memo={**step.memo, **begun_step.memo})
            if begun_step.state == PREPARED:
                return UpdateWork(shared.with_step(index, state=PREPARED), step.handler)
            return RunHandler(shared, index, PREPARE)
        return RunHandler(work, index, PREPARE)
    return None if approval_problem(work, context) else ApproveEvent(work)


def _limit_passed(work: EventWork, context: DecisionContext) -> bool:
    begun = context.begun_at.get(work.id)
    return work.rule.timeout is not None and begun is not None and seconds_left(work, begun, context.seconds) <= 0


def seconds_left(work: EventWork, begun_at: float, seconds: float) -> float:
    """Seconds until the rule's timeout."""
    if work.rule.timeout is None:
        return float("inf")
    return begun_at + work.rule.timeout.total_seconds() - seconds


RULE_NEVER_APPROVES = "the rule never approves"
IS_ADVISORY = "a recommendation needs no approval"
NO_LONGER_ADVISED = "has disappeared and no eviction follows"
HAS_STARTED = "the event has started"
NOT_BEFORE_UNKNOWN = "its NotBefore is unknown"
HANDLER_FAILED = "a handler has failed"
NO_PEER_RESPONSE = "no peer has responded yet"

REPEAT_APPROVAL = timedelta(minutes=1)
"""If an approved event is still scheduled after this time, approve it again: the endpoint may not have accepted it.
On shared hardware waiting is normal, and a second approval changes nothing."""


def is_approved(work: EventWork, now: datetime) -> bool:
    """Whether the event was approved so recently that it may still start because of that, or starts by itself."""
    if not work.approved_at:
        return False
    not_before = work.event.not_before
    starts_alone = not_before is not None and now >= not_before
    return starts_alone or work.approved_at > to_text(subtract(now, REPEAT_APPROVAL))  # as texts: they sort by time


def approval_problem(work: EventWork, context: DecisionContext) -> str:
    """Return why the event is not approved now; empty: it can be approved."""
    rule = work.rule
    if rule.approve == NEVER:
        return RULE_NEVER_APPROVES
    if is_advisory(work.event):
        return IS_ADVISORY
    if is_approved(work, context.now):
        return "it is already approved"
    if work.ending == GAVE_UP:
        return HANDLER_FAILED
    if work.ending or work.is_started:
        waits = "it is postponed" if work.ending == POSTPONED else "the event is gone"
        return HAS_STARTED if work.is_started else waits
    if not work.is_prepared:
        return HANDLER_FAILED if work.has_failed else "it is not prepared yet"
    if context.busy:
        return f"{', '.join(sorted(context.busy))} is running"
    due = approval_due_at(work)
    if rule.approve_lead is not None and (due is None or context.now < due):
        return "it is too early" if due else NOT_BEFORE_UNKNOWN
    if work.id in context.approving:
        return "the approval is in progress"
    if context.seconds < context.approve_at.get(work.id, 0):
        return "the endpoint did not accept it; retrying"
    if rule.approve == LEADER:
        return context.leader_problems.get(work.id, NO_PEER_RESPONSE)
    also = _others(work)
    return f'the event also affects {", ".join(also)}: use approve = "leader"' if also else ""


def _others(work: EventWork) -> list[str]:
    return [name for name in work.event.resources if name != work.me]


def withheld_for(work: EventWork, context: DecisionContext) -> list[str]:
    """Return the other machines of an event that the agent would approve now if the event did not name them."""
    alone = work._replace(event=work.event._replace(resources=(work.me,)))
    is_withheld = work.rule.approve == SELF and not work.done and not approval_problem(alone, context)
    return _others(work) if is_withheld else []


# --- Undoing --------------------------------------------------------------------------------------


def _undo(
    work: EventWork, begun: _BegunSteps, order: _UndoOrder, busy: set[str], context: DecisionContext
) -> Instruction | None:
    if any(step.handler in busy and step.state in BEGUN for step in work.steps):
        return None  # a handler of this event is running, for this event or another
    for index in undo_order(work):
        step = work.steps[index]
        if step.state not in BEGUN:
            continue
        # Another event still needs this handler. Handlers that prepared earlier may be needed too, so undo none of
        # them.
        is_needed = any(not other.ending for other, _ in begun.of_others(step.handler, work))
        is_late = context.seconds < context.undo_at.get(work.id, 0)
        must_wait = is_needed or is_late or order.must_wait(step.handler)
        return None if must_wait else RunHandler(work, index, UNDO)
    return FinishWork(work)


def limit_seconds(instruction: RunHandler, timeout: timedelta, begun_at: float, seconds: float) -> float:
    """Return a handler's time limit: its timeout. For prepare, the rest of the rule's timeout, if that is shorter."""
    own = timeout.total_seconds()
    return own if instruction.action == UNDO else min(own, seconds_left(instruction.work, begun_at, seconds))


def with_outcome(
    works: Mapping[str, EventWork], event_id: str, index: int, action: str, problem: str = "", seconds: float = 0.0
) -> list[EventWork]:
    """Return the changed work after a handler has run; `problem` says why it failed."""
    work, changed = works[event_id], {}
    changes: dict[str, Any] = {"problem": problem, "seconds": seconds}
    if action == PREPARE:
        not_done = SKIPPED if work.steps[index].state == TO_DO else FAILED
        changes["state"] = not_done if problem else PREPARED
    elif not problem:
        changed = {other.id: other for other in undone(works, event_id, index)}
    return list({**changed, event_id: changed.get(event_id, work).with_step(index, **changes)}.values())


def undone(works: Mapping[str, EventWork], event_id: str, index: int) -> list[EventWork]:
    """Return the work changed by an undone step: it is undone for every ended event that shared it."""
    handler = works[event_id].steps[index].handler
    return [
        work.with_step(place, state=UNDONE, problem="")
        for work in works.values()
        if work.ending and not work.done
        for place, step in enumerate(work.steps)
        if step.handler == handler and step.state in BEGUN
    ]


def undo_order(work: EventWork) -> list[int]:
    """Return the indexes of the steps in the order of undo."""
    places = {step.handler: index for index, step in enumerate(work.steps)}
    return [places[name] for name in work.rule.undo_order if name in places]


def end(work: EventWork, reason: str) -> EventWork:
    """Mark the work for undo. Handlers that only the rule's `undo` names are added to it."""
    known = {step.handler for step in work.steps}
    extra = tuple(HandlerStep(name, PREPARED) for name in work.rule.undo or () if name not in known)
    return work._replace(ending=reason, steps=work.steps + extra)
