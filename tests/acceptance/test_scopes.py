"""Scopes of scale sets: placement groups of 100 instances, flexible sets, and VMs that see only their own events."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from acceptance.causes import NEWEST, OLDEST, document, event_ids, get, incarnation, request, request_one, statuses

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from forewarn.testing import Service, ServiceProcess
    from forewarn.testing.client import HTTPResponse, ServiceClient

FLEET = """
[[host]]
name = "shared"

[[group]]
name = "web"
kind = "scale-set"
update_domains = 5

[[vm]]
group = "web"
count = 99
addresses = "127.0.1.0-127.0.1.98"

[[vm]]
group = "web"
name = "web_99"
host = "shared"
update_domain = 0
address = "127.0.1.99"

[[vm]]
group = "web"
first = 100
count = 120
addresses = "127.0.1.100-127.0.1.219"

[[vm]]
group = "web"
name = "web_220"
host = "shared"
update_domain = 0
address = "127.0.1.220"

[[vm]]
name = "outside"
address = "127.0.2.1"
"""


def at(number: int) -> str:
    return f"127.0.1.{number}"


OUTSIDE = "127.0.2.1"
BOTH = (OLDEST, NEWEST)
NAMES = {OLDEST: "_web_{}", NEWEST: "web_{}"}


def element(service: ServiceClient, address: str, path: str) -> str:
    target = f"/metadata/instance/compute/{path}?api-version=2021-03-01&format=text"
    return service.request(target=target, source=address).body.decode()


@pytest.mark.forewarn(fleet=FLEET)
class TestPlacementGroups:
    def test_each_hundred_has_its_own_document_and_incarnation(self, forewarn: Service) -> None:
        request_one(forewarn, "restart", "web_150")
        for version in BOTH:
            name = NAMES[version].format(150)
            assert statuses(forewarn, at(100), version) == {name: "Scheduled"}
            assert statuses(forewarn, at(199), version) == {name: "Scheduled"}
            for other in (at(0), at(99), at(200), at(220), OUTSIDE):
                assert statuses(forewarn, other, version) == {}
        assert [incarnation(forewarn, address) for address in (at(0), at(100), at(200), OUTSIDE)] == [0, 1, 0, 0]

    def test_the_placement_group_id_differs_by_scope_and_the_name_of_the_set_does_not(self, forewarn: Service) -> None:
        ids = {element(forewarn, at(number), "placementGroupId") for number in (0, 99)}
        ids_2 = {element(forewarn, at(number), "placementGroupId") for number in (100, 199)}
        ids_3 = {element(forewarn, at(number), "placementGroupId") for number in (200, 220)}
        assert [len(found) for found in (ids, ids_2, ids_3, ids | ids_2 | ids_3)] == [1, 1, 1, 3]
        assert {element(forewarn, at(number), "vmScaleSetName") for number in (0, 100, 200)} == {"web"}
        assert element(forewarn, OUTSIDE, "placementGroupId") == ""
        assert element(forewarn, at(0), "virtualMachineScaleSet/id") == ""

    @pytest.mark.parametrize("version", BOTH)
    def test_only_the_own_scope_can_approve(self, forewarn: Service, version: str) -> None:
        event = event_ids(request_one(forewarn, "restart", "web_150"))["web"]
        body = f'{{"StartRequests":[{{"EventId":"{event}"}}]}}'.encode()
        target = f"/metadata/scheduledevents?api-version={version}"
        for other in (at(0), at(200), OUTSIDE):
            assert forewarn.request("POST", target, body=body, source=other).status == 400
        assert forewarn.request("POST", target, body=body, source=at(199)).status == 200
        assert set(statuses(forewarn, at(100), version).values()) == {"Started"}

    def test_an_operation_on_two_scopes_has_an_event_for_each_and_waits_for_both(self, forewarn: Service) -> None:
        operation = request_one(forewarn, "host-update", host="shared")
        events = {event["scope"]: event for event in operation["events"]}
        assert {scope: event["vms"] for scope, event in events.items()} == {"web": ["web_99"], "web.3": ["web_220"]}
        assert {event["group"] for event in events.values()} == {"web"}
        forewarn.approve(events["web"]["id"], source=at(0))
        assert statuses(forewarn, at(0)) == {"web_99": "Scheduled"}
        waits = get(forewarn, f"operations/{operation['id']}/explain")["waits"]
        assert [(wait["group"], wait["scope"], wait["done"]) for wait in waits] == [
            ("web", None, True),
            ("web", "web.3", False),
        ]
        forewarn.approve(events["web.3"]["id"], source=at(200))
        assert [statuses(forewarn, at(number)) for number in (0, 200)] == [
            {"web_99": "Started"},
            {"web_220": "Started"},
        ]

    def test_the_policy_applies_to_the_whole_set(self, forewarn: Service) -> None:
        forewarn.control("POST", "/v1/groups/web/policy", {"auto_approve": ["reboot"]})
        request(forewarn, "restart", "web_0", "web_150", "web_210")
        assert [statuses(forewarn, at(number)) for number in (0, 150, 210)] == [
            {"web_0": "Started"},
            {"web_150": "Started"},
            {"web_210": "Started"},
        ]

    def test_a_tenant_of_the_set_sees_and_approves_the_events_of_all_its_scopes(self, forewarn: Service) -> None:
        created = forewarn.control("POST", "/v1/tokens", {"name": "ann", "role": "tenant", "group": "web"}).json()
        operation = request_one(forewarn, "restart", "web_150")
        token = created["token"]
        found = forewarn.control("GET", "/v1/events", token=token).json()["events"]
        assert [(event["scope"], event["vms"]) for event in found] == [("web.2", ["web_150"])]
        event = operation["events"][0]["id"]
        assert forewarn.control("POST", f"/v1/events/{event}/approve", token=token).status == 200
        assert statuses(forewarn, at(100)) == {"web_150": "Started"}

    def test_a_rollout_takes_one_update_domain_of_the_whole_set_at_a_time(self, forewarn: Service) -> None:
        # web_0 and web_101 have the same number of hosts before them, but other update domains.
        domains = {vm["name"]: vm["update_domain"] for vm in get(forewarn, "vms")["vms"]}
        first, second = "web_0", next(name for name in ("web_101", "web_102") if domains[name] != domains["web_0"])
        body = {"hosts": [f"{first}-host", f"{second}-host"], "max_unavailable": 5}
        plan = forewarn.control("POST", "/v1/rollouts", {**body, "dry_run": True}).json()
        assert [wave["hosts"] for wave in plan["waves"]] == [[f"{first}-host"], [f"{second}-host"]]

    def test_the_api_and_the_command_line_show_the_scopes(self, forewarn: Service) -> None:
        group = get(forewarn, "groups/web")
        assert {scope["name"]: scope["vms"] for scope in group["scopes"]} == {"web": 100, "web.2": 100, "web.3": 21}
        vm = get(forewarn, "vms/web_150")
        assert (vm["group"], vm["scope"], vm["placement_group"]) == ("web", "web.2", 2)
        shown = forewarn.cli("group", "show", "web").stdout
        assert "web.2  100" in shown
        assert "web.3   21" in shown or "web.3  21" in shown
        assert "scope  " in forewarn.cli("vm", "show", "web_150").stdout

    def test_the_command_line_shows_the_last_poll_of_each_scope(self, forewarn: Service) -> None:
        document(forewarn, at(150))
        forewarn.advance("10m")
        assert " UTC (10m ago)" in forewarn.cli("group", "show", "web").stdout


@pytest.mark.forewarn(fleet=FLEET, enable_groups=False)
def test_each_scope_is_enabled_by_its_own_first_poll(forewarn: Service) -> None:
    document(forewarn, at(150))
    operation = request_one(forewarn, "host-update", host="shared")
    assert operation["not_notified"] == {"web": "web has never polled", "web.3": "web.3 has never polled"}
    scopes = {scope["name"]: scope["events_enabled"] for scope in get(forewarn, "groups/web")["scopes"]}
    assert scopes == {"web": False, "web.2": True, "web.3": False}
    (row,) = get(forewarn, "history?kind=enabled")["history"]
    assert (row["group"], row["reason"]) == ("web", "web.2")


# --- Assignment ---------------------------------------------------------------------------------------

SMALL = """
[[group]]
name = "web"
kind = "scale-set"
"""


def some(first: int, count: int, **keys: Any) -> str:
    given = "".join(f"{key} = {value}\n" for key, value in keys.items())
    return f'[[vm]]\ngroup = "web"\nfirst = {first}\ncount = {count}\n{given}'


def apply(service: ServiceClient, text: str, force: str = "false") -> HTTPResponse:
    return service.control("PUT", f"/v1/fleet?force={force}", text.encode())


def scopes(service: ServiceClient) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for vm in get(service, "vms")["vms"]:
        found.setdefault(vm["scope"], []).append(vm["name"])
    return found


def test_a_vm_keeps_its_placement_group_and_a_new_one_gets_the_first_free_place(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--clock", "virtual", fleet=SMALL + some(0, 102))
    assert scopes(service)["web.2"] == ["web_100", "web_101"]
    assert apply(service, SMALL + some(5, 97)).status == 200
    assert scopes(service)["web.2"] == ["web_100", "web_101"], "they stay, although the first group has places"
    assert apply(service, SMALL + some(5, 106)).status == 200
    found = scopes(service)
    assert sorted(found["web.2"]) == ["web_100", "web_101", "web_107", "web_108", "web_109", "web_110"]
    service.kill()
    service.start()
    assert scopes(service) == found


def test_a_file_can_choose_the_placement_group_of_a_new_vm_only(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", fleet=SMALL + some(0, 2) + some(2, 2, placement_group=3))
    assert scopes(service) == {"web": ["web_0", "web_1"], "web.3": ["web_2", "web_3"]}
    response = apply(service, SMALL + some(0, 4, placement_group=3))
    assert response.status == 409
    assert "web_0 is in placement group 1, and a VM never changes its placement group" in response.json()["detail"]
    response = apply(service, SMALL + some(0, 4) + some(4, 99, placement_group=3))
    assert response.status == 409
    assert "has no place for" in response.json()["detail"]
    assert scopes(service) == {"web": ["web_0", "web_1"], "web.3": ["web_2", "web_3"]}


# --- Flexible sets --------------------------------------------------------------------------------------

FLEXIBLE = """
[[group]]
name = "flex"
kind = "scale-set"
mode = "flexible"
terminate_notice = "PT5M"

