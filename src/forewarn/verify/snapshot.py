"""A document as the server returned it once."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import CheckSkipped

if TYPE_CHECKING:
    from forewarn.verify.exchange import HttpResponse


SCHEDULED = "Scheduled"
STARTED = "Started"


@dataclass(frozen=True)
class Snapshot:
    """A response and the document in it."""

    response: HttpResponse
    value: dict[str, Any]

    @property
    def incarnation(self) -> Any:
        return self.value.get("DocumentIncarnation")

    @property
    def number(self) -> int:
        """The incarnation as an integer. Skip the check if it is something else."""
        found = self.incarnation
        if type(found) is not int:
            raise CheckSkipped("DocumentIncarnation is not an integer; see document/incarnation-integer")
        return found

    @property
    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.value["Events"]
        return found

    @property
    def ids(self) -> set[str]:
        return {str(event.get("EventId")) for event in self.events}

    def event(self, event_id: str) -> dict[str, Any] | None:
        """Return the event with exactly this id."""
        return next((event for event in self.events if event.get("EventId") == event_id), None)

    def status(self, event_id: str) -> str | None:
        """Return the status of the event, or None if the document does not contain it."""
        event = self.event(event_id)
        return str(event.get("EventStatus")) if event is not None else None

    @property
    def now(self) -> datetime | None:
        """The server's time, from the header Date."""
        return parse_date(self.response.header("date"))


def read(response: HttpResponse) -> Snapshot:
    """Return the document in a response. Fail the check if there is none."""
    response.expect(response.status == 200, "200 and the document")
    try:
        value = json.loads(response.body)
    except (ValueError, RecursionError):
        value = None
    events = value.get("Events") if isinstance(value, dict) else None
    valid = isinstance(events, list) and all(isinstance(event, dict) for event in events)
    response.expect(valid, 'a JSON object whose "Events" is an array of objects')
    assert isinstance(value, dict)  # noqa: S101 - `valid` implies it
    return Snapshot(response, value)


def parse_date(text: object) -> datetime | None:
    """Parse an RFC 1123 or ISO 8601 date. Return None if it is neither.

    ISO 8601 is wrong on this wire. It is parsed, so that a wrong format is one failure and the other checks still run.
    """
    for parse in (parsedate_to_datetime, datetime.fromisoformat):
        with suppress(ValueError, OverflowError):  # OverflowError: an absurd time zone offset
            found = parse(str(text))
            return found if found.tzinfo else found.replace(tzinfo=UTC)
    return None


def format_date(time: datetime) -> str:
    """Format a time as RFC 1123, in English whatever the locale."""
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[time.weekday()]
    months = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
    return f"{day}, {time.day:02} {months[time.month - 1]} {time.year:04} {time:%H:%M:%S} GMT"
