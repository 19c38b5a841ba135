"""Notices: their durations, the allowed requests, and groups without notice."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import (
    act_on_event,
    document,
    event_ids,
    events,
    everything,
    get,
    history,
    incarnation,
    request,
    request_one,
    rfc1123,
    statuses,
)
from forewarn.settings import SETTINGS
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)

LEAST = {
    "restart": 15 * MINUTE,
    "redeploy": 10 * MINUTE,
    "host-update": 15 * MINUTE,
    "live-migration": 15 * MINUTE,
    "degraded-hardware": 15 * MINUTE,
    "emergency-repair": 15 * MINUTE,
    "eviction": 30 * SECOND,
}
"""What the type of each cause's event promises at the least (docs/explanation/contract.md, section 4)."""
CAUSES = list(LEAST)
VMS = [*CAUSES, "at-once", "silent"]
OF_HOST = ("host-update", "degraded-hardware", "emergency-repair")

FLEET = "".join(
    f'[[vm]]\nname = "{name}"\naddress = "127.3.0.{number + 1}"\npriority = "spot"\n' for number, name in enumerate(VMS)
)
"""A VM for each cause, on a host that it has to itself, and two more, of which one never asks."""

DAY_OF_INACTIVITY = pytest.mark.forewarn(
    fleet=FLEET, enable_groups=False, inactivity_timeout=SETTINGS["inactivity_timeout"].default
)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, enable_groups=False) as found:
        for name in VMS:
            if name != "silent":
                document(found, address(name))
        yield found


def address(name: str) -> str:
    return f"127.3.0.{VMS.index(name) + 1}"


def target(cause: str) -> dict[str, Any]:
    return {"host": f"{cause}-host"} if cause in OF_HOST else {"vms": [cause]}


def in_seconds(length: timedelta) -> str:
    return f"{length.total_seconds():g}s"


# --- How long -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("more", [timedelta(0), SECOND, timedelta(days=3)], ids=["least", "a second more", "days"])
def test_a_notice_can_be_longer_than_the_minimum(service: Service, cause: str, more: timedelta) -> None:
    operation = request_one(service, cause, **target(cause), notice=in_seconds(LEAST[cause] + more))
    (event,) = events(service, address(cause))
    assert event["NotBefore"] == rfc1123(service.now + LEAST[cause] + more)
    assert "override" not in str(history(service, operation))
    act_on_event(service, event["EventId"], "cancel")


@pytest.mark.parametrize("cause", CAUSES)
def test_a_notice_below_the_minimum_is_rejected_with_the_minimum(service: Service, cause: str) -> None:
    before = everything(service, address(cause))
    short = in_seconds(LEAST[cause] - SECOND)
    body = {"cause": cause, **target(cause), "notice": short, "overrides": ["windows"]}
    refused = service.control("POST", "/v1/operations", body)
    assert (refused.status, refused.json()["title"]) == (400, "Invalid")
    assert f"is {'30s' if cause == 'eviction' else f'{LEAST[cause].seconds // 60}m'}" in refused.json()["detail"]
    assert "--override-notice" in refused.json()["detail"]
    assert everything(service, address(cause)) == before


@pytest.mark.parametrize("cause", CAUSES)
def test_an_override_makes_it_shorter_and_is_written_to_history(service: Service, cause: str) -> None:
    operation = request_one(service, cause, **target(cause), notice="20s", overrides=["notice"])
    (event,) = events(service, address(cause))
    assert (event["EventStatus"], event["NotBefore"]) == ("Scheduled", rfc1123(service.now + 20 * SECOND))
    ((what, why),) = [row for row in history(service, operation) if row[0] == "requested"]
    assert what == "requested"
    assert (why or "").endswith("notice 20s; override: a notice shorter than the minimum of its type")
    act_on_event(service, event["EventId"], "cancel")


def test_an_override_may_leave_no_notice_at_all(service: Service) -> None:
    request(service, "restart", "at-once", notice="0s", overrides=["notice"])
    assert statuses(service, address("at-once")) == {"at-once": "Started"}
    assert incarnation(service, address("at-once")) == 1, "it is added as it is"


# --- Groups without notice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", ["restart", "host-update", "live-migration", "redeploy"])
def test_a_group_that_never_polled_gets_no_notice_and_the_operation_starts_at_once(
    service: Service, cause: str
) -> None:
    request_target = {"host": get(service, "vms/silent")["host"]} if cause in OF_HOST else {"vms": ["silent"]}
    expected = request_one(service, cause, **request_target, dry_run=True)
    operation = request_one(service, cause, **request_target)
    words = "silent has never polled"
    assert expected["not_notified"] == operation["not_notified"] == {"silent": words}
    assert (operation["events"], operation["status"]) == ([], "started")
    assert operation["started_at"] == operation["requested_at"]
    assert ("not-notified", words) in history(service, operation)
    service.advance("10m")
    assert get(service, f"operations/{operation['id']}")["status"] == "done"


