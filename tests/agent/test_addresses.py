"""Endpoint addresses as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forewarn.agent.address import EndpointAddress, read_endpoint
from forewarn.errors import BadEndpoint


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:8169", "http://127.0.0.1:8169"),
        ("http://127.0.0.1", "http://127.0.0.1:80"),
        ("https://metadata.example", "https://metadata.example:443"),
        ("https://metadata.example:8443/", "https://metadata.example:8443"),
        ("HTTP://Metadata.Example", "http://Metadata.Example:80"),
        ("127.0.0.1:8169", "http://127.0.0.1:8169"),
        ("127.0.0.1", "http://127.0.0.1:80"),
        ("localhost:8169", "http://localhost:8169"),
        ("metadata", "http://metadata:80"),
        ("host_1.example.", "http://host_1.example.:80"),
        ("[::1]", "http://[::1]:80"),
        ("[::1]:8169", "http://[::1]:8169"),
        ("http://[fd00:ec2::254]:80/", "http://[fd00:ec2::254]:80"),
        ("http://[fe80::1%eth0]", "http://[fe80::1%eth0]:80"),
        ("http://127.0.0.1/metadata/scheduledevents", "http://127.0.0.1:80"),
        ("http://127.0.0.1:8080/metadata/scheduledEvents", "http://127.0.0.1:8080"),
        ("127.0.0.1:1/METADATA/SCHEDULEDEVENTS/", "http://127.0.0.1:1"),
        ("  http://127.0.0.1:65535\n", "http://127.0.0.1:65535"),
    ],
)
def test_valid_endpoints(text: str, url: str) -> None:
    endpoint = read_endpoint(text, "--endpoint")
    assert endpoint.url == url
    assert endpoint.origin == "--endpoint"


def test_a_host_of_ipv6_can_be_connected_to_as_it_is() -> None:
    assert read_endpoint("https://[::1]", "here") == EndpointAddress("https", "::1", 443, "here")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no host"),
        ("http://", "no host"),
        ("http://:80", "no host"),
        ("ftp://127.0.0.1", "the scheme must be http or https, not ftp"),
        ("http://127.0.0.1:", "65535, not ''"),
        ("http://127.0.0.1:0", "65535, not '0'"),
        ("http://127.0.0.1:65536", "65535, not '65536'"),
        ("http://127.0.0.1:+80", "65535, not '+80'"),
        ("127.0.0.1:٨٠", "from 1 to 65535"),
        ("127.0.0.1:eighty", "from 1 to 65535"),
        ("http://127.0.0.1/metadata/instance", "the path /metadata/instance"),
        ("http://127.0.0.1/metadata/scheduledevents?api-version=2020-07-01", "remove the part from '?' on"),
        ("http://127.0.0.1#here", "remove the part from '#' on"),
        ("http://127.0.0", "127.0.0 is not an IPv4 address"),
        ("http://127.0.0.256", "127.0.0.256 is not an IPv4 address"),
        ("2130706433", "is not an IPv4 address"),
        ("::1", "IPv6 address in [brackets]"),
        ("http://::1", "IPv6 address in [brackets]"),
        ("http://[::1", "IPv6 address in [brackets]"),
        ("http://[127.0.0.1]", "[127.0.0.1] is not an IPv6 address"),
        ("http://[]", "[] is not an IPv6 address"),
        ("http://[fe80::1%]", "'' is not a valid network interface"),
        ("http://[fe80::1%\0]", "is not a valid network interface"),
        ("a host", "'a host' is not a valid host name"),
        ("http://höst", "'höst' is not a valid host name"),
        ("-host", "'-host' is not a valid host name"),
        ("http://127.0.0.1\r\nX-Header: 1", "is not a valid host name"),
        ("http://127.0.0.1:80\r\nX-Header", "the port must be a number"),
        ("http:///metadata/scheduledevents", "no host"),
    ],
)
def test_an_invalid_endpoint_is_rejected_with_a_reason(text: str, said: str) -> None:
    with pytest.raises(BadEndpoint) as refused:
        read_endpoint(text, "FOREWARN_ENDPOINT")
    assert said in str(refused.value)
    assert "FOREWARN_ENDPOINT" in str(refused.value)
    assert "Write it like http://127.0.0.1:8169" in str(refused.value)


def test_a_password_is_not_repeated() -> None:
    with pytest.raises(BadEndpoint, match="contains a user name") as refused:
        read_endpoint("http://me:hunter2@127.0.0.1", "--endpoint")
    assert "hunter2" not in str(refused.value)


@given(st.text() | st.from_regex(r"(?i)(https?://)?[a-z0-9.:\[\]@%/-]{0,30}", fullmatch=True))
def test_any_text_is_an_endpoint_or_an_error(text: str) -> None:
    """And what is understood is understood the same way when it is written out again."""
    try:
        endpoint = read_endpoint(text, "--endpoint")
    except BadEndpoint:
        return
    assert read_endpoint(endpoint.url, "--endpoint") == endpoint
    assert not set(endpoint.host) & set("/?#@[] \r\n\t")
