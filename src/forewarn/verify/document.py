"""Section 2 of the contract: the document and what stands in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Departure, Mark, Need, NotTold, Rules, Skip
from forewarn.verify.observations import MEMBERS, documents, replies, with_events
from forewarn.verify.session import TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, moment, read, rfc1123

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot

rules = Rules(2, "document")

_GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}")
_RFC_1123 = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_TEXT_OR_BLANK = re.compile(rb'"(?:\\.|[^"\\])*"|(\s)')
_RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
_REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."


# Most of these are about every document and every event that was seen, whatever it was looked at for: they come late.


def _events(session: Session) -> list[tuple[Snapshot, dict[str, Any]]]:
    return [(snapshot, event) for _, snapshot in with_events(session) for event in snapshot.events]


def _each(session: Session, holds: Callable[[dict[str, Any]], bool], member: str, right: str) -> None:
    """Hold every event to a rule about one of its members."""
    for version, snapshot in with_events(session):
        for event in snapshot.events if member in MEMBERS[version] else ():
            snapshot.reply.must(holds(event), right, came=f"{member}: {event.get(member, 'missing')!r} in {event}")


@rules(
    "compact-one-line",
    Mark.OBSERVED,
    "The document is compact JSON on one line, without a newline behind it.",
    late=True,
)
def compact(session: Session) -> None:
    for _, snapshot in documents(session):
        blanks = any(found[1] for found in _TEXT_OR_BLANK.finditer(snapshot.reply.body))
        snapshot.reply.must(not blanks, "no blank and no line's end outside of strings", came=repr(snapshot.reply.body))


@rules("content-type", Mark.OBSERVED, "Content-Type is application/json; charset=utf-8.", late=True)
def content_type(session: Session) -> None:
    for _, reply in replies(session):
        said = (reply.header("content-type") or "").lower().replace(" ", "")
        reply.must(said == "application/json;charset=utf-8", "Content-Type: application/json; charset=utf-8")


@rules(
    "top-level",
    Mark.OBSERVED,
    "At the top stand DocumentIncarnation and Events, in this order, and nothing else.",
    late=True,
)
def top_level(session: Session) -> None:
    for _, snapshot in documents(session):
        snapshot.reply.must(
            list(snapshot.value) == ["DocumentIncarnation", "Events"], "DocumentIncarnation, then Events"
        )


@rules("incarnation-integer", Mark.OBSERVED, "DocumentIncarnation is a JSON integer, 0 or more.", late=True)
def incarnation_integer(session: Session) -> None:
    for _, snapshot in documents(session):
        found = snapshot.incarnation
        snapshot.reply.must(type(found) is int and found >= 0, "a whole number without quotes", came=repr(found))


@rules("events-array", Mark.DOCUMENTED, "Events is always an array, empty when there are none.", late=True)
def events_array(session: Session) -> None:
    for _, reply in replies(session):
        read(reply)


@rules(
    "exact-members",
    Mark.OBSERVED,
    "An event has exactly the members of its version: a client builds a record of them.",
    late=True,
)
def exact_members(session: Session) -> None:
    for version, snapshot in with_events(session):
        right = f"at {version} exactly {', '.join(MEMBERS[version])}"
        for event in snapshot.events:
            snapshot.reply.must(set(event) == set(MEMBERS[version]), right, came=f"members {', '.join(event)}")


@rules(
    "member-order",
    Mark.OBSERVED,
    "The members of an event stand in one order, that of every published sample.",
    late=True,
)
def member_order(session: Session) -> None:
    for version, snapshot in with_events(session):
        order = MEMBERS[version]
        for event in snapshot.events:
            known = [name for name in event if name in order]
            right = f"the order {', '.join(order)}"
            snapshot.reply.must(known == [name for name in order if name in event], right, came=", ".join(event))


@rules("event-id-guid", Mark.OBSERVED, "EventId is a GUID in upper case.", late=True)
def event_id_guid(session: Session) -> None:
    _each(session, lambda event: bool(_GUID.fullmatch(str(event.get("EventId")))), "EventId", "a GUID in upper case")


@rules("event-status", Mark.DOCUMENTED, "EventStatus is Scheduled or Started; there is no Completed.", late=True)
def event_status(session: Session) -> None:
    right = "Scheduled or Started"
    _each(session, lambda event: event.get("EventStatus") in (SCHEDULED, STARTED), "EventStatus", right)


@rules("resource-type", Mark.DOCUMENTED, "ResourceType is VirtualMachine.", late=True)
def resource_type(session: Session) -> None:
    _each(session, lambda event: event.get("ResourceType") == "VirtualMachine", "ResourceType", "VirtualMachine")


def _names(event: dict[str, Any]) -> bool:
    found = event.get("Resources")
    return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)


@rules("resources", Mark.DOCUMENTED, "Resources is an array with the name of at least one machine.", late=True)
def resources(session: Session) -> None:
    _each(session, _names, "Resources", "an array of one name or more")


@rules(
    "resources-name-the-vm",
    Mark.DOCUMENTED,
    "A VM finds itself in Resources by the name that /metadata/instance/compute/name tells it.",
    Need.SCHEDULE,
)
def resources_name_the_vm(session: Session) -> None:
    reasons = []
    for event_type in ("Reboot", "Redeploy", "Freeze"):
        try:
            _, snapshot, event_id = session.sample(event_type)
        except Skip as skip:
            reasons.append(str(skip))
            continue
        event = snapshot.event(event_id) or {}
        snapshot.reply.must(session.vm in event.get("Resources", []), f"Resources with {session.vm!r}", came=str(event))
    if len(reasons) == 3:
        raise Skip("; ".join(reasons))


@rules(
    "not-before-form",
    Mark.OBSERVED,
    "NotBefore is a date of RFC 1123 in GMT, to the second, while Scheduled.",
    late=True,
)
def not_before_form(session: Session) -> None:
    def holds(event: dict[str, Any]) -> bool:
        found = str(event.get("NotBefore"))
        known = _RFC_1123.fullmatch(found) and moment(found)
        return event.get("EventStatus") != SCHEDULED or bool(known)

    _each(session, holds, "NotBefore", "a date like Mon, 19 Sep 2016 18:29:47 GMT")


@rules("not-before-weekday", Mark.OBSERVED, "The weekday of NotBefore is right: some parsers check it.", late=True)
def not_before_weekday(session: Session) -> None:
    for snapshot, event in _events(session):
        found = str(event.get("NotBefore"))
        meant = moment(found) if _RFC_1123.fullmatch(found) else None
        if meant is not None:
            snapshot.reply.must(rfc1123(meant) == found, rfc1123(meant), came=found)


@rules(
    "not-before-empty-once-started",
    Mark.DOCUMENTED,
    "Once Started, NotBefore is still there and empty.",
    Need.SCHEDULE,
    late=True,
)
def not_before_empty(session: Session) -> None:
    started = [(snapshot, event) for snapshot, event in _events(session) if event.get("EventStatus") == STARTED]
    if not started:
        raise Skip("no event has been seen Started; see life/starts-when-approved")
    for snapshot, event in started:
        snapshot.reply.must(event.get("NotBefore") == "", '"NotBefore":""', came=str(event))


@rules("description", Mark.DOCUMENTED, "Description is text; it may be empty.", late=True)
def description(session: Session) -> None:
    _each(session, lambda event: isinstance(event.get("Description"), str), "Description", "text")


@rules("event-source", Mark.DOCUMENTED, "EventSource is Platform or User.", late=True)
def event_source(session: Session) -> None:
    _each(session, lambda event: event.get("EventSource") in ("Platform", "User"), "EventSource", "Platform or User")


@rules(
    "duration",
    Mark.DOCUMENTED,
    "DurationInSeconds is an integer: the interruption, 0 for none, -1 for unknown.",
    late=True,
)
def duration(session: Session) -> None:
    def holds(event: dict[str, Any]) -> bool:
        found = event.get("DurationInSeconds")
        return type(found) is int and found >= -1

    _each(session, holds, "DurationInSeconds", "a whole number, -1 or more")


@rules(
    "several-at-once",
    Mark.DOCUMENTED,
    "Events that are live at the same time are all in the document, each with an id of its own.",
    Need.SCHEDULE,
)
def several(session: Session) -> None:
    first = session.waiting()
    second = ""
    try:
        _, snapshot, second = session.schedule_any(*TYPES)
    except NotTold:
        snapshot = session.look()  # with an id that is known already it does not look new
    right = "a different EventId for each event"
    snapshot.reply.must(len(snapshot.ids) == len(snapshot.events), right)
    if not second:
        raise Skip("the second event is not in the document; see life/told")
    snapshot.reply.must(snapshot.event(first) is not None, f"both events, {first} and {second}")


def _words(session: Session, event_type: str, right: dict[str, Any], *descriptions: str) -> None:
    _, snapshot, event_id = session.sample(event_type)
    event = snapshot.event(event_id) or {}
    if right["EventSource"] == "User" and event.get("EventSource") != "User":
        raise Skip(f"the command's {event_type} is not one that a user asked for")
    for member, value in right.items():
        snapshot.reply.must(event.get(member) == value, f"{member} {value!r}", came=f"{member} {event.get(member)!r}")
    words = " or ".join(repr(text) for text in descriptions)
    found = event.get("Description")
    snapshot.reply.must(found in descriptions, f"Description {words}", came=f"Description {found!r}")


@rules(
    "words-of-a-restart",
    Mark.OBSERVED,
    "A user's restart: source User, its own description or none, duration -1.",
    Need.SCHEDULE,
)
def words_of_a_restart(session: Session) -> None:
    _words(session, "Reboot", {"EventSource": "User", "DurationInSeconds": -1}, _RESTARTED, "")


@rules(
    "words-of-a-redeploy",
    Mark.OBSERVED,
    "A user's redeploy: source User, its own description or none, duration -1.",
    Need.SCHEDULE,
)
def words_of_a_redeploy(session: Session) -> None:
    _words(session, "Redeploy", {"EventSource": "User", "DurationInSeconds": -1}, _REDEPLOYED, "")


@rules(
    "words-of-a-preempt", Mark.OBSERVED, "A Preempt has an empty description, and the source Platform.", Need.SCHEDULE
)
def words_of_a_preempt(session: Session) -> None:
    _words(session, "Preempt", {"EventSource": "Platform"}, "")


@rules("words-of-a-terminate", Mark.ASSUMED, "A Terminate has an empty description, and duration -1.", Need.SCHEDULE)
def words_of_a_terminate(session: Session) -> None:
    _, snapshot, event_id = session.sample("Terminate")
    source = (snapshot.event(event_id) or {}).get("EventSource")
    _words(session, "Terminate", {"EventSource": source, "DurationInSeconds": -1}, "")


@rules(
    "freeze-is-short", Mark.DOCUMENTED, "A Freeze says how many seconds the machine is paused, or -1.", Need.SCHEDULE
)
def freeze_is_short(session: Session) -> None:
    _, snapshot, event_id = session.sample("Freeze")
    event = snapshot.event(event_id)
    if event is None:
        raise Departure("the Freeze in the document", sent=snapshot.reply.request.shown, came=snapshot.reply.shown)
    seconds = event.get("DurationInSeconds")
    snapshot.reply.must(type(seconds) is int and -1 <= seconds < 60, "seconds, not minutes", came=str(event))
