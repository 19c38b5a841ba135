"""What the tests of causes share: the wire as each version must show it, and short ways to ask and to look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.testing import Service, ServiceProcess
    from forewarn.testing.client import Reachable

OLDEST, NEWEST, PREVIEW = "2017-03-01", "2020-07-01", "2024-07-09"
VERSIONS = (OLDEST, "2017-08-01", "2017-11-01", "2019-01-01", "2019-04-01", "2019-08-01", NEWEST, PREVIEW)

FIELD_SINCE = {
    "EventId": OLDEST,
    "EventStatus": OLDEST,
    "EventType": OLDEST,
    "ResourceType": OLDEST,
    "Resources": OLDEST,
    "NotBefore": OLDEST,
    "Description": "2019-04-01",
    "EventSource": "2019-08-01",
    "DurationInSeconds": NEWEST,
}
"""The members of an event in the order of the wire, each with its first version (contract, sections 1 and 2)."""
TYPE_SINCE = {"Preempt": "2017-11-01", "Terminate": "2019-01-01", "SpotRebalanceRecommendation": PREVIEW}
"""Types that older versions do not show; the others were there from the beginning."""

PATIENT = ("--clock", "virtual", "--inactivity-timeout", "3650d", "--preview-versions", "true")
"""For a service in a process: virtual time, in which nobody counts as silent. Days pass here without a poll."""


# --- Time -----------------------------------------------------------------------------------------------


def advance_to(service: Service | ServiceProcess, moment: datetime) -> None:
    service.advance(moment - service.now)


def rfc1123(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


# --- The wire -------------------------------------------------------------------------------------------


def document(service: Reachable, address: str, version: str = NEWEST) -> Any:
    return service.document(target=f"/metadata/scheduledevents?api-version={version}", source=address)


def events(service: Reachable, address: str, version: str = NEWEST) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(service, address, version)["Events"]
    return found


def statuses(service: Reachable, address: str, version: str = NEWEST) -> dict[str, str]:
    """What of each set of VMs is told, in the order of the document."""
    return {",".join(event["Resources"]): event["EventStatus"] for event in events(service, address, version)}


def incarnation(service: Reachable, address: str) -> int:
    found: int = document(service, address)["DocumentIncarnation"]
    return found


def whole_event(
    event_id: str,
    kind: str,
    resources: list[str],
    not_before: datetime,
    description: str,
    source: str,
    duration: int = -1,
) -> dict[str, Any]:
    """A scheduled event with every member there ever was."""
    values = (event_id.upper(), "Scheduled", kind, "VirtualMachine", resources, rfc1123(not_before))
    return dict(zip(FIELD_SINCE, (*values, description, source, duration), strict=True))


def started(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "EventStatus": "Started", "NotBefore": ""}


def as_shown(event: dict[str, Any], version: str) -> list[tuple[str, Any]] | None:
    """The event's members as a version has them, in their order; None: it does not show such events."""
    if version < TYPE_SINCE.get(event["EventType"], OLDEST):
        return None
    if version == OLDEST:
        event = {**event, "Resources": [f"_{name}" for name in event["Resources"]]}
    return [(name, value) for name, value in event.items() if version >= FIELD_SINCE[name]]


def check_document(
    service: Reachable, address: str, number: int, told: list[dict[str, Any]], versions: tuple[str, ...] = VERSIONS
) -> None:
    """Hold the document to what is told, member by member and in their order, at every version."""
    for version in versions:
        found = document(service, address, version)
        expected = [shown for event in told if (shown := as_shown(event, version)) is not None]
        assert [list(event.items()) for event in found["Events"]] == expected, version
        assert found["DocumentIncarnation"] == number, f"one incarnation serves all versions, {version} too"


# --- The control API --------------------------------------------------------------------------------------


def ask(service: Reachable, cause: str, *vms: str, **asked: Any) -> list[dict[str, Any]]:
    """The operations that come of asking for something to happen."""
    body = {"cause": cause, **({"vms": list(vms)} if vms else {}), **asked}
    answer = service.control("POST", "/v1/operations", body)
    assert answer.status == (200 if asked.get("dry_run") else 201), answer
    found: list[dict[str, Any]] = answer.json()["operations"]
    return found


def ask_one(service: Reachable, cause: str, *vms: str, **asked: Any) -> dict[str, Any]:
    """The one operation that comes of it."""
    (operation,) = ask(service, cause, *vms, **asked)
    return operation


def event_ids(operation: dict[str, Any]) -> dict[str, str]:
    """The operation's events, by the group that is told."""
    return {event["group"]: event["id"] for event in operation["events"]}


def say(service: Reachable, event_id: str, word: str, **fields: Any) -> Any:
    """Approve, cancel or postpone an event, as its operator."""
    answer = service.control("POST", f"/v1/events/{event_id}/{word}", fields or None)
    assert answer.status == 200, answer
    return answer.json()


def get(service: Reachable, path: str) -> Any:
    """What is there; a list whole, page by page."""
    found = service.answer(f"/v1/{path}")
    if len(found) == 2 and "next" in found:
        return {path.partition("?")[0].rpartition("/")[2]: service.all(f"/v1/{path}")}
    return found


def where(service: Reachable) -> dict[str, str]:
    """The host of each VM."""
    return {vm["name"]: vm["host"] for vm in get(service, "vms")["vms"]}


def history(service: Reachable, operation: dict[str, Any]) -> list[tuple[str, str | None]]:
    """What was written of an operation and its events: what, and why."""
    rows = get(service, f"operations/{operation['id']}/history")["history"]
    return [(row["kind"], row["reason"]) for row in rows]


def domains_hold(service: Reachable) -> bool:
    """Whether no host has VMs of two update domains of a group: it would take both down at once."""
    held: dict[tuple[str, str], set[int]] = {}
    for vm in get(service, "vms")["vms"]:
        held.setdefault((vm["host"], vm["group"]), set()).add(vm["update_domain"])
    return all(len(domains) == 1 for domains in held.values())


def everything(service: Reachable, *addresses: str) -> dict[str, Any]:
    """All that can be seen from outside, and all that has ever happened."""
    seen = {address: document(service, address) for address in addresses}
    seen |= {path: get(service, path) for path in ("vms", "hosts", "groups", "clock", "history")}
    seen |= {path: get(service, f"{path}?all=true") for path in ("operations", "events", "rollouts")}
    return seen
