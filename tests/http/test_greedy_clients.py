"""One client that takes all it can get: everybody else is still served."""

from __future__ import annotations

import resource
import sys
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess
from forewarn.testing.client import expect_status
from golden.exchange import POLL, Line

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

OPEN_FILES = 256
FLEET = """
[[vm]]
name = "greedy"
address = "127.0.0.2"

[[vm]]
name = "modest"
address = "127.0.0.3"
"""
LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({OPEN_FILES}, {OPEN_FILES}))
os.execv(sys.executable, [sys.executable, "-m", "forewarn", *sys.argv[1:]])
"""
"""A program that runs the command line with few file descriptors."""

HALF_HEAD = POLL[:40]
HALF_BODY = (
    b"POST /metadata/scheduledevents?api-version=2020-07-01 HTTP/1.1\r\nMetadata: true\r\nContent-Length: 99\r\n\r\n{"
)


class FewFiles(ServiceProcess):
    """A service whose limit of open files is low."""

    command = (sys.executable, "-c", LIMITED)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with FewFiles(tmp_path) as service:
        yield service.start("--fleet", str(tmp_path / "fleet.toml"), "--clock", "virtual")


def long_poll(service: ServiceProcess) -> bytes:
    tag = service.request(source="127.0.0.2").headers["etag"]
    return POLL.replace(b"\r\n\r\n", f"\r\nIf-None-Match: {tag}\r\nPrefer: wait=300\r\n\r\n".encode())


def fill(service: ServiceProcess, address: tuple[str, int], data: bytes, source: str) -> list[socket.socket]:
    """Open more connections than the service has file descriptors, and send the same on each."""
    opened = []
    for _ in range(OPEN_FILES + 50):
        connection = service.connect(address, source)
        opened.append(connection)
        with suppress(OSError):  # it was refused
            connection.sendall(data)
    return opened


def metrics(service: ServiceProcess) -> dict[str, float]:
    text = expect_status(service.control("GET", "/metrics"), 200).body.decode()
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def check_others(service: ServiceProcess) -> None:
    """Other VMs poll, operators work, and the store writes."""
    for _ in range(3):
        assert service.document(source="127.0.0.3")["Events"] == []
    assert service.control("GET", "/healthz").status == service.control("GET", "/readyz").status == 200
    operation = service.request_operation("restart", "modest")
    assert service.document(source="127.0.0.3")["Events"][0]["Resources"] == ["modest"]
    assert service.control("POST", f"/v1/operations/{operation['id']}/cancel", {}).status == 200
    assert service.cli("vm", "list").returncode == 0


@pytest.mark.parametrize("kind", ["idle", "half a head", "half a body", "long polls"])
def test_one_vm_cannot_take_all_connections(service: ServiceProcess, kind: str) -> None:
    service.document(source="127.0.0.3")
    data = {"idle": b"", "half a head": HALF_HEAD, "half a body": HALF_BODY, "long polls": long_poll(service)}[kind]
    with ExitStack() as stack:
        for connection in fill(service, service.metadata_address, data, "127.0.0.2"):
            stack.enter_context(connection)
        check_others(service)
        found = metrics(service)
        assert found['forewarn_max_connections{plane="metadata"}'] == 128
        assert found['forewarn_connections{plane="metadata"}'] <= 32 + 3
        what = "closed" if kind == "idle" else "refused"
        assert found[f'forewarn_connections_{what}_total{{limit="address",plane="metadata"}}'] >= OPEN_FILES - 32
        assert service.output.count("connection_limit_reached") == 1
        assert "address=127.0.0.2" in service.output


@pytest.mark.parametrize("data", [b"", b"GET /v1/vms HT"], ids=["idle", "half a head"])
def test_one_address_cannot_take_the_control_api(service: ServiceProcess, data: bytes) -> None:
    service.document(source="127.0.0.3")
    with ExitStack() as stack:
        for connection in fill(service, service.control_address, data, "127.0.0.2"):
            stack.enter_context(connection)
        check_others(service)
        found = metrics(service)
        assert found['forewarn_max_connections{plane="control"}'] == 64
        assert found['forewarn_connections{plane="control"}'] <= 32 + 1


def test_many_addresses_leave_room_for_new_ones(service: ServiceProcess) -> None:
    """Idle connections of many VMs make room for a new VM, and the control API has its own places."""
    service.document(source="127.0.0.3")
    with ExitStack() as stack:
        for number in range(10, 20):
            for connection in fill_few(service, f"127.0.0.{number}"):
                stack.enter_context(connection)
        check_others(service)
        found = metrics(service)
        assert found['forewarn_connections{plane="metadata"}'] <= 128
        assert found['forewarn_connections_closed_total{limit="total",plane="metadata"}'] > 0


def fill_few(service: ServiceProcess, source: str) -> list[socket.socket]:
    return [service.connect(service.metadata_address, source) for _ in range(30)]


def test_a_trusted_proxy_has_no_limit_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with FewFiles(tmp_path) as service, ExitStack() as stack:
        service.start("--fleet", str(tmp_path / "fleet.toml"), "--trusted-proxies", "127.0.0.2/32")
        for _ in range(60):
            stack.enter_context(service.connect(service.metadata_address, "127.0.0.2"))
        service.document(source="127.0.0.3")
        assert metrics(service)['forewarn_connections{plane="metadata"}'] >= 60


def test_without_a_limit_the_service_survives_the_last_file_descriptor(
    make_service: Callable[..., ServiceProcess],
) -> None:
    """Something else can use up the descriptors. The service serves again when they are free."""
    service = make_service(fleet=FLEET)
    pid = service.process.pid if service.process else 0
    _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    service.document(source="127.0.0.3")
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (60, most))
    with ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(service.connect(service.metadata_address, "127.0.0.2"))
            stack.enter_context(service.connect(service.control_address, "127.0.0.2"))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
    while True:
        try:
            check_others(service)
        except OSError:  # its connection was refused, or the service has not noticed yet that others are closed
            continue
        break


# --- Readers of the feed --------------------------------------------------------------------------


def follow(service: ServiceProcess, token: str = "") -> tuple[int, Line]:
    line = Line(service, address=service.control_address)
    line.send(f"GET /v1/feed?after=0 HTTP/1.1\r\nAuthorization: Bearer {token or service.token}\r\n\r\n".encode())
    return line.read_response(bodiless=True).status, line


def test_one_token_cannot_take_all_readers_of_the_feed(service: ServiceProcess) -> None:
    other = service.control("POST", "/v1/tokens", {"name": "other", "role": "viewer"}).json()["token"]
    found = [follow(service) for _ in range(20)]
    try:
        assert [status for status, _ in found] == [200] * 16 + [503] * 4
        status, line = follow(service, other)
        assert status == 200
        line.socket.close()
        refused = service.control("GET", "/v1/feed")
        assert (refused.status, refused.headers["retry-after"]) == (503, "10")
        assert "The token admin has 16 clients of the feed" in refused.json()["detail"]
        watch = service.cli("event", "watch")
        assert watch.returncode == 6
        assert "The token admin has 16 clients of the feed" in watch.stderr
        check_others(service)
    finally:
        for _, line in found:
            line.socket.close()
    status = 0
    while status != 200:  # until the service has noticed
        status, line = follow(service)
        line.socket.close()
