"""Hosts after an operation: the host of each VM, hosts out of service, and shared hosts."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import (
    NEWEST,
    OLDEST,
    act_on_event,
    domains_are_separate,
    event_ids,
    events,
    get,
    history,
    hosts_of_vms,
    incarnation,
    request,
    request_one,
    rfc1123,
    statuses,
)

if TYPE_CHECKING:
    from forewarn.testing import Service

WEB, MAIL, SOLO = "127.0.0.10", "127.0.0.20", "127.0.0.30"

FLEET = """
[[host]]
name = "rack-1"
[[host]]
name = "rack-2"
[[host]]
name = "rack-3"
[[host]]
name = "rack-4"
[[host]]
name = "rack-5"

[[group]]
name = "web"
kind = "availability-set"
update_domains = 3

[[group]]
name = "mail"
kind = "availability-set"

[[vm]]
group = "web"
name = "web-{n}"
count = 4
hosts = ["rack-1", "rack-2", "rack-3", "rack-1"]
addresses = "127.0.0.10-127.0.0.13"

[[vm]]
group = "mail"
name = "mail-0"
host = "rack-1"
address = "127.0.0.20"

[[vm]]
name = "solo"
host = "rack-1"
address = "127.0.0.30"
priority = "spot"

[[vm]]
name = "idle"
host = "rack-5"
address = "127.0.0.31"
"""
"""rack-1 is shared by three scopes, rack-4 is empty, and rack-5 has room for anybody."""

FULL_FLEET = """
[[host]]
name = "left"
[[host]]
name = "right"
[[group]]
name = "web"
kind = "availability-set"
update_domains = 2
[[vm]]
group = "web"
name = "web-{n}"
count = 4
hosts = ["left", "right"]
addresses = "127.0.0.10-127.0.0.13"
"""
"""Two hosts, each with one of two update domains: neither can take what is on the other."""


pytestmark = pytest.mark.forewarn(fleet=FLEET)


def carried_out(service: Service, *operations: dict[str, Any]) -> None:
    """Approve the operations, and let them be carried out: no time passes."""
    for operation in operations:
        for event_id in event_ids(operation).values():
            act_on_event(service, event_id, "approve")
    service.advance("0s")


# --- Who stands where -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["live-migration", "redeploy"])
def test_moved_vms_are_on_other_hosts_with_separate_domains(forewarn: Service, cause: str) -> None:
    """The empty host is the best for all of them, but it can take one update domain of the group alone."""
    operations = request(forewarn, cause, "web-0", "web-1", "web-2", "web-3")
    together = [operation["vms"] for operation in operations]
    assert together == (
        [["web-0", "web-3"], ["web-1"], ["web-2"]]
        if cause == "live-migration"
        else [["web-0"], ["web-1"], ["web-2"], ["web-3"]]
    ), "what is on one host is frozen together, and a user's VMs are each by itself"
    before = hosts_of_vms(forewarn)
    carried_out(forewarn, *operations)
    after = hosts_of_vms(forewarn)
    assert all(after[f"web-{number}"] != before[f"web-{number}"] for number in range(4))
    assert after["web-0"] == "rack-4", "the emptiest that fits"
    assert [after[name] for name in ("mail-0", "solo", "idle")] == ["rack-1", "rack-1", "rack-5"]
    assert domains_are_separate(forewarn)
    assert get(forewarn, "vms/web-0")["configured_host"] == "rack-1"
    assert ("executed", f"{cause}: web-1 to {after['web-1']}") in history(forewarn, operations[1])


@pytest.mark.forewarn(fleet=FULL_FLEET)
def test_if_no_host_fits_a_spare_host_is_added_and_reported(forewarn: Service) -> None:
    expected = request_one(forewarn, "live-migration", "web-0", dry_run=True)
    assert expected["destinations"] == {"web-0": None}, "no host fits as it is"
    operation = request_one(forewarn, "live-migration", "web-0")
    assert [host["name"] for host in get(forewarn, "hosts")["hosts"]] == ["left", "right"]
    carried_out(forewarn, operation)
    assert hosts_of_vms(forewarn)["web-0"] == "spare-1"
    spare = get(forewarn, "hosts/spare-1")
    assert (spare["state"], spare["spare"], spare["vms"]) == ("in-service", True, ["web-0"])
    assert ("spare-host-added", "spare-1: no host in service can take web-0") in history(forewarn, operation)
    second = request_one(forewarn, "redeploy", "web-2")
    assert second["destinations"] == {"web-2": "spare-1"}
    carried_out(forewarn, second)
    assert hosts_of_vms(forewarn)["web-2"] == "spare-1", "the spare host is a host like any other"
    assert domains_are_separate(forewarn)


# --- Degraded -------------------------------------------------------------------------------------------


def test_a_degraded_host_gets_no_vms_until_it_is_returned(forewarn: Service) -> None:
    assert request(forewarn, "degraded-hardware", host="rack-4") == [], "there is no VM on it, so there is no notice"
    assert get(forewarn, "hosts/rack-4")["state"] == "degraded"
    carried_out(forewarn, request_one(forewarn, "redeploy", "solo"))
    assert hosts_of_vms(forewarn)["solo"] != "rack-4", "the empty host is out of use"
    returned = forewarn.control("POST", "/v1/hosts/rack-4/return")
    assert (returned.status, returned.json()["state"]) == (200, "in-service")
    carried_out(forewarn, request_one(forewarn, "redeploy", "solo"))
    assert hosts_of_vms(forewarn)["solo"] == "rack-4"


def test_each_vm_of_a_degraded_host_moves_when_it_is_approved_or_due(forewarn: Service) -> None:
    now = forewarn.now
    operations = request(forewarn, "degraded-hardware", host="rack-1", notice="2d")
    assert [operation["vms"] for operation in operations] == [["web-0"], ["web-3"], ["mail-0"], ["solo"]]
    due = rfc1123(now + timedelta(days=2))
    assert {event["NotBefore"] for address in (WEB, MAIL, SOLO) for event in events(forewarn, address)} == {due}
    carried_out(forewarn, operations[0])
    assert statuses(forewarn, WEB) == {"web-0": "Started", "web-3": "Scheduled"}
    assert (hosts_of_vms(forewarn)["web-0"], hosts_of_vms(forewarn)["web-3"]) == ("rack-4", "rack-1")
    forewarn.advance(timedelta(days=2))
    assert statuses(forewarn, WEB) == {"web-3": "Started"}
    assert get(forewarn, "hosts/rack-1")["vms"] == []
    assert get(forewarn, "hosts/rack-1")["state"] == "degraded", "it is empty, not well"
    assert domains_are_separate(forewarn)


@pytest.mark.parametrize("cause", ["redeploy", "live-migration"])
def test_moving_the_vm_settles_degraded_hardware_early(forewarn: Service, cause: str) -> None:
    degraded = request_one(forewarn, "degraded-hardware", host="rack-2")
    before = incarnation(forewarn, WEB)
    moving = request_one(forewarn, cause, "web-1")
    shown = [(event["EventType"], event["Resources"], event["EventStatus"]) for event in events(forewarn, WEB)]
    kind = "Redeploy" if cause == "redeploy" else "Freeze"
    assert shown == [("Freeze", ["web-1"], "Scheduled"), (kind, ["web-1"], "Scheduled")]
    carried_out(forewarn, moving)
    (left,) = events(forewarn, WEB)
    assert (left["EventId"].lower(), left["EventStatus"]) == (moving["events"][0]["id"], "Started")
    assert incarnation(forewarn, WEB) == before + 3, "one scheduled, one started, one cancelled"
    assert get(forewarn, f"operations/{degraded['id']}")["status"] == "cancelled"
    assert ("cancelled", "web-1: the VM was moved to another host") in history(forewarn, degraded)
    new_place = hosts_of_vms(forewarn)["web-1"]
    forewarn.advance(timedelta(days=8))
    assert (events(forewarn, WEB), hosts_of_vms(forewarn)["web-1"]) == ([], new_place), "and it is not moved twice"


def test_the_return_of_a_degraded_host_cancels_its_events(forewarn: Service) -> None:
    request(forewarn, "degraded-hardware", host="rack-1")
    numbers = {address: incarnation(forewarn, address) for address in (WEB, MAIL, SOLO)}
    answer = forewarn.control("POST", "/v1/hosts/rack-1/return")
    assert (answer.status, answer.json()["state"], answer.json()["operations"]) == (200, "in-service", [])
    assert [events(forewarn, address) for address in (WEB, MAIL, SOLO)] == [[], [], []]
    assert incarnation(forewarn, WEB) == numbers[WEB] + 2, "two of its VMs have events"
    assert incarnation(forewarn, MAIL) == numbers[MAIL] + 1
    forewarn.advance(timedelta(days=8))
    assert get(forewarn, "hosts/rack-1")["vms"] == ["web-0", "web-3", "mail-0", "solo"]


NARROW_FLEET = """
[[host]]
name = "left"
[[host]]
name = "right"
[[group]]
name = "web"
kind = "availability-set"
update_domains = 2
[[vm]]
group = "web"
name = "web-{n}"
count = 2
hosts = ["left", "right"]
addresses = "127.0.0.10-127.0.0.11"
[[vm]]
name = "solo"
host = "left"
address = "127.0.0.30"
[[vm]]
name = "idle"
host = "right"
address = "127.0.0.31"
"""
"""Two hosts. Each can take the VMs without a group, but not the other's VM of the group."""
narrow = pytest.mark.forewarn(fleet=NARROW_FLEET, fabric="manual")