[[vm]]
name = "flex_1a2b3c4d"
group = "flex"
address = "127.0.0.1"

[[vm]]
name = "flex_5e6f7a8b"
group = "flex"
address = "127.0.0.2"

[[vm]]
name = "outside"
address = "127.0.0.3"
"""


@pytest.mark.forewarn(fleet=FLEXIBLE)
@pytest.mark.parametrize("version", BOTH)
def test_the_operator_names_the_instances_of_a_flexible_set(forewarn: Service, version: str) -> None:
    request_one(forewarn, "restart", "flex_1a2b3c4d")
    name = "_flex_1a2b3c4d" if version == OLDEST else "flex_1a2b3c4d"
    assert statuses(forewarn, "127.0.0.2", version) == {name: "Scheduled"}
    assert statuses(forewarn, "127.0.0.3", version) == {}
    assert element(forewarn, "127.0.0.1", "vmScaleSetName") == "flex"
    assert element(forewarn, "127.0.0.1", "resourceId").endswith("/virtualMachines/flex_1a2b3c4d")
    assert element(forewarn, "127.0.0.1", "virtualMachineScaleSet/id").endswith("/virtualMachineScaleSets/flex")
    assert "virtualMachineScaleSets" not in element(forewarn, "127.0.0.1", "resourceId")


# --- Own visibility -------------------------------------------------------------------------------------

OWN = """
[[host]]
name = "shared"

