"""Helpers for tests of causes: the expected wire format at each api-version, and requests to the control API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datetime import datetime

    from forewarn.testing import Service, ServiceProcess
    from forewarn.testing.client import ServiceClient

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
"""Types that older versions do not show. All versions show the other types."""

VIRTUAL_TIME = ("--clock", "virtual", "--inactivity-timeout", "3650d", "--preview-versions", "true")
"""Options for a service process with virtual time and a long inactivity timeout: days pass without a poll."""


# --- Time -----------------------------------------------------------------------------------------------


def advance_to(service: Service | ServiceProcess, time: datetime) -> None:
    service.advance(time - service.now)


def rfc1123(time: datetime) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT")


# --- The wire -------------------------------------------------------------------------------------------


def document(service: ServiceClient, address: str, version: str = NEWEST) -> Any:
    return service.document(target=f"/metadata/scheduledevents?api-version={version}", source=address)


def events(service: ServiceClient, address: str, version: str = NEWEST) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = document(service, address, version)["Events"]
    return found


def statuses(service: ServiceClient, address: str, version: str = NEWEST) -> dict[str, str]:
    """Return the status of each event by its VMs, in the order of the document."""
    return {",".join(event["Resources"]): event["EventStatus"] for event in events(service, address, version)}


def incarnation(service: ServiceClient, address: str) -> int:
    found: int = document(service, address)["DocumentIncarnation"]
    return found


def scheduled_event(
    event_id: str,
    kind: str,
    resources: list[str],
    not_before: datetime,
    description: str,
    source: str,
    duration: int = -1,
) -> dict[str, Any]:
    """Return a Scheduled event with the members of all versions."""
    values = (event_id.upper(), "Scheduled", kind, "VirtualMachine", resources, rfc1123(not_before))
    return dict(zip(FIELD_SINCE, (*values, description, source, duration), strict=True))


def advisory(event_id: str, vm: str) -> dict[str, Any]:
    """Return a rebalance recommendation with the members of all versions. It never starts, so it has no NotBefore."""
    values = (event_id.upper(), "Advisory", "SpotRebalanceRecommendation", "VirtualMachine", [vm], "")
    return dict(zip(FIELD_SINCE, (*values, "", "Platform", -1), strict=True))


def started(event: dict[str, Any]) -> dict[str, Any]:
    return {**event, "EventStatus": "Started", "NotBefore": ""}


def as_shown(event: dict[str, Any], version: str) -> list[tuple[str, Any]] | None:
    """Return the members of the event at a version, in order, or None if the version does not show its type."""
    if version < TYPE_SINCE.get(event["EventType"], OLDEST):
        return None
    if version == OLDEST:
        event = {**event, "Resources": [f"_{name}" for name in event["Resources"]]}
    return [(name, value) for name, value in event.items() if version >= FIELD_SINCE[name]]


def check_document(
    service: ServiceClient,
    address: str,
    number: int,
    expected_events: list[dict[str, Any]],
    versions: tuple[str, ...] = VERSIONS,
) -> None:
    """Compare the document with the expected events, member by member and in order, at every version."""
    for version in versions:
        found = document(service, address, version)
        expected = [shown for event in expected_events if (shown := as_shown(event, version)) is not None]
        assert [list(event.items()) for event in found["Events"]] == expected, version
        assert found["DocumentIncarnation"] == number, f"all versions have the same incarnation, {version} too"


# --- The control API --------------------------------------------------------------------------------------


def request(service: ServiceClient, cause: str, *vms: str, **options: Any) -> list[dict[str, Any]]:
    """Request operations of a cause, and return them."""
    body = {"cause": cause, **({"vms": list(vms)} if vms else {}), **options}
    response = service.control("POST", "/v1/operations", body)
    assert response.status == (200 if options.get("dry_run") else 201), response
    operations: list[dict[str, Any]] = response.json()["operations"]
    return operations


def request_one(service: ServiceClient, cause: str, *vms: str, **options: Any) -> dict[str, Any]:
    """Request an operation that makes exactly one, and return it."""
    (operation,) = request(service, cause, *vms, **options)
    return operation


def event_ids(operation: dict[str, Any]) -> dict[str, str]:
    """Return the ids of the operation's events, by their group."""
    return {event["group"]: event["id"] for event in operation["events"]}


def act_on_event(service: ServiceClient, event_id: str, verb: str, **fields: Any) -> Any:
    """Approve, cancel or postpone an event, as its operator."""
    response = service.control("POST", f"/v1/events/{event_id}/{verb}", fields or None)
    assert response.status == 200, response
    return response.json()


def get(service: ServiceClient, path: str) -> Any:
    """Return the JSON at a path. A list is read completely, page by page."""
    found = service.get_json(f"/v1/{path}")
    if len(found) == 2 and "next" in found:
        return {path.partition("?")[0].rpartition("/")[2]: service.list_all(f"/v1/{path}")}
    return found


def hosts_of_vms(service: ServiceClient) -> dict[str, str]:
    """Return the host of each VM."""
    return {vm["name"]: vm["host"] for vm in get(service, "vms")["vms"]}


def history(service: ServiceClient, operation: dict[str, Any]) -> list[tuple[str, str | None]]:
    """Return kind and reason of each history row of an operation and its events."""
    rows = get(service, f"history?operation={operation['id']}")["history"]
    return [(row["kind"], row["reason"]) for row in rows]


def domains_are_separate(service: ServiceClient) -> bool:
    """Return whether no host has VMs of two update domains of a group: one failure would stop both."""
    held: dict[tuple[str, str], set[int]] = {}
    for vm in get(service, "vms")["vms"]:
        held.setdefault((vm["host"], vm["group"]), set()).add(vm["update_domain"])
    return all(len(domains) == 1 for domains in held.values())


def everything(service: ServiceClient, *addresses: str) -> dict[str, Any]:
    """Return everything that the service shows to VMs and operators, with its whole history."""
    seen = {address: document(service, address) for address in addresses}
    seen |= {path: get(service, path) for path in ("vms", "hosts", "groups", "clock", "history")}
    seen |= {path: get(service, f"{path}?all=true") for path in ("operations", "events", "rollouts")}
    return seen
