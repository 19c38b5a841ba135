"""Statements of Microsoft's documents that no other test shows (tests/golden/statements.py lists all of them)."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from acceptance.causes import (
    NEWEST,
    OLDEST,
    act_on_event,
    check_document,
    document,
    event_ids,
    events,
    get,
    hosts_of_vms,
    incarnation,
    request,
    request_one,
    rfc1123,
    scheduled_event,
    started,
    statuses,
)
from forewarn.core.durations import from_text
from forewarn.testing import Service
from forewarn.wire.versions import INSTANCE_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

MIGRATION = "Virtual machine is being paused because of a memory-preserving Live Migration operation."

FLEET = """
[[host]]
name = "one"
[[host]]
name = "two"
[[host]]
name = "three"

[[group]]
name = "WestNO"
kind = "scale-set"
terminate_notice = "PT5M"
[[vm]]
group = "WestNO"
count = 3
hosts = ["one"]
addresses = "127.6.0.1-127.6.0.3"

[[group]]
name = "spread"
kind = "availability-set"
[[vm]]
group = "spread"
name = "spread-{n}"
count = 3
hosts = ["one", "two", "three"]
addresses = "127.6.1.1-127.6.1.3"

[[group]]
name = "classic"
kind = "cloud-service"
[[vm]]
group = "classic"
name = "FrontEnd"
count = 2
addresses = "127.6.2.1-127.6.2.2"

[[group]]
name = "zonal"
kind = "scale-set"
[[vm]]
group = "zonal"
name = "zonal_0"
zone = "1"
address = "127.6.3.1"
[[vm]]
group = "zonal"
name = "zonal_1"
zone = "2"
address = "127.6.3.2"

