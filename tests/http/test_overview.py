"""/v1/map and /v1/overview: the structure of the fleet, and what happens now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
update_domains = 2
fault_domains = 2
[[group]]
name = "pool"
kind = "scale-set"
visibility = "own"
[[host]]
name = "host-a"
[[host]]
name = "host-b"
[[vm]]
name = "web-0"
group = "web"
host = "host-a"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
host = "host-b"
update_domain = 1
fault_domain = 1
[[vm]]
name = "pool_0"
group = "pool"
host = "host-a"
priority = "spot"
[[vm]]
name = "pool_1"
group = "pool"
host = "host-b"
[[vm]]
name = "alone"
"""


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


@pytest.fixture
def tenant(service: Service) -> str:
    body = {"name": "web-team", "role": "tenant", "group": "web"}
    return str(service.control("POST", "/v1/tokens", body).json()["token"])


def overview(service: Service, token: str | None = None) -> Any:
    response = service.control("GET", "/v1/overview", token=token)
    assert response.status == 200
    return response.json()


# --- The map --------------------------------------------------------------------------------------


def test_the_map_has_groups_domains_scopes_and_hosts(service: Service) -> None:
    found = service.get_json("/v1/map")
    assert [host["name"] for host in found["hosts"]] == ["host-a", "host-b", "alone-host"]
    assert found["hosts"][0] == {"name": "host-a", "state": "in-service", "spare": False}
    web, pool, alone = found["groups"]
    assert web == {
        "name": "web",
        "kind": "availability-set",
        "declared": True,
        "update_domains": 2,
        "fault_domains": 2,
        "scopes": ["web"],
        "vms": [["web-0", 0, 0, 0, 0, 0, 0], ["web-1", 1, 1, 0, 1, 0, 0]],
    }
    assert pool["scopes"] == ["pool_0", "pool_1"]
    assert pool["vms"] == [["pool_0", 0, 0, 0, 0, 0, 1], ["pool_1", 1, 1, 1, 1, 0, 0]]
    assert (alone["kind"], alone["declared"], alone["scopes"]) == ("standalone", False, ["alone"])
    assert alone["vms"] == [["alone", 0, 0, 0, 2, 0, 0]]


def test_the_tag_of_the_map_changes_with_the_fleet(service: Service) -> None:
    first = service.control("GET", "/v1/map")
    assert first.headers["cache-control"] == "no-cache"
    tag = {"If-None-Match": first.headers["etag"]}
    again = service.control("GET", "/v1/map", headers=tag)
    assert (again.status, again.body) == (304, b"")
    service.vm("pool_0").evict()
    service.advance("10m")
    changed = service.control("GET", "/v1/map", headers=tag)
    assert changed.status == 200
    deallocated = {vm[0]: vm[5] for group in changed.json()["groups"] for vm in group["vms"]}
    assert deallocated == {"web-0": 0, "web-1": 0, "pool_0": 1, "pool_1": 0, "alone": 0}


def test_a_tenant_gets_the_map_of_its_group_without_hosts(service: Service, tenant: str) -> None:
    found = service.control("GET", "/v1/map", token=tenant)
    assert found.json()["hosts"] == []
    (group,) = found.json()["groups"]
    assert (group["name"], group["vms"]) == ("web", [["web-0", 0, 0, 0, -1, 0, 0], ["web-1", 1, 1, 0, -1, 0, 0]])
    for word in (b"host-a", b"pool", b"alone"):
        assert word not in found.body
    whole = service.control("GET", "/v1/map").headers["etag"]
    assert service.control("GET", "/v1/map", token=tenant, headers={"If-None-Match": whole}).status == 200


# --- The overview ---------------------------------------------------------------------------------


def test_a_quiet_service(service: Service) -> None:
    found = overview(service)
    assert found["sequence"] == service.list_all("/v1/history")[-1]["sequence"]
    assert found["clock"] == service.get_json("/v1/clock")
    for name in ("events", "ended_events", "rollouts", "hosts_out_of_service", "not_enabled"):
        assert found[name] == []
    assert found["total_events"] == 0


