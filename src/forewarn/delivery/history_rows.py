"""A history entry as JSON, for the feed, webhooks and the control API; and the part of it that a tenant may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Meta, Struct

from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from forewarn.core.state import HistoryEntry


class HistoryEntryShape(Struct, forbid_unknown_fields=True):
    """A row of history."""

    sequence: Annotated[int, Meta(ge=0)]
    time: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    kind: str
    by: str
    group: str | None
    event: str | None
    operation: str | None
    host: str | None
    vms: list[str]
    reason: str | None

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
            reason=entry.reason or None,
        )


_REASONS_FOR_TENANTS = frozenset(("scheduled", "approved", "started", "enabled", "disabled", "policy-changed"))
"""Kinds whose reason a tenant may see. The reason of other kinds can name a host, or a VM of another group."""


def as_tenants_see(entry: HistoryEntry) -> HistoryEntry:
    """Return the entry without its host, and without a reason that may concern other groups."""
    return entry._replace(host="", reason=entry.reason if entry.kind in _REASONS_FOR_TENANTS else "")
