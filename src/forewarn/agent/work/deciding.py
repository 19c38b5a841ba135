"""What is to be done next: pure. One order is one thing, so that each is on disk before the next is decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.agent.handlers.handler import PREPARE, UNDO
from forewarn.agent.policy.rule import LEADER, NEVER, STOP, before
from forewarn.agent.work.work import BEGUN, FAILED, PASSED_ON, PREPARED, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
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
    retry_at: Mapping[str, float] = {}
    """When something for an event may be tried again, in real seconds."""
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
    """At most one for each work."""
    orders: list[Order] = []
    busy = set(seen.busy)
    current = dict(works)
    for work in works.values():
        if work.done or seen.stopping or seen.approving:
            continue  # what is being approved may begin at any moment: nothing is begun beside it
        others = [other for other in current.values() if other.id != work.id]
        found = _undo(work, others, busy, seen) if work.ending else _prepare(work, others, busy, seen)
        for order in found:
            orders.append(order)
            if isinstance(order, Run):
                busy.add(work.steps[order.step].handler)
            # Two that end together must not each leave the same handler to the other.
            current[work.id] = order.work
            break
    if any(isinstance(order, Run) for order in orders):
        return [order for order in orders if not isinstance(order, Approve)]
    return orders


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


def _prepare(work: Work, others: list[Work], busy: set[str], seen: Seen) -> Iterator[Order]:
    due = due_at(work)
    if not work.is_begun and due is not None and seen.now < due and not work.is_started:
        return
    for index, step in enumerate(work.steps):
        if step.state == PREPARED:
            continue
        if step.state == FAILED:
            if work.rule.on_failure == STOP:
                return
            continue
        if step.handler in busy:
            return
        if _limit_passed(work, seen):
            problem = "the rule's time limit was over before its turn"
            state = work.with_step(index, state=FAILED, problem=problem)
            yield Note(state, f"{step.handler} failed: {problem}")
            return
        for other in others:
            held = _prepared_by(other, step.handler)
            if held is not None:
                shared = work.with_step(index, state=PREPARED, table=held.table, memo=held.memo)
                yield Note(shared, f"{step.handler} is prepared already, for event {other.id}")
                return
        yield Run(work, index, PREPARE)
        return
    if not approval_problem(work, seen):
        yield Approve(work)


def _limit_passed(work: Work, seen: Seen) -> bool:
    begun = seen.begun_at.get(work.id)
    return work.rule.timeout is not None and begun is not None and seconds_left(work, begun, seen.seconds) <= 0


def seconds_left(work: Work, begun_at: float, seconds: float) -> float:
    """Until the rule's time limit."""
    if work.rule.timeout is None:
        return float("inf")
    return begun_at + work.rule.timeout.total_seconds() - seconds


def _prepared_by(other: Work, handler: str) -> Step | None:
    if other.done:
        return None
    return next((step for step in other.steps if step.handler == handler and step.state == PREPARED), None)


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
    if work.id in seen.approving or seen.seconds < seen.retry_at.get(work.id, 0):
        return "it is being approved"
    if rule.approve == LEADER:
        return seen.leading.get(work.id, "the others have not been heard")
    also = [name for name in event.resources if name != work.me]
    return f'it would start for {", ".join(also)} too: approve = "leader" asks them' if also else ""


# --- Undoing ------------------------------------------------------------------------------------------


def _undo(work: Work, others: list[Work], busy: set[str], seen: Seen) -> Iterator[Order]:
    if any(step.handler in busy and step.state in BEGUN for step in work.steps):
        return  # one of its own still runs, or another event's turn of the same
    for index in undo_order(work):
        step = work.steps[index]
        if step.state not in BEGUN:
            continue
        holder = next((other for other in others if other.holds(step.handler)), None)
        if holder is not None:
            passed = work.with_step(index, state=PASSED_ON)
            yield Note(passed, f"{step.handler} stays prepared, for event {holder.id}")
            return
        if step.handler in busy or seen.seconds < seen.retry_at.get(work.id, 0):
            return
        yield Run(work, index, UNDO)
        return
    yield Finish(work)


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