def shown(service: Service, address: str, version: str = NEWEST) -> list[tuple[str, str, str]]:
    found = events(service, address, version)
    return [(event["EventType"], ",".join(event["Resources"]), event["EventStatus"]) for event in found]


@narrow
def test_each_vm_of_a_degraded_host_is_migrated_if_a_host_can_take_it_and_redeployed_otherwise(
    forewarn: Service,
) -> None:
    operations = request(forewarn, "degraded-hardware", host="left")
    assert [(operation["vms"], operation["type"], operation["destinations"]) for operation in operations] == [
        (["web-0"], "Redeploy", {"web-0": None}),
        (["solo"], "Freeze", {"solo": "right"}),
    ]
    week = forewarn.now + timedelta(days=7)
    assert {event["NotBefore"] for address in (WEB, SOLO) for event in events(forewarn, address)} == {rfc1123(week)}
    assert [event["DurationInSeconds"] for event in events(forewarn, SOLO)] == [5]
    assert shown(forewarn, WEB, OLDEST) == [("Redeploy", "_web-0", "Scheduled")]
    assert shown(forewarn, SOLO, OLDEST) == [("Freeze", "_solo", "Scheduled")]
    assert events(forewarn, "127.0.0.31") == [], "who is on another host sees nothing"
    carried_out(forewarn, *operations)
    done = [forewarn.control("POST", f"/v1/operations/{one['id']}/done").json() for one in operations]
    assert [one["moves"] for one in done] == [{}, {"solo": "right"}]
    assert hosts_of_vms(forewarn)["solo"] == "right"


