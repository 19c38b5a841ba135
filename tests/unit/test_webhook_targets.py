"""The addresses to which webhooks may be sent."""

from __future__ import annotations

import pytest

from forewarn.core.webhooks import AllowedNetworks, check_url, parse_allowed_networks
from forewarn.errors import BadWebhookURL, ForbiddenWebhookAddress

NONE, ALL = AllowedNetworks(), AllowedNetworks(everything=True)

PUBLIC = [
    "8.8.8.8",
    "2606:4700:4700::1111",
]
PRIVATE = [
    "10.0.0.1",
    "172.16.3.4",
    "192.168.1.1",
    "100.64.0.1",
    "127.0.0.1",
    "127.9.9.9",
    "::1",
    "fd00::1",
]
EMBEDDED = {
    "::ffff:8.8.8.8": "::ffff:0:0/96",
    "::ffff:10.0.0.1": "::ffff:0:0/96",
    "::ffff:0:8.8.8.8": "::ffff:0:0:0/96",
    "::8.8.8.8": "::/96",
    "64:ff9b::808:808": "64:ff9b::/96",  # 8.8.8.8 behind NAT64
    "64:ff9b::7f00:1": "64:ff9b::/96",
    "64:ff9b:1:2::808:808": "64:ff9b:1::/48",
    "2002:808:808::1": "2002::/16",  # 6to4
    "2002:7f00:1::1": "2002::/16",
    "2001:0:4136:e378:8000:63bf:f7f7:f7f7": "2001::/32",  # 8.8.8.8 by Teredo
    "2001:0:4136:e378:8000:63bf:f5ff:fffe": "2001::/32",
    "2606:4700::5efe:808:808": "2606:4700::/32",  # ISATAP
    "2606:4700::200:5efe:a00:1": "2606:4700::/32",
    "fd00::5efe:808:808": "fd00::/8",
}
"""IPv6 addresses that contain an IPv4 address, with a network that allows each."""
NEVER_BY_ALL = [
    "169.254.1.1",
    "fe80::1",
    "fe80::1%eth0",
    "0.0.0.0",  # noqa: S104 - this machine, by an odd name
    "0.1.2.3",
    "::",
    "::127.0.0.1",
    "224.0.1.1",
    "239.1.1.1",
    "ff02::1",
    "240.0.0.1",
    "255.255.255.255",
    "fec0::1",
    "64:ff9b:1::7f00:1",
    "3fff::1",
    "2001:db8::1",
    "192.0.0.1",
    "192.0.0.9",
    "192.0.0.192",
    "192.88.99.1",
    "192.88.99.255",
    "168.63.129.16",
    "100.100.100.200",
    "fd00:ec2::254",
    "fd20:ce::254",
]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_always_allowed(address: str) -> None:
    assert NONE.allow(address)
    assert ALL.allow(address)


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_need_the_setting(address: str) -> None:
    assert not NONE.allow(address)
    assert ALL.allow(address)


@pytest.mark.parametrize("address", NEVER_BY_ALL)
def test_all_does_not_allow_special_addresses(address: str) -> None:
    assert not NONE.allow(address)
    assert not ALL.allow(address)


@pytest.mark.parametrize(("address", "network"), EMBEDDED.items())
def test_an_embedded_ipv4_address_needs_a_network_that_names_it(address: str, network: str) -> None:
    assert not NONE.allow(address)
    assert not ALL.allow(address)
    assert not parse_allowed_networks("0.0.0.0/0").allow(address)
    assert parse_allowed_networks(network).allow(address)


def test_a_network_allows_only_its_own_addresses() -> None:
    targets = parse_allowed_networks(" 10.1.0.0/16, 127.0.0.1/32,fd00:1::/32 ,169.254.7.0/24")
    for address in ("10.1.2.3", "127.0.0.1", "fd00:1::9", "169.254.7.7", "8.8.8.8"):
        assert targets.allow(address)
    for address in ("10.2.0.1", "::ffff:10.1.2.3", "127.0.0.2", "fd00:2::9", "169.254.8.1", "::1"):
        assert not targets.allow(address)
    assert str(targets) == "10.1.0.0/16, 127.0.0.1/32, fd00:1::/32, 169.254.7.0/24"
    assert (str(parse_allowed_networks("")), str(parse_allowed_networks("all"))) == ("", "all")