[[vm]]
name = "alone"
address = "127.6.4.1"
priority = "spot"
"""
WEST, SPREAD, CLASSIC, ZONAL, ALONE = "127.6.0.1", "127.6.1.1", "127.6.2.1", "127.6.3.1", "127.6.4.1"

pytestmark = pytest.mark.forewarn(fleet=FLEET)


# --- Endpoint and instance metadata ---------------------------------------------------------------------


def compute_name(service: Service, address: str) -> bytes:
    target = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
    return service.request(target=target, source=address).body


def test_a_vm_gets_only_its_own_metadata(forewarn: Service) -> None:
    request(forewarn, "restart", "alone")
    assert [compute_name(forewarn, address) for address in (WEST, "127.6.0.2", ALONE)] == [
        *(b"WestNO_0", b"WestNO_1", b"alone")
    ]
    assert statuses(forewarn, ALONE) == {"alone": "Scheduled"}
    assert statuses(forewarn, WEST) == {}


ELEMENTS = {
    "2017-04-02": "location name offer osType platformFaultDomain platformUpdateDomain publisher sku version vmId "
    "vmSize",
    "2017-08-01": "placementGroupId resourceGroupName subscriptionId tags",
    "2017-12-01": "vmScaleSetName zone",
    "2018-04-02": "plan/name plan/product plan/publisher publicKeys",
    "2018-10-01": "azEnvironment provider",
    "2019-02-01": "customData",
    "2019-03-11": "resourceId",
    "2019-06-01": "storageProfile/imageReference/id storageProfile/imageReference/offer "
    "storageProfile/imageReference/publisher storageProfile/imageReference/sku storageProfile/imageReference/version "
    "storageProfile/osDisk/caching storageProfile/osDisk/createOption storageProfile/osDisk/diffDiskSettings "
    "storageProfile/osDisk/diskSizeGB storageProfile/osDisk/image storageProfile/osDisk/managedDisk "
    "storageProfile/osDisk/name storageProfile/osDisk/vhd storageProfile/osDisk/writeAcceleratorEnabled "
    "storageProfile/dataDisks",
    "2019-06-04": "tagsList",
    "2020-06-01": "isHostCompatibilityLayerVm securityProfile/secureBootEnabled securityProfile/virtualTpmEnabled",
    "2020-07-15": "osProfile/adminUsername osProfile/computerName",
    "2020-09-01": "licenseType",
    "2020-10-01": "osProfile/disablePasswordAuthentication",
    "2020-12-01": "evictionPolicy priority",
    "2021-01-01": "userData",
    "2021-02-01": "storageProfile/resourceDisk/size",
    "2021-03-01": "extendedLocation/name extendedLocation/type virtualMachineScaleSet/id",
    "2021-10-01": "platformSubFaultDomain",
    "2021-11-01": "additionalCapabilities/hibernationEnabled securityProfile/encryptionAtHost",
    "2021-11-15": "host/id hostGroup/id",
    "2021-12-13": "securityProfile/securityType",
    "2023-07-01": "storageProfile/imageReference/communityGalleryImageId "
    "storageProfile/imageReference/sharedGalleryImageId storageProfile/imageReference/exactVersion",
    "2023-11-15": "physicalZone",
}
"""Elements of `compute` on the IMDS page, by the version that introduced them."""


@pytest.mark.parametrize("since", ELEMENTS)
def test_an_element_is_there_from_its_version_on(forewarn: Service, since: str) -> None:
    for version in INSTANCE_VERSIONS:
        tree = forewarn.request(target=f"/metadata/instance?api-version={version}", source=WEST).json()
        for path in ELEMENTS[since].split():
            node: Any = tree.get("compute", {})
            for part in path.split("/"):
                node = node.get(part) if node is not None else None
            assert (node is not None) == (version >= since), f"{path} at {version}"


def test_a_vm_of_a_cloud_service_can_read_its_name(forewarn: Service) -> None:
    assert compute_name(forewarn, CLASSIC) == b"FrontEnd_IN_0"


# --- The document ---------------------------------------------------------------------------------------


def test_a_live_migration_of_two_vms_makes_four_documents(forewarn: Service) -> None:
    versions = (OLDEST, NEWEST)
    check_document(forewarn, WEST, 0, [], versions)
    operation = request_one(forewarn, "live-migration", "WestNO_0", "WestNO_1")
    not_before = forewarn.now + timedelta(minutes=15)
    resources = ["WestNO_0", "WestNO_1"]
    (event_id,) = event_ids(operation).values()
    event = scheduled_event(event_id, "Freeze", resources, not_before, MIGRATION, "Platform", 5)
    check_document(forewarn, WEST, 1, [event], versions)
    forewarn.approve(event_id, source=WEST)
    check_document(forewarn, WEST, 2, [started(event)], versions)
    forewarn.advance(minutes=5)
    check_document(forewarn, WEST, 3, [], versions)


def test_the_incarnation_identifies_the_events(forewarn: Service) -> None:
    """Through the whole life of two operations, the events change if and only if the number does."""
    seen: dict[int, Any] = {}

    def poll() -> None:
        for address in (SPREAD, "127.6.1.2"):
            found = document(forewarn, address)
            assert seen.setdefault(found["DocumentIncarnation"], found["Events"]) == found["Events"]

    poll()
    request(forewarn, "restart", "spread-0")
    poll()
    forewarn.advance(seconds=90)
    request(forewarn, "host-update", host="two")
    for _ in range(30):
        poll()
        forewarn.advance(minutes=1)
    assert [*seen] == [*range(len(seen))], "each change counts one"
    shown = [*seen.values()]
    assert all(one != other for one, other in pairwise(shown))
    assert [[event["EventStatus"] for event in found] for found in (shown[0], shown[2], shown[-1])] == [
        *([], ["Scheduled", "Scheduled"], [])
    ]


def test_ids_are_unique_across_groups_and_operations(forewarn: Service) -> None:
    operations = [
        *request(forewarn, "host-update", host="one"),
        *request(forewarn, "restart", "spread-1", "alone", "zonal_0", "WestNO_1"),
    ]
    ids = [event["id"] for operation in operations for event in operation["events"]]
    assert len(ids) == len({str(UUID(event_id)) for event_id in ids}) == 6


# --- What an event does ---------------------------------------------------------------------------------


def test_a_host_update_freezes_a_vm_where_it_is_and_a_migration_moves_it(forewarn: Service) -> None:
    for cause, options, stays in (
        ("host-update", {"host": "two"}, True),
        ("live-migration", {"vms": ["spread-1"]}, False),
    ):
        operation = request_one(forewarn, cause, **options)
        assert operation["type"] == "Freeze"
        act_on_event(forewarn, operation["events"][0]["id"], "approve")
        forewarn.advance(minutes=10)
        assert get(forewarn, f"operations/{operation['id']}")["status"] == "done"
        assert get(forewarn, "vms/spread-1")["state"] == "running"
        assert (hosts_of_vms(forewarn)["spread-1"] == "two") == stays


@pytest.mark.parametrize(("duration", "shown"), [("0s", 0), ("unknown", -1), ("9s", 9)])
def test_a_freeze_can_have_no_interruption_or_an_unknown_one(forewarn: Service, duration: str, shown: int) -> None:
    request(forewarn, "host-update", host="two", duration=duration)
    (event,) = events(forewarn, SPREAD)
    assert (event["EventType"], event["DurationInSeconds"]) == ("Freeze", shown)
    assert "DurationInSeconds" not in events(forewarn, SPREAD, OLDEST)[0]


def test_an_operator_can_set_the_description(forewarn: Service) -> None:
    text = "Host Server infrastructure is undergoing maintenance."
    request(forewarn, "host-update", host="two", description=text)
    assert [event["Description"] for event in events(forewarn, SPREAD)] == [text]


def test_a_vm_on_a_degraded_host_is_migrated(forewarn: Service) -> None:
    request(forewarn, "degraded-hardware", host="two")
    assert [(event["EventType"], event["Resources"]) for event in events(forewarn, SPREAD)] == [
        ("Freeze", ["spread-1"])
    ]
    forewarn.advance(timedelta(days=7))
    assert statuses(forewarn, SPREAD) == {"spread-1": "Started"}
    forewarn.advance(minutes=10)
    assert get(forewarn, "vms/spread-1")["state"] == "running"
    assert hosts_of_vms(forewarn)["spread-1"] != "two"


def test_a_failed_host_reboots_its_vms_or_redeploys_them_on_request(forewarn: Service) -> None:
    request(forewarn, "hardware-failure", host="two")
    request(forewarn, "hardware-failure", host="three", type="Redeploy")
    found = [(event["EventType"], event["Resources"], event["EventStatus"]) for event in events(forewarn, SPREAD)]
    assert found == [("Reboot", ["spread-1"], "Started"), ("Redeploy", ["spread-2"], "Started")]


def test_history_has_the_fields_of_the_event(forewarn: Service) -> None:
    """History is what webhooks and the feed send."""
    request(forewarn, "live-migration", "spread-1")
    (event,) = events(forewarn, SPREAD)
    (row,) = [row for row in get(forewarn, "history")["history"] if row["kind"] == "scheduled"]
    snapshot = row["snapshot"]
    assert (snapshot["id"].upper(), snapshot["type"], snapshot["vms"]) == (event["EventId"], "Freeze", ["spread-1"])
    assert (snapshot["status"], snapshot["description"]) == ("scheduled", event["Description"])
    assert (snapshot["source"], snapshot["duration_seconds"]) == ("platform", 5)
    assert rfc1123(from_text(snapshot["not_before"])) == event["NotBefore"]


def test_after_its_event_nothing_happens_to_the_vm(forewarn: Service) -> None:
    request(forewarn, "redeploy", "spread-0")
    forewarn.advance(minutes=20)
    before = (document(forewarn, SPREAD), hosts_of_vms(forewarn), get(forewarn, "history"))
    assert before[0]["Events"] == []
    forewarn.advance(timedelta(days=30))
    assert (document(forewarn, SPREAD), hosts_of_vms(forewarn), get(forewarn, "history")) == before


def test_an_evicted_vm_stays_deallocated(forewarn: Service) -> None:
    request(forewarn, "eviction", "alone")
    forewarn.advance(timedelta(days=30))
    assert get(forewarn, "vms/alone")["state"] == "deallocated"


IMAGES = """
[[group]]
name = "noticed"
kind = "scale-set"
os_image_notice = "PT15M"
[[vm]]
group = "noticed"
count = 2
addresses = "127.6.10.1-127.6.10.2"
[[group]]
name = "silent"
kind = "scale-set"
[[vm]]
group = "silent"
count = 2
addresses = "127.6.10.3-127.6.10.4"
"""


@pytest.mark.parametrize("cause", ["reimage", "image-upgrade"])
@pytest.mark.forewarn(fleet=IMAGES)
def test_a_new_os_image_has_a_notice_of_fifteen_minutes_if_the_set_enables_it(forewarn: Service, cause: str) -> None:
    assert request_one(forewarn, cause, "silent_0")["events"] == [], "off by default"
    request(forewarn, cause, "noticed_0")
    for version in (OLDEST, NEWEST):
        (event,) = events(forewarn, "127.6.10.2", version)
        assert event["NotBefore"] == rfc1123(forewarn.now + timedelta(minutes=15))
    assert events(forewarn, "127.6.10.3") == []
    forewarn.advance(minutes=15)
    assert statuses(forewarn, "127.6.10.2") == {"noticed_0": "Started"}


DELETED_WHEN_EVICTED = """
[[vm]]
name = "cheap"
priority = "spot"
eviction_policy = "delete"
address = "127.6.6.1"
"""


@pytest.mark.forewarn(fleet=DELETED_WHEN_EVICTED)
def test_an_eviction_deletes_a_vm_with_that_policy(forewarn: Service) -> None:
    request(forewarn, "eviction", "cheap")
    forewarn.advance(seconds=29)
    assert [(event["EventType"], event["EventStatus"]) for event in events(forewarn, "127.6.6.1")] == [
        ("Preempt", "Scheduled")
    ]
    forewarn.advance(minutes=2)
    assert forewarn.control("GET", "/v1/vms/cheap").status == 404
    assert forewarn.request(source="127.6.6.1").status == 404


# --- Who gets it ----------------------------------------------------------------------------------------


@pytest.mark.forewarn(fleet=FLEET, enable_groups=False)
def test_the_first_request_of_one_vm_enables_its_scale_set(forewarn: Service) -> None:
    assert request_one(forewarn, "restart", "WestNO_1")["events"] == []
    forewarn.advance(minutes=20)
    document(forewarn, WEST)
    assert len(request_one(forewarn, "restart", "WestNO_1")["events"]) == 1
    assert statuses(forewarn, WEST) == {"WestNO_1": "Scheduled"}, "at once"
    assert request_one(forewarn, "restart", "zonal_0")["events"] == [], "no other group"


@pytest.mark.parametrize(
    ("first", "other", "name"), [(CLASSIC, "127.6.2.2", "FrontEnd_IN_0"), (WEST, "127.6.0.3", "WestNO_0")]
)
def test_every_vm_of_a_group_gets_and_approves_its_events(forewarn: Service, first: str, other: str, name: str) -> None:
    (event_id,) = event_ids(request_one(forewarn, "restart", name)).values()
    for version in (OLDEST, NEWEST):
        assert document(forewarn, first, version) == document(forewarn, other, version)
    assert statuses(forewarn, other) == {name: "Scheduled"}
    assert forewarn.approve(event_id, source=ALONE).status == 400
    assert forewarn.approve(event_id, source=other).status == 200
    assert statuses(forewarn, first) == {name: "Started"}
    assert events(forewarn, ALONE) == []


def test_vms_in_different_zones_share_their_document(forewarn: Service) -> None:
    (event_id,) = event_ids(request_one(forewarn, "restart", "zonal_0")).values()
    assert statuses(forewarn, "127.6.3.2") == {"zonal_0": "Scheduled"}
    assert forewarn.approve(event_id, source="127.6.3.2").status == 200
    assert statuses(forewarn, ZONAL) == {"zonal_0": "Started"}


SETS = """
[[group]]
name = "gpu"
kind = "scale-set"
fault_domains = 1
visibility = "own"
[[vm]]
group = "gpu"
count = 2
addresses = "127.6.7.1-127.6.7.2"

