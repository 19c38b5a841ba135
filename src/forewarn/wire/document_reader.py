"""Reads documents of scheduled events: any api-version, from Azure, Forewarn or a mock."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.errors import UnreadableDocument

if TYPE_CHECKING:
    from collections.abc import Iterable


_ISO_TIME = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?")
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
_MAX_SECONDS = 10**9


class ScheduledEvent(NamedTuple):
    """An event as a VM receives it. Fields that its api-version does not have are None."""

    id: str
    """As received: an approval must repeat it exactly. Azure writes upper case, mocks write lower case. Use `key` to
    compare ids, and to show them."""
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: datetime | None
    """None: the event has started, or its NotBefore cannot be read."""
    description: str | None
    source: str | None
    duration_seconds: int | None
    """-1: unknown, or without meaning for this type."""
    raw: dict[str, Any]
    """The event exactly as received, unknown fields included."""

    @property
    def key(self) -> str:
        """The id in lower case, to compare it and to show it. Letter case has no meaning."""
        return id_key(self.id)

    @property
    def received_key(self) -> str:
        """The id in lower case, as the endpoint sends it now. Handlers get an event with its first id."""
        return id_key(self.raw["EventId"])

    def concerns(self, vm: str) -> bool:
        """Whether the event names this VM. The first preview version put an underscore before names."""
        return vm in self.resources or f"_{vm}" in self.resources


class EventsDocument(NamedTuple):
    """The document that a VM receives."""

    incarnation: int
    events: tuple[ScheduledEvent, ...]

    def event(self, event_id: str) -> ScheduledEvent | None:
        """Return the event with this id, in any letter case."""
        return next((event for event in self.events if event.key == id_key(event_id)), None)


def id_key(event_id: str) -> str:
    """Return an event id in lower case: as the control API, ARM and Event Grid write it."""
    return event_id.lower()


class LenientReadResult(NamedTuple):
    """The readable part of a document."""

    document: EventsDocument
    problems: tuple[str, ...]
    """What could not be read."""


def read_document(body: bytes | str) -> EventsDocument:
    """Read a document, or raise an error that says what is wrong with it."""
    return _read_parsed(_parsed(body))


def read_document_leniently(body: bytes | str, known: Iterable[ScheduledEvent] = ()) -> LenientReadResult:
    """Read a document without failing on single events: every readable event is returned.

    An unreadable event that is in `known` is returned in its known form: it is not gone.
    """
    parsed = _parsed(body)
    before = {event.key: event for event in known}
    events, problems = [], []
    for value in _events_of(parsed):
        event, problem = read_event_leniently(value)
        if event is None and isinstance(value, dict):
            event = before.get(id_key(str(value.get("EventId"))))
        if event is not None:
            events.append(event)
        if problem:
            problems.append(problem)
    return LenientReadResult(
        EventsDocument(_incarnation(parsed.get("DocumentIncarnation")), tuple(events)), tuple(problems)
    )


def read_event_leniently(value: object) -> tuple[ScheduledEvent | None, str]:
    """Read an event as far as possible; return it with the problem.

    An event without a readable NotBefore is still returned.
    """
    if not isinstance(value, dict):
        return None, "an event is not an object"
    whole = value if value.get("Resources") is not None else {**value, "Resources": []}
    event, problem = _read_event(whole)
    if event is None:
        # Only NotBefore may be invalid.
        event, other_problem = _read_event({**whole, "NotBefore": ""})
        problem = other_problem or ("" if event is not None and _needs_no_date(event) else problem)
    return None if event is None else event._replace(raw=value), problem


def _needs_no_date(event: ScheduledEvent) -> bool:
    """A started event has no NotBefore any more. That of an advisory one is no deadline."""
    return event.status.casefold() in ("started", "advisory")


def _read_event(event: dict[str, Any]) -> tuple[ScheduledEvent | None, str]:
    try:
        return read_event(event), ""
    except UnreadableDocument as error:
        found = event.get("EventId")
        return None, f"event {id_key(found) if isinstance(found, str) else found!r}: {error.fields['problem']}"


def read_events(text: bytes | str) -> tuple[ScheduledEvent, ...]:
    """Read the events of a file: a whole document, or a single event."""
    parsed = _parsed(text)
    if isinstance(parsed, dict) and "EventId" in parsed:
        return (read_event(parsed),)
    return _read_parsed(parsed).events


def _parsed(body: bytes | str) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableDocument(problem="it is not JSON" if body else "it is empty") from error


def _read_parsed(parsed: Any) -> EventsDocument:
    events = _events_of(parsed)
    if not all(isinstance(event, dict) for event in events):
        raise UnreadableDocument(problem="Events is not a list of objects")
    return EventsDocument(_incarnation(parsed.get("DocumentIncarnation")), tuple(map(read_event, events)))


def _events_of(parsed: Any) -> list[Any]:
    if not isinstance(parsed, dict):
        raise UnreadableDocument(problem="it is not an object")
    events = parsed.get("Events")
    if not isinstance(events, list):
        raise UnreadableDocument(problem="Events is not a list of objects")
    return events


def _incarnation(value: Any) -> int:
    """Read the incarnation. Old versions write it as text."""
    try:
        if isinstance(value, (bool, float)):
            raise TypeError
        return int(value)
    except (TypeError, ValueError):
        raise UnreadableDocument(problem=f"DocumentIncarnation is {value!r}, not a whole number") from None


def read_event(event: dict[str, Any]) -> ScheduledEvent:
    """Read one event of a document."""
    resources = event.get("Resources")
    if not isinstance(resources, list):
        raise UnreadableDocument(problem="Resources is not a list")
    return ScheduledEvent(
        id=_text(event, "EventId", min_length=1),
        type=_text(event, "EventType"),
        status=_text(event, "EventStatus"),
        resources=tuple(map(str, resources)),
        not_before=_read_time(_text(event, "NotBefore")),
        description=_text_if_any(event.get("Description")),
        source=_text_if_any(event.get("EventSource")),
        duration_seconds=_number_if_any(event.get("DurationInSeconds")),
        raw=event,
    )


def _text(event: dict[str, Any], name: str, min_length: int = 0) -> str:
    value = event.get(name)
    if not isinstance(value, str) or len(value) < min_length:
        raise UnreadableDocument(problem=f"an event has no text in {name}")
    return value


def _text_if_any(value: Any) -> str | None:
    """Return an optional text. A value of another type counts as missing; it is still in `raw`."""
    return value if isinstance(value, str) else None


def _number_if_any(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MAX_SECONDS
    return value if is_number else None


def _read_time(text: str) -> datetime | None:
    """Read NotBefore: RFC 1123 as in Azure, ISO 8601 as in old pages and mocks; None once the event has started."""
    if not text:
        return None
    try:
        try:
            time = parsedate_to_datetime(text)
        except ValueError:
            time = _read_iso_time(text)
        time = time.astimezone(timezone.utc) if time.tzinfo else time.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise UnreadableDocument(problem=f"NotBefore is {text!r}, which is not a date") from None
    if not _FIRST_YEAR <= time.year <= _LAST_YEAR:
        # A placeholder for "no date". Arithmetic with it would overflow.
        raise UnreadableDocument(problem=f"NotBefore is {text!r}, which is not a valid date of an event")
    return time


def _read_iso_time(text: str) -> datetime:
    """Read ISO 8601. Python 3.10 knows neither the Z nor fractions other than three or six digits."""
    found = _ISO_TIME.fullmatch(text)
    if found is None:
        raise ValueError
    fraction, zone = found[2] or "", found[3] or ""
    offset = "+00:00" if zone in ("Z", "z") else zone
    return datetime.fromisoformat(f"{found[1]}.{fraction[:6]:0<6}{offset}")


def start_requests(*event_ids: str) -> bytes:
    """Return the body of an approval."""
    return json.dumps({"StartRequests": [{"EventId": event_id} for event_id in event_ids]}).encode()