[[group]]
name = "gpu"
kind = "scale-set"
visibility = "own"
fault_domains = 1
update_domains = 1

[[vm]]
group = "gpu"
count = 3
hosts = ["shared"]
addresses = "127.0.0.1-127.0.0.3"
"""


@pytest.mark.forewarn(fleet=OWN)
class TestOwnVisibility:
    @pytest.mark.parametrize("version", BOTH)
    def test_a_vm_sees_and_approves_only_its_own_events(self, forewarn: Service, version: str) -> None:
        event = event_ids(request_one(forewarn, "restart", "gpu_0"))["gpu"]
        name = "_gpu_0" if version == OLDEST else "gpu_0"
        assert [statuses(forewarn, f"127.0.0.{n}", version) for n in (1, 2, 3)] == [{name: "Scheduled"}, {}, {}]
        assert [incarnation(forewarn, f"127.0.0.{n}") for n in (1, 2, 3)] == [1, 0, 0]
        assert forewarn.approve(event, source="127.0.0.2").status == 400
        assert forewarn.approve(event, source="127.0.0.1").status == 200

    def test_an_update_of_their_host_gives_each_vm_its_event_and_waits_for_all(self, forewarn: Service) -> None:
        operation = request_one(forewarn, "host-update", host="shared")
        assert {event["scope"]: event["vms"] for event in operation["events"]} == {
            f"gpu_{n}": [f"gpu_{n}"] for n in range(3)
        }
        for number, event in enumerate(operation["events"]):
            assert statuses(forewarn, "127.0.0.1") == {"gpu_0": "Scheduled"}
            forewarn.approve(event["id"], source=f"127.0.0.{number + 1}")
        assert statuses(forewarn, "127.0.0.3") == {"gpu_2": "Started"}

    def test_the_placement_group_is_still_that_of_the_set(self, forewarn: Service) -> None:
        assert len({element(forewarn, f"127.0.0.{n}", "placementGroupId") for n in (1, 2, 3)}) == 1

    def test_a_new_visibility_needs_force_while_there_are_events(self, forewarn: Service) -> None:
        request_one(forewarn, "restart", "gpu_0")
        text = OWN.replace('visibility = "own"\n', "")
        assert apply(forewarn, text).status == 409
        assert apply(forewarn, text, force="true").status == 200
        request_one(forewarn, "redeploy", "gpu_0")
        document(forewarn, "127.0.0.2")
        assert get(forewarn, "vms/gpu_1")["scope"] == "gpu"