@DAY_OF_INACTIVITY
def test_a_group_that_has_not_polled_for_a_day_gets_no_notice(forewarn: Service) -> None:
    document(forewarn, address("restart"))
    document(forewarn, address("redeploy"))
    forewarn.advance(timedelta(hours=12))
    document(forewarn, address("redeploy"))
    forewarn.advance(timedelta(hours=12, minutes=30))
    operation = request_one(forewarn, "restart", "restart")
    assert operation["not_notified"] == {"restart": "restart has not polled for 1d30m"}
    assert operation["status"] == "started"
    assert request_one(forewarn, "redeploy", "redeploy")["not_notified"] == {}
    assert document(forewarn, address("restart")) == {"DocumentIncarnation": 0, "Events": []}, "it begins anew"


@DAY_OF_INACTIVITY
def test_a_valid_approval_counts_as_activity(forewarn: Service) -> None:
    """The documents say "without a request"; an invalid one does not count."""
    approving, wrong = address("restart"), address("redeploy")
    for source in (approving, wrong):
        document(forewarn, source)
    operation = request_one(forewarn, "live-migration", "restart", notice="2d")
    forewarn.advance(timedelta(hours=20))
    assert forewarn.approve(event_ids(operation)["restart"], source=approving).status == 200
    assert forewarn.approve(event_ids(operation)["restart"], source=wrong).status == 400
    forewarn.advance(timedelta(hours=20))
    assert request_one(forewarn, "redeploy", "restart", dry_run=True)["not_notified"] == {}
    assert list(request_one(forewarn, "redeploy", "redeploy", dry_run=True)["not_notified"]) == ["redeploy"]


@DAY_OF_INACTIVITY
def test_an_approval_does_not_enable_a_scope(forewarn: Service) -> None:
    source = address("restart")
    document(forewarn, source)
    operation = request_one(forewarn, "restart", "restart")
    forewarn.advance(timedelta(hours=24, minutes=20))
    assert forewarn.approve(event_ids(operation)["restart"], source=source).status == 200, "it ended within a day"
    reason = request_one(forewarn, "redeploy", "restart")["not_notified"]["restart"]
    assert reason == "restart has not polled for 1d20m"


# --- What the house and the groups have set -------------------------------------------------------------

GROUPS = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 4
addresses = "127.3.2.1-127.3.2.4"
[[group]]
name = "ready"
kind = "availability-set"
auto_approve = ["reboot"]
[[vm]]
group = "ready"
name = "ready-{n}"
count = 3
addresses = "127.3.2.11-127.3.2.13"
"""
WEB, READY = "127.3.2.1", "127.3.2.11"


@pytest.fixture
def house() -> Iterator[Service]:
    with Service(GROUPS, max_pending_user_operations=2, settle={"restart": "1m"}) as found:
        yield found


def test_the_number_of_pending_user_operations_of_a_group_is_limited(house: Service) -> None:
    def too_many(*names: str) -> str:
        house.advance("0s")  # what the fabric has reported is written
        before = everything(house, WEB, READY)
        refused = house.control("POST", "/v1/operations", {"cause": "restart", "vms": list(names)})
        assert (refused.status, refused.json()["title"]) == (409, "Conflict")
        assert everything(house, WEB, READY) == before, "all requested operations, or none"
        return str(refused.json()["detail"])

    assert too_many("web-0", "web-1", "web-2").startswith("web has 2 pending user operations")
    first = request_one(house, "restart", "web-0")
    request(house, "redeploy", "web-1")
    too_many("web-2")
    too_many("web-0")
    request(house, "host-update", host="web-3-host")  # the platform's are not counted
    request(house, "redeploy", "ready-1")  # nor another group's
    act_on_event(house, first["events"][0]["id"], "approve")
    request(house, "restart", "web-2")  # what has started is not pending
    too_many("web-3")
    house.advance(15 * MINUTE)
    request(house, "restart", "web-3", "web-0")


def test_the_settle_time_is_a_setting_of_each_cause(house: Service) -> None:
    for cause, name in (("restart", "web-0"), ("redeploy", "web-1")):
        act_on_event(house, next(iter(event_ids(request_one(house, cause, name)).values())), "approve")
    house.advance(MINUTE - SECOND)
    assert statuses(house, WEB) == {"web-0": "Started", "web-1": "Started"}
    house.advance(SECOND)
    assert statuses(house, WEB) == {"web-1": "Started"}
    house.advance(9 * MINUTE)
    assert statuses(house, WEB) == {}


def test_automatic_approval_starts_user_operations_at_once(house: Service) -> None:
    """Of the kinds that the group has named; and no work of the platform."""
    operation = request_one(house, "restart", "ready-0")
    assert document(house, READY)["DocumentIncarnation"] == 1, "it is added as it is"
    assert statuses(house, READY) == {"ready-0": "Started"}
    assert ("approved", "automatic approval") in history(house, operation)
    request(house, "redeploy", "ready-1")
    request(house, "host-update", host="ready-2-host", type="Reboot")
    assert statuses(house, READY) == {"ready-0": "Started", "ready-1": "Scheduled", "ready-2": "Scheduled"}
