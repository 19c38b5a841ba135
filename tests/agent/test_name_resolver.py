"""The VM name from an endpoint that fails."""

from __future__ import annotations

import socket

import pytest

from forewarn.agent import identity
from forewarn.agent.identity import NameResolver
from forewarn.agent.transport import EndpointResponse
from forewarn.errors import EndpointReset


def named(_: str) -> EndpointResponse:
    return EndpointResponse(200, {}, b"web_3", None)


def in_trouble(_: str) -> EndpointResponse:
    raise EndpointReset(url="http://127.0.0.1", problem="reset")


def nobody(_: str) -> EndpointResponse:
    raise AssertionError("the name is known, so nobody may request it")


def until_settled() -> NameResolver:
    resolver = NameResolver("")
    for _ in range(100):
        if resolver.is_known:
            return resolver
        assert resolver.me(in_trouble).name == socket.gethostname()
    raise AssertionError("it waits for ever")


def test_during_a_long_failure_the_host_name_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert until_settled().me(nobody).name == socket.gethostname()
    monkeypatch.setattr(identity, "RETRY_SECONDS", 0.0)
    resolver = until_settled()
    assert resolver.me(in_trouble).name == socket.gethostname()
    assert resolver.is_known
    assert resolver.me(named).name == "web_3"
    assert resolver.me(nobody).name == "web_3"


@pytest.mark.parametrize("status", [400, 404])
def test_an_endpoint_without_names_gets_no_second_request(status: int) -> None:
    resolver = NameResolver("")
    resolver.me(lambda _: EndpointResponse(status, {}, b"", None))
    assert resolver.is_known
    assert resolver.me(nobody).name == socket.gethostname()


def test_a_configured_name_needs_no_request() -> None:
    assert NameResolver("mine").me(nobody).name == "mine"
