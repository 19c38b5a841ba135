"""The agent's status as a JSON value: the source of the status page, the metrics and the health check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from forewarn.agent.changes import deadline_of, has_started, is_advisory
from forewarn.agent.decisions import NO_LONGER_ADVISED, approval_due_at, approval_problem, due_at, undo_order
from forewarn.agent.state import BEGUN, FAILED, GAVE_UP, PREPARED, SKIPPED, TO_DO, UNDOING
from forewarn.core.durations import format_duration, to_text_if_any

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from forewarn.agent.decisions import DecisionContext
    from forewarn.agent.policy import Config
    from forewarn.agent.state import EventWork
    from forewarn.wire.document_reader import ScheduledEvent


def phase_of(work: EventWork) -> str:
    """Return the phase of the work for an event."""
    if work.done:
        return "failed" if work.ending == GAVE_UP else "done"
    if work.ending:
        return "undoing"
    if work.is_started:
        return "started"
    if work.approved_at:
        return "approved"
    if work.has_failed:
        return "failed"
    if work.is_prepared and (work.is_begun or not work.steps):
        return "prepared"
    return "preparing" if work.is_begun else "waiting"


def is_short_freeze(event: ScheduledEvent, short_freeze: timedelta) -> bool:
    """Whether the event is a Freeze that clients hardly notice. A longer one may interrupt the network."""
    seconds = event.duration_seconds
    is_short = seconds is not None and 0 <= seconds <= short_freeze.total_seconds()
    return is_short and event.type.casefold() == "freeze"


def blocks_new_work(work: EventWork, now: datetime, short_freeze: timedelta) -> bool:
    """Whether the machine should get no new work: it is being prepared, affected or restored.

    A Freeze without handlers counts only while it is started, and only if it is not short.
    """
    is_long = work.is_started and not is_short_freeze(work.event, short_freeze)
    if work.done:
        return work.ending == GAVE_UP and is_long  # it is not prepared, but the event still comes
    if work.is_begun:
        return True
    if not work.steps and work.event.type.casefold() == "freeze":
        return is_long
    due = due_at(work)
    return work.is_started or due is None or now >= due


def describe_event(event: ScheduledEvent) -> dict[str, Any]:
    """Return the event's own fields."""
    return {
        "id": event.key,
        "type": event.type,
        "status": event.status,
        "resources": list(event.resources),
        "not_before": to_text_if_any(deadline_of(event), "seconds"),
        "description": event.description,
        "source": event.source,
        "duration_seconds": event.duration_seconds,
    }


def describe_ignored(event: ScheduledEvent, mine: bool) -> dict[str, Any]:
    """Return the status of an event for which nothing is done."""
    approval: dict[str, Any] = {"mode": "never", "sent_at": None, "reason": "no rule matches it"}
    no_work: dict[str, Any] = {
        "mine": mine,
        "rule": None,
        "phase": "ignored",
        "failure": "",
        "next": "",
        "next_at": None,
        "steps": [],
    }
    return {**describe_event(event), **no_work, "approval": approval}


def describe_work(work: EventWork, context: DecisionContext) -> dict[str, Any]:
    """Return the status of an event and its work."""
    action, at = next_action(work, context)
    return {
        **describe_event(work.event),
        "mine": True,
        "rule": work.rule.name,
        "phase": phase_of(work),
        "failure": work.failure,
        "next": action,
        "next_at": to_text_if_any(at, "seconds"),
        "steps": [
            {"handler": step.handler, "state": step.state, "problem": step.problem, "seconds": round(step.seconds, 3)}
            for step in work.steps
        ],
        "approval": {
            "mode": work.rule.approve,
            "sent_at": work.approved_at or None,
            "reason": "" if phase_of(work) == "done" else approval_problem(work, context),
        },
    }


def next_action(work: EventWork, context: DecisionContext) -> tuple[str, datetime | None]:
    """Return the next action, and its time if known."""
    if work.done:
        return "nothing, until the event disappears", None
    if work.ending:
        left = [work.steps[index] for index in undo_order(work) if work.steps[index].state in BEGUN]
        failing = next((step for step in left if step.problem and step.handler not in context.busy), None)
        again = f" again: {failing.problem}" if failing else ""
        if left and not again and left[0].state != UNDOING:
            return f"waits to undo {left[0].handler}: another event needs it", None
        return (f"undoes {left[0].handler}{again}" if left else "nothing"), None
    due = due_at(work)
    if not work.is_begun and work.steps and due is not None and context.now < due and not work.is_started:
        return f"prepares in {format_duration(due - context.now)}", due
    running = next((step for step in work.steps if step.state not in (PREPARED, FAILED, SKIPPED)), None)
    if running is not None and not (work.has_failed and work.rule.on_failure == "stop"):
        return f"{'prepares' if running.state == TO_DO else 'is preparing'} {running.handler}", None
    if work.is_started:
        return (
            "undoes its preparation when the event is over" if work.is_begun else "waits for the end of the event",
            None,
        )
    if is_advisory(work.event):
        return f"undoes its preparation when the event {NO_LONGER_ADVISED}" if work.is_begun else "nothing", None
    if not approval_problem(work, context):
        return "approves the event", None
    approval_due = approval_due_at(work)
    if work.is_prepared and not work.approved_at and approval_due is not None and context.now < approval_due:
        return f"approves the event in {format_duration(approval_due - context.now)}", approval_due
    return "waits for the start of the event", work.event.not_before


def ready_reason(works: list[EventWork], ignored: list[ScheduledEvent], now: datetime, config: Config) -> str:
    """Return why the machine should get no new work; empty: it can."""
    for work in works:
        if blocks_new_work(work, now, config.short_freeze):
            return f"{work.event.type} {work.event.key}: {phase_of(work)}"
    for event in ignored:
        # Without rules, any event counts, but no recommendation. With rules, only a started event that is not a short
        # Freeze does.
        if is_advisory(event):
            continue
        if not config.rules or (has_started(event) and not is_short_freeze(event, config.short_freeze)):
            return f"{event.type} {event.key}: {event.status.lower()}"
    return ""
