"""A speed that makes a notice shorter than ten seconds causes one warning, because slow pollers miss such an event."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from command_line import run_command
from forewarn.core.limits import short_notices
from forewarn.scenarios import library

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

    Make = Callable[..., ServiceProcess]

NOTICES = {"Reboot": timedelta(minutes=15), "Preempt": timedelta(seconds=30), "Advice": timedelta(0)}
SPOT = '[[vm]]\nname = "app-0"\naddress = "127.0.0.1"\npriority = "spot"\n'


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        (1, None),
        (3, None),
        (3.75, ("Preempt 8s", 3)),
        (90, ("Preempt 0.333333s", 3)),
        (100, ("Reboot 9s, Preempt 0.3s", 3)),
    ],
)
def test_notices_under_ten_seconds_are_short(speed: float, expected: tuple[str, float] | None) -> None:
    assert short_notices(NOTICES, speed) == expected


@pytest.mark.parametrize(
    ("name", "notices"),
    [
        ("user-reboot", {"Reboot": timedelta(minutes=15)}),
        ("rolling-update", {"Freeze": timedelta(minutes=15)}),
        ("degraded-hardware", {"Freeze": timedelta(days=7)}),
        ("hardware-failure", {"Reboot": timedelta(0)}),
        ("scale-in", {"Terminate": timedelta(minutes=5)}),
    ],
)
def test_a_scenario_knows_the_notices_of_its_events(name: str, notices: dict[str, timedelta]) -> None:
    assert library.find(name)[0].notices == notices


def warnings_of(service: ServiceProcess) -> list[str]:
    return [line.partition(" WARNING ")[2] for line in service.output.splitlines() if " WARNING " in line]


def test_the_service_warns_once_at_its_start(make_service: Make) -> None:
    service = make_service("--speed", "60", fleet=SPOT)
    service.document()
    service.request_operation("eviction", "app-0")
    assert service.stop() == 0
    (warning,) = warnings_of(service)
    assert warning.startswith("notices_short: Clients that poll every 10 seconds or less often can miss these events.")
    assert warning.endswith(' speed=60 notices="Preempt 0.5s, Terminate 5s" max_speed=3')


@pytest.mark.parametrize("arguments", [("--speed", "3"), ("--speed", "60", "--clock", "virtual")])
def test_the_service_does_not_warn_without_a_reason(make_service: Make, arguments: tuple[str, ...]) -> None:
    service = make_service(*arguments, fleet=SPOT)
    assert service.stop() == 0
    assert warnings_of(service) == []


@pytest.mark.parametrize("clock", ["system", "virtual"])
def test_a_run_warns_of_its_own_events(make_service: Make, clock: str) -> None:
    service = make_service("--speed", "3", "--clock", clock, fleet=SPOT)
    played = run_command(service, "scenario", "run", "spot-eviction", "--speed", "20", "--enable")
    assert played.returncode == 0, played.stdout
    assert played.stderr == (
        "forewarn: at this speed the notices are short: Preempt 0.5s. Clients that poll every 10 seconds or less often "
        "can miss the events. Use --speed 1 or lower.\n"
    )


def test_a_run_does_not_warn_without_a_reason(make_service: Make) -> None:
    service = make_service("--clock", "virtual", fleet=SPOT)
    for arguments in (("--speed", "1000000"), ()):  # a failure has no notice, and a run without a speed has no poller
        name = "hardware-failure" if arguments else "user-reboot"
        played = run_command(service, "scenario", "run", name, "--enable", *arguments)
        assert (played.returncode, played.stderr) == (0, "")
    refused = run_command(service, "scenario", "run", "scale-in", "--speed", "900")
    assert (refused.returncode, "at this speed" in refused.stderr) == (2, False)
