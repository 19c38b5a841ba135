"""Section 2 of the contract: the document and what stands in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import Departure, Mark, Need, NotTold, Rules, Skip
from forewarn.verify.sight import SCHEDULED, STARTED, moment, rfc1123
from forewarn.verify.stage import TYPES
from forewarn.verify.versions import MEMBERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.stage import Stage

rules = Rules(2, "document")

_GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}")
_RFC_1123 = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_TEXT_OR_BLANK = re.compile(rb'"(?:\\.|[^"\\])*"|(\s)')
_RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
_REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."
_ORDER = MEMBERS["2020-07-01"]


def _each(stage: Stage, holds: Callable[[dict[str, Any]], bool], member: str, right: str) -> None:
    """Hold every event that is there now to a rule about one of its members."""
    sight = stage.told()
    for event in sight.events:
        sight.reply.must(holds(event), right, came=f"{member}: {event.get(member, 'missing')!r} in {event}")


@rules("compact-one-line", Mark.OBSERVED, "The document is compact JSON on one line, without a newline behind it.")
def compact(stage: Stage) -> None:
    reply = stage.seen().reply
    blanks = [found for found in _TEXT_OR_BLANK.finditer(reply.body) if found[1]]
    reply.must(not blanks, "no blank and no line's end outside of strings", came=repr(reply.body))


@rules("content-type", Mark.OBSERVED, "Content-Type is application/json; charset=utf-8.")
def content_type(stage: Stage) -> None:
    reply = stage.seen().reply
    said = (reply.header("content-type") or "").lower().replace(" ", "")
    reply.must(said == "application/json;charset=utf-8", "Content-Type: application/json; charset=utf-8")


@rules("top-level", Mark.OBSERVED, "At the top stand DocumentIncarnation and Events, in this order, and nothing else.")
def top_level(stage: Stage) -> None:
    sight = stage.seen()
    sight.reply.must(list(sight.value) == ["DocumentIncarnation", "Events"], "DocumentIncarnation, then Events")


@rules("incarnation-integer", Mark.OBSERVED, "DocumentIncarnation is a JSON integer, 0 or more.")
def incarnation_integer(stage: Stage) -> None:
    sight = stage.seen()
    found = sight.incarnation
    sight.reply.must(type(found) is int and found >= 0, "a whole number without quotes", came=repr(found))


@rules("events-array", Mark.DOCUMENTED, "Events is always an array, empty when there are none.")
def events_array(stage: Stage) -> None:
    reply = stage.seen().reply
    reply.must(b'"Events":[' in re.sub(rb"\s", b"", reply.body), '"Events":[…], or "Events":[] when there are none')


@rules(
    "exact-members", Mark.OBSERVED, "An event has exactly the members of its version: a client builds a record of them."
)
def exact_members(stage: Stage) -> None:
    sight = stage.told()
    for event in sight.events:
        right = f"exactly {', '.join(_ORDER)}"
        sight.reply.must(set(event) == set(_ORDER), right, came=f"members {', '.join(event)}")


@rules("member-order", Mark.OBSERVED, "The members of an event stand in one order, that of every published sample.")
def member_order(stage: Stage) -> None:
    sight = stage.told()
    for event in sight.events:
        known = [name for name in event if name in _ORDER]
        right = f"the order {', '.join(_ORDER)}"
        sight.reply.must(known == [name for name in _ORDER if name in event], right, came=", ".join(event))


@rules("event-id-guid", Mark.OBSERVED, "EventId is a GUID in upper case.")
def event_id_guid(stage: Stage) -> None:
    _each(stage, lambda event: bool(_GUID.fullmatch(str(event.get("EventId")))), "EventId", "a GUID in upper case")


@rules("event-status", Mark.DOCUMENTED, "EventStatus is Scheduled or Started; there is no Completed.")
def event_status(stage: Stage) -> None:
    right = "Scheduled or Started"
    _each(stage, lambda event: event.get("EventStatus") in (SCHEDULED, STARTED), "EventStatus", right)


@rules("resource-type", Mark.DOCUMENTED, "ResourceType is VirtualMachine.")
def resource_type(stage: Stage) -> None:
    _each(stage, lambda event: event.get("ResourceType") == "VirtualMachine", "ResourceType", "VirtualMachine")


def _names(event: dict[str, Any]) -> bool:
    found = event.get("Resources")
    return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)


@rules("resources", Mark.DOCUMENTED, "Resources is an array with the name of at least one machine.")
def resources(stage: Stage) -> None:
    _each(stage, _names, "Resources", "an array of one name or more")


@rules(
    "resources-name-the-vm",
    Mark.DOCUMENTED,
    "A VM finds itself in Resources by the name that /metadata/instance/compute/name tells it.",
    Need.SCHEDULE,
)
def resources_name_the_vm(stage: Stage) -> None:
    _, sight, event_id = stage.sample("Reboot")
    event = sight.event(event_id) or {}
    sight.reply.must(stage.vm in event.get("Resources", []), f"Resources with {stage.vm!r}", came=str(event))


@rules("not-before-form", Mark.OBSERVED, "NotBefore is a date of RFC 1123 in GMT, to the second, while Scheduled.")
def not_before_form(stage: Stage) -> None:
    def holds(event: dict[str, Any]) -> bool:
        found = str(event.get("NotBefore"))
        known = _RFC_1123.fullmatch(found) and moment(found)
        return event.get("EventStatus") != SCHEDULED or bool(known)

    _each(stage, holds, "NotBefore", "a date like Mon, 19 Sep 2016 18:29:47 GMT")


@rules("not-before-weekday", Mark.OBSERVED, "The weekday of NotBefore is right: some parsers check it.")
def not_before_weekday(stage: Stage) -> None:
    sight = stage.told()
    for event in sight.events:
        found = str(event.get("NotBefore"))
        meant = moment(found) if _RFC_1123.fullmatch(found) else None
        if meant is not None:
            sight.reply.must(rfc1123(meant) == found, rfc1123(meant), came=found)


@rules(
    "not-before-empty-once-started", Mark.DOCUMENTED, "Once Started, NotBefore is still there and empty.", Need.SCHEDULE
)
def not_before_empty(stage: Stage) -> None:
    event_id = stage.taken()
    sight = stage.look_for(lambda sight: sight.status(event_id) != SCHEDULED)
    event = sight.event(event_id)
    if event is None or event.get("EventStatus") != STARTED:
        raise Skip("the event that was approved has not been seen Started; see life/starts-when-approved")
    sight.reply.must(event.get("NotBefore") == "", '"NotBefore":""', came=str(event))


@rules("description", Mark.DOCUMENTED, "Description is text; it may be empty.")
def description(stage: Stage) -> None:
    _each(stage, lambda event: isinstance(event.get("Description"), str), "Description", "text")


@rules("event-source", Mark.DOCUMENTED, "EventSource is Platform or User.")
def event_source(stage: Stage) -> None:
    _each(stage, lambda event: event.get("EventSource") in ("Platform", "User"), "EventSource", "Platform or User")


@rules("duration", Mark.DOCUMENTED, "DurationInSeconds is an integer: the interruption, 0 for none, -1 for unknown.")
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
