"""Decides which work a new document starts, changes and ends, and what the agent does next. Pure.

Each instruction is one action, so that its result is on disk before the agent decides the next one.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import has_started
from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy import LEADER, NEVER, SELF, STOP, choose_rule, notice_of, subtract
from forewarn.agent.state import (
    BEGUN,
    CAME_BACK,
    CANCELLED,
    FAILED,
    OVER,
    POSTPONED,
    PREPARED,
    PREPARING,
    SKIPPED,
    TO_DO,
    UNDOING,
    UNDONE,
    HandlerStep,
    new_work,
)
from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from forewarn.agent.policy import Rule
    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent


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


class FinishWork(NamedTuple):
    """Mark the work for an event as done: every handler is undone."""

    work: EventWork


Instruction = RunHandler | UpdateWork | ApproveEvent | FinishWork


def next_instructions(works: Mapping[str, EventWork], context: DecisionContext) -> list[Instruction]:
    """Return at most one instruction per event, and at most one approval."""
    instructions: list[Instruction] = []
    # An event that is being approved may start at any time: start no handler now.
    if context.stopping or context.approving:
        return instructions
    busy, current = set(context.busy), dict(works)
    for work in works.values():
        others = [other for other in current.values() if other.id != work.id]
        instruction = _next_instruction(work, others, busy, context)
        if instruction is None:
            continue
        instructions.append(instruction)
        current[work.id] = instruction.work  # a step that this event now shares must not be undone for another one
        if isinstance(instruction, RunHandler):
            busy.add(work.steps[instruction.step].handler)
    approvals = [instruction for instruction in instructions if isinstance(instruction, ApproveEvent)]
    runs = any(isinstance(instruction, RunHandler) for instruction in instructions)
    return [instruction for instruction in instructions if instruction not in approvals] + (
        approvals[:1] if not runs else []
    )


def _next_instruction(
    work: EventWork, others: list[EventWork], busy: set[str], context: DecisionContext
) -> Instruction | None:
    if work.done:
        return None
    if work.ending:
        return _undo(work, others, busy, context)
    return _prepare(work, others, busy, context) if context.has_document else None


def due_at(work: EventWork) -> datetime | None:
    """Return when preparation starts; None: at once."""
    if work.rule.lead is None or work.event.not_before is None:
        return None
    return subtract(work.event.not_before, work.rule.lead)


def approval_due_at(work: EventWork) -> datetime | None:
    """Return the earliest time of the approval; None: as soon as the event is prepared."""
    if work.rule.approve_lead is None or work.event.not_before is None:
        return None
    return subtract(work.event.not_before, work.rule.approve_lead)


def waits_for_time(work: EventWork) -> bool:
    """Whether something becomes due at a later time, without a change of the document."""
    if work.done or work.ending not in ("", POSTPONED) or work.is_started:
        return False
    if (work.ending or not work.is_begun) and due_at(work) is not None:
        return True
    return work.rule.approve != NEVER and not work.approved_at and approval_due_at(work) is not None


# --- Preparing ------------------------------------------------------------------------------------


def _prepare(work: EventWork, others: list[EventWork], busy: set[str], context: DecisionContext) -> Instruction | None:
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
        for begun_step in filter(None, (other.begun_step(step.handler) for other in others)):
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
HAS_STARTED = "the event has started"
NOT_BEFORE_UNKNOWN = "its NotBefore is unknown"
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
    if is_approved(work, context.now):
        return "it is already approved"
    if work.ending or work.is_started:
        waits = "it is postponed" if work.ending == POSTPONED else "the event is gone"
        return HAS_STARTED if work.is_started else waits
    if not work.is_prepared:
        return "a handler has failed" if work.has_failed else "it is not prepared yet"
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


def _undo(work: EventWork, others: list[EventWork], busy: set[str], context: DecisionContext) -> Instruction | None:
    if any(step.handler in busy and step.state in BEGUN for step in work.steps):
        return None  # a handler of this event is running, for this event or another
    for index in undo_order(work):
        step = work.steps[index]
        if step.state not in BEGUN:
            continue
        # Another event still needs this handler. Handlers that prepared earlier may be needed too, so undo none of
        # them.
        is_needed = any(other.begun_step(step.handler) for other in others if not other.ending)
        is_late = context.seconds < context.undo_at.get(work.id, 0)
        return None if is_needed or is_late else RunHandler(work, index, UNDO)
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


# --- Postponed events -----------------------------------------------------------------------------


def restore_time(work: EventWork, timeouts: Mapping[str, timedelta]) -> timedelta:
    """Return how long undo and a new preparation may take: all their time limits together."""
    undo = sum((timeouts.get(name, timedelta(0)) for name in work.rule.undo_order), timedelta(0))
    prepare = sum((timeouts.get(name, timedelta(0)) for name in work.rule.prepare), timedelta(0))
    return undo + (prepare if work.rule.timeout is None else min(prepare, work.rule.timeout))


def _is_postponed(work: EventWork, event: ScheduledEvent) -> bool:
    """Whether the event's NotBefore is now later. An approved event may start at any time, whatever its NotBefore."""
    before, now = work.event.not_before, event.not_before
    return not work.done and not work.approved_at and before is not None and now is not None and now > before


