"""Enable groups at their first poll, and disable them after a day without one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forewarn.core.durations import format_duration
from forewarn.core.history import ENGINE
from forewarn.core.state import Delivery, HistoryEntry
from forewarn.errors import UnknownVM

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from forewarn.core.limits import OperatorLimits
    from forewarn.core.state import Draft


def reason_not_notified(draft: Draft, group: str, now: datetime, limits: OperatorLimits) -> str:
    """Return why the group gets no notice, or an empty string if it is enabled."""
    delivery, last_seen_at = draft.delivery(group), draft.last_seen_at(group)
    if delivery is None or last_seen_at is None:
        return f"{group} has never polled"
    if now >= last_seen_at + limits.quicken(limits.inactivity_timeout):
        return f"{group} has not polled for {format_duration(now - last_seen_at)}"
    if not delivery.enabled:
        return f"{group} was disabled by a fault and has not polled since"
    return ""


def enable(draft: Draft, now: datetime, limits: OperatorLimits, group: str, by: str, enabling: str) -> None:
    """Enable a group at its first GET, or its first GET after it was disabled. Its incarnation restarts.

    The incarnation counts the group's active events, so that a client that treats 0 as "no events yet" does not
    ignore them.
    """
    delivery = draft.delivery(group)
    if delivery is not None and delivery.enabled:
        return
    if not draft.fleet.members(group):  # it has left the fleet since it polled
        raise UnknownVM(name=group, hint="")
    draft.put_delivery(Delivery(group, True, enabling, len(draft.events_of(group))), now)
    draft.record(HistoryEntry(time=now, kind="enabled", by=by, group=group))


def disable_if_inactive(draft: Draft, now: datetime, limits: OperatorLimits, group: str) -> None:
    """Disable a group that has not polled within the inactivity timeout."""
    delivery, last_seen_at = draft.delivery(group), draft.last_seen_at(group)
    if delivery is None or not delivery.enabled or last_seen_at is None:
        return
    if now >= last_seen_at + limits.quicken(limits.inactivity_timeout):
        draft.put_delivery(delivery._replace(enabled=False), last_seen_at)
        reason = f"no poll for {format_duration(now - last_seen_at)}"
        draft.record(HistoryEntry(time=now, kind="disabled", by=ENGINE, group=group, reason=reason))


def disable(
    draft: Draft, now: datetime, limits: OperatorLimits, groups: Iterable[str], by: str, reason: str
) -> list[str]:
    """Disable those of the groups that are enabled, and return them."""
    disabled = []
    for group in groups:
        delivery = draft.delivery(group)
        if delivery is not None and delivery.enabled:
            draft.put_delivery(delivery._replace(enabled=False), draft.last_seen_at(group) or now)
            draft.record(HistoryEntry(time=now, kind="disabled", by=by, group=group, reason=reason))
            disabled.append(group)
    return disabled
