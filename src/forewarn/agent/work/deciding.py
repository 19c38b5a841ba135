"""What is to be done next: pure. One order is one thing, so that each is on disk before the next is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy.rule import LEADER, NEVER, STOP, before
from forewarn.agent.work.work import BEGUN, FAILED, PREPARED, SKIPPED, TO_DO, UNDONE, Step

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from forewarn.agent.work.work import Work


class Seen(NamedTuple):
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


Order = Run | Note | Approve | Finish


def next_orders(works: Mapping[str, Work], seen: Seen) -> list[Order]:
    """At most one for each work, and at most one approval."""
    orders: list[Order] = []
    # What is being approved may begin at any moment: nothing is begun beside it.
    if seen.stopping or seen.approving:
        return orders
    busy = set(seen.busy)
    for work in works.values():
        others = [other for other in works.values() if other.id != work.id]
        order = _next_order(work, others, busy, seen)
        if order is not None:
            orders.append(order)
        if isinstance(order, Run):
            busy.add(work.steps[order.step].handler)
    approvals = [order for order in orders if isinstance(order, Approve)]
    runs = any(isinstance(order, Run) for order in orders)
    return [order for order in orders if order not in approvals] + (approvals[:1] if not runs else [])


def _next_order(work: Work, others: list[Work], busy: set[str], seen: Seen) -> Order | None:
    if work.done:
        return None
    if work.ending:
        return _undo(work, others, busy, seen)
    return _prepare(work, others, busy, seen) if seen.has_looked else None


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


# --- Preparing ----------------------------------------------------------------------------------------


def _prepare(work: Work, others: list[Work], busy: set[str], seen: Seen) -> Order | None:
    due = due_at(work)
    if not work.is_begun and due is not None and seen.now < due and not work.is_started:
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
        if _limit_passed(work, seen):
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
    return None if approval_problem(work, seen) else Approve(work)


def _limit_passed(work: Work, seen: Seen) -> bool:
    begun = seen.begun_at.get(work.id)
    return work.rule.timeout is not None and begun is not None and seconds_left(work, begun, seen.seconds) <= 0


def seconds_left(work: Work, begun_at: float, seconds: float) -> float:
    """Until the rule's time limit."""
    if work.rule.timeout is None:
        return float("inf")
    return begun_at + work.rule.timeout.total_seconds() - seconds


def approval_problem(work: Work, seen: Seen) -> str:
    """Why it is not approved now, in words; empty: it may be."""
    rule, event = work.rule, work.event
    if rule.approve == NEVER:
        return "the rule says never"
    if work.approved_at:
        return "it is approved"
    if work.ending or work.is_started:
        return "it has started" if work.is_started else "it is gone"
    if not work.is_prepared:
        return "a handler has failed" if work.has_failed else "it is not prepared yet"
    if seen.busy:
        return f"{', '.join(sorted(seen.busy))} runs"
    due = approval_due_at(work)
    if rule.approve_lead is not None and (due is None or seen.now < due):
        return "its time has not come" if due else "its NotBefore is not known"
    if work.id in seen.approving:
        return "it is being approved"
    if seen.seconds < seen.approve_at.get(work.id, 0):
        return "the endpoint did not take it; it is tried again"
    if rule.approve == LEADER:
        return seen.leading.get(work.id, "the others have not been heard")
    also = [name for name in event.resources if name != work.me]
    return f'it would start for {", ".join(also)} too: approve = "leader" asks them' if also else ""


# --- Undoing ------------------------------------------------------------------------------------------


def _undo(work: Work, others: list[Work], busy: set[str], seen: Seen) -> Order | None:
    if any(step.handler in busy and step.state in BEGUN for step in work.steps):
        return None  # one of its own still runs, or another event's turn of the same
    for index in undo_order(work):
        step = work.steps[index]
        if step.state not in BEGUN:
            continue
        # It waits for who needs it: what was prepared before it may need it too, and is not undone either.
        is_needed = any(other.held(step.handler) for other in others if not other.ending)
        is_late = seen.seconds < seen.undo_at.get(work.id, 0)
        return None if is_needed or is_late else Run(work, index, UNDO)
    return Finish(work)


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
    if work.rule.undo is None:
        return list(range(len(work.steps)))[::-1]
    places = {step.handler: index for index, step in enumerate(work.steps)}
    return [places[name] for name in work.rule.undo if name in places]


def end(work: Work, why: str) -> Work:
    """It is to be undone from now on. What only the rule's own undo names is undone as well."""
    known = {step.handler for step in work.steps}
    extra = tuple(Step(name, PREPARED) for name in work.rule.undo or () if name not in known)
    return work._replace(ending=why, steps=work.steps + extra)
