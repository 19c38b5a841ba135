"""EVENT_TYPES: one row per type of event a VM can be told of (contract, section 4)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class EventType(NamedTuple):
    """What a type of event promises beforehand, and what the machine loses by it."""

    name: str
    least_notice: timedelta
    lost: str


EVENT_TYPES = {
    row.name: row
    for row in (
        EventType("Freeze", timedelta(minutes=15), "nothing: memory, open files and connections survive"),
        EventType("Reboot", timedelta(minutes=15), "memory"),
        EventType("Redeploy", timedelta(minutes=10), "memory and ephemeral disks"),
        EventType("Preempt", timedelta(seconds=30), "the machine, until there is room again"),
        EventType("Terminate", timedelta(minutes=5), "the machine"),
        EventType("SpotRebalanceRecommendation", timedelta(0), "nothing: it is advice"),
    )
}
