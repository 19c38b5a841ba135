"""Which groups are notified: from their first GET until a day without one."""

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


def why_no_notice(draft: Draft, group: str, now: datetime, limits: OperatorLimits) -> str:
    """Why the group would not be told; empty when it listens."""
    delivery, last_seen_at = draft.delivery(group), draft.last_seen_at(group)
    if delivery is None or last_seen_at is None:
        return f"{group} has never asked: no notice"
    if now >= last_seen_at + limits.quicken(limits.inactivity_timeout):
        return f"{group} has not asked for {format_duration(now - last_seen_at)}: no notice"
    if not delivery.enabled:
        return f"{group} was disabled (a fault does that) and has not asked since: no notice"
    return ""


def enable(draft: Draft, now: datetime, limits: OperatorLimits, group: str, by: str, enabling: str) -> None:
    """A group's first GET, or its first after a day of silence: the incarnation starts anew.

    Each event that is still live counts as one that has just been added, so that a client which
    takes 0 for "nothing yet" does not pass over it.
    """
    delivery = draft.delivery(group)
    if delivery is not None and delivery.enabled:
        return
    if not draft.fleet.members(group):  # it has left the fleet since it asked
        raise UnknownVM(name=group, hint="")
    draft.put_delivery(Delivery(group, True, enabling, len(draft.events_of(group))), now)
    draft.note(HistoryEntry(time=now, kind="enabled", by=by, group=group))


def disable_if_silent(draft: Draft, now: datetime, limits: OperatorLimits, group: str) -> None:
    """Stop telling a group that has not asked for a day."""
    delivery, last_seen_at = draft.delivery(group), draft.last_seen_at(group)
    if delivery is None or not delivery.enabled or last_seen_at is None:
        return
    if now >= last_seen_at + limits.quicken(limits.inactivity_timeout):
        draft.put_delivery(delivery._replace(enabled=False), last_seen_at)
        why = f"no request for {format_duration(now - last_seen_at)}"
        draft.note(HistoryEntry(time=now, kind="disabled", by=ENGINE, group=group, reason=why))


def disable(draft: Draft, now: datetime, limits: OperatorLimits, groups: Iterable[str], by: str, why: str) -> list[str]:
    """Stop telling those of the groups that are told, as after a day of silence. Says which they are."""
    disabled = []
    for group in groups:
        delivery = draft.delivery(group)
        if delivery is not None and delivery.enabled:
            draft.put_delivery(delivery._replace(enabled=False), draft.last_seen_at(group) or now)
            draft.note(HistoryEntry(time=now, kind="disabled", by=by, group=group, reason=why))
            disabled.append(group)
    return disabled