[[group]]
name = "flex"
kind = "scale-set"
mode = "flexible"
[[vm]]
group = "flex"
name = "flex-a"
address = "127.6.8.1"
[[vm]]
group = "flex"
name = "flex-b"
address = "127.6.8.2"

[[group]]
name = "large"
kind = "scale-set"
[[vm]]
group = "large"
count = 101
addresses = "127.6.9.0-127.6.9.100"
"""


@pytest.mark.forewarn(fleet=SETS)
def test_with_own_visibility_a_vm_sees_and_approves_only_its_own_events(forewarn: Service) -> None:
    (event_id,) = event_ids(request_one(forewarn, "restart", "gpu_0")).values()
    assert (statuses(forewarn, "127.6.7.1"), statuses(forewarn, "127.6.7.2")) == ({"gpu_0": "Scheduled"}, {})
    assert events(forewarn, "127.6.7.2", OLDEST) == []
    assert forewarn.approve(event_id, source="127.6.7.2").status == 400
    assert forewarn.approve(event_id, source="127.6.7.1").status == 200


@pytest.mark.forewarn(fleet=SETS)
def test_the_vms_of_a_flexible_set_share_their_events(forewarn: Service) -> None:
    (event_id,) = event_ids(request_one(forewarn, "restart", "flex-a")).values()
    assert statuses(forewarn, "127.6.8.2") == {"flex-a": "Scheduled"}
    assert forewarn.approve(event_id, source="127.6.8.2").status == 200


@pytest.mark.forewarn(fleet=SETS)
def test_only_flexible_sets_have_an_id_of_the_set(forewarn: Service) -> None:
    target = "/metadata/instance/compute/virtualMachineScaleSet/id?api-version=2021-03-01&format=text"
    assert forewarn.request(target=target, source="127.6.8.1").body.endswith(b"/virtualMachineScaleSets/flex")
    assert forewarn.request(target=target, source="127.6.9.1").body == b""


@pytest.mark.forewarn(fleet=SETS)
def test_a_placement_group_has_a_hundred_vms(forewarn: Service) -> None:
    request(forewarn, "restart", "large_0")
    first, hundredth, next_one = "127.6.9.0", "127.6.9.99", "127.6.9.100"
    assert [statuses(forewarn, address) for address in (first, hundredth, next_one)] == [
        *({"large_0": "Scheduled"}, {"large_0": "Scheduled"}, {})
    ]
    request(forewarn, "restart", "large_100")
    assert (statuses(forewarn, first), statuses(forewarn, next_one)) == (
        *({"large_0": "Scheduled"}, {"large_100": "Scheduled"}),
    )


def test_operations_on_three_hosts_are_three_events_that_end_separately(forewarn: Service) -> None:
    operations = [request_one(forewarn, "host-update", host=host) for host in ("one", "two", "three")]
    assert statuses(forewarn, SPREAD) == dict.fromkeys(("spread-0", "spread-1", "spread-2"), "Scheduled")
    act_on_event(forewarn, event_ids(operations[0])["spread"], "cancel")
    assert statuses(forewarn, SPREAD) == dict.fromkeys(("spread-1", "spread-2"), "Scheduled")
    forewarn.advance(minutes=15)
    assert statuses(forewarn, SPREAD) == dict.fromkeys(("spread-1", "spread-2"), "Started")


def test_one_operation_on_one_host_is_one_event(forewarn: Service) -> None:
    operation = request_one(forewarn, "host-update", host="one")
    request(forewarn, "restart", "WestNO_2")
    assert statuses(forewarn, WEST) == {"WestNO_0,WestNO_1,WestNO_2": "Scheduled", "WestNO_2": "Scheduled"}
    act_on_event(forewarn, event_ids(operation)["WestNO"], "cancel")
    assert statuses(forewarn, WEST) == {"WestNO_2": "Scheduled"}, "for all three VMs at once"


# --- Deletions and automatic approval -------------------------------------------------------------------


def test_only_deletions_create_a_terminate(forewarn: Service) -> None:
    for cause in ("restart", "redeploy", "live-migration"):
        request(forewarn, cause, "WestNO_0")
    request(forewarn, "host-update", host="one")
    kinds = [event["EventType"] for event in events(forewarn, WEST)]
    assert kinds == ["Reboot", "Redeploy", "Freeze", "Freeze"]
    request(forewarn, "delete", "WestNO_1")
    assert events(forewarn, WEST)[-1]["EventType"] == "Terminate"


def test_a_terminate_cannot_be_postponed(forewarn: Service) -> None:
    (event_id,) = event_ids(request_one(forewarn, "delete", "WestNO_0")).values()
    before = document(forewarn, WEST)
    until = (forewarn.now + timedelta(hours=1)).isoformat()
    refused = forewarn.control("POST", f"/v1/events/{event_id}/postpone", {"until": until})
    assert (refused.status, refused.json()["title"]) == (409, "Conflict")
    assert document(forewarn, WEST) == before
    forewarn.advance(minutes=5)
    assert statuses(forewarn, WEST) == {"WestNO_0": "Started"}


def test_a_spot_set_cannot_have_a_terminate_notice(forewarn: Service) -> None:
    fleet = FLEET.replace('group = "WestNO"', 'group = "WestNO"\npriority = "spot"')
    refused = forewarn.control("PUT", "/v1/fleet", fleet.encode())
    assert refused.status == 400
    assert "Spot" in refused.json()["detail"]


AUTOMATIC = """
[[group]]
name = "set"
kind = "availability-set"
auto_approve = ["reboot", "redeploy"]
[[vm]]
group = "set"
name = "set-{n}"
count = 2
addresses = "127.6.5.1-127.6.5.2"
[[group]]
name = "scale"
kind = "scale-set"
auto_approve = ["reboot", "redeploy"]
[[vm]]
group = "scale"
count = 2
addresses = "127.6.5.3-127.6.5.4"
[[vm]]
name = "single"
auto_approve = ["reboot", "redeploy"]
address = "127.6.5.5"
"""


@pytest.fixture(scope="module")
def automatic() -> Iterator[Service]:
    with Service(AUTOMATIC) as found:
        yield found


@pytest.mark.parametrize("cause", ["restart", "redeploy"])
@pytest.mark.parametrize(
    ("name", "address"), [("set-0", "127.6.5.2"), ("scale_0", "127.6.5.4"), ("single", "127.6.5.5")]
)
def test_automatic_approval_can_be_set_for_a_vm_a_set_and_a_scale_set(
    automatic: Service, cause: str, name: str, address: str
) -> None:
    before = incarnation(automatic, address)
    request(automatic, cause, name)
    assert statuses(automatic, address) == {name: "Started"}
    assert incarnation(automatic, address) == before + 1, "it was never Scheduled"
    automatic.advance(minutes=10)
    assert statuses(automatic, address) == {}
