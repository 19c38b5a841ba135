"""A connection stays open while the fleet changes: it shows the document of the VM that has its address now."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from golden.exchange import POLL, Line, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.testing import ServiceProcess

TRUE = (("Metadata", "true"),)
TARGET = "/metadata/scheduledevents?api-version=2020-07-01"
VERSIONS = request("GET", "/metadata/versions", TRUE)
NAME = request("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", TRUE)

FLEET = """
[[group]]
name = "old"
kind = "availability-set"
[[group]]
name = "new"
kind = "availability-set"

[[vm]]
name = "old-0"
group = "old"
address = "127.0.0.2"

[[vm]]
name = "new-0"
group = "new"
address = "127.0.0.3"

[[vm]]
name = "mover"
group = "old"
address = "127.0.0.1"
"""
"""Each group has a VM that stays. The connections of the tests come from 127.0.0.1."""
MOVED = FLEET.replace('name = "mover"\ngroup = "old"', 'name = "mover"\ngroup = "new"')
REMOVED = FLEET.partition('\n[[vm]]\nname = "mover"')[0]
TAKEN_OVER = REMOVED.replace("127.0.0.3", "127.0.0.1")


@pytest.fixture
def service(make_service: Callable[..., ServiceProcess]) -> ServiceProcess:
    """Both groups are enabled, and each has one event that hits its other VM."""
    service = make_service("--clock", "virtual", fleet=FLEET)
    for source in ("127.0.0.2", "127.0.0.3"):
        service.document(source=source)
    for vm in ("old-0", "new-0"):
        service.request_operation("restart", vm)
    return service


@pytest.fixture
def lines(service: ServiceProcess) -> Iterator[list[Line]]:
    """Open connections of the VM that will move: one has not polled yet, one has once, one repeats its bytes."""
    with ExitStack() as stack:
        lines = [stack.enter_context(Line(service)) for _ in range(3)]
        for line, polls in zip(lines, (0, 1, 3), strict=True):
            assert line.exchange(VERSIONS).status == 200  # the service has accepted it
            assert [named(line) for _ in range(polls)] == [["old-0"]] * polls
        yield lines


def named(line: Line) -> list[str]:
    """The VMs that the document's events hit."""
    return [vm for event in json.loads(line.exchange(POLL).body)["Events"] for vm in event["Resources"]]


def apply(service: ServiceProcess, fleet: str) -> None:
    answer = service.control("PUT", "/v1/fleet", fleet.encode())
    assert answer.status == 200, answer


def test_a_vm_that_moves_to_another_group_sees_only_the_events_of_that_group(
    service: ServiceProcess, lines: list[Line]
) -> None:
    apply(service, MOVED)
    for line in lines:
        assert [named(line) for _ in range(3)] == [["new-0"]] * 3
    apply(service, FLEET)
    for line in lines:
        assert [named(line) for _ in range(3)] == [["old-0"]] * 3


def test_a_vm_that_moves_to_another_group_cannot_approve_for_the_old_one(
    service: ServiceProcess, lines: list[Line]
) -> None:
    (old,) = service.document(source="127.0.0.2")["Events"]
    (new,) = service.document(source="127.0.0.3")["Events"]

    def approval(event: dict[str, str]) -> bytes:
        return request("POST", TARGET, TRUE, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())

    apply(service, MOVED)
    for line in lines:
        assert line.exchange(approval(old)).status == 400
    assert service.document(source="127.0.0.2")["Events"] == [old]
    for line in lines:
        assert line.exchange(approval(new)).status == 200
    assert service.document(source="127.0.0.3")["Events"][0]["EventStatus"] == "Started"


def test_a_tag_of_the_old_group_brings_the_document_of_the_new_one(service: ServiceProcess, lines: list[Line]) -> None:
    tag = service.request(source="127.0.0.2").headers["etag"]
    conditional = request("GET", TARGET, (*TRUE, ("If-None-Match", tag)))
    for line in lines[1:]:
        assert [line.exchange(conditional).status for _ in range(2)] == [304] * 2
    apply(service, MOVED)
    for line in lines:
        replies = [line.exchange(conditional) for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert [json.loads(reply.body)["Events"][0]["Resources"] for reply in replies] == [["new-0"]] * 3


def test_a_removed_vm_gets_404_until_it_returns(service: ServiceProcess, lines: list[Line]) -> None:
    apply(service, REMOVED)
    for line in lines:
        replies = [line.exchange(POLL) for _ in range(3)]
        assert [(reply.status, reply.body) for reply in replies] == [(404, b'{ "error": "Not found." }')] * 3
    apply(service, FLEET)
    for line in lines:
        assert [named(line) for _ in range(3)] == [["old-0"]] * 3


def test_an_address_that_another_vm_takes_over_shows_that_vms_document(
    service: ServiceProcess, lines: list[Line]
) -> None:
    apply(service, TAKEN_OVER)
    for line in lines:
        assert [named(line) for _ in range(3)] == [["new-0"]] * 3
        assert line.exchange(NAME).body == b"new-0"
        assert [named(line) for _ in range(3)] == [["new-0"]] * 3


# --- A change between the beginning and the end of a request ------------------------------------------


def approval_of(event: dict[str, str]) -> bytes:
    return request("POST", TARGET, TRUE, json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())


def test_a_half_sent_approval_is_decided_by_the_caller_at_its_end(service: ServiceProcess, lines: list[Line]) -> None:
    (old,) = service.document(source="127.0.0.2")["Events"]
    (new,) = service.document(source="127.0.0.3")["Events"]
    for line, event in zip(lines, (old, new, old), strict=True):
        line.send(approval_of(event)[:-10])
        named_by_another(service)
    apply(service, MOVED)
    lines[0].send(approval_of(old)[-10:])
    assert lines[0].read_response().status == 400
    assert service.document(source="127.0.0.2")["Events"] == [old]
    lines[1].send(approval_of(new)[-10:])
    assert lines[1].read_response().status == 200
    assert service.document(source="127.0.0.3")["Events"][0]["EventStatus"] == "Started"
    apply(service, REMOVED)
    lines[2].send(approval_of(old)[-10:])
    assert lines[2].read_response().status == 404


def named_by_another(service: ServiceProcess) -> None:
    """The service has read what was sent before: it answers another connection."""
    service.document(source="127.0.0.2")


def test_a_delayed_approval_is_decided_by_the_caller_at_its_end(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", "--allow-faults", fleet=FLEET)
    service.document(source="127.0.0.2")
    event = service.request_operation("restart", "old-0")["events"][0]["id"]
    service.control("POST", "/v1/faults", {"kind": "slow", "vm": "mover", "delay": "10m", "method": "POST"})
    with Line(service) as line:
        line.send(approval_of({"EventId": event}))
        while service.list_all("/v1/faults"):  # until it waits
            pass
        apply(service, MOVED)
        service.stop()  # ends the wait
        assert line.read_response().status == 400


def test_a_delayed_first_get_enables_the_group_of_the_caller_at_its_end(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--clock", "virtual", "--first-get-delay", "1h", fleet=FLEET)
    with Line(service) as line:
        assert line.exchange(VERSIONS).status == 200
        line.send(POLL)
        assert service.request(target="/metadata/versions").status == 200
        apply(service, MOVED)
        service.stop()  # ends the delay
        assert line.read_response().status == 200
    service.start("--clock", "virtual")
    enabled = [row["group"] for row in service.list_all("/v1/history") if row["kind"] == "enabled"]
    assert enabled == ["new"]
