"""Explain what an operation waits for, what happens next, and when at the latest."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history
from forewarn.core.durations import format_time
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import Health, Progress
from forewarn.core.progress import coupled_deletions, keeps_to_windows, when_due
from forewarn.core.rollout_commands import gate_closes_at
from forewarn.core.windows import closes_at, format_window

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.core.events import Event
    from forewarn.core.limits import Terms
    from forewarn.core.operations import FailedAttempt, Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft


class Wait(NamedTuple):
    """One condition that an operation waits for, or has waited for."""

    what: str
    """approval, notice, window, deletion, fabric, gate or settling."""
    over: bool
    group: str = ""
    by: str = ""
    """Who approved."""
    at: datetime | None = None
    """When the condition was met."""
    until: datetime | None = None
    """When the wait ends at the latest."""
    words: str = ""


class Explanation(NamedTuple):
    """The waits of an operation, and its next step."""

    waits: tuple[Wait, ...]
    next: str
    latest: datetime | None
    """When the next step happens at the latest; None if it does not depend on time."""


def explain(
    draft: Draft, terms: Terms, operation: Operation, rollout: Rollout | None, failed: FailedAttempt | None = None
) -> Explanation:
    """Explain what the operation waits for and what happens next. `failed`: the fabric's last failed attempt."""
    if operation.progress is Progress.PENDING:
        waits = tuple(_before_start(draft, operation))
        if operation.type and not EVENT_TYPES[operation.type].starts:
            return Explanation(
                waits,
                "It is a recommendation. It never starts, and ends when it is cancelled or the VM is evicted.",
                None,
            )
        open_waits = [wait for wait in waits if not wait.over]
        what = "It starts when all waits are over." if open_waits else "It starts now."
        return Explanation(waits, what, when_due(draft, operation))
    if operation.progress is Progress.STARTED:
        waits = tuple(_before_end(terms, operation, rollout, failed))
        what = "It ends, and its events are removed from the document."
        return Explanation(waits, what, operation.settles_at if operation.carried_out_at else None)
    ended = f": {operation.outcome}" if operation.outcome else ""
    return Explanation((), f"Nothing. It is {operation.progress}{ended}.", None)


def _before_start(draft: Draft, operation: Operation) -> Iterator[Wait]:
    windowed = keeps_to_windows(operation)
    for event in history.events_of(draft, operation):
        yield _approval(event)
        for other in coupled_deletions(draft, event):
            words = f"deletions with the same NotBefore start together: {', '.join(other.resources)}"
            yield Wait("deletion", other.approved_at is not None, until=other.not_before, words=words)
        windows = draft.fleet.group(event.group).windows
        if windowed and windows and event.approved_at is None:
            closes = closes_at(windows, event.not_before)
            until = f", which closes at {format_time(closes)}" if closes is not None else ""
            words = "; ".join(map(format_window, windows)) + until
            yield Wait("window", over=False, group=event.group, until=event.not_before, words=words)
    if operation.holds_until is not None:
        words = "maintenance window of a group that gets no notice"
        yield Wait("window", over=False, until=operation.holds_until, words=words)


def _approval(event: Event) -> Wait:
    if event.approved_at is not None:
        return Wait("approval", over=True, group=event.group, by=event.approved_by or "", at=event.approved_at)
    until = event.not_before if EVENT_TYPES[event.type].starts else None
    return Wait("approval", over=False, group=event.group, until=until)


def _before_end(
    terms: Terms, operation: Operation, rollout: Rollout | None, failed: FailedAttempt | None
) -> Iterator[Wait]:
    done = operation.carried_out_at is not None
    words = f"to {operation.verb or 'do nothing'}" + (_failure(failed) if failed is not None else "")
    yield Wait("fabric", over=done, at=operation.carried_out_at, words=words)
    if rollout is not None:
        health = operation.health
        words = f"rollout {rollout.id}, wave {rollout.wave}" + (f": {operation.outcome}" if operation.outcome else "")
        yield Wait("gate", over=health is not Health.UNKNOWN, until=gate_closes_at(terms, operation), words=words)
    yield Wait("settling", over=False, until=operation.settles_at)


def _failure(failed: FailedAttempt) -> str:
    attempts = "the last attempt" if failed.failures == 1 else f"{failed.failures} attempts"
    following = "is in progress" if failed.next_at is None else f"starts at {format_time(failed.next_at)}"
    return f"; {attempts} failed: {failed.problem}; the next attempt {following}"