@narrow
def test_the_operator_chooses_how_all_vms_leave_a_degraded_host(forewarn: Service) -> None:
    before = hosts_of_vms(forewarn)
    refused = forewarn.control(
        "POST", "/v1/operations", {"cause": "degraded-hardware", "host": "left", "type": "Freeze"}
    )
    assert (refused.status, refused.json()["title"]) == (409, "Conflict")
    assert "No host can take web-0." in refused.json()["detail"]
    assert get(forewarn, "hosts/left")["state"] == "in-service", "a rejected request changes nothing"
    operations = request(forewarn, "degraded-hardware", host="left", type="Redeploy")
    assert [operation["type"] for operation in operations] == ["Redeploy", "Redeploy"]
    assert hosts_of_vms(forewarn) == before


@narrow
@pytest.mark.parametrize("approved", [False, True], ids=["due", "approved"])
def test_a_vm_whose_migration_is_no_longer_possible_is_redeployed_with_notice(
    forewarn: Service, approved: bool
) -> None:
    (_, migration) = request(forewarn, "degraded-hardware", host="left")
    request(forewarn, "degraded-hardware", host="right")
    outside, number = events(forewarn, WEB), incarnation(forewarn, SOLO)
    if approved:
        carried_out(forewarn, migration)
    else:
        forewarn.advance(timedelta(days=7))
    now = forewarn.now
    (event,) = events(forewarn, SOLO)
    assert event["EventId"].lower() != migration["events"][0]["id"]
    assert (event["EventType"], event["EventStatus"]) == ("Redeploy", "Scheduled"), "the application must prepare again"
    assert event["NotBefore"] == rfc1123(now + timedelta(minutes=10))
    assert event["DurationInSeconds"] == -1
    assert shown(forewarn, SOLO, OLDEST) == [("Redeploy", "_solo", "Scheduled")]
    assert incarnation(forewarn, SOLO) == number + 2, "one ended, one scheduled"
    if approved:
        assert events(forewarn, WEB) == outside
    ended = get(forewarn, f"operations/{migration['id']}")
    assert (ended["status"], ended["reason"]) == (
        "cancelled",
        "no host can take any of its VMs, so it is redeployed",
    )
    forewarn.advance(timedelta(minutes=10))
    assert shown(forewarn, SOLO) == [("Redeploy", "solo", "Started")], "it does not stay on the host"


