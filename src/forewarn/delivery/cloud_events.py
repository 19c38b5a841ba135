"""History rows as CloudEvents 1.0 in structured mode."""

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
    """Return the source of this service's events. Source and id together are globally unique."""
    return f"/forewarn/{installation}"


def cloud_event(entry: HistoryEntry, source: str) -> bytes:
    """Encode a history row as an event."""
    attributes = {
        "specversion": "1.0",
        "id": str(entry.sequence),
        "source": source,
        "type": f"forewarn.{entry.kind}",
        "subject": entry.event or entry.operation or entry.group,
        "time": to_text(entry.time),
        "datacontenttype": "application/json",
        # The extension requires text that sorts lexicographically.
        "sequence": f"{entry.sequence:016}",
        "partitionkey": entry.group,
    }
    return _encode({name: value for name, value in attributes.items() if value}, HistoryEntryShape.of(entry))


def webhook_test_event(event_id: str, source: str, webhook: str, now: datetime) -> bytes:
    """Encode an event that tests a webhook."""
    attributes = {
        "specversion": "1.0",
        "id": event_id,
        "source": source,
        "type": "forewarn.test",
        "subject": webhook,
        "time": to_text(now),
        "datacontenttype": "application/json",
    }
    return _encode(attributes, {"webhook": webhook})


def _encode(attributes: dict[str, str], data: Any) -> bytes:
    return msgspec.json.encode({**attributes, "data": data})


def signed_headers(secret: str, timestamp: str, body: bytes, attempt: int) -> dict[str, str]:
    """Return the headers of a delivery."""
    return {"Content-Type": CONTENT_TYPE, **signatures(secret, timestamp, body, attempt)}
