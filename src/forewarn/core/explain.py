"""Explain what an operation or a rollout waits for, what happens next, and the latest time for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history
from forewarn.core.durations import format_time
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import Health, OperationStatus
from forewarn.core.progress import when_due
from forewarn.core.rollout_commands import Obstacle, Obstacles, health_deadline
from forewarn.core.rollouts import RolloutStatus
from forewarn.core.waits import Wait, first_names, waits_for_arrivals, waits_of_event, waits_without_notice

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.operations import FailedAttempt, Operation
    from forewarn.core.rollouts import Rollout
    from forewarn.core.state import Draft


class Explanation(NamedTuple):
    """What an operation or a rollout waits for, and what happens next."""

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
        latest = None if any(wait.kind == "arrival" for wait in open_waits) else when_due(draft, operation)
        return Explanation(waits, next_step, latest)
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
    yield from waits_for_arrivals(draft, operation)


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


# --- Rollouts -------------------------------------------------------------------------------------


def explain_rollout(draft: Draft, rollout: Rollout) -> Explanation:
    """Explain what a rollout waits for before its next wave."""
    if not rollout.status.live:
        reason = f": {rollout.reason}" if rollout.reason else ""
        return Explanation((), f"Nothing. It is {rollout.status}{reason}.", None)
    paused = rollout.status is RolloutStatus.PAUSED
    waits = [Wait("resume", done=False)] if paused else []
    for host, operation_id in rollout.in_progress:
        waits.append(Wait("operation", done=False, text=f"operation {operation_id} on {host}"))
    if rollout.next_wave_at is not None:
        waits.append(Wait("pause", done=False, until=rollout.next_wave_at))
    if rollout.waits_for_hosts:
        waits += _obstacles(draft, rollout)
        return Explanation(tuple(waits), "It schedules the next wave when one of its hosts is free.", None)
    next_step = "It schedules the next wave when all conditions are met." if rollout.pending else "It ends."
    return Explanation(tuple(waits), next_step, None if paused else rollout.next_wave_at)


def _obstacles(draft: Draft, rollout: Rollout) -> Iterator[Wait]:
    """Yield one wait for each obstacle, with the hosts that it holds up."""
    obstacles = Obstacles(draft, rollout.id)
    held_up: dict[Obstacle, list[str]] = {}
    for host in rollout.pending:
        if (obstacle := obstacles.of(host)) is not None:
            held_up.setdefault(obstacle, []).append(host)
    for (operation, group, update_domain), hosts in held_up.items():
        text = f"operation {operation.id} ({operation.cause}) must end before {first_names(hosts)} can be updated"
        if operation.request.rollout:
            text = f"rollout {operation.request.rollout}: {text}"
        if group:
            text += f"; it affects update domain {update_domain} of {group}"
        yield Wait("rollout" if group else "host", done=False, group=group, text=text)
