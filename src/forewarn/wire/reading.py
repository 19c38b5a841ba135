"""A document of scheduled events, read: of any version, from Azure, from here, or from a mock."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple

from forewarn.errors import UnreadableDocument

_ISO_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?")


class ToldEvent(NamedTuple):
    """An event as a VM is told of it. What its version does not have is None."""

    id: str
    """In upper case, as the real wire has it."""
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: datetime | None
    """None: it has started."""
    description: str | None
    source: str | None
    duration_seconds: int | None
    """-1: not known, or it has no meaning for this type."""
    raw: dict[str, Any]
    """All that was sent, also what nobody knows here."""

    def concerns(self, vm: str) -> bool:
        """Whether it is about this VM; the first preview put an underscore before names."""
        return vm in self.resources or f"_{vm}" in self.resources


class ToldDocument(NamedTuple):
    """What a VM is told."""

    incarnation: int
    events: tuple[ToldEvent, ...]

    def event(self, event_id: str) -> ToldEvent | None:
        """The event of that id, in any letter case."""
        wanted = event_id.upper()
        return next((event for event in self.events if event.id == wanted), None)


def read_document(body: bytes | str) -> ToldDocument:
    """What the body of an answer says, or an error that says what is wrong with it."""
    return _read_parsed(_parsed(body))


def read_events(text: bytes | str) -> tuple[ToldEvent, ...]:
    """The events of a file that somebody has written or kept: a whole document, or one event alone."""
    parsed = _parsed(text)
    if isinstance(parsed, dict) and "EventId" in parsed:
        return (read_event(parsed),)
    return _read_parsed(parsed).events


def _parsed(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocument(problem="it is not JSON" if body else "it is empty") from error


def _read_parsed(parsed: Any) -> ToldDocument:
    if not isinstance(parsed, dict):
        raise UnreadableDocument(problem="it is not an object")
    events = parsed.get("Events")
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise UnreadableDocument(problem="Events is not a list of objects")
    return ToldDocument(_incarnation(parsed.get("DocumentIncarnation")), tuple(map(read_event, events)))


def _incarnation(value: Any) -> int:
    """A number; old documents show it as text."""
    try:
        if isinstance(value, (bool, float)):
            raise TypeError
        return int(value)
    except (TypeError, ValueError):
        raise UnreadableDocument(problem=f"DocumentIncarnation is {value!r}, not a whole number") from None


def read_event(event: dict[str, Any]) -> ToldEvent:
    """One event of a document."""
    resources = event.get("Resources")
    if not isinstance(resources, list):
        raise UnreadableDocument(problem="Resources is not a list")
    return ToldEvent(
        id=_text(event, "EventId").upper(),
        type=_text(event, "EventType"),
        status=_text(event, "EventStatus"),
        resources=tuple(map(str, resources)),
        not_before=_moment(_text(event, "NotBefore")),
        description=_text_if_any(event.get("Description")),
        source=_text_if_any(event.get("EventSource")),
        duration_seconds=_number_if_any(event.get("DurationInSeconds")),
        raw=event,
    )


def _text(event: dict[str, Any], name: str) -> str:
    value = event.get(name)
    if not isinstance(value, str):
        raise UnreadableDocument(problem=f"an event has no {name} that is text")
    return value


def _text_if_any(value: Any) -> str | None:
    """What may be missing is not worth an error: if it is something else it counts as missing, and is in `raw`."""
    return value if isinstance(value, str) else None


def _number_if_any(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _moment(text: str) -> datetime | None:
    """RFC 1123, as the real wire has it; ISO 8601, as old pages and mocks do; nothing, once it has started."""
    if not text:
        return None
    try:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            moment = _iso_moment(text)
        return moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise UnreadableDocument(problem=f"NotBefore is {text!r}, which is no date") from None


def _iso_moment(text: str) -> datetime:
    """Python 3.10 knows neither the Z nor fractions that are not of three or six digits."""
    found = _ISO_MOMENT.fullmatch(text)
    if found is None:
        raise ValueError
    fraction, zone = found[2] or "", found[3] or ""
    offset = "+00:00" if zone in ("Z", "z") else zone
    return datetime.fromisoformat(f"{found[1]}.{fraction[:6]:0<6}{offset}")


def start_requests(*event_ids: str) -> bytes:
    """The body of an approval."""
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