def _has_time_to_restore(work: EventWork, context: DocumentContext) -> bool:
    """Whether the machine can be restored until its preparation is due again. Without a lead it is due at once."""
    due = due_at(work)
    can_undo = any(work.steps[index].state in BEGUN for index in undo_order(work))
    return can_undo and due is not None and due - context.now >= restore_time(work, context.timeouts)


def _resume_if_due(work: EventWork, context: DocumentContext, news: list[EventNews]) -> EventWork:
    """Stop the undo of a postponed event once its preparation is due again, and prepare again what was undone."""
    due = due_at(work)
    if not work.is_started and not work.approved_at and due is not None and context.now < due:
        return work
    news.append(EventNews(work.event, RESUMED))
    return work._replace(ending="", steps=tuple(_to_prepare_again(step, work.rule) for step in work.steps))


def _to_prepare_again(step: HandlerStep, rule: Rule) -> HandlerStep:
    if step.handler not in rule.prepare:
        return step._replace(state=PREPARED)  # it has only an undo, which runs when the event is over
    if step.state == UNDONE:
        return HandlerStep(step.handler)
    return step._replace(state=PREPARING, run="") if step.state == UNDOING else step


def restored(work: EventWork) -> EventWork:
    """Return postponed work after its undo: nothing is done yet."""
    return new_work(work.event, work.me, work.rule, work.boot)


# --- A new document -------------------------------------------------------------------------------


JUST_BOOTED_SECONDS = 15 * 60
"""If the machine booted within this time and the agent finds a started event that it does not know, the event is taken
as the reason for the boot."""


class DocumentContext(NamedTuple):
    """What else decides about a document."""

    rules: tuple[Rule, ...]
    listed_as: Callable[[tuple[str, ...]], str | None]
    """Returns which of the names is this machine's, or None."""
    now: datetime
    boot: str
    uptime_seconds: float
    is_first: bool
    """Whether this is the first document, so that the agent may have missed the start of an event."""
    timeouts: Mapping[str, timedelta] = {}
    """The time limit of each handler."""


NEW, STARTED, ENDED, MISSED, RETURNED, RESTARTED = "new", "started", "ended", "missed", "returned", "restarted"
"""New: a rule matches the event. Ended: the event is over or cancelled. Missed: it started before this machine booted.
Returned: this machine has restarted because of it. Restarted: this machine has restarted for another reason."""
LATER, RESUMED, RENAMED = "later", "resumed", "renamed"
"""Later: the event is postponed. Resumed: the preparation for a postponed event is due again, before everything was
undone. Renamed: the endpoint has changed the event's id."""


class EventNews(NamedTuple):
    """Something about an event that the agent logs."""

    event: ScheduledEvent
    kind: str
    rule: str = ""
    """The name of the rule, for NEW."""
    reason: str = ""
    """OVER or CANCELLED, for ENDED. POSTPONED, for LATER: the machine is restored. The old id, for RENAMED."""


class DocumentDecision(NamedTuple):
    """What the agent decides when it gets a document."""

    works: dict[str, EventWork]
    news: list[EventNews]
    ignored: dict[str, ScheduledEvent]
    """Events of this machine that no rule matches."""


