"""The rate limit: one bucket per VM for all connections and paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from golden.exchange import POLL, Line, Reply, request
from golden.responses_limits import THROTTLED

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

TRUE = (("Metadata", "true"),)
VERSIONS = request("GET", "/metadata/versions", TRUE)
# Fifteen above the limit: the bucket would need three seconds to let all of them pass.
BURST = 20
LIMIT = 5

FLEET = """
[[group]]
name = "set"
kind = "scale-set"

[[vm]]
group = "set"
name = "set"
count = 4
addresses = "127.0.0.1-127.0.0.4"
"""


@pytest.fixture
def limited(make_service: Callable[..., ServiceProcess]) -> Callable[[str], ServiceProcess]:
    def make(rate: str) -> ServiceProcess:
        service = make_service(fleet=FLEET, FOREWARN_RATE_LIMIT=rate)
        # The last VM enables the group, so that the others' buckets are still full.
        assert service.request(source="127.0.0.4").status == 200
        return service

    return make


def burst(service: ServiceProcess, *requests: bytes, source: str = "127.0.0.1") -> list[Reply]:
    """All in one write."""
    with Line(service, source) as line:
        line.send(b"".join(requests))
        return [line.read_response() for _ in requests]


def check(replies: list[Reply]) -> None:
    """As many pass as are allowed in a second; of the rest, hardly one."""
    statuses = [reply.status for reply in replies]
    assert statuses[:LIMIT] == [200] * LIMIT
    assert 429 in statuses
    assert {*statuses} == {200, 429}
    assert {reply.unmeasured for reply in replies if reply.status == 429} == {THROTTLED.expected}


def test_a_burst_of_polls_is_cut_off_for_this_vm_alone(limited: Callable[[str], ServiceProcess]) -> None:
    service = limited("5")
    check(burst(service, *[POLL] * BURST))
    check(burst(service, *[POLL] * BURST, source="127.0.0.2"))
    assert service.request(source="127.0.0.3").status == 200


def test_repeated_polls_are_throttled(limited: Callable[[str], ServiceProcess]) -> None:
    with Line(limited("5")) as line:
        check([line.exchange(POLL) for _ in range(BURST)])


def test_polls_and_other_requests_count_together(limited: Callable[[str], ServiceProcess]) -> None:
    service = limited("5")
    check(burst(service, *[POLL, VERSIONS] * (BURST // 2)))
    check(burst(service, *[VERSIONS, POLL] * (BURST // 2), source="127.0.0.2"))


def test_connections_count_together(limited: Callable[[str], ServiceProcess]) -> None:
    service = limited("5")
    lines = [Line(service) for _ in range(BURST)]
    for line in lines:
        line.send(POLL)
    replies = [line.read_response() for line in lines]
    for line in lines:
        line.socket.close()
    # Which connection is served first is not ours to say.
    check(sorted(replies, key=lambda reply: reply.status))


def test_the_rate_limit_is_checked_before_the_request(limited: Callable[[str], ServiceProcess]) -> None:
    wrong = [
        request("GET", "/nowhere", (("X-Forwarded-For", "1.2.3.4"),)),
        request("DELETE", "/metadata/scheduledevents"),
        request("POST", "/metadata/scheduledevents?api-version=2020-07-01", TRUE, b"junk"),
    ]
    replies = burst(limited("5"), *[POLL] * LIMIT, *wrong * LIMIT)
    assert {reply.unmeasured for reply in replies[LIMIT:] if reply.status == 429} == {THROTTLED.expected}
    assert {400, 404, 405}.isdisjoint({reply.status for reply in replies[LIMIT : LIMIT + 3]})


def test_an_unknown_address_gets_404_however_often_it_polls(limited: Callable[[str], ServiceProcess]) -> None:
    replies = burst(limited("5"), *[POLL] * BURST, source="127.0.0.9")
    assert {reply.status for reply in replies} == {404}


def test_nought_is_no_limit(limited: Callable[[str], ServiceProcess]) -> None:
    replies = burst(limited("0"), *[POLL, VERSIONS] * 200)
    assert {reply.status for reply in replies} == {200}
