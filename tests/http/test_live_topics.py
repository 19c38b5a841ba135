"""Live topics of the feed."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from acceptance.feed_client import Feed
from forewarn.assembly import FixedLimits
from forewarn.core.durations import from_text
from forewarn.core.webhooks import WebhookRetryPolicy
from forewarn.testing import Service
from shifted_system_clock import ShiftedSystemClock
from webhook_receiver import Receiver, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.testing import ServiceProcess

    Messages = Iterator[tuple[str, str, Any]]

FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n[[vm]]\nname = "other"\naddress = "127.0.0.2"\n'


@pytest.fixture
def service() -> Iterator[Service]:
    with Service(FLEET) as running:
        yield running


@contextmanager
def following(service: Service | ServiceProcess, *topics: str, token: str | None = None) -> Iterator[Messages]:
    with Feed(service, "?" + "&".join(f"include={topic}" for topic in topics), token=token) as feed:
        assert feed.answer.status == 200, feed.answer.read()
        yield feed.messages()


def wait_for(messages: Messages, event: str, is_wanted: Callable[[Any], bool] = lambda _: True) -> Any:
    """Return the first message of this event that is wanted."""
    for found, number, data in messages:
        if found == event:
            assert number == ""  # a message of a topic has no id, so the position in history stays
            if is_wanted(data):
                return data
    raise AssertionError("the feed has ended")


def test_without_topics_the_feed_has_history_only(service: Service) -> None:
    with following(service) as messages:
        service.advance("1h")
        service.request_operation("restart", "web-0")
        event, number, data = next(messages)
        assert (event, int(number)) == ("requested", data["sequence"])


def test_the_clock_is_sent_at_once_and_when_it_moves(service: Service) -> None:
    with following(service, "clock") as messages:
        assert wait_for(messages, "clock") == service.get_json("/v1/clock")
        service.advance("1h")
        assert wait_for(messages, "clock", lambda clock: from_text(clock["now"]) == service.now)
        event = service.request_operation("restart", "web-0")[0]
        found = wait_for(messages, "clock", lambda clock: clock["next_due"] is not None)
        assert found["next_due"]["time"] == service.get_json(f"/v1/events/{event.id}")["not_before"]


def test_many_moves_are_few_messages_and_the_last_one_arrives(service: Service) -> None:
    with following(service, "clock") as messages:
        for _ in range(200):
            service.advance("1s")
        end = service.now
        seen = 0
        for event, _, data in messages:
            seen += event == "clock"
            if from_text(data["now"]) == end:
                break
        assert seen < 200


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


ONE_ATTEMPT = FixedLimits(webhook_retry=WebhookRetryPolicy(retry_seconds=3600))
"""The test ends before the second."""


def test_the_state_of_a_webhook_is_sent(receiver: Receiver) -> None:
    receiver.respond = lambda _: Reply(500)
    with Service(FLEET, webhook_private_networks="127.0.0.1/32", limits=ONE_ATTEMPT) as service:
        service.control("POST", "/v1/webhooks", {"name": "chat", "url": receiver.url(), "kinds": ["scheduled"]})
        with following(service, "webhooks") as messages:
            assert wait_for(messages, "webhook")["last_error"] is None
            service.request_operation("restart", "web-0")
            found = wait_for(messages, "webhook", lambda webhook: webhook["last_error"])
            assert (found["name"], found["backlog"] > 0) == ("chat", True)


def test_a_jump_of_the_system_clock_is_sent(make_service: Callable[..., ServiceProcess], tmp_path: Path) -> None:
    clock = ShiftedSystemClock(tmp_path)
    service = make_service(fleet=FLEET, **clock.variables)
    with following(service, "clock") as messages:
        assert wait_for(messages, "clock")["jump"] is None
        clock.shift(7200)
        assert wait_for(messages, "clock")["jump"]["description"] == "forward by 2h"
        assert service.control("POST", "/v1/clock/accept", {}).status == 200
        assert wait_for(messages, "clock", lambda found: found["jump"] is None)


def test_a_tenant_follows_the_clock_only(service: Service) -> None:
    body = {"name": "team", "role": "tenant", "group": "web-0"}
    token = service.control("POST", "/v1/tokens", body).json()["token"]
    response = service.control("GET", "/v1/feed?include=clock&include=webhooks", token=token)
    assert (response.status, response.json()["type"]) == (403, "urn:forewarn:InsufficientRole")
    service.request_operation("restart", "other")
    with following(service, "clock", token=token) as messages:
        assert wait_for(messages, "clock")["next_due"] is None
        service.advance("20m")
        moved = wait_for(messages, "clock", lambda clock: from_text(clock["now"]) == service.now)
        assert moved["next_due"] is None


def test_an_unknown_topic_is_rejected(service: Service) -> None:
    response = service.control("GET", "/v1/feed?include=clocks")
    assert (response.status, response.json()["parameter"]) == (400, "include")
    assert response.json()["allowed"] == ["clock", "webhooks"]
