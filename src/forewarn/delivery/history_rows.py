"""A row of history as JSON, for the feed, webhooks and the control API; and what of it a tenant may see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self

from msgspec import Meta, Struct

from forewarn.core.durations import to_text

if TYPE_CHECKING:
    from forewarn.core.state import Entry


class EntryShape(Struct, forbid_unknown_fields=True):
    """A row of history."""

    sequence: Annotated[int, Meta(ge=0)]
    at: Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
    what: str
    by: str
    group: str | None
    event: str | None
    operation: str | None
    host: str | None
    vms: list[str]
    why: str | None

    @classmethod
    def of(cls, entry: Entry) -> Self:
        return cls(
            sequence=entry.sequence,
            at=to_text(entry.at),
            what=entry.what,
            by=entry.by,
            group=entry.group or None,
            event=entry.event or None,
            operation=entry.operation or None,
            host=entry.host or None,
            vms=list(entry.vms),
            why=entry.why or None,
        )


_REASONS_FOR_TENANTS = frozenset(("scheduled", "approved", "started", "enabled", "disabled", "policy changed"))
"""Rows whose reason names nobody else. Others may say which host is well again, or whose VM did not come back."""


def as_tenants_see(entry: Entry) -> Entry:
    """The row without what is not a tenant's to know: hosts, and what happened to others."""
    return entry._replace(host="", why=entry.why if entry.what in _REASONS_FOR_TENANTS else "")
