"""Downtime is not notice: a service that was down over NotBefore gives the rest of the notice when it is back."""

from __future__ import annotations

import signal
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.wire.document_reader import start_requests
from shifted_system_clock import ShiftedSystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import ServiceProcess

FLEET = """
[[vm]]
name = "web-0"
address = "127.0.0.1"
"""
SLACK = timedelta(seconds=10)
"""How far the service may be wrong about the length of its downtime, and the test about its own speed."""


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedSystemClock:
    return ShiftedSystemClock(tmp_path)


def restart(service: ServiceProcess, **variables: str) -> None:
    service.start("--fleet", str(service.folder / "fleet.toml"), **variables)


def event(service: ServiceProcess) -> Any:
    (found,) = service.document()["Events"]
    return found


def not_before(service: ServiceProcess) -> datetime:
    return parsedate_to_datetime(event(service)["NotBefore"])


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_downtime_moves_not_before(
    make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock, end: str
) -> None:
    service = make_service(fleet=FLEET, **clock.variables)
    service.document()
    service.request_operation("restart", "web-0")
    before = not_before(service)
    getattr(service, end)()
    clock.pass_time(20 * 60)
    restart(service, **clock.variables)
    found = event(service)
    assert found["EventStatus"] == "Scheduled"
    moved = parsedate_to_datetime(found["NotBefore"]) - before
    assert abs(moved - timedelta(minutes=20)) <= SLACK
    (row,) = [row for row in service.list_all("/v1/history") if row["kind"] == "postponed"]
    assert "the service was down for 20m" in row["reason"]


@pytest.mark.parametrize("end", ["kill", "stop"])
def test_short_downtime_changes_nothing(make_service: Callable[..., ServiceProcess], end: str) -> None:
    service = make_service(fleet=FLEET)
    service.document()
    service.request_operation("restart", "web-0")
    before = not_before(service)
    getattr(service, end)()
    restart(service)
    assert not_before(service) == before


def test_time_in_which_the_process_was_stopped_moves_not_before(
    make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock
) -> None:
    """A machine that is suspended, or a debugger, stops the service, and it continues without a start."""
    service = make_service(fleet=FLEET, **clock.variables)
    service.document()
    service.request_operation("restart", "web-0")
    before = not_before(service)
    assert service.process is not None
    service.process.send_signal(signal.SIGSTOP)
    clock.pass_time(20 * 60)
    service.process.send_signal(signal.SIGCONT)
    for _ in range(10_000):  # each is a request
        found = event(service)
        if found["EventStatus"] != "Scheduled" or not_before(service) != before:
            break
    assert found["EventStatus"] == "Scheduled"
    assert abs(not_before(service) - before - timedelta(minutes=20)) <= SLACK


@pytest.fixture
def shared(make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock) -> ServiceProcess:
    """A service with work on a host that two scopes share."""
    fleet = """
    [[host]]
    name = "host-a"
    [[vm]]
    name = "web-0"
    host = "host-a"
    address = "127.0.0.1"
    [[vm]]
    name = "db-0"
    host = "host-a"
    address = "127.0.0.2"
    """
    service = make_service(fleet=fleet, **clock.variables)
    for source in ("127.0.0.1", "127.0.0.2"):
        service.document(source=source)
    service.control("POST", "/v1/operations", {"cause": "host-update", "host": "host-a", "type": "Reboot"})
    return service


def test_approval_that_waits_while_the_process_is_stopped_does_not_start_the_work_of_others(
    shared: ServiceProcess, clock: ShiftedSystemClock
) -> None:
    """The service sees the approval first, and then that it was stopped."""
    assert shared.process is not None
    approved = event(shared)["EventId"]
    with shared.connect() as connection:
        shared.process.send_signal(signal.SIGSTOP)
        clock.pass_time(20 * 60)
        body = start_requests(approved)
        connection.sendall(
            b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        shared.process.send_signal(signal.SIGCONT)
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
    (other,) = shared.document(source="127.0.0.2")["Events"]
    assert other["EventStatus"] == "Scheduled"


def test_approved_work_starts_after_the_downtime(shared: ServiceProcess, clock: ShiftedSystemClock) -> None:
    """Only the event that nobody has approved moves."""
    service = shared
    before = not_before(service)
    service.approve(event(service)["EventId"])
    service.kill()
    clock.pass_time(20 * 60)
    restart(service, **clock.variables)
    assert not_before(service) == before
    (other,) = service.document(source="127.0.0.2")["Events"]
    assert other["EventStatus"] == "Scheduled"
    assert parsedate_to_datetime(other["NotBefore"]) >= before + timedelta(minutes=20) - SLACK
