"""A dry run returns what would happen, in the shape of the real response, and changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from acceptance.causes import act_on_event, document, event_ids, everything, request
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES: dict[str, dict[str, Any]] = {
    "restart": {"vms": ["web-0"]},
    "redeploy": {"vms": ["web-0", "web-1"], "notice": "1h"},
    "host-update": {"host": "rack-1", "type": "reboot", "notice": "1m", "overrides": ["notice", "windows"]},
    "live-migration": {"vms": ["web-0", "web-1"], "duration": "3s", "postpone_deadline": "2h"},
    "degraded-hardware": {"host": "rack-1", "notice": "3d"},
    "hardware-failure": {"host": "rack-1"},
    "emergency-repair": {"host": "rack-2"},
    "eviction": {"vms": ["batch_0"]},
    "rebalance": {"vms": ["batch_1"]},
    "reimage": {"group": "batch"},
    "image-upgrade": {"vms": ["web-2", "silent"]},
    "delete": {"vms": ["pool_0", "pool_1"]},
    "scale-in": {"vms": ["pool_2"]},
    "instance-repair": {"vms": ["silent"]},
}

FLEET = """
[[host]]
name = "rack-1"
[[host]]
name = "rack-2"
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
group = "web"
name = "web-{n}"
count = 4
hosts = ["rack-1", "rack-2"]
addresses = "127.4.0.1-127.4.0.4"
[[group]]
name = "batch"
kind = "scale-set"
[[vm]]
group = "batch"
count = 2
hosts = ["rack-2"]
addresses = "127.4.0.11-127.4.0.12"
priority = "spot"
[[group]]
name = "pool"
kind = "scale-set"
terminate_notice = "PT5M"
os_image_notice = "PT15M"
[[vm]]
group = "pool"
count = 3
hosts = ["rack-2"]
addresses = "127.4.0.13-127.4.0.15"
[[vm]]
name = "silent"
"""
WEB, BATCH = "127.4.0.1", "127.4.0.11"


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with Service(FLEET, enable_groups=False) as found:
        document(found, WEB)
        document(found, BATCH)
        document(found, "127.4.0.13")
        yield found


def at_rest(service: Service) -> dict[str, Any]:
    """Return everything that the service shows, after earlier requests have completed."""
    service.advance("0s")
    return everything(service, WEB, BATCH)


def without_ids(found: Any) -> Any:
    """Replace the ids, which are random. Everything else must be equal."""
    if isinstance(found, list):
        return [without_ids(item) for item in found]
    if isinstance(found, dict):
        return {name: without_ids(value) for name, value in found.items() if name not in ("id", "operation")}
    return found


@pytest.mark.parametrize("cause", CASES)
def test_a_dry_run_returns_what_the_request_then_does(service: Service, cause: str) -> None:
    before = at_rest(service)
    expected = request(service, cause, **CASES[cause], dry_run=True)
    assert at_rest(service) == before
    found = request(service, cause, **CASES[cause])
    assert [list(operation) for operation in expected] == [list(operation) for operation in found]
    assert without_ids(expected) == without_ids(found)
    assert at_rest(service) != before


def test_a_rejection_is_the_same_in_a_dry_run(service: Service) -> None:
    body = {"cause": "eviction", "vms": ["web-2"]}
    refused, dry = (service.control("POST", "/v1/operations", {**body, "dry_run": dry}) for dry in (False, True))
    assert (dry.status, dry.json()) == (refused.status, refused.json()) == (400, refused.json())


def test_a_dry_run_of_a_postponement_returns_the_result(service: Service) -> None:
    (event_id,) = event_ids(request(service, "live-migration", "web-2")[0]).values()
    before = at_rest(service)
    expected = act_on_event(service, event_id, "postpone", by="20m", dry_run=True)
    assert at_rest(service) == before
    assert act_on_event(service, event_id, "postpone", by="20m") == expected


def test_a_dry_run_of_a_host_return_lists_the_operations_to_cancel(service: Service) -> None:
    (operation,) = [
        found for found in request(service, "degraded-hardware", host="rack-2") if found["vms"] == ["web-3"]
    ]
    before = at_rest(service)
    expected = service.control("POST", "/v1/hosts/rack-2/return", {"dry_run": True}).json()
    assert at_rest(service) == before
    assert expected["state"] == "in-service"
    assert operation["id"] in expected["cancelled"]
    assert service.control("POST", "/v1/hosts/rack-2/return").json() == expected


def test_a_dry_run_of_a_rollout_is_a_plan_without_notices(service: Service) -> None:
    before = at_rest(service)
    answer = service.control("POST", "/v1/rollouts", {"hosts": ["rack-2"], "dry_run": True})
    assert answer.status == 200
    assert [wave["hosts"] for wave in answer.json()["waves"]] == [["rack-2"]]
    assert at_rest(service) == before
