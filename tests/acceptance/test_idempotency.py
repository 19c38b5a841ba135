"""Idempotency-Key: a repeated request has one effect and the same response, for a day and across restarts."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import HTTPResponse, Service, ServiceProcess
    from forewarn.testing.client import ServiceClient

    MakeService = Callable[..., ServiceProcess]

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[host]]
name = "host-a"
[[vm]]
name = "web-0"
group = "web"
host = "host-a"
address = "127.0.0.1"
"""
RESTART = {"cause": "restart", "vms": ["web-0"]}

pytestmark = pytest.mark.forewarn(fleet=FLEET)


def send(service: ServiceClient, path: str, body: Any, key: str, token: str | None = None) -> HTTPResponse:
    return service.control("POST", path, body, token, {"Idempotency-Key": key})


def replayed(answer: HTTPResponse) -> bool:
    return answer.headers.get("idempotency-replayed") == "true"


@pytest.mark.parametrize(
    ("path", "body", "listed"),
    [
        ("/v1/operations", RESTART, "/v1/operations?all=true"),
        ("/v1/rollouts", {"hosts": ["*"]}, "/v1/rollouts?all=true"),
        ("/v1/tokens", {"name": "ci", "role": "viewer"}, "/v1/tokens"),
    ],
)
def test_a_repeated_request_creates_one_object(make_service: MakeService, path: str, body: Any, listed: str) -> None:
    service = make_service("--clock", "virtual", fleet=FLEET)
    service.document()
    before = len(service.list_all(listed))
    first = send(service, path, body, "k1")
    assert (first.status, replayed(first)) == (201, False)
    for end in (None, service.stop, service.kill):
        if end is not None:
            end()
            service.start("--clock", "virtual")
        again = send(service, path, dict(reversed(body.items())), "k1")
        assert (again.status, replayed(again)) == (201, True)
        # A token is shown once: only its hash is kept.
        assert again.json() == {**first.json(), **({"token": None} if "tokens" in path else {})}
    assert len(service.list_all(listed)) == before + 1


def test_a_key_is_of_one_request_one_caller_and_one_day(forewarn: Service) -> None:
    other = forewarn.control("POST", "/v1/tokens", {"name": "other", "role": "operator"}).json()["token"]
    first = send(forewarn, "/v1/operations", RESTART, "k")
    reused = send(forewarn, "/v1/operations", {"cause": "redeploy", "vms": ["web-0"]}, "k")
    assert (reused.status, "was used for a different request" in reused.json()["detail"]) == (409, True)
    elsewhere = send(forewarn, "/v1/rollouts", {"hosts": ["*"]}, "k")
    assert elsewhere.status == 409
    assert not replayed(send(forewarn, "/v1/operations", RESTART, "k", other)), "another caller's key is another"
    assert forewarn.control("DELETE", "/v1/tokens/other").status == 200
    namesake = forewarn.control("POST", "/v1/tokens", {"name": "other", "role": "operator"}).json()["token"]
    assert not replayed(send(forewarn, "/v1/operations", RESTART, "k", namesake)), (
        "nor is it the next one's of that name"
    )
    forewarn.advance("23h59m59s")
    assert replayed(send(forewarn, "/v1/operations", RESTART, "k"))
    forewarn.advance("1s")
    later = send(forewarn, "/v1/operations", RESTART, "k")
    assert (later.status, replayed(later)) == (201, False)
    assert later.json()["operations"][0]["id"] != first.json()["operations"][0]["id"]


def test_a_rejected_request_can_be_retried_with_its_key(forewarn: Service) -> None:
    assert send(forewarn, "/v1/operations", {"cause": "restart", "vms": ["web-9"]}, "k").status == 404
    assert send(forewarn, "/v1/operations", RESTART, "k").status == 201


def test_a_dry_run_takes_no_key(forewarn: Service) -> None:
    body = {**RESTART, "dry_run": True}
    assert send(forewarn, "/v1/operations", body, "k").status == 200
    assert send(forewarn, "/v1/operations", RESTART, "k").status == 201


@pytest.mark.parametrize("key", ["", "x" * 256, "Schlüssel", "a\tb"])
def test_an_invalid_key_is_rejected(forewarn: Service, key: str) -> None:
    answer = send(forewarn, "/v1/operations", RESTART, key)
    assert (answer.status, answer.json()["parameter"]) == (400, "Idempotency-Key")
    assert "1 to 255 printable ASCII characters" in answer.json()["allowed"]
    assert forewarn.list_all("/v1/operations?all=true") == []


def test_many_at_once_with_one_key_make_one(forewarn: Service) -> None:
    answers: list[HTTPResponse] = []

    def send_it() -> None:
        answers.append(send(forewarn, "/v1/operations", RESTART, "k"))

    threads = [threading.Thread(target=send_it) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(answers) == 20
    assert {answer.status for answer in answers} == {201}
    assert len({json.dumps(answer.json(), sort_keys=True) for answer in answers}) == 1
    assert len(forewarn.list_all("/v1/operations?all=true")) == 1


def test_after_a_kill_at_any_time_a_repeated_request_has_one_effect(make_service: MakeService) -> None:
    """A repeated request with the same key creates one object, whether or not the first response arrived."""
    service = make_service("--clock", "virtual", fleet=FLEET + '[[vm]]\nname = "many-{n}"\ncount = 200\n')
    service.document()
    sent = 0

    def restart(life: int, number: int) -> HTTPResponse:
        body = {"cause": "restart", "vms": [f"many-{life * 40 + number}"]}
        return send(service, "/v1/operations", body, f"{life}-{number}")

    for life in range(5):
        killer = threading.Thread(target=service.kill)
        for number in range(40):
            if number == life * 5:
                killer.start()
            sent += 1
            try:
                restart(life, number)
            except (OSError, ValueError):  # cut off, or no word left where it was
                break
        killer.join(timeout=60)
        service.start("--clock", "virtual")
        for again in range(number + 1):
            assert restart(life, again).status == 201
    assert len(service.list_all("/v1/operations?all=true")) == sent
