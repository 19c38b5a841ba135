"""Health, readiness and metrics of the service."""

from __future__ import annotations

import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import Service, ServiceProcess

    MakeService = Callable[..., ServiceProcess]

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
"""
V = "/metadata/scheduledevents?api-version="


def metrics(service: ServiceProcess) -> dict[str, float]:
    """Every sample by its name and labels, as Prometheus reads them."""
    answer = service.control("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    found = {}
    for family in text_string_to_metric_families(answer.body.decode()):
        assert family.documentation
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_events_and_requests_are_counted(make_service: MakeService) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    for _ in range(3):
        tag = service.request().headers["etag"]
    service.request(headers={"Metadata": "true", "If-None-Match": tag})
    service.request(target=f"{V}2017-03-01")
    service.request(target=f"{V}1999-01-01")
    service.request(target="/metadata/ScheduledEvents/?api-version=2019-08-01")
    service.request(headers={})
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    other = service.request_operation("restart", "web-1")["events"][0]["id"]
    service.advance("5m")
    service.approve(event)
    service.approve("nothing")
    service.control("POST", f"/v1/events/{other}/cancel")
    found = metrics(service)
    assert found["forewarn_polls_total{api_version=2020-07-01,code=200}"] == 3
    assert found["forewarn_polls_total{api_version=2020-07-01,code=304}"] == 1
    assert found["forewarn_polls_total{api_version=2017-03-01,code=200}"] == 1
    assert found["forewarn_polls_total{api_version=2019-08-01,code=200}"] == 1
    assert found["forewarn_polls_total{api_version=other,code=404}"] == 1
    assert found["forewarn_polls_total{api_version=2020-07-01,code=400}"] == 1
    assert found["forewarn_approval_requests_total{code=200}"] == 1
    assert found["forewarn_approval_requests_total{code=400}"] == 1
    assert found["forewarn_event_transitions_total{status=scheduled,type=Reboot}"] == 2
    assert found["forewarn_event_transitions_total{status=started,type=Reboot}"] == 1
    assert found["forewarn_event_transitions_total{status=cancelled,type=Reboot}"] == 1
    assert found["forewarn_approvals_total{type=Reboot}"] == 1
    assert found["forewarn_active_events{status=started,type=Reboot}"] == 1
    assert found["forewarn_notice_seconds_sum{type=Reboot}"] == 300
    assert found["forewarn_notice_seconds_bucket{le=60.0,type=Reboot}"] == 0
    assert found["forewarn_notice_seconds_bucket{le=300.0,type=Reboot}"] == 1
    assert found["forewarn_store_commit_duration_seconds_count{}"] > 4
    assert found["forewarn_long_polls{}"] == 0
    service.advance("10m")
    later = metrics(service)
    assert later["forewarn_event_transitions_total{status=completed,type=Reboot}"] == 1
    assert "forewarn_active_events{status=started,type=Reboot}" not in later


@pytest.mark.forewarn(fleet=FLEET)
def test_every_metric_is_on_its_page(forewarn: Service) -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text()
    names = set(re.findall(r"^# HELP (\S+)", forewarn.control("GET", "/metrics").body.decode(), re.MULTILINE))
    assert names == set(re.findall(r"^\| `((?:forewarn|process)_\w+)`", page, re.MULTILINE))


def test_the_scheduler_delay_is_measured_in_real_time(make_service: MakeService) -> None:
    service = make_service("--speed", "3600", fleet=FLEET)
    service.document()
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    for _ in range(100_000):
        if service.get_json(f"/v1/events/{event}")["status"] == "completed":
            break
    assert metrics(service)["forewarn_scheduler_delay_seconds_count{}"] >= 1


def test_a_disk_that_takes_no_writes_makes_it_unready_until_it_does(make_service: MakeService) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    assert service.control("GET", "/readyz", token="").json() == {"status": "ready", "problems": []}
    assert service.process is not None
    _, most = resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, most))
    refused = service.control("POST", "/v1/tokens", {"name": "ci", "role": "viewer"})
    assert refused.status == 503
    unready = service.control("GET", "/readyz", token="")
    assert (unready.status, unready.json()["status"]) == (503, "not ready")
    assert "Cannot write the change" in unready.json()["problems"][0]
    assert service.control("GET", "/healthz", token="").status == 200
    assert metrics(service)["forewarn_store_commit_failures_total{}"] >= 1
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (most, most))
    assert service.control("GET", "/readyz", token="").status == 200, "although there was no command since"
    assert service.control("POST", "/v1/tokens", {"name": "ci", "role": "viewer"}).status == 201
