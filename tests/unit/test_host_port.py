"""A host with a port, as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.errors import CannotListen
from forewarn.system.addresses import read_host_port, show_host_port
from forewarn.system.sockets import address_of, open_socket


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("127.0.0.1:9169", ("127.0.0.1", 9169)),
        ("[::1]:0", ("::1", 0)),
        ("[fe80::1%eth0]:65535", ("fe80::1%eth0", 65535)),
        ("localhost:1", ("localhost", 1)),
        ("host_1.example.:80", ("host_1.example.", 80)),
        ("x" * 63 + ":80", ("x" * 63, 80)),
    ],
)
def test_a_valid_address_is_parsed_and_formatted(text: str, found: tuple[str, int]) -> None:
    assert read_host_port(text) == found
    assert show_host_port(*found) == text


@pytest.mark.parametrize("text", ["", ":", "host", "host:", ":80", "host:65536", "host:-1", "host:²", "host: 1"])
def test_a_missing_host_or_port_is_an_error_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 127"):
        read_host_port(text)


def test_ipv6_without_brackets_is_shown_with_them() -> None:
    with pytest.raises(ValueError, match=r"in brackets: \[::1\]:80"):
        read_host_port("::1:80")


NO_HOSTS = ["[]", "[::g]", "[127.0.0.1]", "[fe80::1%]", "300.1.1.1", "127.1", ".", "a..b", "-a", "a b", "ü", "x" * 64]


@pytest.mark.parametrize("host", [*NO_HOSTS, "a." * 127])
def test_an_invalid_host_is_named(host: str) -> None:
    with pytest.raises(ValueError, match="is not an IP address or a host name"):
        read_host_port(f"{host}:1")


@given(st.text() | st.from_regex(r"[a-z0-9.:\[\]%-]{0,30}:[0-9]{0,6}", fullmatch=True))
def test_any_text_is_an_address_or_an_error(text: str) -> None:
    try:
        found = read_host_port(text)
    except ValueError:
        return
    assert read_host_port(show_host_port(*found)) == found


def test_a_socket_reports_its_address_or_why_it_cannot_listen() -> None:
    with open_socket("127.0.0.1:0") as listener:
        host, port = read_host_port(address_of(listener))
        assert host == "127.0.0.1"
        assert port > 0
    with pytest.raises(CannotListen, match=r"in brackets: \[::1\]:80"):
        open_socket("::1:80")
