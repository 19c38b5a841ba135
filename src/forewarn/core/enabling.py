"""Enable scopes at their first poll, and disable them after a day without a poll and without a valid approval."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.durations import format_duration
from forewarn.core.history import ENGINE
from forewarn.core.state import Delivery, HistoryEntry
from forewarn.errors import UnknownVM

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime, timedelta

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft, ServiceState

MAX_AGE = 1 / 4
"""How old a stored time can be when a scope goes on polling, as a part of the inactivity timeout."""


def inactive_at(state: ServiceState | Draft, last_seen_at: datetime, timeout: timedelta) -> datetime:
    """Return when a scope is inactive that does not poll again. It may have polled later than the store knows."""
    if state.polls_known_from is not None and last_seen_at < state.polls_known_from:
        timeout += timeout * MAX_AGE
    return last_seen_at + timeout


def reason_not_notified(draft: Draft, scope: str, now: datetime, limits: OperatorLimits) -> str:
    """Return why the scope gets no notice, or an empty string if it is enabled."""
    delivery, last_seen_at = draft.delivery(scope), draft.last_seen_at(scope)
    if delivery is None or last_seen_at is None:
        return f"{scope} has never polled"
    if now >= inactive_at(draft, last_seen_at, limits.quicken(limits.inactivity_timeout)):
        return f"{scope} has not polled for {format_duration(now - last_seen_at)}"
    if not delivery.enabled:
        return f"{scope} was disabled by a fault and has not polled since"
    return ""


def enable(draft: Draft, now: datetime, limits: OperatorLimits, scope: str, by: str) -> None:
    """Enable a scope at its first GET, or its first GET after it was disabled. Its incarnation restarts.

    The incarnation counts the scope's active events, so that a client that treats 0 as "no events yet" does not
    ignore them.
    """
    delivery = draft.delivery(scope)
    if delivery is not None and delivery.enabled:
        return
    if not draft.fleet.scope_size(scope):  # it has left the fleet since it polled
        raise UnknownVM(name=scope, hint="")
    previous = delivery.enabling if delivery is not None else draft.forgotten_enabling
    draft.put_delivery(Delivery(scope, True, previous + 1, len(draft.events_of(scope))), now)
    draft.record(_entry(draft, HistoryEntry(time=now, kind="enabled", by=by), scope))


def disable_if_inactive(draft: Draft, now: datetime, limits: OperatorLimits, scope: str) -> None:
    """Disable a scope that has neither polled nor approved within the inactivity timeout."""
    delivery, last_seen_at = draft.delivery(scope), draft.last_seen_at(scope)
    if delivery is None or not delivery.enabled or last_seen_at is None:
        return
    if now >= inactive_at(draft, last_seen_at, limits.quicken(limits.inactivity_timeout)):
        draft.put_delivery(delivery._replace(enabled=False), last_seen_at)
        reason = f"no poll for {format_duration(now - last_seen_at)}"
        draft.record(_entry(draft, HistoryEntry(time=now, kind="disabled", by=ENGINE, reason=reason), scope))


def disable(
    draft: Draft, now: datetime, limits: OperatorLimits, scopes: Iterable[str], by: str, reason: str
) -> list[str]:
    """Disable those of the scopes that are enabled, and return them."""
    disabled = []
    for scope in scopes:
        delivery = draft.delivery(scope)
        if delivery is not None and delivery.enabled:
            draft.put_delivery(delivery._replace(enabled=False), draft.last_seen_at(scope) or now)
            draft.record(_entry(draft, HistoryEntry(time=now, kind="disabled", by=by, reason=reason), scope))
            disabled.append(scope)
    return disabled


def _entry(draft: Draft, entry: HistoryEntry, scope: str) -> HistoryEntry:
    """Return the row with the group of the scope. Its reason names the scope if the group has several."""
    group = draft.fleet.group_of(scope).name
    if scope == group:
        return entry._replace(group=group)
    return entry._replace(group=group, reason=f"{scope}: {entry.reason}" if entry.reason else scope)
