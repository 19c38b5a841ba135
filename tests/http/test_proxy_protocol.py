"""The PROXY protocol: trusted load balancers say who calls, and nobody else can."""

from __future__ import annotations

import socket
import struct
import subprocess
import threading
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from forewarn.metadata.protocol import PROXY_SIGNATURE as SIGNATURE
from forewarn.metadata.proxy_protocol import BadProxyHeader, parse
from forewarn.testing import ServiceProcess
from golden.exchange import POLL
from golden.responses_limits import MALFORMED, PROXY_HEADER
from programs import need
from tcp_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = """\
[[vm]]
name = "a"
address = "10.1.2.3"

[[vm]]
name = "b"
address = "fd00::7"

[[vm]]
name = "local"
address = "127.0.0.3"
"""
BALANCER, OTHER_BALANCER = "127.0.0.2", "127.0.0.4"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess() as made:
        (made.folder / "fleet.toml").write_text(FLEET)
        yield made.start(
            "--fleet",
            str(made.folder / "fleet.toml"),
            "--access-log",
            *("--proxy-protocol", f"{BALANCER}/32", "--proxy-protocol", f"{OTHER_BALANCER}/32"),
        )


def header(source: str, *, command: int = 0x21, more: bytes = b"") -> bytes:
    address = ip_address(source)
    family = 0x11 if address.version == 4 else 0x21
    content = address.packed + address.packed + struct.pack(">HH", 1234, 80) + more
    return SIGNATURE + struct.pack(">BBH", command, family, len(content)) + content


def exchange(service: ServiceProcess, *parts: bytes, source: str = BALANCER) -> bytes:
    """Send parts, and return the start of the response; empty: the connection was closed."""
    with service.connect(source=source) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            connection.sendall(part)
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(("client", "vm"), [("10.1.2.3", "a"), ("fd00::7", "b"), ("::ffff:10.1.2.3", "a")])
def test_the_client_of_a_trusted_load_balancer_is_the_vm(service: ServiceProcess, client: str, vm: str) -> None:
    assert exchange(service, header(client) + POLL).startswith(b"HTTP/1.1 200 ")
    assert service.get_json(f"/v1/vms/{vm}")["events_enabled"]


def test_a_second_option_adds_its_networks(service: ServiceProcess) -> None:
    for source in (BALANCER, OTHER_BALANCER):
        assert exchange(service, header("10.1.2.3") + POLL, source=source).startswith(b"HTTP/1.1 200 ")


def test_a_header_can_arrive_in_parts_and_have_more_fields(service: ServiceProcess) -> None:
    sent = header("10.1.2.3", more=b"\x04\x00\x01x") + POLL
    assert exchange(service, *(sent[n : n + 7] for n in range(0, len(sent), 7))).startswith(b"HTTP/1.1 200 ")


def test_a_connection_stays_with_its_client(service: ServiceProcess) -> None:
    with service.connect(source=BALANCER) as connection:
        connection.sendall(header("10.1.2.3"))
        for _ in range(3):
            connection.sendall(POLL)
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_unknown_client_is_rejected_and_so_is_a_local_check(service: ServiceProcess) -> None:
    assert exchange(service, header("10.9.9.9") + POLL).startswith(b"HTTP/1.1 40")
    assert exchange(service, header("10.1.2.3", command=0x20) + POLL).startswith(b"HTTP/1.1 40"), "a health check"


VERSION_1 = b"PROXY TCP4 10.1.2.3 10.0.0.1 1 80\r\n"


@pytest.mark.parametrize(
    ("parts", "source"),
    [
        ((header("10.1.2.3") + POLL,), "127.0.0.31"),
        ((header("fd00::7"), POLL), "127.0.0.32"),
        ((header("10.1.2.3")[:7], header("10.1.2.3")[7:] + POLL), "127.0.0.33"),
        ((VERSION_1 + POLL,), "127.0.0.34"),
    ],
    ids=["version 2", "IPv6", "in parts", "version 1"],
)
def test_nobody_else_can_choose_an_address(service: ServiceProcess, parts: tuple[bytes, ...], source: str) -> None:
    """The answer and one line of the log say why, so that an operator finds the missing network."""
    for _ in range(3):
        answer = exchange(service, *parts, source=source)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert answer.endswith(PROXY_HEADER.answer)
    service.until_output(f"address={source}")
    (line,) = [line for line in service.output.splitlines() if f"address={source}" in line]
    assert "proxy_header_not_trusted" in line
    assert "--proxy-protocol" in line


def test_what_is_no_header_is_not_called_one(service: ServiceProcess) -> None:
    assert exchange(service, b"\x00QUIT\r\n", source="127.0.0.35").endswith(MALFORMED.answer)
    assert exchange(service, POLL, source="127.0.0.3").startswith(b"HTTP/1.1 200 "), "without a header it is itself"


def test_a_header_is_rejected_by_a_service_that_trusts_no_load_balancer(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service()
    assert exchange(service, header("10.1.2.3") + POLL, source="127.0.0.1").endswith(PROXY_HEADER.answer)
    service.until_output("proxy_header_not_trusted")


@pytest.mark.parametrize(
    "sent",
    [
        POLL,
        b"PROXY TCP4 10.1.2.3 10.0.0.1 1 80\r\n" + POLL,
        SIGNATURE + b"\x21\x12\x00\x0c" + b"x" * 12,
        SIGNATURE + b"\x22\x11\x00\x0c" + b"x" * 12,
        SIGNATURE + b"\x21\x11\x00\x04abcd",
        SIGNATURE + b"\x21\x11\xff\xff",
    ],
)
def test_a_trusted_load_balancer_without_a_valid_header_gets_nothing(service: ServiceProcess, sent: bytes) -> None:
    assert exchange(service, sent) == b""
    assert exchange(service, header("10.1.2.3") + POLL).startswith(b"HTTP/1.1 200 ")


def test_every_start_of_a_header_needs_more() -> None:
    whole = header("10.1.2.3")
    assert [parse(whole[:length]) for length in range(len(whole))] == [None] * len(whole)
    assert parse(whole + b"more") == ("10.1.2.3", len(whole))
    with pytest.raises(BadProxyHeader):
        parse(b"GET")


def test_a_real_load_balancer_passes_the_address_on(service: ServiceProcess, tmp_path: Path) -> None:
    need("haproxy")
    port = free_port()
    host, metadata = service.metadata_address
    (tmp_path / "haproxy.cfg").write_text(
        "defaults\n mode tcp\n timeout connect 5s\n timeout client 9s\n timeout server 9s\n"
        f"listen metadata\n bind 127.0.0.1:{port}\n server one {host}:{metadata} send-proxy-v2 source {BALANCER}\n"
    )
    balancer = subprocess.Popen(["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")])
    try:
        for _ in range(100):
            with suppress(ConnectionRefusedError):
                answer = service.request(address=("127.0.0.1", port), source="127.0.0.3")
                break
            threading.Event().wait(0.1)
        assert answer.status == 200
        assert service.request(address=("127.0.0.1", port), source="127.0.0.9").status == 404, "it is no VM"
    finally:
        balancer.terminate()
        balancer.wait(10)


def test_the_example_for_haproxy_is_valid() -> None:
    need("haproxy")
    example = Path(__file__).parents[2] / "deploy" / "haproxy.cfg"
    result = subprocess.run(["haproxy", "-c", "-f", str(example)], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