@pytest.mark.parametrize(
    "network",
    ["192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32", "100.100.100.200/32", "fd00:ec2::254/128", "fd20:ce::/64"],
)
def test_the_metadata_of_clouds_is_allowed_by_name_alone(network: str) -> None:
    targets = parse_allowed_networks(network)
    assert targets.allow(str(targets.networks[0].network_address) if "/64" not in network else "fd20:ce::254")


def test_addresses_next_to_the_metadata_address_have_no_exception() -> None:
    for address in ("168.63.129.15", "168.63.129.17", "192.0.1.1", "8.8.4.4"):
        assert NONE.allow(address)
    for address in ("100.100.100.201", "fd00:ec2::253", "fd20:ce::1"):
        assert ALL.allow(address)


@pytest.mark.parametrize("text", ["everything", "10.0.0.0/33", "10.0.0.1/8", "localhost", "10.0.0.0/8;127.0.0.1"])
def test_an_invalid_network_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/8, 127\.0\.0\.1/32; or all"):
        parse_allowed_networks(text)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "must start with http:// or https://"),
        ("example.com/hook", "must start with http:// or https://"),
        ("ftp://example.com/", "must start with http:// or https://"),
        ("file:///etc/passwd", "must start with http:// or https://"),
        ("http://", "it has no valid host"),
        ("http:///hook", "it has no valid host"),
        ("http://[fe80::1%25eth0]/", "it has no valid host"),
        ("http://example.com:0/", "from 1 to 65535"),
        ("http://example.com:65536/", "A port is a number from 1 to 65535"),
        ("http://example.com:http/", "A port is a number from 1 to 65535"),
        ("http://[::1/", "its host or its port is not valid"),
        ("http://me@example.com/", "user name or a password"),
        ("http://me:secret@example.com/", "user name or a password"),
        ("http://example.com/#part", "fragment"),
        ("http://example.com/a b", "Percent-encode"),
        ("http://example.com/\r\nX: y", "Percent-encode"),
        ("http://exämple.com/", "Percent-encode"),
        ("http://example.com\\@10.0.0.1/", "Percent-encode"),
        ("http://example.com/" + "a" * 2000, "longer than 2000"),
    ],
)
def test_an_invalid_url_is_rejected_with_a_reason(url: str, problem: str) -> None:
    with pytest.raises(BadWebhookURL, match=problem):
        check_url(url, ALL)


@pytest.mark.parametrize(
    "url",
    [
        "https://me:secret@example.com/hook",
        "https://me:se/secret@example.com/hook",
        "https://me:s@secret@example.com:0/",
        "https://example.com:secret@[::1/",
        "me:secret@example.com",
        "ftp://me:secret@example.com:http/",
        "https://me:secret @example.com/",
        "https://me:secret@example.com/" + "a" * 2000,
        "https://me:secret@\u2100example.com/",
    ],
)
def test_the_error_does_not_repeat_a_password(url: str) -> None:
    with pytest.raises(BadWebhookURL) as caught:
        check_url(url, ALL)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.fields)
    assert "example.com" in str(caught.value) or "[::1" in str(caught.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://127.0.0.1:8080/x", "https://[::1]:443/", "http://[fd00::1]/"]
)
def test_an_address_in_a_url_is_judged_at_once(url: str) -> None:
    with pytest.raises(ForbiddenWebhookAddress, match="webhook_private_networks"):
        check_url(url, NONE)
    assert check_url(url, ALL).netloc in url


@pytest.mark.parametrize("url", ["https://example.com", "http://localhost:8000/hook?a=b", "HTTPS://Example.com/%20"])
def test_names_are_checked_when_they_are_resolved(url: str) -> None:
    check_url(url, NONE)
