"""History as CloudEvents 1.0 in structured mode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from forewarn.core.durations import to_text
from forewarn.delivery.history_rows import HistoryEntryShape
from forewarn.wire.signing import signatures

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.core.state import HistoryEntry


CONTENT_TYPE = "application/cloudevents+json; charset=utf-8"


def source_of(installation: str) -> str:
    """Who says it. Together with an event's id it names the event in all the world."""
    return f"/forewarn/{installation}"


def cloud_event(entry: HistoryEntry, source: str) -> bytes:
    """A row of history as an event."""
    attributes = {
        "specversion": "1.0",
        "id": str(entry.sequence),
        "source": source,
        "type": f"forewarn.{entry.kind}",
        "subject": entry.event or entry.operation or entry.group,
        "time": to_text(entry.time),
        "datacontenttype": "application/json",
        # The extension wants text that sorts as text.
        "sequence": f"{entry.sequence:016}",
        "partitionkey": entry.group,
    }
    return _written({name: value for name, value in attributes.items() if value}, HistoryEntryShape.of(entry))


def trial_event(trial_id: str, source: str, webhook: str, now: datetime) -> bytes:
    """An event about nothing, to see whether it arrives."""
    attributes = {
        "specversion": "1.0",
        "id": trial_id,
        "source": source,
        "type": "forewarn.test",
        "subject": webhook,
        "time": to_text(now),
        "datacontenttype": "application/json",
    }
    return _written(attributes, {"webhook": webhook})


def _written(attributes: dict[str, str], data: Any) -> bytes:
    return msgspec.json.encode({**attributes, "data": data})


def signed_headers(secret: str, timestamp: str, body: bytes, attempt: int) -> dict[str, str]:
    """What goes before the body."""
    return {"Content-Type": CONTENT_TYPE, **signatures(secret, timestamp, body, attempt)}
