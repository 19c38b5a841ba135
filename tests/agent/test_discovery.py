"""The order of endpoint discovery. These tests send only to loopback addresses."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

import pytest

from forewarn.agent.discovery import accepts, find_endpoint
from forewarn.errors import BadEndpoint, EndpointNotFound

if TYPE_CHECKING:
    from pathlib import Path


class Network:
    """Which addresses take connections, and which were tried."""

    def __init__(self, *up: str) -> None:
        self.up = up
        self.tried: list[tuple[str, int]] = []

    def reachable(self, host: str, port: int) -> bool:
        self.tried.append((host, port))
        return host in self.up


def put_leases(root: Path, *addresses: str) -> None:
    """One dhclient file: what is named first was leased last."""
    folder = root / "var/lib/dhcp"
    folder.mkdir(parents=True)
    blocks = [f'lease {{ interface "eth{n}"; option unknown-245 {a}; }}\n' for n, a in enumerate(addresses)]
    (folder / "dhclient.leases").write_text("".join(reversed(blocks)))


def test_a_configured_endpoint_is_used_without_a_check(tmp_path: Path) -> None:
    put_leases(tmp_path, "10.0.0.1")
    network = Network("169.254.169.254", "10.0.0.1")
    found = find_endpoint("127.0.0.1:1", {"FOREWARN_ENDPOINT": "127.0.0.1:2"}, tmp_path, network.reachable)
    assert (found.url, found.origin, network.tried) == ("http://127.0.0.1:1", "--endpoint", [])


def test_the_source_of_the_endpoint_is_reported() -> None:
    assert find_endpoint("127.0.0.1:1", {}, given_by="agent.toml").origin == "agent.toml"


def test_the_environment_is_second_and_used_without_a_check(tmp_path: Path) -> None:
    network = Network("169.254.169.254")
    found = find_endpoint("", {"FOREWARN_ENDPOINT": "http://127.0.0.1:2/"}, tmp_path, network.reachable)
    assert (found.url, found.origin, network.tried) == ("http://127.0.0.1:2", "FOREWARN_ENDPOINT", [])


def test_the_default_environment_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREWARN_ENDPOINT", "127.0.0.1:3")
    assert find_endpoint(reachable=Network().reachable).url == "http://127.0.0.1:3"


@pytest.mark.parametrize(("given", "variable"), [("http://", "127.0.0.1:2"), ("", "ftp://127.0.0.1")])
def test_an_invalid_configured_endpoint_is_an_error(tmp_path: Path, given: str, variable: str) -> None:
    network = Network("169.254.169.254")
    with pytest.raises(BadEndpoint):
        find_endpoint(given, {"FOREWARN_ENDPOINT": variable}, tmp_path, network.reachable)
    assert network.tried == []


def test_the_link_local_address_is_third(tmp_path: Path) -> None:
    put_leases(tmp_path, "10.0.0.1")
    network = Network("169.254.169.254", "10.0.0.1")
    found = find_endpoint("", {"FOREWARN_ENDPOINT": " "}, tmp_path, network.reachable)
    assert (found.url, found.origin) == ("http://169.254.169.254:80", "the link-local address")
    assert network.tried == [("169.254.169.254", 80)]


def test_the_first_reachable_address_of_option_245_is_fourth(tmp_path: Path) -> None:
    put_leases(tmp_path, "10.0.0.1", "10.0.0.2", "10.0.0.3")
    network = Network("10.0.0.2", "10.0.0.3")
    found = find_endpoint("", {}, tmp_path, network.reachable)
    assert found.url == "http://10.0.0.2:80"
    assert found.origin == f"DHCP option 245 in {tmp_path}/var/lib/dhcp/dhclient.leases"
    assert network.tried == [("169.254.169.254", 80), ("10.0.0.1", 80), ("10.0.0.2", 80)]


def test_otherwise_the_first_address_of_option_245_is_used(tmp_path: Path) -> None:
    put_leases(tmp_path, "10.0.0.1", "10.0.0.2")
    assert find_endpoint("", {}, tmp_path, Network().reachable).url == "http://10.0.0.1:80"


def test_an_address_is_tried_once(tmp_path: Path) -> None:
    put_leases(tmp_path, "169.254.169.254", "10.0.0.1", "10.0.0.1")
    network = Network()
    assert find_endpoint("", {}, tmp_path, network.reachable).url == "http://169.254.169.254:80"
    assert network.tried == [("169.254.169.254", 80), ("10.0.0.1", 80)]


def test_the_error_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(EndpointNotFound) as error:
        find_endpoint("", {}, tmp_path, Network().reachable)
    for said in ("169.254.169.254", "option 245", "dhclient", "systemd-networkd", "NetworkManager", "udhcpc"):
        assert said in str(error.value)
    assert "--endpoint or FOREWARN_ENDPOINT" in str(error.value)


def test_a_connection_ignores_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy, socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        assert accepts(*server.getsockname())
        server.accept()[0].close()
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()
        port = server.getsockname()[1]
    assert not accepts("127.0.0.1", port)


def test_an_invalid_name_is_not_reachable() -> None:
    assert not accepts("127.0.0.1\0", 80)
