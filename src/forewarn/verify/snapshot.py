"""A document as it was at one moment."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Skip

if TYPE_CHECKING:
    from forewarn.verify.exchange import Reply


SCHEDULED = "Scheduled"
STARTED = "Started"


@dataclass(frozen=True)
class Snapshot:
    """An answer that is a document."""

    reply: Reply
    value: dict[str, Any]

    @property
    def incarnation(self) -> Any:
        return self.value.get("DocumentIncarnation")

    @property
    def number(self) -> int:
        """The incarnation, where it can be counted with."""
        found = self.incarnation
        if type(found) is not int:
            raise Skip("DocumentIncarnation is no number; see document/incarnation-integer")
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.value["Events"]
        return found

    @property
    def ids(self) -> set[str]:
        return {str(event.get("EventId")) for event in self.events}

    def event(self, event_id: str) -> dict[str, Any] | None:
        """The event with exactly this id."""
        return next((event for event in self.events if event.get("EventId") == event_id), None)

    def status(self, event_id: str) -> str | None:
        """The status of the event; None if it is not in the document."""
        event = self.event(event_id)
        return str(event.get("EventStatus")) if event is not None else None

    @property
    def now(self) -> datetime | None:
        """The server's time."""
        return moment(self.reply.header("date"))


def read(reply: Reply) -> Snapshot:
    """The document in an answer."""
    reply.must(reply.status == 200, "200 and the document")
    try:
        value = json.loads(reply.body)
    except (ValueError, RecursionError):
        value = None
    events = value.get("Events") if isinstance(value, dict) else None
    fine = isinstance(events, list) and all(isinstance(event, dict) for event in events)
    reply.must(fine, 'a JSON object with an array of objects as "Events"')
    assert isinstance(value, dict)  # noqa: S101 - judged above
    return Snapshot(reply, value)


def moment(text: object) -> datetime | None:
    """A date as HTTP and the wire write it, if it can be read at all."""
    try:
        found = parsedate_to_datetime(str(text))
    except (ValueError, OverflowError):  # an offset may be too large for any clock
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def rfc1123(found: datetime) -> str:
    """A moment as RFC 1123 has it, in English whatever the language of the machine."""
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[found.weekday()]
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return f"{day}, {found.day:02} {months[found.month - 1]} {found.year:04} {found:%H:%M:%S} GMT"
