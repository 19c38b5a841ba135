"""Events for tests of the agent, in the format of the wire."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

from forewarn.wire.document_reader import ScheduledEvent, read_event

WRITTEN = {
    "EventId": "4CAEA225-A741-474D-A72E-428C86FCD853",
    "EventStatus": "Scheduled",
    "EventType": "Reboot",
    "ResourceType": "VirtualMachine",
    "Resources": ["web-0"],
    "NotBefore": "Thu, 22 Jul 2021 04:50:17 GMT",
}
"""An event as a user has it in a file: one that was really sent, of an older version."""
NOW = datetime(2031, 5, 4, 12, 0, 0, tzinfo=UTC)
ME = "web-0"


def make_event(
    event_id: str = "E1",
    kind: str = "Reboot",
    *,
    status: str = "Scheduled",
    resources: tuple[str, ...] = (ME,),
    notice: timedelta = timedelta(minutes=15),
    **fields: Any,
) -> ScheduledEvent:
    """Return an event of a document at NOW."""
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
