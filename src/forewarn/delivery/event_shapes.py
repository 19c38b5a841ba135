"""An event, and what it waits for, as JSON: for the control API, the feed and webhooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

from msgspec import Meta, Struct
from msgspec.structs import asdict

from forewarn.core.durations import seconds, to_text, to_text_if_any
from forewarn.core.event_types import EVENT_TYPES
from forewarn.core.events import EventStatus
from forewarn.core.operations import CAUSES

if TYPE_CHECKING:
    from forewarn.core.events import Event
    from forewarn.core.state import HistoryEntry
    from forewarn.core.waits import Wait


class Shape(Struct, forbid_unknown_fields=True):
    """A JSON object that Forewarn sends."""


def choice(*values: str) -> Meta:
    return Meta(extra_json_schema={"enum": list(values)})


Time: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]


class EventShape(Shape):
    """An event with its state and times."""

    id: str
    operation: str
    group: str
    scope: Annotated[
        str, Meta(description="The VMs that see it: the group, a placement group of a scale set, or a VM.")
    ]
    type: Annotated[str, choice(*EVENT_TYPES)]
    status: Annotated[str, choice(*(status.lower() for status in EventStatus))]
    vms: list[str]
    not_before: Time
    description: str
    source: Annotated[str, choice("platform", "user")]
    duration_seconds: float | None
    created_at: Time
    approved_at: Time | None
    approved_by: str | None
    started_at: Time | None
    ended_at: Time | None

    @classmethod
    def of(cls, event: Event) -> Self:
        return cls(
            id=event.id,
            operation=event.operation,
            group=event.group,
            scope=event.scope,
            type=event.type,
            status=event.status.lower(),
            vms=list(event.resources),
            not_before=to_text(event.not_before),
            description=event.description,
            source=event.source.lower(),
            duration_seconds=seconds(event.duration),
            created_at=to_text(event.created_at),
            approved_at=to_text_if_any(event.approved_at),
            approved_by=event.approved_by,
            started_at=to_text_if_any(event.started_at),
            ended_at=to_text_if_any(event.ended_at),
        )


class WaitShape(Shape):
    """A condition that an operation or a rollout waits for, or has waited for."""

    kind: str
    done: bool
    group: str | None
    scope: str | None
    by: str | None
    time: Time | None
    until: Time | None
    text: str | None

    @classmethod
    def of(cls, wait: Wait) -> Self:
        return cls(
            kind=wait.kind,
            done=wait.done,
            group=wait.group or None,
            scope=wait.scope or None,
            by=wait.by or None,
            time=to_text_if_any(wait.time),
            until=to_text_if_any(wait.until),
            text=wait.text or None,
        )


class HistorySnapshotShape(EventShape):
    """An event as it was when a row of history was written."""

    cause: Annotated[str, choice(*CAUSES)]
    waits: list[WaitShape]
    """What its start still waited for."""


def snapshot_of(entry: HistoryEntry) -> HistorySnapshotShape | None:
    """Return the event of a history row, as it was when the row was written."""
    event = entry.event_then
    if event is None:
        return None
    waits = list(map(WaitShape.of, entry.waits))
    return HistorySnapshotShape(**asdict(EventShape.of(event)), cause=entry.cause, waits=waits)
