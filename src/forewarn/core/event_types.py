"""EVENT_TYPES: one row for each event type (docs/explanation/contract.md, section 4)."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from typing import NamedTuple


class Verb(str, Enum):
    """Verbs of a fabric. Each is a method of `ports.Fabric`."""

    FREEZE = "freeze"
    MIGRATE = "migrate"
    REBOOT = "reboot"
    REDEPLOY = "redeploy"
    REIMAGE = "reimage"
    DEALLOCATE = "deallocate"
    START = "start"
    DELETE = "delete"

    __str__ = str.__str__


class EventType(NamedTuple):
    """Minimum notice of an event type, and what the VM loses."""

    name: str
    min_notice: timedelta
    lost: str
    verb: Verb | None = None
    """The fabric's verb, unless the cause names another."""
    starts: bool = True
    """False for a recommendation, which never starts."""


EVENT_TYPES = {
    row.name: row
    for row in (
        EventType(
            "Freeze",
            timedelta(minutes=15),
            "nothing: memory and open files survive. The CPU and the network may stop for seconds",
            Verb.FREEZE,
        ),
        EventType("Reboot", timedelta(minutes=15), "memory", Verb.REBOOT),
        EventType("Redeploy", timedelta(minutes=10), "memory and ephemeral disks", Verb.REDEPLOY),
        EventType("Preempt", timedelta(seconds=30), "the machine, until there is capacity again", Verb.DEALLOCATE),
        EventType("Terminate", timedelta(minutes=5), "the machine", Verb.DELETE),
        EventType("SpotRebalanceRecommendation", timedelta(0), "nothing: it is a recommendation", starts=False),
    )
}
