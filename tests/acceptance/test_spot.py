"""Spot VMs: an eviction deallocates or deletes them, and a rebalance recommendation does nothing by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from acceptance.causes import (
    NEWEST,
    PREVIEW,
    act_on_event,
    advisory,
    check_document,
    document,
    event_ids,
    events,
    get,
    history,
    incarnation,
    request,
    request_one,
    rfc1123,
    scheduled_event,
    started,
    statuses,
)
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

OUTSIDE = "127.0.0.90"

FLEET = """
[[host]]
name = "shared"
[[group]]
name = "batch"
kind = "scale-set"
[[vm]]
group = "batch"
count = 2
hosts = ["shared"]
addresses = "127.0.0.50-127.0.0.51"
priority = "spot"
[[vm]]
name = "spot-{n}"
count = 8
addresses = "127.0.0.60-127.0.0.67"
priority = "spot"
[[vm]]
name = "outside"
address = "127.0.0.90"
priority = "spot"
"""


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, enable_groups=False, preview_versions=True) as found:
        document(found, OUTSIDE)
        yield found


def evict(service: Service, name: str) -> None:
    """From the request to the end."""
    request(service, "eviction", name)
    service.advance("90s")
    assert get(service, f"vms/{name}")["state"] == "deallocated"


def test_an_evicted_vm_is_deallocated_at_the_start_stays_in_the_fleet_and_can_poll(service: Service) -> None:
    document(service, "127.0.0.50")
    request(service, "eviction", "batch_0")
    assert get(service, "vms/batch_0")["state"] == "running", "until the notice is over"
    service.advance("30s")
    assert statuses(service, "127.0.0.50") == {"batch_0": "Started"}
    assert get(service, "vms/batch_0")["state"] == "deallocated"
    assert document(service, "127.0.0.50") == document(service, "127.0.0.51"), "who is deallocated is still answered"
    service.advance("60s")
    assert document(service, "127.0.0.50") == {"DocumentIncarnation": 3, "Events": []}
    assert get(service, "vms/batch_0")["host"] == "shared"
    update = request_one(service, "host-update", host="shared")
    assert update["vms"] == ["batch_1"], "nothing can be done to a VM that does not run"
    assert statuses(service, "127.0.0.50") == {"batch_1": "Scheduled"}
    act_on_event(service, update["events"][0]["id"], "cancel")


def test_a_deallocated_vm_is_started_without_notice(service: Service) -> None:
    document(service, "127.0.0.60")
    evict(service, "spot-0")
    before = document(service, "127.0.0.60")
    operation = request_one(service, "start", "spot-0")
    assert (operation["type"], operation["events"], operation["not_notified"]) == (None, [], {})
    service.advance("0s")
    assert get(service, "vms/spot-0")["state"] == "running"
    assert get(service, f"operations/{operation['id']}")["status"] == "done"
    assert document(service, "127.0.0.60") == before, "start makes no event"
    request(service, "restart", "spot-0")
    assert statuses(service, "127.0.0.60") == {"spot-0": "Scheduled"}


def test_the_notice_of_an_eviction_may_be_longer(service: Service) -> None:
    document(service, "127.0.0.61")
    request(service, "eviction", "spot-1", notice="5m")
    (event,) = events(service, "127.0.0.61")
    assert event["NotBefore"] == rfc1123(service.now + timedelta(minutes=5))


def test_an_eviction_cancels_the_other_events_of_the_vm(service: Service) -> None:
    document(service, "127.0.0.62")
    restart = request_one(service, "restart", "spot-2")
    evict(service, "spot-2")
    assert events(service, "127.0.0.62") == []
    assert incarnation(service, "127.0.0.62") == 5, "two scheduled, one started, two ended"
    assert get(service, f"operations/{restart['id']}")["status"] == "cancelled"
    assert ("cancelled", "spot-2: the VM was deallocated") in history(service, restart)


POLICY_FLEET = """
[[group]]
name = "batch"
kind = "scale-set"
eviction_policy = "delete"
[[vm]]
group = "batch"
count = 2
addresses = "127.0.0.50-127.0.0.51"
priority = "spot"
[[vm]]
group = "batch"
name = "batch_2"
address = "127.0.0.52"
priority = "spot"
eviction_policy = "deallocate"
[[vm]]
name = "alone"
address = "127.0.0.60"
priority = "spot"
eviction_policy = "delete"
[[vm]]
name = "outside"
address = "127.0.0.90"
"""


@pytest.mark.forewarn(fleet=POLICY_FLEET, preview_versions=True)
def test_the_eviction_policy_of_the_vm_or_of_its_set_decides_whether_it_is_deleted(forewarn: Service) -> None:
    assert get(forewarn, "groups/batch")["eviction_policy"] == "delete"
    policies = {vm["name"]: vm["eviction_policy"] for vm in get(forewarn, "vms")["vms"]}
    assert policies == {
        "alone": "delete",
        "batch_0": "delete",
        "batch_1": "delete",
        "batch_2": "deallocate",
        "outside": None,
    }
    for address, expected in (("127.0.0.50", "Delete"), ("127.0.0.52", "Deallocate"), ("127.0.0.90", "")):
        path = "/metadata/instance/compute/evictionPolicy?format=text&api-version="
        assert forewarn.request(target=path + "2020-12-01", source=address).body.decode() == expected
        assert forewarn.request(target=path + "2025-04-07", source=address).body.decode() == expected
        assert forewarn.request(target=path + "2020-10-01", source=address).status == 404
    outside = document(forewarn, "127.0.0.90")
    operations = request(forewarn, "eviction", "batch_0", "batch_2", "alone")
    number = incarnation(forewarn, "127.0.0.51")
    due = forewarn.now + timedelta(seconds=30)
    expected_events = [
        scheduled_event(event_id, "Preempt", operation["vms"], due, "", "Platform")
        for operation in operations[:2]
        for event_id in event_ids(operation).values()
    ]
    check_document(forewarn, "127.0.0.51", number, expected_events)
    forewarn.advance("30s")
    check_document(forewarn, "127.0.0.50", number + 2, [started(event) for event in expected_events])
    assert get(forewarn, "vms/batch_2")["state"] == "deallocated"
    again = forewarn.control("POST", "/v1/operations", {"cause": "eviction", "vms": ["batch_0"]})
    assert again.status == 409, "it is deleted when its event ends"
    forewarn.advance("60s")
    check_document(forewarn, "127.0.0.51", number + 4, [])
    assert [vm["name"] for vm in get(forewarn, "vms")["vms"]] == ["batch_1", "batch_2", "outside"]
    assert forewarn.request(source="127.0.0.50").status == 404, "its address has no VM"
    assert forewarn.request(source="127.0.0.60").status == 404
    assert document(forewarn, "127.0.0.90") == outside
    request(forewarn, "start", "batch_2")


def test_a_rebalance_recommendation_is_shown_only_by_the_preview_and_never_starts(service: Service) -> None:
    address = "127.0.0.63"
    document(service, address)
    outside = document(service, OUTSIDE, PREVIEW)
    operation = request_one(service, "rebalance", "spot-3")
    (event_id,) = event_ids(operation).values()
    expected = advisory(event_id, "spot-3")
    check_document(service, address, 1, [expected])
    rows = len(get(service, f"history?event={event_id}")["history"])
    for _ in range(2):
        answer = service.approve(event_id, source=address)
        assert (answer.status, answer.body) == (200, b""), "a client approves whatever it sees"
    service.advance("30d")
    check_document(service, address, 1, [expected])
    shown = get(service, f"events/{event_id}")
    assert (shown["status"], shown["approved_at"], shown["approved_by"]) == ("advisory", None, None)
    assert len(get(service, f"history?event={event_id}")["history"]) == rows, "the approvals changed nothing"
    rejected = service.control("POST", f"/v1/events/{event_id}/approve")
    assert rejected.status == 409
    assert "never starts" in rejected.json()["detail"]
    for which in ({"vm": "spot-3"}, {"all": True}):
        waiting = service.control("POST", "/v1/events/approve", {**which, "dry_run": True}).json()["events"]
        assert event_id not in [event["id"] for event in waiting]
    postponed = service.control("POST", f"/v1/events/{event_id}/postpone", {"by": "1h"})
    assert (postponed.status, get(service, f"events/{event_id}")) == (409, shown)
    assert [event["id"] for event in get(service, "events?status=advisory")["events"]] == [event_id]
    assert get(service, f"operations/{operation['id']}/explain")["latest"] is None
    assert document(service, OUTSIDE, PREVIEW) == outside
    act_on_event(service, event_id, "cancel")
    check_document(service, address, 2, [])
    assert get(service, "vms/spot-3")["state"] == "running"


def test_only_a_recommendation_is_an_advisory(service: Service) -> None:
    """`Preempt Advisory` is an error for the clients of the real service, so no request can make one."""
    address = "127.0.0.67"
    document(service, address)
    advised, evicted = (request_one(service, cause, "spot-7") for cause in ("rebalance", "eviction"))
    shown = {event["EventType"]: event["EventStatus"] for event in events(service, address, PREVIEW)}
    assert shown == {"SpotRebalanceRecommendation": "Advisory", "Preempt": "Scheduled"}
    for body in (
        {"cause": "eviction", "type": "SpotRebalanceRecommendation", "vms": ["spot-7"]},
        {"cause": "rebalance", "type": "Preempt", "vms": ["spot-7"]},
        {"cause": "rebalance", "notice": "5m", "vms": ["spot-7"]},
    ):
        assert service.control("POST", "/v1/operations", body).status == 400
    for operation in (evicted, advised):
        assert service.control("POST", f"/v1/operations/{operation['id']}/cancel").status == 200


def test_advice_ends_when_the_vm_is_evicted(service: Service) -> None:
    address = "127.0.0.64"
    document(service, address)
    advice = request_one(service, "rebalance", "spot-4")
    (eviction_id,) = event_ids(request_one(service, "eviction", "spot-4")).values()
    kinds = [event["EventType"] for event in events(service, address, PREVIEW)]
    assert kinds == ["SpotRebalanceRecommendation", "Preempt"]
    service.approve(eviction_id, source=address)
    service.advance("0s")
    assert [(event["EventType"], event["EventStatus"]) for event in events(service, address, PREVIEW)] == [
        ("Preempt", "Started")
    ]
    assert events(service, address, PREVIEW) == events(service, address, NEWEST)
    assert incarnation(service, address) == 4, "two scheduled, one started, one cancelled"
    assert get(service, f"operations/{advice['id']}")["status"] == "cancelled"
    service.advance("1m")
    assert document(service, address, PREVIEW) == {"DocumentIncarnation": 5, "Events": []}


@pytest.mark.parametrize(("cause", "name"), [("eviction", "spot-5"), ("rebalance", "spot-6")])
def test_a_vm_that_never_polled_is_evicted_at_once_and_gets_no_recommendation(
    service: Service, cause: str, name: str
) -> None:
    operation = request_one(service, cause, name)
    assert operation["not_notified"] == {name: f"{name} has never polled"}
    assert (operation["events"], operation["status"]) == ([], "started" if cause == "eviction" else "done")
    service.advance("0s")
    assert get(service, f"vms/{name}")["state"] == ("deallocated" if cause == "eviction" else "running")
