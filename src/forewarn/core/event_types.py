"""EVENT_TYPES: one row per type of event a VM can be told of (contract, section 4)."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple


class EventType(NamedTuple):
    """What a type of event promises beforehand, and what the machine loses by it."""

    name: str
    least_notice: timedelta
    lost: str
    verb: str = ""
    """What the fabric is told to do, where the cause does not say."""
    starts: bool = True
    """Whether it ever starts: advice does not."""


EVENT_TYPES = {
    row.name: row
    for row in (
        EventType("Freeze", timedelta(minutes=15), "nothing: memory, open files and connections survive", "freeze"),
        EventType("Reboot", timedelta(minutes=15), "memory", "reboot"),
        EventType("Redeploy", timedelta(minutes=10), "memory and ephemeral disks", "redeploy"),
        EventType("Preempt", timedelta(seconds=30), "the machine, until there is room again", "deallocate"),
        EventType("Terminate", timedelta(minutes=5), "the machine", "delete"),
        EventType("SpotRebalanceRecommendation", timedelta(0), "nothing: it is advice", starts=False),
    )
}
