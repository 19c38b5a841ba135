"""Section 2 of the contract: the document and what stands in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Departure, Mark, Need, NotTold, Rules, Skip
from forewarn.verify.gallery import MEMBERS, documents, replies, told
from forewarn.verify.sight import SCHEDULED, STARTED, moment, read, rfc1123
from forewarn.verify.stage import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.sight import Sight
    from forewarn.verify.stage import Stage

rules = Rules(2, "document")

_GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}")
_RFC_1123 = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_TEXT_OR_BLANK = re.compile(rb'"(?:\\.|[^"\\])*"|(\s)')
_RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
_REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."


# Most of these are about every document and every event that was seen, whatever it was looked at for: they come late.


def _events(stage: Stage) -> list[tuple[Sight, dict[str, Any]]]:
    return [(sight, event) for _, sight in told(stage) for event in sight.events]


def _each(stage: Stage, holds: Callable[[dict[str, Any]], bool], member: str, right: str) -> None:
    """Hold every event to a rule about one of its members."""
    for version, sight in told(stage):
        for event in sight.events if member in MEMBERS[version] else ():
            sight.reply.must(holds(event), right, came=f"{member}: {event.get(member, 'missing')!r} in {event}")


@rules(
    "compact-one-line",
    Mark.OBSERVED,
    "The document is compact JSON on one line, without a newline behind it.",
    late=True,
)
def compact(stage: Stage) -> None:
    for _, sight in documents(stage):
        blanks = any(found[1] for found in _TEXT_OR_BLANK.finditer(sight.reply.body))
        sight.reply.must(not blanks, "no blank and no line's end outside of strings", came=repr(sight.reply.body))


@rules("content-type", Mark.OBSERVED, "Content-Type is application/json; charset=utf-8.", late=True)
def content_type(stage: Stage) -> None:
    for _, reply in replies(stage):
        said = (reply.header("content-type") or "").lower().replace(" ", "")
        reply.must(said == "application/json;charset=utf-8", "Content-Type: application/json; charset=utf-8")


@rules(
    "top-level",
    Mark.OBSERVED,
    "At the top stand DocumentIncarnation and Events, in this order, and nothing else.",
    late=True,
)
def top_level(stage: Stage) -> None:
    for _, sight in documents(stage):
        sight.reply.must(list(sight.value) == ["DocumentIncarnation", "Events"], "DocumentIncarnation, then Events")


@rules("incarnation-integer", Mark.OBSERVED, "DocumentIncarnation is a JSON integer, 0 or more.", late=True)
def incarnation_integer(stage: Stage) -> None:
    for _, sight in documents(stage):
        found = sight.incarnation
        sight.reply.must(type(found) is int and found >= 0, "a whole number without quotes", came=repr(found))


@rules("events-array", Mark.DOCUMENTED, "Events is always an array, empty when there are none.", late=True)
def events_array(stage: Stage) -> None:
    for _, reply in replies(stage):
        read(reply)


@rules(
    "exact-members",
    Mark.OBSERVED,
    "An event has exactly the members of its version: a client builds a record of them.",
    late=True,
)
def exact_members(stage: Stage) -> None:
    for version, sight in told(stage):
        right = f"at {version} exactly {', '.join(MEMBERS[version])}"
        for event in sight.events:
            sight.reply.must(set(event) == set(MEMBERS[version]), right, came=f"members {', '.join(event)}")


@rules(
    "member-order",
    Mark.OBSERVED,
    "The members of an event stand in one order, that of every published sample.",
    late=True,
)
def member_order(stage: Stage) -> None:
    for version, sight in told(stage):
        order = MEMBERS[version]
        for event in sight.events:
            known = [name for name in event if name in order]
            right = f"the order {', '.join(order)}"
            sight.reply.must(known == [name for name in order if name in event], right, came=", ".join(event))


@rules("event-id-guid", Mark.OBSERVED, "EventId is a GUID in upper case.", late=True)
def event_id_guid(stage: Stage) -> None:
    _each(stage, lambda event: bool(_GUID.fullmatch(str(event.get("EventId")))), "EventId", "a GUID in upper case")


@rules("event-status", Mark.DOCUMENTED, "EventStatus is Scheduled or Started; there is no Completed.", late=True)
def event_status(stage: Stage) -> None:
    right = "Scheduled or Started"
    _each(stage, lambda event: event.get("EventStatus") in (SCHEDULED, STARTED), "EventStatus", right)


@rules("resource-type", Mark.DOCUMENTED, "ResourceType is VirtualMachine.", late=True)
def resource_type(stage: Stage) -> None:
    _each(stage, lambda event: event.get("ResourceType") == "VirtualMachine", "ResourceType", "VirtualMachine")


def _names(event: dict[str, Any]) -> bool:
    found = event.get("Resources")
    return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)


@rules("resources", Mark.DOCUMENTED, "Resources is an array with the name of at least one machine.", late=True)
def resources(stage: Stage) -> None:
    _each(stage, _names, "Resources", "an array of one name or more")


@rules(
    "resources-name-the-vm",
    Mark.DOCUMENTED,
    "A VM finds itself in Resources by the name that /metadata/instance/compute/name tells it.",
    Need.SCHEDULE,
)
def resources_name_the_vm(stage: Stage) -> None:
    reasons = []
    for event_type in ("Reboot", "Redeploy", "Freeze"):
        try:
            _, sight, event_id = stage.sample(event_type)
        except Skip as skip:
            reasons.append(str(skip))
            continue
        event = sight.event(event_id) or {}
        sight.reply.must(stage.vm in event.get("Resources", []), f"Resources with {stage.vm!r}", came=str(event))
    if len(reasons) == 3:
        raise Skip("; ".join(reasons))


@rules(
    "not-before-form",
    Mark.OBSERVED,
    "NotBefore is a date of RFC 1123 in GMT, to the second, while Scheduled.",
    late=True,
)
def not_before_form(stage: Stage) -> None:
    def holds(event: dict[str, Any]) -> bool:
        found = str(event.get("NotBefore"))
        known = _RFC_1123.fullmatch(found) and moment(found)
        return event.get("EventStatus") != SCHEDULED or bool(known)

    _each(stage, holds, "NotBefore", "a date like Mon, 19 Sep 2016 18:29:47 GMT")


@rules("not-before-weekday", Mark.OBSERVED, "The weekday of NotBefore is right: some parsers check it.", late=True)
def not_before_weekday(stage: Stage) -> None:
    for sight, event in _events(stage):
        found = str(event.get("NotBefore"))
        meant = moment(found) if _RFC_1123.fullmatch(found) else None
        if meant is not None:
            sight.reply.must(rfc1123(meant) == found, rfc1123(meant), came=found)


@rules(
    "not-before-empty-once-started",
    Mark.DOCUMENTED,
    "Once Started, NotBefore is still there and empty.",
    Need.SCHEDULE,
    late=True,
)
def not_before_empty(stage: Stage) -> None:
    started = [(sight, event) for sight, event in _events(stage) if event.get("EventStatus") == STARTED]
    if not started:
        raise Skip("no event has been seen Started; see life/starts-when-approved")
    for sight, event in started:
        sight.reply.must(event.get("NotBefore") == "", '"NotBefore":""', came=str(event))


@rules("description", Mark.DOCUMENTED, "Description is text; it may be empty.", late=True)
def description(stage: Stage) -> None:
    _each(stage, lambda event: isinstance(event.get("Description"), str), "Description", "text")


@rules("event-source", Mark.DOCUMENTED, "EventSource is Platform or User.", late=True)
def event_source(stage: Stage) -> None:
    _each(stage, lambda event: event.get("EventSource") in ("Platform", "User"), "EventSource", "Platform or User")


@rules(
    "duration",
    Mark.DOCUMENTED,
    "DurationInSeconds is an integer: the interruption, 0 for none, -1 for unknown.",
    late=True,
)
def duration(stage: Stage) -> None:
    def holds(event: dict[str, Any]) -> bool:
        found = event.get("DurationInSeconds")
        return type(found) is int and found >= -1

    _each(stage, holds, "DurationInSeconds", "a whole number, -1 or more")


@rules(
    "several-at-once",
    Mark.DOCUMENTED,
    "Events that are live at the same time are all in the document, each with an id of its own.",
    Need.SCHEDULE,
)
def several(stage: Stage) -> None:
    first = stage.waiting()
    second = ""
    try:
        _, sight, second = stage.schedule_any(*TYPES)
    except NotTold:
        sight = stage.look()  # with an id that is known already it does not look new
    right = "a different EventId for each event"
    sight.reply.must(len(sight.ids) == len(sight.events), right)
    if not second:
        raise Skip("the second event is not in the document; see life/told")
    sight.reply.must(sight.event(first) is not None, f"both events, {first} and {second}")


def _words(stage: Stage, event_type: str, right: dict[str, Any], *descriptions: str) -> None:
    _, sight, event_id = stage.sample(event_type)
    event = sight.event(event_id) or {}
    if right["EventSource"] == "User" and event.get("EventSource") != "User":
        raise Skip(f"the command's {event_type} is not one that a user asked for")
    for member, value in right.items():
        sight.reply.must(event.get(member) == value, f"{member} {value!r}", came=f"{member} {event.get(member)!r}")
    words = " or ".join(repr(text) for text in descriptions)
    found = event.get("Description")
    sight.reply.must(found in descriptions, f"Description {words}", came=f"Description {found!r}")


@rules(
    "words-of-a-restart",
    Mark.OBSERVED,
    "A user's restart: source User, its own description or none, duration -1.",
    Need.SCHEDULE,
)
def words_of_a_restart(stage: Stage) -> None:
    _words(stage, "Reboot", {"EventSource": "User", "DurationInSeconds": -1}, _RESTARTED, "")


@rules(
    "words-of-a-redeploy",
    Mark.OBSERVED,
    "A user's redeploy: source User, its own description or none, duration -1.",
    Need.SCHEDULE,
)
def words_of_a_redeploy(stage: Stage) -> None:
    _words(stage, "Redeploy", {"EventSource": "User", "DurationInSeconds": -1}, _REDEPLOYED, "")


@rules(
    "words-of-a-preempt", Mark.OBSERVED, "A Preempt has an empty description, and the source Platform.", Need.SCHEDULE
)
def words_of_a_preempt(stage: Stage) -> None:
    _words(stage, "Preempt", {"EventSource": "Platform"}, "")


@rules("words-of-a-terminate", Mark.ASSUMED, "A Terminate has an empty description, and duration -1.", Need.SCHEDULE)
def words_of_a_terminate(stage: Stage) -> None:
    _, sight, event_id = stage.sample("Terminate")
    source = (sight.event(event_id) or {}).get("EventSource")
    _words(stage, "Terminate", {"EventSource": source, "DurationInSeconds": -1}, "")


@rules(
    "freeze-is-short", Mark.DOCUMENTED, "A Freeze says how many seconds the machine is paused, or -1.", Need.SCHEDULE
)
def freeze_is_short(stage: Stage) -> None:
    _, sight, event_id = stage.sample("Freeze")
    event = sight.event(event_id)
    if event is None:
        raise Departure("the Freeze in the document", sent=sight.reply.request.shown, came=sight.reply.shown)
    seconds = event.get("DurationInSeconds")
    sight.reply.must(type(seconds) is int and -1 <= seconds < 60, "seconds, not minutes", came=str(event))
