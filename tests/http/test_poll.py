"""A first poll of a new service."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess


def test_a_new_service_responds_to_a_poll_and_announces_a_restart(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual")
    assert service.request().body == b'{"DocumentIncarnation":0,"Events":[]}'
    name = service.control("GET", "/v1/vms").json()["vms"][0]["name"]
    service.request_operation("restart", name)
    document = service.document()
    assert document["DocumentIncarnation"] == 1
    assert document["Events"][0]["Resources"] == [name]
    service.advance("15m")
    assert service.document()["Events"][0]["EventStatus"] == "Started"
    service.advance("10m")
    assert service.document() == {"DocumentIncarnation": 3, "Events": []}
