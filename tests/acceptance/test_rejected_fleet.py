"""A fleet file that is refused in the current state: the service keeps running with the stored fleet, and says so."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing.process import ServiceProcess

FLEET = """
[[host]]
name = "host-a"
[[host]]
name = "host-b"
[[vm]]
name = "web-0"
host = "host-a"
address = "127.0.0.1"
"""
MOVED = FLEET.replace('host = "host-a"', 'host = "host-b"')


def readiness(service: ServiceProcess) -> tuple[int, dict[str, Any]]:
    response = service.control("GET", "/readyz")
    return response.status, response.json()


@pytest.mark.parametrize("way", ["start", "reload"])
def test_file_that_needs_a_failed_host_is_refused(make_service: Callable[..., ServiceProcess], way: str) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.control("POST", "/v1/operations", {"cause": "hardware-failure", "host": "host-b"})
    file = service.folder / "fleet.toml"
    file.write_text(MOVED)
    if way == "start":
        service.kill()
        service.start("--clock", "virtual", "--fleet", str(file))
        log = "fleet_not_applied"
    else:
        assert service.process is not None
        service.process.send_signal(signal.SIGHUP)
        log = "fleet_reload_failed"
    service.until_output(log)
    assert "web-0 cannot be placed on host-b, because this host is failed." in service.output
    assert "Traceback" not in service.output
    status, found = readiness(service)
    assert status == 503
    assert "is not in force: web-0 cannot be placed on host-b" in found["problems"][0]

    service.cli("host", "return", "host-b")
    service.cli("fleet", "apply", str(file))
    assert readiness(service) == (200, {"status": "ready", "problems": []})
