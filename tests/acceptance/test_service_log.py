"""The log of the service: its format and level, the audit lines of the control API, and the access log."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from forewarn import __version__
from systemd_socket import wait_for_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'


def entries(service: ServiceProcess, event: str) -> list[dict[str, Any]]:
    """The log lines with this event name, without time and logger."""
    found = [json.loads(line) for line in service.output.splitlines() if line.startswith("{")]
    hidden = ("time", "logger", "level", "event", "message")
    return [
        {key: value for key, value in line.items() if key not in hidden} for line in found if line["event"] == event
    ]


def test_each_control_request_has_an_audit_line(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--log-format", "json", fleet=FLEET)
    viewer = service.control("POST", "/v1/tokens", {"name": "anna", "role": "viewer"}).json()["token"]
    service.control("GET", "/v1/vms?limit=1", token=viewer)
    service.control("POST", "/v1/operations", {"cause": "restart", "vms": ["web-0"]}, token=viewer)
    guessed = "fw_guessed"
    service.control("GET", "/v1/vms", token=guessed)
    for path in ("/healthz", "/readyz", "/metrics"):
        service.control("GET", path)
    service.control("GET", "/v1/nowhere")
    wait_for_log(service, "/v1/nowhere")
    assert [tuple(line.values()) for line in entries(service, "control_request")] == [
        ("admin", "admin", "127.0.0.1", "POST", "/v1/tokens", 201),
        ("anna", "viewer", "127.0.0.1", "GET", "/v1/vms", 200),
        ("anna", "viewer", "127.0.0.1", "POST", "/v1/operations", 403),
        (None, None, "127.0.0.1", "GET", "/v1/vms", 401, "UnknownToken"),
        ("admin", "admin", "127.0.0.1", "GET", "/v1/nowhere", 404),
    ]
    assert list(entries(service, "control_request")[0]) == ["token", "role", "address", "method", "path", "status"]
    assert viewer not in service.output
    assert guessed not in service.output
    assert entries(service, "http_request") == []


def test_with_json_the_service_writes_only_json(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--log-format", "json", "--name", "lab", fleet=FLEET)
    urls = {"metadata": service.metadata_url, "control": service.control_url}
    assert service.stop() == 0
    assert [json.loads(line)["event"] for line in service.output.splitlines()] == ["service_started", "service_stopped"]
    assert entries(service, "service_started") == [{"version": __version__, "name": "lab", **urls, "vms": 1}]


def test_with_text_the_service_also_writes_how_to_use_it(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    line = wait_for_log(service, "service_started")
    assert line.endswith(f"control={service.control_url} vms=1")
    assert "Try in another terminal" in service.output
    assert "#" not in line, "the one-time link of the portal is not in the log"


def test_the_log_names_the_owner_of_a_revoked_or_expired_token(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--log-format", "json", "--clock", "virtual", fleet=FLEET)
    secrets = {}
    for name in ("anna", "bert"):
        made = service.control("POST", "/v1/tokens", {"name": name, "role": "viewer", "expires": "1h"})
        secrets[name] = made.json()["token"]
    service.control("DELETE", "/v1/tokens/anna")
    service.advance("2h")
    for secret in secrets.values():
        assert service.control("GET", "/v1/vms", token=secret).status == 401
    wait_for_log(service, "TokenExpired", times=2)
    assert entries(service, "wrong_token") == [
        {"token": "anna", "reason": "TokenRevoked", "address": "127.0.0.1"},
        {"token": "bert", "reason": "TokenExpired", "address": "127.0.0.1"},
    ]
    assert [
        (line["token"], line["reason"]) for line in entries(service, "control_request") if line["status"] == 401
    ] == [
        ("anna", "TokenRevoked"),
        ("bert", "TokenExpired"),
    ]
    assert not [secret for secret in secrets.values() if secret in service.output]


def test_a_request_that_never_ends_is_not_logged_as_successful(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    host, port = service.control_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        headers = f"Host: {host}\r\nAuthorization: Bearer {service.token}\r\nContent-Length: 9\r\n"
        head = f"POST /v1/tokens HTTP/1.1\r\n{headers}"
        client.sendall(f"{head}\r\n{{".encode())
    line = wait_for_log(service, "control_request")
    assert "status=400" in line


def test_text_is_the_default_and_the_level_can_be_raised(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    service.control("GET", "/v1/vms")
    line = wait_for_log(service, "control_request")
    assert line.endswith(
        "INFO control_request: Request to the control API. token=admin role=admin address=127.0.0.1 method=GET "
        "path=/v1/vms status=200"
    )
    service.stop()
    service.start("--log-level", "warning", "--control", "127.0.0.1:0")
    service.control("GET", "/v1/vms")
    service.stop()
    assert "control_request" not in service.output


@pytest.mark.parametrize(
    ("option", "value", "allowed"), [("log-format", "xml", "text or json"), ("log-level", "loud", "warning or error")]
)
def test_invalid_log_settings_are_one_line(
    make_service: Callable[..., ServiceProcess], option: str, value: str, allowed: str
) -> None:
    with pytest.raises(RuntimeError, match=f"ended with 2: forewarn: Invalid setting .*{value}.* must be .*{allowed}"):
        make_service(f"--{option}", value)


def test_the_access_log_has_every_request_of_both_planes(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--log-format", "json", "--access-log", fleet=FLEET)
    host, port = service.metadata_url.removeprefix("http://").split(":")
    poll = b"GET /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nHost: x\r\nMetadata: true\r\n\r\n"
    with socket.create_connection((host, int(port))) as client:
        for _ in range(3):  # the same bytes on the same connection
            client.sendall(poll)
            response = client.recv(65536)
        client.sendall(poll.replace(b"GET", b"HEAD").replace(b"scheduledevents", b"nowhere"))
        client.recv(65536)
    service.control("GET", "/healthz")
    service.control("GET", "/v1/fleet")
    wait_for_log(service, '"plane": "control"', times=2)
    found = entries(service, "http_request")
    size = len(response.partition(b"\r\n\r\n")[2])
    assert [tuple(line.values())[:-1] for line in found] == [
        *[("metadata", "web-0", "127.0.0.1", "GET", "/metadata/scheduledevents", 200, size)] * 3,
        ("metadata", "web-0", "127.0.0.1", "HEAD", "/metadata/nowhere", 404, 0),
        ("control", None, "127.0.0.1", "GET", "/healthz", 200, found[4]["bytes"]),
        ("control", "admin", "127.0.0.1", "GET", "/v1/fleet", 200, len(service.control("GET", "/v1/fleet").body)),
    ]
    assert list(found[0])[-2:] == ["bytes", "seconds"]
    assert all(line["seconds"] >= 0 for line in found)
    assert found[4]["bytes"] > 0
