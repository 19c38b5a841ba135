"""A history entry as JSON, for the feed, webhooks and the control API; and the part of it that a tenant may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Meta

from forewarn.core.durations import to_text
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.operations import CAUSES
from forewarn.core.waits import Wait
from forewarn.delivery.event_shapes import HistorySnapshotShape, Shape, Time, choice, snapshot_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from forewarn.core.state import HistoryEntry


class HistoryEntryShape(Shape):
    """A row of history."""

    sequence: Annotated[int, Meta(ge=0)]
    time: Time
    kind: str
    by: str
    group: str | None
    event: str | None
    operation: str | None
    host: str | None
    vms: list[str]
    type: Annotated[str, choice(*EVENT_TYPES)] | None
    cause: Annotated[str, choice(*CAUSES)] | None
    reason: str | None
    snapshot: HistorySnapshotShape | None

    @classmethod
    def of(cls, entry: HistoryEntry) -> Self:
        return cls(
            sequence=entry.sequence,
            time=to_text(entry.time),
            kind=entry.kind,
            by=entry.by,
            group=entry.group or None,
            event=entry.event or None,
            operation=entry.operation or None,
            host=entry.host or None,
            vms=list(entry.vms),
            type=entry.type or None,
            cause=entry.cause or None,
            reason=entry.reason or None,
            snapshot=snapshot_of(entry),
        )


_REASONS_FOR_TENANTS = frozenset(("scheduled", "approved", "started", "enabled", "disabled", "policy-changed"))
"""Kinds whose reason a tenant may see. The reason of other kinds can name a host, or a VM of another group."""


def as_tenants_see(entry: HistoryEntry) -> HistoryEntry:
    """Return the entry without its host, and without a reason or a wait that may concern other groups."""
    return entry._replace(
        host="",
        reason=entry.reason if entry.kind in _REASONS_FOR_TENANTS else "",
        waits=waits_as_tenants_see(entry.waits, entry.group),
    )


def waits_as_tenants_see(waits: Iterable[Wait], group: str) -> tuple[Wait, ...]:
    """Return the waits without what they say about other groups."""
    return tuple(dict.fromkeys(wait if wait.group == group else _generic(wait) for wait in waits))


def _generic(wait: Wait) -> Wait:
    """Return a wait without what it says about other groups."""
    return Wait(wait.kind, wait.done, until=wait.until)
