"""Explain what an operation waits for, what happens next, and the latest time for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history
from forewarn.core.durations import format_time
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import Health, OperationStatus
from forewarn.core.progress import when_due
from forewarn.core.rollout_commands import health_deadline
from forewarn.core.waits import Wait, waits_of_event, waits_without_notice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import FailedAttempt, Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft


class Explanation(NamedTuple):
    """What an operation waits for, and what happens next."""

    waits: tuple[Wait, ...]
    next: str
    latest: datetime | None
    """Latest time of the next step; None if it does not depend on time."""


def explain(
    draft: Draft,
    limits: OperatorLimits,
    operation: Operation,
    rollout: Rollout | None,
    failed: FailedAttempt | None = None,
) -> Explanation:
    """Explain what the operation waits for and what happens next. `failed`: the fabric's last failed attempt."""
    if operation.status is OperationStatus.PENDING:
        waits = tuple(_before_start(draft, operation))
        if operation.type and not EVENT_TYPES[operation.type].starts:
            return Explanation(
                waits,
                "It is a recommendation and never starts. It ends when it is cancelled or the VM is evicted.",
                None,
            )
        open_waits = [wait for wait in waits if not wait.done]
        next_step = "It starts when all conditions are met." if open_waits else "It starts now."
        return Explanation(waits, next_step, when_due(draft, operation))
    if operation.status is OperationStatus.STARTED:
        waits = tuple(_before_end(limits, operation, rollout, failed))
        next_step = "It ends, and its events disappear from the document."
        return Explanation(waits, next_step, operation.settles_at if operation.executed_at else None)
    reason = f": {operation.reason}" if operation.reason else ""
    return Explanation((), f"Nothing. It is {operation.status}{reason}.", None)


def _before_start(draft: Draft, operation: Operation) -> Iterator[Wait]:
    for event in history.events_of(draft, operation):
        yield from waits_of_event(draft, operation, event)
    yield from waits_without_notice(operation)


def _before_end(
    limits: OperatorLimits, operation: Operation, rollout: Rollout | None, failed: FailedAttempt | None
) -> Iterator[Wait]:
    done = operation.executed_at is not None
    text = f"to {operation.verb or 'do nothing'}" + (_failure(failed) if failed is not None else "")
    yield Wait("fabric", done=done, time=operation.executed_at, text=text)
    if rollout is not None:
        health = operation.health
        text = f"rollout {rollout.id}, wave {rollout.wave}" + (f": {operation.reason}" if operation.reason else "")
        yield Wait("gate", done=health is not Health.UNKNOWN, until=health_deadline(limits, operation), text=text)
    yield Wait("settling", done=False, until=operation.settles_at)


def _failure(failed: FailedAttempt) -> str:
    attempts = "the last attempt" if failed.failures == 1 else f"{failed.failures} attempts"
    next_attempt = "is in progress" if failed.next_at is None else f"starts at {format_time(failed.next_at)}"
    return f"; {attempts} failed: {failed.problem}; the next attempt {next_attempt}"
