"""Deletions: notices, the removal of the VM, and deletions that wait for each other."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import (
    act_on_event,
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
from forewarn.testing import Service, ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SETS = ("alone", "both", "cancel", "due", "later", "others", "named", "policy", "silent", "timeout")
"""Scale sets with terminate notices, one for each test."""
TEN = timedelta(minutes=10)


def scale_set(name: str, number: int, notice: str = 'terminate_notice = "PT10M"') -> str:
    return f"""
[[group]]
name = "{name}"
kind = "scale-set"
{notice}
[[vm]]
group = "{name}"
count = 3
hosts = ["rack-{name}"]
addresses = "127.2.{number}.1-127.2.{number}.3"
[[host]]
name = "rack-{name}"
"""


FLEET = (
    "".join(scale_set(name, number) for number, name in enumerate(SETS))
    + scale_set("quiet", 100, notice="")
    + """
[[group]]
name = "pair"
kind = "availability-set"
[[vm]]
group = "pair"
name = "pair-{n}"
count = 2
addresses = "127.2.101.1-127.2.101.2"
"""
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, enable_groups=False) as found:
        yield found


def member(name: str, number: int) -> str:
    return f"127.2.{100 if name == 'quiet' else SETS.index(name)}.{number + 1}"


def delete_two(service: Service, name: str) -> list[str]:
    """Return the events of two deletions with the same NotBefore."""
    document(service, member(name, 2))
    operations = request(service, "delete", f"{name}_0", f"{name}_1")
    assert statuses(service, member(name, 2)) == {f"{name}_0": "Scheduled", f"{name}_1": "Scheduled"}
    assert incarnation(service, member(name, 2)) == 2, "each has an event of its own"
    return [event_id for operation in operations for event_id in event_ids(operation).values()]


def names(service: Service) -> list[str]:
    return [vm["name"] for vm in get(service, "vms")["vms"]]


# --- Notices, and the removal of the VM -----------------------------------------------------------------


def test_a_deleted_vm_leaves_the_fleet_when_its_event_does(service: Service) -> None:
    document(service, member("alone", 0))
    request(service, "delete", "alone_0")
    service.advance(TEN + timedelta(seconds=59))
    assert statuses(service, member("alone", 0)) == {"alone_0": "Started"}, "it is still answered"
    assert get(service, "vms/alone_0")["events"]
    service.advance(timedelta(seconds=1))
    assert document(service, member("alone", 1)) == {"DocumentIncarnation": 3, "Events": []}
    assert "alone_0" not in names(service)
    assert service.control("GET", "/v1/vms/alone_0").status == 404
    assert service.request(source=member("alone", 0)).status == 404, "its address has no VM"
    assert get(service, "hosts/rack-alone")["vms"] == ["alone_1", "alone_2"]


def test_other_events_of_a_deleted_vm_are_cancelled_unless_they_affect_other_vms(service: Service) -> None:
    address = member("named", 2)
    document(service, address)
    request(service, "host-update", host="rack-named", notice="2h")
    restart = request_one(service, "restart", "named_0", notice="2h")
    (deletion_id,) = event_ids(request_one(service, "delete", "named_0")).values()
    act_on_event(service, deletion_id, "approve")
    service.advance(timedelta(minutes=1))
    assert statuses(service, address) == {"named_0,named_1,named_2": "Scheduled"}, "what an event names never changes"
    assert ("cancelled", "named_0: the VM was deleted") in history(service, restart)


def test_the_notice_is_that_of_the_set_and_can_be_changed_while_it_runs(service: Service) -> None:
    address = member("policy", 2)
    document(service, address)
    for number, (notice, minutes) in enumerate((("PT5M", 5), ("PT15M", 15), ("PT7M30S", 7.5))):
        answer = service.control("POST", "/v1/groups/policy/policy", {"terminate_notice": notice})
        assert answer.json()["terminate_notice"] == notice
        request(service, "scale-in", f"policy_{number}")
        assert events(service, address)[-1]["NotBefore"] == rfc1123(service.now + timedelta(minutes=minutes))


@pytest.mark.parametrize(
    ("vm", "address", "why"),
    [
        ("quiet_0", member("quiet", 1), "quiet has no terminate notice"),
        ("pair-0", "127.2.101.2", "pair has no terminate notice"),
        ("silent_0", None, "silent has never polled"),
    ],
)
def test_a_vm_without_terminate_notice_or_polls_is_deleted_at_once_without_notice(
    service: Service, vm: str, address: str | None, why: str
) -> None:
    before = document(service, address) if address else None
    operation = request_one(service, "delete", vm)
    assert (operation["events"], operation["not_notified"]) == ([], {get(service, f"vms/{vm}")["group"]: why})
    assert operation["status"] == "started"
    assert ("not-notified", why) in history(service, operation)
    service.advance(timedelta(minutes=1))
    assert vm not in names(service)
    if address:
        assert document(service, address) == before


def test_a_deletion_without_notice_cannot_be_requested_twice(service: Service) -> None:
    request(service, "delete", "quiet_2")
    second = service.control("POST", "/v1/operations", {"cause": "delete", "vms": ["quiet_2"]})
    assert (second.status, second.json().get("title")) == (409, "Conflict")


# --- Single VMs -----------------------------------------------------------------------------------------

SINGLE_FLEET = """
[[vm]]
name = "alone"
address = "127.2.0.1"
terminate_notice = "PT10M"
[[vm]]
name = "other"
address = "127.2.0.2"
[[group]]
name = "named"
kind = "standalone"
terminate_notice = "PT15M"
[[vm]]
name = "one"
group = "named"
address = "127.2.0.3"
[[vm]]
name = "spot"
address = "127.2.0.4"
priority = "spot"
"""


@pytest.mark.forewarn(fleet=SINGLE_FLEET, preview_versions=True)
def test_a_single_vm_with_a_terminate_notice_is_notified_of_its_deletion(forewarn: Service) -> None:
    outside = document(forewarn, "127.2.0.2")
    for name, address, length in (("alone", "127.2.0.1", TEN), ("one", "127.2.0.3", timedelta(minutes=15))):
        due = forewarn.now + length
        (event_id,) = event_ids(request_one(forewarn, "delete", name)).values()
        expected = scheduled_event(event_id, "Terminate", [name], due, "", "User")
        check_document(forewarn, address, 1, [expected])
        assert document(forewarn, "127.2.0.2") == outside
        assert forewarn.approve(event_id, source="127.2.0.2").status == 400
        forewarn.advance(length)
        check_document(forewarn, address, 2, [started(expected)])
        forewarn.advance(timedelta(minutes=1))
        assert service_status(forewarn, address) == 404, "its address has no VM"
    assert names(forewarn) == ["other", "spot"]


def service_status(service: Service, address: str) -> int:
    return service.request(source=address).status


@pytest.mark.forewarn(fleet=SINGLE_FLEET)
def test_the_terminate_notice_of_a_single_vm_can_be_set_while_it_runs(forewarn: Service) -> None:
    answer = forewarn.control("POST", "/v1/groups/other/policy", {"terminate_notice": "PT5M"})
    assert (answer.status, answer.json()["terminate_notice"], answer.json()["kind"]) == (200, "PT5M", "standalone")
    assert forewarn.control("POST", "/v1/groups/alone/policy", {"terminate_notice": "off"}).status == 200
    assert request_one(forewarn, "delete", "alone")["not_notified"] == {"alone": "alone has no terminate notice"}
    request(forewarn, "scale-in", "other")
    (event,) = events(forewarn, "127.2.0.2")
    assert (event["EventType"], event["NotBefore"]) == ("Terminate", rfc1123(forewarn.now + timedelta(minutes=5)))
    refused = forewarn.control("POST", "/v1/groups/spot/policy", {"terminate_notice": "PT5M"})
    assert refused.status == 400
    assert "spot is a Spot VM. Azure does not offer this notice for Spot VMs" in refused.json()["detail"]


# --- Deletions that wait for each other -----------------------------------------------------------------


def test_an_approved_deletion_waits_for_the_other_to_be_approved(service: Service) -> None:
    first, second = delete_two(service, "both")
    address = member("both", 2)
    assert service.approve(first, source=address).status == 200
    service.advance(timedelta(minutes=5))
    assert statuses(service, address) == {"both_0": "Scheduled", "both_1": "Scheduled"}
    assert incarnation(service, address) == 2
    words = [wait["text"] for wait in get(service, f"events/{first}/explain")["waits"] if wait["kind"] == "deletion"]
    assert words == ["deletions of a scale set wait for each other: both_1"]
    assert service.approve(second, source=address).status == 200
    assert statuses(service, address) == {"both_0": "Started", "both_1": "Started"}
    assert incarnation(service, address) == 4
    service.advance(timedelta(minutes=1))
    assert document(service, address) == {"DocumentIncarnation": 6, "Events": []}
    assert get(service, "hosts/rack-both")["vms"] == ["both_2"]


def test_an_approved_deletion_starts_when_the_other_is_cancelled(service: Service) -> None:
    first, second = delete_two(service, "cancel")
    act_on_event(service, first, "approve")
    act_on_event(service, second, "cancel")
    assert statuses(service, member("cancel", 2)) == {"cancel_0": "Started"}


def test_an_approved_deletion_starts_when_the_other_reaches_not_before(service: Service) -> None:
    first, _ = delete_two(service, "due")
    act_on_event(service, first, "approve")
    service.advance(TEN - timedelta(seconds=1))
    assert statuses(service, member("due", 2)) == {"due_0": "Scheduled", "due_1": "Scheduled"}
    service.advance(timedelta(seconds=1))
    assert statuses(service, member("due", 2)) == {"due_0": "Started", "due_1": "Started"}, "deletion is certain then"


def test_an_approved_deletion_waits_for_pending_ones_with_another_not_before(service: Service) -> None:
    address = member("later", 2)
    document(service, address)
    document(service, member("others", 2))
    (first_id,) = event_ids(request_one(service, "delete", "later_0")).values()
    request(service, "delete", "others_0")
    service.advance(timedelta(minutes=1))
    (second_id,) = event_ids(request_one(service, "delete", "later_1")).values()
    assert service.approve(second_id, source=address).status == 200
    pending = {"later_0": "Scheduled", "later_1": "Scheduled"}
    assert (statuses(service, address), incarnation(service, address)) == (pending, 2)
    assert service.approve(first_id, source=address).status == 200
    assert statuses(service, address) == dict.fromkeys(pending, "Started"), "a deletion in another set does not count"
    assert statuses(service, member("others", 2)) == {"others_0": "Scheduled"}


def test_an_approved_deletion_starts_when_an_earlier_one_times_out(service: Service) -> None:
    address = member("timeout", 2)
    document(service, address)
    request(service, "delete", "timeout_0")
    service.advance(timedelta(minutes=1))
    (second_id,) = event_ids(request_one(service, "delete", "timeout_1")).values()
    act_on_event(service, second_id, "approve")
    service.advance(TEN - timedelta(minutes=1, seconds=1))
    assert statuses(service, address) == {"timeout_0": "Scheduled", "timeout_1": "Scheduled"}
    service.advance(timedelta(seconds=1))
    assert statuses(service, address) == {"timeout_0": "Started", "timeout_1": "Started"}


@pytest.mark.forewarn(fleet=scale_set("alone", 0))
def test_an_approved_deletion_starts_when_the_other_vm_leaves_the_fleet(
    forewarn: Service,
) -> None:
    """There is no other deletion to wait for."""
    first, second = delete_two(forewarn, "alone")
    act_on_event(forewarn, first, "approve")
    smaller = scale_set("alone", 0).replace("count = 3", "count = 1").encode()
    smaller += b'[[vm]]\ngroup = "alone"\nname = "alone_2"\nhost = "rack-alone"\naddress = "127.2.0.3"\n'
    applied = forewarn.control("PUT", "/v1/fleet?force=true", smaller)
    assert (applied.status, applied.json()["removed"]) == (200, ["alone_1"])
    status_of: Any = {event["id"]: event["status"] for event in get(forewarn, "events?all=true")["events"]}
    assert status_of[second] == "cancelled"
    assert statuses(forewarn, member("alone", 2)) == {"alone_0": "Started"}


def test_a_service_without_vms_can_be_restarted(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", fleet='[[vm]]\nname = "only"\naddress = "127.0.0.1"\n')
    fleet = service.folder / "fleet.toml"
    service.request_operation("delete", "only")
    service.advance("5m")
    assert service.list_all("/v1/vms") == []
    assert service.stop() == 0
    service.start("--clock", "virtual", "--fleet", str(fleet))
    assert service.list_all("/v1/vms") == [], "the file has not changed since it was applied"
    service.stop()