def test_scopes_that_do_not_poll_are_not_enabled() -> None:
    with Service(FLEET, enable_groups=False) as service:
        service.document()
        assert overview(service)["not_enabled"] == ["pool_0", "pool_1", "alone"]


def test_events_come_with_their_operation_the_soonest_first(service: Service) -> None:
    late = service.request_operation("restart", "alone", notice="2h")[0]
    update = service.request_operation("host-update", host="host-a")
    service.control("POST", f"/v1/events/{update[0].id}/approve", {})
    found = overview(service)
    assert found["total_events"] == 3
    assert [event["id"] for event in found["events"]][-1] == late.id.lower()
    shown = {event["group"]: event for event in found["events"]}
    assert (shown["web"]["host"], shown["web"]["cause"]) == ("host-a", "host-update")
    assert (shown["web"]["operation_events"], shown["web"]["operation_approvals"]) == (2, 1)
    assert (shown["alone"]["operation_events"], shown["alone"]["requested_by"]) == (1, "operator")
    assert [wait["kind"] for wait in shown["alone"]["waits"]] == ["approval"]
    rows = {row["event"]: row["snapshot"] for row in service.list_all("/v1/history") if row["snapshot"]}
    assert shown["alone"].items() >= rows[late.id.lower()].items()


def test_a_started_event_says_what_its_end_waits_for(service: Service, tenant: str) -> None:
    event = service.request_operation("restart", "web-0")[0]
    event.approve()
    service.advance("1m")  # the work is done
    explained = service.control("GET", f"/v1/events/{event.id}/explain").json()["waits"]
    for token in (service.token, tenant):
        (shown,) = service.control("GET", "/v1/overview", token=token).json()["events"]
        assert shown["status"] == "started"
        assert [wait["kind"] for wait in shown["waits"]] == ["settling"]
        assert shown["waits"] == [wait for wait in explained if not wait["done"]]


def test_ended_events_stay_for_half_an_hour(service: Service) -> None:
    first = service.request_operation("restart", "web-0")[0]
    service.advance("30m")
    second = service.request_operation("restart", "alone")[0]
    service.control("POST", f"/v1/events/{second.id}/cancel", {})
    found = overview(service)
    assert [event["id"] for event in found["ended_events"]] == [second.id.lower(), first.id.lower()]
    assert [event["status"] for event in found["ended_events"]] == ["cancelled", "completed"]
    service.advance("29m")
    assert [event["id"] for event in overview(service)["ended_events"]] == [second.id.lower()]
    service.advance("2m")
    assert overview(service)["ended_events"] == []


def test_rollouts_and_hosts_out_of_service(service: Service) -> None:
    service.control("POST", "/v1/rollouts", {"hosts": ["host-a"]})
    service.control("POST", "/v1/operations", {"cause": "degraded-hardware", "host": "host-b"})
    found = overview(service)
    assert [(rollout["status"], rollout["hosts"]) for rollout in found["rollouts"]] == [("running", ["host-a"])]
    assert found["hosts_out_of_service"] == [{"name": "host-b", "state": "degraded", "spare": False}]


def test_a_tenant_sees_nothing_of_other_groups(service: Service, tenant: str) -> None:
    service.request_operation("host-update", host="host-a")
    ended = service.request_operation("restart", "alone")[0]
    service.control("POST", f"/v1/events/{ended.id}/cancel", {})
    service.control("POST", "/v1/rollouts", {"hosts": ["host-b"]})
    response = service.control("GET", "/v1/overview", token=tenant)
    found = response.json()
    (event, *more) = found["events"]
    assert all(each["group"] == "web" for each in (event, *more))
    assert (event["host"], event["operation_events"]) == (None, 1)
    assert found["ended_events"] == found["rollouts"] == found["hosts_out_of_service"] == []
    for word in (b"host-a", b"host-b", b"pool", b"alone"):
        assert word not in response.body
