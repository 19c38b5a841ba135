"""Events for tests of the agent, as the wire has them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from forewarn.wire.reading import ToldEvent, read_event

NOW = datetime(2031, 5, 4, 12, 0, 0, tzinfo=UTC)
ME = "web-0"


def told(
    event_id: str = "E1",
    kind: str = "Reboot",
    *,
    status: str = "Scheduled",
    resources: tuple[str, ...] = (ME,),
    notice: timedelta = timedelta(minutes=15),
    **fields: Any,
) -> ToldEvent:
    """An event that is told at NOW."""
    moment = format_datetime(NOW + notice, usegmt=True) if status == "Scheduled" else ""
    return read_event(
        {
            "EventId": event_id,
            "EventStatus": status,
            "EventType": kind,
            "ResourceType": "VirtualMachine",
            "Resources": list(resources),
            "NotBefore": moment,
            "Description": "",
            "EventSource": "Platform",
            "DurationInSeconds": -1,
            **fields,
        }
    )