def apply_document(
    works: Mapping[str, EventWork], events: Iterable[ScheduledEvent], context: DocumentContext
) -> DocumentDecision:
    """Decide which work starts, continues and ends, now that the document has these events."""
    updated: dict[str, EventWork] = {}
    decision = DocumentDecision(updated, [], {})
    listed = {event.key: event for event in events}
    known_keys = {known.event.key for known in works.values()}
    new = {key: event for key, event in listed.items() if key not in known_keys}
    for known in works.values():
        work, event = known, listed.get(known.event.key)
        if event is None and (successor := _successor(known, new.values())) is not None:
            event = new.pop(successor.key)
            work = known._replace(first_id=known.first_id or known.event.id)
            decision.news.append(EventNews(event, RENAMED, reason=known.event.id))
        kept = _continue_work(work, event, context, decision.news)
        if kept is not None:
            updated[known.id] = kept
    for key, event in new.items():
        me = context.listed_as(event.resources)
        if key in updated or me is None:
            continue
        rule = choose_rule(context.rules, event, context.now)
        if rule is None:
            decision.ignored[key] = event
            continue
        work = new_work(event, me, rule, context.boot)
        if work.is_started and context.is_first and context.uptime_seconds < JUST_BOOTED_SECONDS:
            updated[key] = work._replace(done=True, ending=CAME_BACK)
            decision.news.append(EventNews(event, MISSED))
        else:
            updated[key] = work
            decision.news.append(EventNews(event, NEW, rule=rule.name))
    return decision


def _successor(work: EventWork, new: Iterable[ScheduledEvent]) -> ScheduledEvent | None:
    """Return the event that a gone event has become: Microsoft's mock server changes the id when an event starts.

    It is a started event that differs in nothing else. A really new event is scheduled first.
    """
    if work.ending in (OVER, CANCELLED):
        return None
    return next((event for event in new if has_started(event) and _traits(event) == _traits(work.event)), None)


def _traits(event: ScheduledEvent) -> tuple[Any, ...]:
    """Return what an event keeps from its first document to its last."""
    return event.type, sorted(event.resources), event.source, event.description, event.duration_seconds


def assume_restarts(works: Mapping[str, EventWork], boot: str, now: datetime) -> dict[str, EventWork]:
    """End the work of events that have probably restarted this machine. For use when the endpoint does not respond.

    If the machine has booted again since an event could have started, the event is taken as the reason. Otherwise the
    machine would stay prepared until the endpoint responds.
    """
    updated = {}
    for work in works.values():
        is_back = work.is_begun and not work.ending and work.boot != boot and _may_have_started(work, now)
        updated[work.id] = end(work, CAME_BACK) if is_back else work
    return updated


def _may_have_started(work: EventWork, now: datetime) -> bool:
    return work.is_started or bool(work.approved_at) or notice_of(work.event, now) == timedelta(0)


def _continue_work(
    work: EventWork, event: ScheduledEvent | None, context: DocumentContext, news: list[EventNews]
) -> EventWork | None:
    """Return the work as it continues; None: nothing is left to do."""
    boot = context.boot
    me = None if event is None else context.listed_as(event.resources)
    if event is None or (me is None and not work.is_started):  # the event is gone, or no longer names this machine
        # The event may have started and ended between two polls.
        reason = OVER if _may_have_started(work, context.now) else CANCELLED
        if reason == OVER and work.rule.undo and not work.steps and not work.done:
            news.append(EventNews(work.event, ENDED, reason=reason))
            return end(work, reason)  # nothing was prepared, but the rule's own undo list has handlers to run
        if work.done or not work.is_begun:
            news.append(EventNews(work.event, ENDED, reason=reason))
            return None
        if work.ending not in ("", POSTPONED):
            return work
        news.append(EventNews(work.event, ENDED, reason=reason))
        return end(work, reason)
    if work.is_started and not has_started(event):
        event = work.event  # an old document: a started event never becomes scheduled again
    if not work.is_started and has_started(event):
        news.append(EventNews(event, STARTED))
    is_postponed = _is_postponed(work, event)
    work = work._replace(event=event, me=me or work.me)
    if is_postponed:
        restores = not work.ending and _has_time_to_restore(work, context)
        news.append(EventNews(event, LATER, reason=POSTPONED if restores else ""))
        work = end(work, POSTPONED) if restores else work
    if work.ending == POSTPONED:
        work = _resume_if_due(work, context, news)
    if work.boot == boot or work.ending or not work.is_begun:
        return work._replace(boot=boot)
    if work.is_started:
        news.append(EventNews(event, RETURNED))
        return end(work, CAME_BACK)
    # Something else restarted the machine, so the services that were stopped may run again: prepare again.
    news.append(EventNews(event, RESTARTED))
    again = tuple(step._replace(state=PREPARING, run="") if step.state in BEGUN else step for step in work.steps)
    return work._replace(steps=again, boot=boot)
