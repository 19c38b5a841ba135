"""/v1/settings, what is due next, and moving a virtual clock to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from forewarn.core.durations import from_text
from forewarn.settings import SETTINGS
from forewarn.testing import Service

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

FLEET = '[[host]]\nname = "rack-a"\n[[vm]]\nname = "web-0"\nhost = "rack-a"\naddress = "127.0.0.1"\n'


def test_each_setting_has_its_value_and_its_origin(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--speed", "60", "--settle", "restart=5m", FOREWARN_RATE_LIMIT="7")
    found = {setting["name"]: setting for setting in service.get_json("/v1/settings")["settings"]}
    assert list(found) == list(SETTINGS)
    assert (found["speed"]["value"], found["speed"]["default"], found["speed"]["origin"]) == ("60", "1", "--speed")
    assert (found["rate_limit"]["value"], found["rate_limit"]["origin"]) == ("7", "FOREWARN_RATE_LIMIT")
    assert (found["inactivity_timeout"]["value"], found["inactivity_timeout"]["origin"]) == ("1d", "default")
    assert "restart=5m" in found["settle"]["value"]
    assert found["portal_session"]["help"] == SETTINGS["portal_session"].help


def test_only_an_admin_sees_the_arguments_of_the_fabric_program() -> None:
    with Service(FLEET, fabric="command", fabric_command="/bin/true --password hunter2") as service:
        viewer = service.control("POST", "/v1/tokens", {"name": "v", "role": "viewer"}).json()["token"]
        assert b"hunter2" in service.control("GET", "/v1/settings").body
        response = service.control("GET", "/v1/settings", token=viewer)
        assert b"hunter2" not in response.body
        shown = {setting["name"]: setting["value"] for setting in response.json()["settings"]}
        assert shown["fabric_command"] == "/bin/true ..."


def test_the_clock_moves_to_what_is_due_next() -> None:
    with Service(FLEET) as service:
        assert service.get_json("/v1/clock")["next_due"] is None
        response = service.control("POST", "/v1/clock/advance", {"to": "next"})
        assert (response.status, response.json()["type"]) == (409, "urn:forewarn:NothingDue")
        event = service.request_operation("restart", "web-0")[0]
        due = service.get_json("/v1/clock")["next_due"]
        shown = service.get_json(f"/v1/events/{event.id}")
        assert due == {
            "time": shown["not_before"],
            "kind": "operation",
            "id": shown["operation"],
            "description": "restart of web-0 starts.",
        }
        clock = service.control("POST", "/v1/clock/advance", {"to": "next"}).json()
        assert clock["now"] == shown["not_before"]
        assert service.get_json(f"/v1/events/{event.id}")["status"] == "started"
        assert clock["next_due"]["description"] == "restart of web-0 ends."
        assert "Next: restart of web-0 ends." in service.cli("clock", "show").stdout
        assert service.cli("clock", "advance", "next").returncode == 0
        assert service.now == from_text(clock["next_due"]["time"])
        assert service.get_json(f"/v1/events/{event.id}")["status"] == "completed"


def test_a_cancelled_operation_is_not_due() -> None:
    with Service(FLEET) as service:
        event = service.request_operation("restart", "web-0")[0]
        service.control("POST", f"/v1/events/{event.id}/cancel", {})
        assert service.get_json("/v1/clock")["next_due"] is None


def test_a_tenant_does_not_see_what_is_due() -> None:
    with Service(FLEET) as service:
        service.request_operation("restart", "web-0")
        body = {"name": "team", "role": "tenant", "group": "web-0"}
        token = service.control("POST", "/v1/tokens", body).json()["token"]
        assert service.control("GET", "/v1/clock", token=token).json()["next_due"] is None


def test_where_to_move_the_clock_must_be_clear() -> None:
    with Service(FLEET) as service:
        for body, pointer in (
            ({}, "/by"),
            ({"by": "1m", "to": "next"}, "/by"),
            ({"to": "later"}, "/to"),
            ({"by": ""}, "/by"),
        ):
            response = service.control("POST", "/v1/clock/advance", body)
            assert (response.status, response.json()["pointer"]) == (400, pointer), json.dumps(body)


def test_a_system_clock_does_not_move(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service()
    assert service.get_json("/v1/clock")["next_due"] is None
    response = service.control("POST", "/v1/clock/advance", {"to": "next"})
    assert (response.status, response.json()["type"]) == (409, "urn:forewarn:ClockNotVirtual")
