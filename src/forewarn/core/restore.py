"""Continue from a backup, so that no client sees a number that it has seen before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from forewarn.core import history, rollout_commands
from forewarn.core.access import Purpose
from forewarn.core.durations import from_text
from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.limits import OperatorLimits
from forewarn.core.operations import OperationStatus
from forewarn.core.state import FORGOTTEN_ENABLING, Draft, HistoryEntry

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from forewarn.core.operations import Operation
    from forewarn.core.state import Changes, ServiceState


class UsedNumbers(NamedTuple):
    """Numbers that clients have seen: the last history row, and the incarnation of each scope."""

    sequence: int
    incarnations: Mapping[str, int]
    enabling: int = 0
    """The highest enabling of all scopes."""


def service_time(state: ServiceState, now: datetime) -> datetime:
    """Return the time of the service in a backup: its virtual time if its clock was virtual, otherwise `now`."""
    virtual_now, alive_at = state.facts.get("virtual_now"), state.facts.get("alive_at")
    if virtual_now is None or (alive_at is not None and from_text(alive_at) > from_text(virtual_now)):
        return now
    return from_text(virtual_now)


def pending_operations(state: ServiceState) -> list[Operation]:
    """Return the operations that have not started."""
    return [operation for operation in state.operations.values() if operation.status is OperationStatus.PENDING]


def restore(
    state: ServiceState,
    now: datetime,
    replaced: UsedNumbers,
    *,
    cancel_pending: bool = False,
    kind: str = "restored",
    cause: str = "",
) -> Changes:
    """Return the changes with which a service continues from a backup, or after lost commits.

    `state` is the content of the backup. `replaced` has the numbers of the database that it replaces, as far as they
    are known. The same backup may have been restored before, so the numbers of both count. A row of history of this
    kind marks the place.
    """
    draft = Draft(state, _no_new_id)
    reason = f"{cause}; it has history up to row {state.sequence}" if cause else ""
    reason = reason or f"from a backup with history up to row {state.sequence}"
    draft.record(HistoryEntry(time=now, kind=kind, by=history.ENGINE, reason=reason))
    for token in state.all_tokens():
        if token.purpose is not Purpose.API:  # a session that has ended since, or a used link, would be valid again
            draft.changes.tokens[token.name] = None
    if cancel_pending:
        _cancel_pending(draft, now, state)
    enabling = max(replaced.enabling, highest_enabling(state)) + SKIPPED_NUMBERS
    draft.changes.facts[FORGOTTEN_ENABLING] = str(enabling)
    for scope in state.deliveries:
        delivery = draft.delivery(scope)
        if delivery is not None:
            seen = max(delivery.incarnation, replaced.incarnations.get(scope, 0))
            draft.changes.deliveries[scope] = delivery._replace(enabling=enabling, incarnation=seen + SKIPPED_NUMBERS)
    first = max(state.sequence, replaced.sequence) + SKIPPED_NUMBERS
    changes = draft.changes
    changes.history = [entry._replace(sequence=first + i) for i, entry in enumerate(changes.history)]
    for name, webhook in state.webhooks().items():
        if webhook.cursor == state.sequence:  # it has read all rows, so it is not behind by the skipped ones
            changes.webhooks[name] = webhook._replace(cursor=first - 1)
    return changes


def highest_enabling(state: ServiceState) -> int:
    """Return the highest enabling of all scopes, including those that have left the fleet."""
    forgotten = Draft(state, _no_new_id).forgotten_enabling
    return max([forgotten, *(delivery.enabling for delivery in state.deliveries.values())])


def _cancel_pending(draft: Draft, now: datetime, state: ServiceState) -> None:
    """Cancel the rollouts and all operations that have not started. Started operations continue."""
    for rollout in state.live_rollouts():
        rollout_commands.cancel(draft, now, OperatorLimits(), rollout.id, history.ENGINE)
    for operation in pending_operations(state):
        current = draft.operation(operation.id)
        if current is not None and current.status is OperationStatus.PENDING:
            history.cancel(draft, now, current, history.ENGINE, "cancelled by the restore")


def _no_new_id() -> str:
    raise AssertionError("a restore creates nothing that needs an id")
