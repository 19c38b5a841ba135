"""Access to the control API: wrong tokens, tokens that are revoked during a request, and the Host header."""

from __future__ import annotations

import json
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess
from golden.exchange import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'
SECRET = "fw_not-the-token"  # noqa: S105 - a wrong one


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("access")) as running:
        yield running.start("--control-names", "forewarn.example.org, Other", "--clock", "virtual")


# --- Tokens ---------------------------------------------------------------------------------------


def test_a_token_that_is_revoked_during_a_request_has_no_effect(service: ServiceProcess) -> None:
    created = service.control("POST", "/v1/tokens", {"name": "brief", "role": "admin"}).json()
    body = json.dumps({"name": "late", "role": "admin"}).encode()
    head = (
        f"POST /v1/tokens HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {created['token']}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    with Line(service, address=service.control_address) as line:
        line.send(head.encode() + body[:5])
        assert service.control("DELETE", "/v1/tokens/brief").status == 200
        line.send(body[5:])
        reply = line.read_response()
        assert (reply.status, reply.header("www-authenticate")) == (401, 'Bearer realm="forewarn"')
    assert "late" not in [token["name"] for token in service.list_all("/v1/tokens")]


def test_wrong_tokens_are_counted_and_logged_without_their_value(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=FLEET)
    for _ in range(5):
        assert service.control("GET", "/v1/vms", token=SECRET).status == 401
    assert service.control("GET", "/v1/vms", headers={"Authorization": ""}).status == 401  # no token is not a wrong one
    text = service.control("GET", "/metrics").body.decode()
    assert re.search(r"^forewarn_wrong_tokens_total(?:{})? 5", text, re.MULTILINE)
    service.stop()
    assert service.output.count("wrong_token: ") == 1
    assert "address=127.0.0.1" in service.output
    assert SECRET not in service.output


def test_wrong_tokens_delay_only_themselves(make_service: Callable[..., ServiceProcess]) -> None:
    """After many wrong tokens, the responses to further ones wait. Right ones from the same address do not."""
    service = make_service(fleet=FLEET)
    with ThreadPoolExecutor(40) as pool:
        guesses = [pool.submit(service.control, "GET", "/v1/vms", token=SECRET) for _ in range(40)]
        for guess in guesses[:10]:
            assert guess.result().status == 401
        while service.control("GET", "/v1/vms").status != 200 or not waiting(service):
            pass
        assert not all(guess.done() for guess in guesses)
        assert service.stop() == 0  # does not wait either
        assert {guess.result().status for guess in guesses} == {401}


def waiting(service: ServiceProcess) -> bool:
    text = service.control("GET", "/metrics").body.decode()
    return bool(re.search(r"^forewarn_wrong_tokens_total(?:{})? 40", text, re.MULTILINE))


# --- Host -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:8170",
        "10.0.0.1",
        "[::1]:8170",
        "localhost:1",
        "LocalHost.",
        "forewarn.example.org",
        "FOREWARN.example.org:8170",
        "other",
        socket.gethostname(),
        "127.0.0.1:",
    ],
)
def test_a_known_host_is_accepted(service: ServiceProcess, host: str) -> None:
    assert service.control("GET", "/v1/vms", headers={"Host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        *("evil.example.org", "forewarn.example.org.evil.org:8170", "1.2.3", "[::1].evil.org", "localhost@evil.org"),
        *("", ":8170", "127.0.0.1:80@evil", "[::1]:80:evil", "[::1]80", "[::1", "localhost:80:80", "localhost:-1"),
        *("localhost:65536", "127.0.0.1, evil", "127.0.0.1/evil", "http://127.0.0.1", "[127.0.0.1]"),
    ],
)
def test_an_unknown_host_is_rejected_with_the_name_of_the_setting(service: ServiceProcess, host: str) -> None:
    answer = service.control("GET", "/v1/vms", headers={"Host": host})
    assert (answer.status, answer.json()["type"]) == (421, "urn:forewarn:UnknownHostName")
    assert "control_names" in answer.json()["detail"]
    assert host.partition(":")[0] in answer.json()["detail"]
    assert service.control("GET", "/healthz", headers={"Host": host}).status == 200


def test_a_bad_name_is_a_bad_setting(service: ServiceProcess) -> None:
    result = service.cli("up", "--control-names", "a b")
    assert (result.returncode, "control_names" in result.stderr) == (2, True)
