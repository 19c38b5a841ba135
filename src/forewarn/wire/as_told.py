"""What a VM reads in a document: the very bytes it is answered with, read back."""

from __future__ import annotations

import json
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, NamedTuple

from forewarn.wire.document import render

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.event import Document
    from forewarn.wire.versions import ApiVersion


class Told(NamedTuple):
    """One event as it stands in a document."""

    id: str
    type: str
    status: str
    vms: tuple[str, ...]
    not_before: datetime | None
    """None once it has started."""
    description: str
    source: str
    duration: int


def read_back(document: Document, version: ApiVersion, kind: str) -> list[Told]:
    """All events of a document, as this version shows them; what it does not show is not there."""
    return [
        Told(
            id=event["EventId"].lower(),
            type=event["EventType"],
            status=event["EventStatus"],
            vms=tuple(event["Resources"]),
            not_before=parsedate_to_datetime(event["NotBefore"]) if event["NotBefore"] else None,
            description=event["Description"],
            source=event["EventSource"],
            duration=event["DurationInSeconds"],
        )
        for event in json.loads(render(document, version, kind))["Events"]
    ]
