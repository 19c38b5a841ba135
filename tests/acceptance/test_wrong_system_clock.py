"""A jump of the system clock: a real process whose clock is set while it runs, or while it is stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

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
HOUR = 3600
YEARS = 2 * 365 * 24 * HOUR


@pytest.fixture
def clock(tmp_path: Path) -> ShiftedSystemClock:
    return ShiftedSystemClock(tmp_path)


def readiness(service: ServiceProcess) -> str:
    return " ".join(service.control("GET", "/readyz").json()["problems"])


def metric(service: ServiceProcess, name: str) -> float:
    lines = service.control("GET", "/metrics").body.decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


def wait_for(found: Callable[[], Any]) -> None:
    """Wait until this is true. Each attempt is a request."""
    for _ in range(10_000):
        if found():
            return
    pytest.fail("it did not happen")


def statuses(service: ServiceProcess) -> list[str]:
    return [event["EventStatus"] for event in service.document()["Events"]]


def kinds(service: ServiceProcess) -> list[str]:
    return [entry["kind"] for entry in service.list_all("/v1/history")]


@pytest.mark.parametrize("wrong", [HOUR, YEARS, -HOUR])
def test_a_wrong_clock_starts_nothing_disables_no_group_and_removes_no_history(
    make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock, wrong: int
) -> None:
    service = make_service(fleet=FLEET, **clock.variables)
    service.document()
    service.request_operation("restart", "web-0")
    before = service.now
    clock.shift(wrong)
    # Before there was a hold, the event started.
    wait_for(lambda: {"clock-jumped", "started"} & set(kinds(service)))
    assert statuses(service) == ["Scheduled"]
    assert "The system clock jumped" in readiness(service)
    clock.shift(0)
    wait_for(lambda: kinds(service).count("clock-jumped") == 2)
    assert metric(service, "forewarn_clock_jumps_total") == 2
    assert metric(service, "forewarn_clock_held") == 1
    assert (service.now - before).total_seconds() < HOUR / 2, "the service does not use a time that it does not trust"
    accepted = service.cli("clock", "accept")
    assert accepted.returncode == 0, accepted.stderr
    assert service.control("GET", "/readyz").status == 200
    assert metric(service, "forewarn_clock_held") == 0
    assert service.now >= before
    assert statuses(service) == ["Scheduled"]
    found = kinds(service)
    assert found[0] == "fleet-applied"
    assert found[-3:] == ["clock-jumped", "clock-jumped", "clock-accepted"]
    assert not {"started", "disabled"} & set(found)


def test_an_accepted_time_starts_what_is_due_and_disables_no_group(
    make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock
) -> None:
    service = make_service(fleet=FLEET, **clock.variables)
    service.document()
    service.request_operation("restart", "web-0")
    clock.shift(30 * HOUR)
    wait_for(lambda: service.control("GET", "/readyz").status == 503)
    shown = service.cli("clock", "show").stdout
    assert "jumped forward by 1d6h" in shown
    assert "forewarn clock accept" in shown
    assert service.cli("clock", "accept").returncode == 0
    (vm,) = service.get_json("/v1/vms")["vms"]
    assert vm["events_enabled"]
    found = service.list_all("/v1/history")
    assert {"started", "clock-accepted"} <= {entry["kind"] for entry in found}
    assert "disabled" not in {entry["kind"] for entry in found}
    again = service.cli("clock", "accept")
    assert (again.returncode, again.stderr.count("\n")) == (4, 1)
    assert "The system clock has not jumped" in again.stderr


@pytest.mark.parametrize("wrong", [HOUR, -HOUR])
def test_a_clock_that_was_set_while_the_service_was_down_is_noticed_at_the_start(
    make_service: Callable[..., ServiceProcess], clock: ShiftedSystemClock, wrong: int
) -> None:
    service = make_service(fleet=FLEET, **clock.variables)
    service.document()
    service.request_operation("restart", "web-0")
    before = service.now
    service.stop()
    clock.shift(wrong)
    service.start(**clock.variables)
    assert "The system clock jumped" in readiness(service)
    assert statuses(service) == ["Scheduled"]
    assert abs((service.now - before).total_seconds()) < HOUR / 2
    assert service.cli("clock", "accept").returncode == 0
    (vm,) = service.get_json("/v1/vms")["vms"]
    assert vm["events_enabled"]
    service.stop()
    service.start(**clock.variables)
    assert service.control("GET", "/readyz").status == 200, "the accepted time is stored"
    assert abs((service.now - before).total_seconds() - wrong) < HOUR / 2
