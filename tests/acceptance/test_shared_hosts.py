"""Shared hosts: one event per group, and no start until every group has approved or is due."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from acceptance.causes import (
    act_on_event,
    document,
    event_ids,
    events,
    get,
    history,
    incarnation,
    request_one,
    rfc1123,
    statuses,
)

if TYPE_CHECKING:
    from forewarn.testing import Service

WEB, MAIL, SOLO, AWAY = "127.0.0.10", "127.0.0.20", "127.0.0.30", "127.0.0.40"
FIFTEEN = timedelta(minutes=15)

FLEET = """
[[host]]
name = "shared"
[[group]]
name = "web"
kind = "availability-set"
[[group]]
name = "mail"
kind = "scale-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 2
hosts = ["shared"]
addresses = "127.0.0.10-127.0.0.11"
[[vm]]
group = "mail"
count = 1
hosts = ["shared"]
addresses = "127.0.0.20-127.0.0.20"
[[vm]]
name = "solo"
host = "shared"
address = "127.0.0.30"
[[vm]]
name = "away"
address = "127.0.0.40"
"""


pytestmark = pytest.mark.forewarn(fleet=FLEET, enable_groups=False)


@pytest.fixture
def service(forewarn: Service) -> Service:
    for address in (WEB, MAIL, AWAY):
        document(forewarn, address)
    return forewarn


def all_statuses(service: Service) -> list[dict[str, str]]:
    return [statuses(service, address) for address in (WEB, MAIL, SOLO)]


SCHEDULED = [{"web-0,web-1": "Scheduled"}, {"mail_0": "Scheduled"}, {"solo": "Scheduled"}]
STARTED = [{"web-0,web-1": "Started"}, {"mail_0": "Started"}, {"solo": "Started"}]


def test_each_group_sees_only_its_own_vms_and_the_start_waits_for_the_last_approval(service: Service) -> None:
    document(service, SOLO)
    operation = request_one(service, "host-update", host="shared")
    assert all_statuses(service) == SCHEDULED
    due = rfc1123(service.now + FIFTEEN)
    assert {event["NotBefore"] for address in (WEB, MAIL, SOLO) for event in events(service, address)} == {due}
    ids = event_ids(operation)
    assert len(set(ids.values())) == 3, "each scope has an event of its own"
    document_before = document(service, WEB)
    assert service.approve(ids["web"], source="127.0.0.11").status == 200
    assert document(service, WEB) == document_before, "an approval alone changes nothing"
    assert service.approve(ids["solo"], source=WEB).status == 400, "another scope's event is not theirs"
    assert service.approve(ids["mail"], source=MAIL).status == 200
    assert all_statuses(service) == SCHEDULED, "solo has not approved, and is not due"
    waits = get(service, f"operations/{operation['id']}/explain")["waits"]
    approvals = [(wait["group"], wait["done"], wait["by"]) for wait in waits]
    assert approvals == [("web", True, "web-1"), ("mail", True, "mail_0"), ("solo", False, None)]
    assert service.approve(ids["solo"], source=SOLO).status == 200
    assert all_statuses(service) == STARTED
    assert [incarnation(service, address) for address in (WEB, MAIL, SOLO, AWAY)] == [2, 2, 2, 0]


def test_the_start_waits_until_not_before_for_a_group_without_approval(service: Service) -> None:
    document(service, SOLO)
    ids = event_ids(request_one(service, "emergency-repair", host="shared"))
    service.approve(ids["web"], source=WEB)
    service.approve(ids["mail"], source=MAIL)
    service.advance(FIFTEEN - timedelta(seconds=1))
    assert all_statuses(service) == SCHEDULED
    service.advance(timedelta(seconds=1))
    assert all_statuses(service) == STARTED


def test_cancelling_the_event_of_one_group_cancels_those_of_all(service: Service) -> None:
    document(service, SOLO)
    ids = event_ids(request_one(service, "live-migration", "web-0", "web-1", "mail_0", "solo"))
    assert all_statuses(service) == SCHEDULED
    act_on_event(service, ids["mail"], "cancel")
    assert all_statuses(service) == [{}, {}, {}]
    assert [incarnation(service, address) for address in (WEB, MAIL, SOLO)] == [2, 2, 2]


def test_the_start_does_not_wait_for_a_group_that_never_polled(service: Service) -> None:
    expected = request_one(service, "host-update", host="shared", dry_run=True)
    operation = request_one(service, "host-update", host="shared")
    words = {"solo": "solo has never polled"}
    assert expected["not_notified"] == operation["not_notified"] == words
    assert ("not-notified", words["solo"]) in history(service, operation)
    ids = event_ids(operation)
    assert sorted(ids) == ["mail", "web"]
    act_on_event(service, ids["web"], "approve")
    assert statuses(service, WEB) == {"web-0,web-1": "Scheduled"}
    act_on_event(service, ids["mail"], "approve")
    assert statuses(service, WEB) == {"web-0,web-1": "Started"}
    assert document(service, SOLO) == {"DocumentIncarnation": 0, "Events": []}, "it begins to listen only now"


def test_a_postponement_by_one_group_applies_to_all_groups_without_approval(service: Service) -> None:
    document(service, SOLO)
    due = service.now + FIFTEEN
    ids = event_ids(request_one(service, "host-update", host="shared"))
    service.approve(ids["web"], source=WEB)
    act_on_event(service, ids["mail"], "postpone", by="1h")
    moments = [event["NotBefore"] for address in (WEB, MAIL, SOLO) for event in events(service, address)]
    later = rfc1123(due + timedelta(hours=1))
    assert moments == [rfc1123(due), later, later], "who has approved has promised for its own moment"
    assert [incarnation(service, address) for address in (WEB, MAIL, SOLO)] == [1, 2, 2]
    refused = service.control("POST", f"/v1/events/{ids['web']}/postpone", {"by": "2h"})
    assert (refused.status, "web-0 has approved it" in refused.json()["detail"]) == (409, True)
    service.advance(timedelta(minutes=74, seconds=59))
    assert all_statuses(service) == SCHEDULED
    service.advance(timedelta(seconds=1))
    assert all_statuses(service) == STARTED