def test_a_second_degradation_only_concerns_vms_without_an_event(forewarn: Service) -> None:
    operations = request(forewarn, "degraded-hardware", host="rack-1")
    body = {"cause": "degraded-hardware", "host": "rack-1"}
    again = forewarn.control("POST", "/v1/operations", body)
    assert again.status == 409
    assert f"web-0 already has a pending degraded-hardware (operation {operations[0]['id']})" in again.json()["detail"]
    forewarn.control("POST", f"/v1/operations/{operations[1]['id']}/cancel")
    (other,) = request(forewarn, "degraded-hardware", host="rack-1")
    assert other["vms"] == operations[1]["vms"] == ["web-3"]


# --- Failed ---------------------------------------------------------------------------------------------


def test_the_vms_of_a_failed_host_move_and_the_host_is_out_of_service(forewarn: Service) -> None:
    request(forewarn, "hardware-failure", host="rack-1")
    assert [statuses(forewarn, address) for address in (WEB, MAIL, SOLO)] == [
        *({"web-0,web-3": "Started"}, {"mail-0": "Started"}, {"solo": "Started"})
    ]
    forewarn.advance("0s")
    assert get(forewarn, "hosts/rack-1")["vms"] == []
    assert get(forewarn, "hosts/rack-1")["state"] == "failed"
    assert domains_are_separate(forewarn)
    plan = forewarn.control("POST", "/v1/rollouts", {"hosts": ["rack-*"], "dry_run": True}).json()
    assert plan["skipped"] == [{"host": "rack-1", "reason": "the host is failed"}]
    assert "rack-1" not in [host for wave in plan["waves"] for host in wave["hosts"]]
    alone = forewarn.control("POST", "/v1/rollouts", {"hosts": ["rack-1"]})
    assert alone.status == 409
    assert "forewarn host return" in alone.json()["detail"]
    forewarn.advance(timedelta(minutes=10))
    carried_out(forewarn, request_one(forewarn, "live-migration", "idle"))
    assert hosts_of_vms(forewarn)["idle"] != "rack-1", "the emptiest host of all has failed"


@pytest.mark.parametrize("kind", ["Reboot", "Redeploy"])
def test_the_vms_of_a_failed_host_start_elsewhere_whatever_the_event_says(forewarn: Service, kind: str) -> None:
    request(forewarn, "hardware-failure", host="rack-2", type=kind)
    assert [(event["EventType"], event["EventStatus"]) for event in events(forewarn, WEB)] == [(kind, "Started")]
    forewarn.advance(timedelta(minutes=10))
    assert get(forewarn, "vms/web-1")["host"] != "rack-2"
    assert get(forewarn, "vms/web-1")["state"] == "running"
    assert get(forewarn, "hosts/rack-2")["state"] == "failed"
    forewarn.control("POST", "/v1/hosts/rack-2/return")
    assert get(forewarn, "hosts/rack-2")["state"] == "in-service"


def test_a_second_failure_of_a_host_moves_its_vms_once(forewarn: Service) -> None:
    (first,) = request(forewarn, "hardware-failure", host="rack-1")
    body = {"cause": "hardware-failure", "host": "rack-1"}
    again = forewarn.control("POST", "/v1/operations", body)
    assert again.status == 409, "its VMs are not on their new hosts yet"
    assert f"rack-1 already has a started hardware-failure (operation {first['id']})" in again.json()["detail"]
    forewarn.advance("0s")
    after, number = hosts_of_vms(forewarn), incarnation(forewarn, WEB)
    assert request(forewarn, "hardware-failure", host="rack-1") == [], "there is no VM on it"
    forewarn.advance("0s")
    assert hosts_of_vms(forewarn) == after
    assert incarnation(forewarn, WEB) == number
    rows = forewarn.control("GET", "/v1/history?kind=host-failed").json()["history"]
    assert [row["host"] for row in rows] == ["rack-1"], "it has failed once"


def test_a_vm_is_not_started_on_a_host_that_is_out_of_use(forewarn: Service) -> None:
    """A deallocated VM gets no event for the failure. When it is started, it runs on another host."""
    carried_out(forewarn, request_one(forewarn, "eviction", "solo"))
    request(forewarn, "hardware-failure", host="rack-1")
    forewarn.advance("0s")
    assert get(forewarn, "vms/solo")["state"] == "deallocated"
    request(forewarn, "start", "solo")
    forewarn.advance("0s")
    vm = get(forewarn, "vms/solo")
    assert vm["state"] == "running"
    assert get(forewarn, f"hosts/{vm['host']}")["state"] == "in-service"
