"""Section 2 of the contract: format and members of the document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forewarn.verify.check import CheckFailed, CheckRegistry, CheckSkipped, EventMissing, Mark, Requirement
from forewarn.verify.observations import MEMBERS, document_responses, documents, documents_with_events
from forewarn.verify.session import EVENT_TYPES
from forewarn.verify.snapshot import SCHEDULED, STARTED, format_date, parse_date, read

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.verify.session import Session
    from forewarn.verify.snapshot import Snapshot

check = CheckRegistry(2, "document")

_GUID = re.compile(r"[0-9A-F]{8}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{4}-[0-9A-F]{12}")
_RFC_1123 = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_STRING_OR_WHITESPACE = re.compile(rb'"(?:\\.|[^"\\])*"|(\s)')
_RESTARTED = "Virtual machine is going to be restarted as requested by authorized user."
_REDEPLOYED = "Virtual machine is going to be redeployed as requested by authorized user."


# Most of these checks run late, because they judge every document and every event of the run.


def _events(session: Session) -> list[tuple[Snapshot, dict[str, Any]]]:
    return [(snapshot, event) for _, snapshot in documents_with_events(session) for event in snapshot.events]


def _expect_member(session: Session, valid: Callable[[dict[str, Any]], bool], member: str, expected: str) -> None:
    """Expect that this member is valid in every event whose version has it."""
    for version, snapshot in documents_with_events(session):
        for event in snapshot.events if member in MEMBERS[version] else ():
            actual = f"{member}: {event.get(member, 'missing')!r} in {event}"
            snapshot.response.expect(valid(event), expected, actual=actual)


@check(
    "compact-one-line",
    Mark.OBSERVED,
    "The document is compact JSON on one line, without a newline at the end.",
    late=True,
)
def compact(session: Session) -> None:
    for _, snapshot in documents(session):
        body = snapshot.response.body
        whitespace = any(found[1] for found in _STRING_OR_WHITESPACE.finditer(body))
        snapshot.response.expect(not whitespace, "no whitespace outside strings", actual=repr(body))


@check("content-type", Mark.OBSERVED, "Content-Type is application/json; charset=utf-8.", late=True)
def content_type(session: Session) -> None:
    for _, response in document_responses(session):
        value = (response.header("content-type") or "").lower().replace(" ", "")
        response.expect(value == "application/json;charset=utf-8", "Content-Type: application/json; charset=utf-8")


@check(
    "top-level",
    Mark.OBSERVED,
    "The top level has DocumentIncarnation, then Events, and nothing else.",
    late=True,
)
def top_level(session: Session) -> None:
    for _, snapshot in documents(session):
        valid = list(snapshot.value) == ["DocumentIncarnation", "Events"]
        snapshot.response.expect(valid, "DocumentIncarnation, then Events")


@check("incarnation-integer", Mark.OBSERVED, "DocumentIncarnation is a JSON integer, 0 or more.", late=True)
def incarnation_integer(session: Session) -> None:
    for _, snapshot in documents(session):
        found = snapshot.incarnation
        snapshot.response.expect(type(found) is int and found >= 0, "an integer without quotes", actual=repr(found))


@check("events-array", Mark.DOCUMENTED, "Events is always an array. It is empty if there are no events.", late=True)
def events_array(session: Session) -> None:
    for _, response in document_responses(session):
        read(response)


@check(
    "exact-members",
    Mark.OBSERVED,
    "Every event that the run received has exactly the fields of its api-version.",
    late=True,
)
def exact_members(session: Session) -> None:
    for version, snapshot in documents_with_events(session):
        expected = f"at {version} exactly {', '.join(MEMBERS[version])}"
        for event in snapshot.events:
            valid = set(event) == set(MEMBERS[version])
            snapshot.response.expect(valid, expected, actual=f"members {', '.join(event)}")


@check(
    "member-order", Mark.OBSERVED, "The fields of an event have the same order as in the published samples.", late=True
)
def member_order(session: Session) -> None:
    for version, snapshot in documents_with_events(session):
        order = MEMBERS[version]
        for event in snapshot.events:
            known = [name for name in event if name in order]
            valid = known == [name for name in order if name in event]
            snapshot.response.expect(valid, f"the order {', '.join(order)}", actual=", ".join(event))


@check("event-id-guid", Mark.OBSERVED, "EventId is a GUID in upper case.", late=True)
def event_id_guid(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        return bool(_GUID.fullmatch(str(event.get("EventId"))))

    _expect_member(session, valid, "EventId", "a GUID in upper case")


@check("event-status", Mark.DOCUMENTED, "EventStatus is Scheduled or Started, never Completed.", late=True)
def event_status(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        return event.get("EventStatus") in (SCHEDULED, STARTED)

    _expect_member(session, valid, "EventStatus", "Scheduled or Started")


@check("resource-type", Mark.DOCUMENTED, "ResourceType is VirtualMachine.", late=True)
def resource_type(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        return event.get("ResourceType") == "VirtualMachine"

    _expect_member(session, valid, "ResourceType", "VirtualMachine")


@check("resources", Mark.DOCUMENTED, "Resources is an array with at least one VM name.", late=True)
def resources(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        found = event.get("Resources")
        return isinstance(found, list) and bool(found) and all(isinstance(name, str) and name for name in found)

    _expect_member(session, valid, "Resources", "an array of one or more names")


@check(
    "resources-contain-vm-name",
    Mark.DOCUMENTED,
    "Resources contains the VM's name as /metadata/instance/compute/name returns it.",
    Requirement.SCHEDULE,
)
def resources_contain_vm_name(session: Session) -> None:
    reasons = []
    for event_type in ("Reboot", "Redeploy", "Freeze"):
        try:
            _, snapshot, event_id = session.sample(event_type)
        except CheckSkipped as skipped:
            reasons.append(str(skipped))
            continue
        event = snapshot.event(event_id) or {}
        valid = session.vm in event.get("Resources", [])
        snapshot.response.expect(valid, f"Resources with {session.vm!r}", actual=str(event))
    if len(reasons) == 3:
        raise CheckSkipped("; ".join(reasons))


@check(
    "not-before-format",
    Mark.OBSERVED,
    "NotBefore of a Scheduled event is an RFC 1123 date in GMT, in whole seconds.",
    late=True,
)
def not_before_format(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        found = str(event.get("NotBefore"))
        is_date = _RFC_1123.fullmatch(found) and parse_date(found)
        return event.get("EventStatus") != SCHEDULED or bool(is_date)

    _expect_member(session, valid, "NotBefore", "a date like Mon, 19 Sep 2016 18:29:47 GMT")


@check(
    "not-before-weekday",
    Mark.OBSERVED,
    "NotBefore of a Scheduled event begins with the correct weekday, because some parsers check it.",
    late=True,
)
def not_before_weekday(session: Session) -> None:
    scheduled = [(snapshot, event) for snapshot, event in _events(session) if event.get("EventStatus") == SCHEDULED]
    if not scheduled:
        raise CheckSkipped("no event was Scheduled during the run; see life/event-appears")
    for snapshot, event in scheduled:
        found = str(event.get("NotBefore"))
        date = parse_date(found)
        expected = format_date(date) if date is not None else "a date with its weekday"
        snapshot.response.expect(date is not None and found[:4] == expected[:4], expected, actual=f"NotBefore: {found}")


@check(
    "not-before-empty-once-started",
    Mark.DOCUMENTED,
    "A Started event has the field NotBefore, and its value is empty.",
    Requirement.SCHEDULE,
    late=True,
)
def not_before_empty(session: Session) -> None:
    started = [(snapshot, event) for snapshot, event in _events(session) if event.get("EventStatus") == STARTED]
    if not started:
        raise CheckSkipped("no event was Started during the run; see life/starts-when-approved")
    for snapshot, event in started:
        snapshot.response.expect(event.get("NotBefore") == "", '"NotBefore":""', actual=str(event))


@check("description", Mark.DOCUMENTED, "Description is a string. It may be empty.", late=True)
def description(session: Session) -> None:
    _expect_member(session, lambda event: isinstance(event.get("Description"), str), "Description", "a string")


@check(
    "description-printable",
    Mark.ASSUMED,
    "Description is one line of text, without control characters.",
    late=True,
)
def description_printable(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        found = event.get("Description")
        return not isinstance(found, str) or found.isprintable()

    _expect_member(session, valid, "Description", "only printable characters")


@check("event-source", Mark.DOCUMENTED, "EventSource is Platform or User.", late=True)
def event_source(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        return event.get("EventSource") in ("Platform", "User")

    _expect_member(session, valid, "EventSource", "Platform or User")


@check(
    "duration",
    Mark.DOCUMENTED,
    "DurationInSeconds is an integer: the seconds of interruption, 0 for no interruption, -1 for unknown.",
    late=True,
)
def duration(session: Session) -> None:
    def valid(event: dict[str, Any]) -> bool:
        found = event.get("DurationInSeconds")
        return type(found) is int and found >= -1

    _expect_member(session, valid, "DurationInSeconds", "an integer, -1 or more")


@check(
    "several-events",
    Mark.DOCUMENTED,
    "The document shows all active events, each with its own id.",
    Requirement.SCHEDULE,
)
def several_events(session: Session) -> None:
    first = session.unapproved_event()
    second = ""
    try:
        _, snapshot, second = session.schedule_first_of(*EVENT_TYPES)
    except EventMissing:
        snapshot = session.poll()  # an event with a known id does not look new
    snapshot.response.expect(len(snapshot.ids) == len(snapshot.events), "a different EventId for each event")
    if not second:
        raise CheckSkipped("the second event is not in the document; see life/event-appears")
    snapshot.response.expect(snapshot.event(first) is not None, f"both events, {first} and {second}")


def _expect_values(session: Session, event_type: str, values: dict[str, Any], *descriptions: str) -> None:
    _, snapshot, event_id = session.sample(event_type)
    event = snapshot.event(event_id) or {}
    if values["EventSource"] == "User" and event.get("EventSource") != "User":
        raise CheckSkipped(f"the {event_type} of the schedule command is not a user operation")
    for member, value in values.items():
        found = event.get(member)
        snapshot.response.expect(found == value, f"{member} {value!r}", actual=f"{member} {found!r}")
    expected = f"Description {' or '.join(repr(text) for text in descriptions)}"
    found = event.get("Description")
    snapshot.response.expect(found in descriptions, expected, actual=f"Description {found!r}")


@check(
    "restart-values",
    Mark.OBSERVED,
    "A user's restart has source User, the published description or none, and duration -1.",
    Requirement.SCHEDULE,
)
def restart_values(session: Session) -> None:
    _expect_values(session, "Reboot", {"EventSource": "User", "DurationInSeconds": -1}, _RESTARTED, "")


@check(
    "redeploy-values",
    Mark.OBSERVED,
    "A user's redeploy has source User, the published description or none, and duration -1.",
    Requirement.SCHEDULE,
)
def redeploy_values(session: Session) -> None:
    _expect_values(session, "Redeploy", {"EventSource": "User", "DurationInSeconds": -1}, _REDEPLOYED, "")


@check("preempt-values", Mark.OBSERVED, "A Preempt has source Platform and an empty description.", Requirement.SCHEDULE)
def preempt_values(session: Session) -> None:
    _expect_values(session, "Preempt", {"EventSource": "Platform"}, "")


@check("terminate-values", Mark.ASSUMED, "A Terminate has an empty description and duration -1.", Requirement.SCHEDULE)
def terminate_values(session: Session) -> None:
    _, snapshot, event_id = session.sample("Terminate")
    source = (snapshot.event(event_id) or {}).get("EventSource")
    _expect_values(session, "Terminate", {"EventSource": source, "DurationInSeconds": -1}, "")


@check(
    "freeze-duration",
    Mark.DOCUMENTED,
    "The duration of a Freeze is the number of seconds of the pause, or -1.",
    Requirement.SCHEDULE,
)
def freeze_duration(session: Session) -> None:
    _, snapshot, event_id = session.sample("Freeze")
    event = snapshot.event(event_id)
    if event is None:
        response = snapshot.response
        raise CheckFailed(f"the Freeze {event_id}", request=response.request.summary, actual=response.summary)
    seconds = event.get("DurationInSeconds")
    valid = type(seconds) is int and -1 <= seconds < 60
    snapshot.response.expect(valid, "-1, or fewer than 60 seconds", actual=str(event))
