"""Decides which work a new document starts, changes and ends. Pure."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.agent.changes import deadline_of, has_started, is_advisory
from forewarn.agent.decisions import due_at, end, undo_order
from forewarn.agent.policy import choose_rule, notice_of
from forewarn.agent.state import (
    BEGUN,
    CAME_BACK,
    CANCELLED,
    OVER,
    POSTPONED,
    PREPARED,
    PREPARING,
    UNDOING,
    UNDONE,
    HandlerStep,
    new_work,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import datetime

    from forewarn.agent.policy import Rule
    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent


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
LATER, RESUMED, RENAMED, FOLLOWED = "later", "resumed", "renamed", "followed"
"""Later: the event is postponed. Resumed: the preparation for a postponed event is due again, before everything was
undone. Renamed: the endpoint has changed the event's id. Followed: a recommendation is gone, an eviction follows."""


class EventNews(NamedTuple):
    """Something about an event that the agent logs."""

    event: ScheduledEvent
    kind: str
    rule: str = ""
    """The name of the rule, for NEW."""
    reason: str = ""
    """OVER or CANCELLED, for ENDED. POSTPONED, for LATER: the machine is restored. The old id, for RENAMED. The id of
    the eviction, for FOLLOWED."""


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
    successors = _Successors(new.values())
    eviction = _eviction(listed.values(), context)
    for known in works.values():
        work, event = known, listed.get(known.event.key)
        if event is None and (event := successors.pop(known)) is not None:
            del new[event.key]
            work = known._replace(first_id=known.first_id or known.event.id)
            decision.news.append(EventNews(event, RENAMED, reason=known.event.key))
        kept = _continue_work(work, event, eviction, context, decision.news)
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


class _Successors:
    """The events that gone events may have become: Microsoft's mock server changes the id when an event starts.

    A successor is a started event that differs in nothing else. A really new event is scheduled first.
    """

    def __init__(self, new: Iterable[ScheduledEvent]) -> None:
        self._by_traits: dict[tuple[Any, ...], list[ScheduledEvent]] = {}
        for event in new:
            if has_started(event):
                self._by_traits.setdefault(_traits(event), []).append(event)

    def pop(self, work: EventWork) -> ScheduledEvent | None:
        """Return the event that a gone event has become, once."""
        if work.ending in (OVER, CANCELLED) or not self._by_traits:
            return None
        found = self._by_traits.get(_traits(work.event))
        return found.pop(0) if found else None


def _traits(event: ScheduledEvent) -> tuple[Any, ...]:
    """Return what an event keeps from its first document to its last."""
    return event.type, tuple(sorted(event.resources)), event.source, event.description, event.duration_seconds


def _eviction(events: Iterable[ScheduledEvent], context: DocumentContext) -> ScheduledEvent | None:
    """Return the Preempt of this machine, if there is one; a started one, if there is one."""
    found = [event for event in events if event.type.casefold() == "preempt" and context.listed_as(event.resources)]
    return max(found, key=has_started, default=None)


def assume_restarts(works: Mapping[str, EventWork], boot: str, now: datetime) -> dict[str, EventWork]:
    """End the work of events that have probably restarted this machine. For use when the endpoint does not respond.

    If the machine has booted again since an event could have started, the event is taken as the reason. Otherwise the
    machine would stay prepared until the endpoint responds.
    """
    updated = {}
    for work in works.values():
        # A recommendation may have been followed by an eviction, whose handlers it would keep prepared.
        may_be_reason = is_advisory(work.event) or _may_have_started(work, now)
        is_back = work.is_begun and not work.ending and work.boot != boot and may_be_reason
        updated[work.id] = end(work, CAME_BACK) if is_back else work
    return updated


def _may_have_started(work: EventWork, now: datetime) -> bool:
    if is_advisory(work.event):
        return False
    return work.is_started or bool(work.approved_at) or notice_of(work.event, now) == timedelta(0)


def _continue_work(
    work: EventWork,
    event: ScheduledEvent | None,
    eviction: ScheduledEvent | None,
    context: DocumentContext,
    news: list[EventNews],
) -> EventWork | None:
    """Return the work as it continues; None: nothing is left to do."""
    boot = context.boot
    me = None if event is None else context.listed_as(event.resources)
    eviction = eviction if is_advisory(work.event) else None
    if me is None and eviction is not None and work.is_begun and not work.ending:
        # The advice is gone because of the eviction. Keep the preparation as long as the eviction exists.
        if work.followed_by != eviction.key:
            news.append(EventNews(work.event, FOLLOWED, reason=eviction.key))
        work, event, me = work._replace(followed_by=eviction.key), work.event, work.me
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
    if work.is_started or (eviction is not None and has_started(eviction)):
        news.append(EventNews(event, RETURNED))
        return end(work, CAME_BACK)
    # Something else restarted the machine, so the services that were stopped may run again: prepare again.
    news.append(EventNews(event, RESTARTED))
    again = tuple(step._replace(state=PREPARING, run="") if step.state in BEGUN else step for step in work.steps)
    return work._replace(steps=again, boot=boot)


# --- Postponed events -----------------------------------------------------------------------------


def restore_time(work: EventWork, timeouts: Mapping[str, timedelta]) -> timedelta:
    """Return how long undo and a new preparation may take: all their time limits together."""
    undo = sum((timeouts.get(name, timedelta(0)) for name in work.rule.undo_order), timedelta(0))
    prepare = sum((timeouts.get(name, timedelta(0)) for name in work.rule.prepare), timedelta(0))
    return undo + (prepare if work.rule.timeout is None else min(prepare, work.rule.timeout))


def _is_postponed(work: EventWork, event: ScheduledEvent) -> bool:
    """Whether the event's NotBefore is now later. An approved event may start at any time, whatever its NotBefore."""
    before, now = deadline_of(work.event), deadline_of(event)
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
