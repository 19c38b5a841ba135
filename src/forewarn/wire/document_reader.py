"""A document of scheduled events, read: of any version, from Azure, from here, or from a mock."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from forewarn.errors import UnreadableDocument

if TYPE_CHECKING:
    from collections.abc import Iterable


_ISO_MOMENT = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?")
_FIRST_YEAR, _LAST_YEAR = 1970, 9000
_MOST_SECONDS = 10**9


class ToldEvent(NamedTuple):
    """An event as a VM is told of it. What its version does not have is None."""

    id: str
    """In upper case, as the real wire has it."""
    type: str
    status: str
    resources: tuple[str, ...]
    not_before: datetime | None
    """None: it has started; or it was told in a way that nobody can read."""
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


class Reading(NamedTuple):
    """What could be read of a document."""

    document: ToldDocument
    problems: tuple[str, ...]
    """What could not, a sentence's part for each thing."""


def read_document(body: bytes | str) -> ToldDocument:
    """What the body of an answer says, or an error that says what is wrong with it."""
    return _read_parsed(_parsed(body))


def read_what_can_be(body: bytes | str, known: Iterable[ToldEvent] = ()) -> Reading:
    """The same for one who must not miss an event because another is told badly: each that can be read counts.

    One of the `known` that is told now, but cannot be read, counts as it was known: it is not gone.
    """
    parsed = _parsed(body)
    before = {event.id: event for event in known}
    events, problems = [], []
    for told in _events_of(parsed):
        event, problem = read_event_if_possible(told)
        if event is None and isinstance(told, dict):
            event = before.get(str(told.get("EventId")).upper())
        if event is not None:
            events.append(event)
        if problem:
            problems.append(problem)
    return Reading(ToldDocument(_incarnation(parsed.get("DocumentIncarnation")), tuple(events)), tuple(problems))


def read_event_if_possible(told: object) -> tuple[ToldEvent | None, str]:
    """The event, as far as it can be read, and what is wrong with it.

    That something is coming is worth knowing, also when nobody can say at which moment.
    """
    if not isinstance(told, dict):
        return None, "an event is not an object"
    whole = told if told.get("Resources") is not None else {**told, "Resources": []}
    event, problem = _read_or_say(whole)
    if event is None:
        # It may be its moment alone, and what has started needs none.
        event, other_problem = _read_or_say({**whole, "NotBefore": ""})
        problem = other_problem or ("" if event is not None and event.status.casefold() == "started" else problem)
    return None if event is None else event._replace(raw=told), problem


def _read_or_say(event: dict[str, Any]) -> tuple[ToldEvent | None, str]:
    try:
        return read_event(event), ""
    except UnreadableDocument as error:
        return None, f"event {event.get('EventId')!r}: {error.fields['problem']}"


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
    events = _events_of(parsed)
    if not all(isinstance(event, dict) for event in events):
        raise UnreadableDocument(problem="Events is not a list of objects")
    return ToldDocument(_incarnation(parsed.get("DocumentIncarnation")), tuple(map(read_event, events)))


def _events_of(parsed: Any) -> list[Any]:
    if not isinstance(parsed, dict):
        raise UnreadableDocument(problem="it is not an object")
    events = parsed.get("Events")
    if not isinstance(events, list):
        raise UnreadableDocument(problem="Events is not a list of objects")
    return events


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
        id=_text(event, "EventId", least=1).upper(),
        type=_text(event, "EventType"),
        status=_text(event, "EventStatus"),
        resources=tuple(map(str, resources)),
        not_before=_moment(_text(event, "NotBefore")),
        description=_text_if_any(event.get("Description")),
        source=_text_if_any(event.get("EventSource")),
        duration_seconds=_number_if_any(event.get("DurationInSeconds")),
        raw=event,
    )


def _text(event: dict[str, Any], name: str, least: int = 0) -> str:
    value = event.get(name)
    if not isinstance(value, str) or len(value) < least:
        raise UnreadableDocument(problem=f"an event has no {name} that is text")
    return value


def _text_if_any(value: Any) -> str | None:
    """What may be missing is not worth an error: if it is something else it counts as missing, and is in `raw`."""
    return value if isinstance(value, str) else None


def _number_if_any(value: Any) -> int | None:
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _MOST_SECONDS
    return value if is_number else None


def _moment(text: str) -> datetime | None:
    """RFC 1123, as the real wire has it; ISO 8601, as old pages and mocks do; nothing, once it has started."""
    if not text:
        return None
    try:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            moment = _iso_moment(text)
        moment = moment.astimezone(timezone.utc) if moment.tzinfo else moment.replace(tzinfo=timezone.utc)
    except (ValueError, OverflowError):
        raise UnreadableDocument(problem=f"NotBefore is {text!r}, which is no date") from None
    if not _FIRST_YEAR <= moment.year <= _LAST_YEAR:
        # Somebody's word for "none": to count from it would lead out of all time.
        raise UnreadableDocument(problem=f"NotBefore is {text!r}, which is no date of an event")
    return moment


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
