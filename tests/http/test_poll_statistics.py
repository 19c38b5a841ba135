"""How often a VM polls: of each VM for itself, with and without a lasting connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.core.durations import from_text
from forewarn.testing import Service
from golden.exchange import Line

if TYPE_CHECKING:
    from collections.abc import Iterator

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
address = "127.0.0.2"
"""
POLL = b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: a\r\nMetadata: true\r\n"


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


def polls(service: Service, vm: str) -> Any:
    return service.get_json(f"/v1/vms/{vm}")["polls"]


def test_a_vm_that_has_never_polled(service: Service) -> None:
    assert polls(service, "web-0") == {"count": 0, "last_at": None, "interval_seconds": None}


def test_each_vm_has_its_own_polls(service: Service) -> None:
    for _ in range(3):
        service.document()
    found = polls(service, "web-0")
    assert found["count"] == 3
    assert from_text(found["last_at"]) == service.now
    assert found["interval_seconds"] > 0
    assert polls(service, "web-1")["count"] == 0
    service.advance("1h")
    service.document(source="127.0.0.2")
    assert polls(service, "web-0")["last_at"] == found["last_at"]
    assert from_text(polls(service, "web-1")["last_at"]) == service.now


def test_repeated_polls_of_a_connection_count(service: Service) -> None:
    with Line(service) as line:
        for _ in range(10):
            assert line.exchange(POLL + b"\r\n").status == 200
    found = polls(service, "web-0")
    assert found["count"] == 10
    assert from_text(found["last_at"]) == service.now


def test_polls_stay_when_the_fleet_changes(service: Service) -> None:
    service.document()
    service.vm("another")
    service.document()
    assert polls(service, "web-0")["count"] == 2


def test_a_held_poll_counts_when_it_arrives(service: Service) -> None:
    tag = service.request().headers["etag"]
    with Line(service) as line:
        line.send(POLL + f"If-None-Match: {tag}\r\nPrefer: wait=60\r\n\r\n".encode())
        while polls(service, "web-0")["count"] != 2:
            pass
        service.request_operation("restart", "web-0")
        assert line.read_response().status == 200
    assert polls(service, "web-0")["count"] == 2
