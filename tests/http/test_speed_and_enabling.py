"""What a client needs to run a scenario: operations and rollouts with a speed, and VMs that are enabled for it."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from forewarn.core.durations import from_text
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Iterator

FLEET = '[[host]]\nname = "rack-1"\n[[vm]]\nname = "web-0"\nhost = "rack-1"\n'
OPERATION = {"cause": "host-update", "host": "rack-1"}
ROLLOUT = {"hosts": ["rack-1"]}


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(FLEET) as service:
        yield service


@pytest.mark.parametrize(("path", "body"), [("/v1/operations", OPERATION), ("/v1/rollouts", ROLLOUT)])
def test_a_speed_divides_the_notice_and_the_time_of_the_work(
    service: Service, path: str, body: dict[str, object]
) -> None:
    assert service.control("POST", path, {**body, "speed": 60}).status == 201
    (event,) = service.list_all("/v1/events")
    assert from_text(event["not_before"]) - from_text(event["created_at"]) == timedelta(seconds=15)
    service.advance("25s")
    assert service.list_all("/v1/events") == []
    assert "60 times faster" in str(service.get_json("/v1/history"))


@pytest.mark.parametrize(("path", "body"), [("/v1/operations", OPERATION), ("/v1/rollouts", ROLLOUT)])
@pytest.mark.parametrize("speed", [0, -1, 2_000_000, True, "60"])
def test_a_wrong_speed_is_rejected(service: Service, path: str, body: dict[str, object], speed: object) -> None:
    refused = service.control("POST", path, {**body, "speed": speed})
    assert (refused.status, refused.json()["pointer"]) == (400, "/speed")


def test_a_vm_is_enabled_and_stays_enabled_as_if_it_polled() -> None:
    with Service(FLEET, enable_groups=False, inactivity_timeout="1d") as service:
        for _ in range(3):
            enabled = service.control("POST", "/v1/vms/web-0/enable").json()
            assert (enabled["events_enabled"], from_text(enabled["last_seen_at"])) == (True, service.now)
            service.advance("23h")
        kinds = [row["kind"] for row in service.list_all("/v1/history") if row["kind"].endswith("abled")]
        assert kinds == ["enabled"]
        unknown = service.control("POST", "/v1/vms/web-00/enable")
        assert (unknown.status, "web-0" in unknown.json()["detail"]) == (404, True)
