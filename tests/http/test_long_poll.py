"""Long polls: the response waits until the document changes.

No hold of these tests may last its sixty seconds: the sockets give up long before, so what comes was woken.
"""

from __future__ import annotations

import json
import select
import socket
from typing import TYPE_CHECKING

import pytest

from golden.exchange import POLL, Line, Reply, request, stop_cleanly
from golden.responses_limits import THROTTLED
from golden.rows import NOT_A_VM, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

VERSIONS = request("GET", "/metadata/versions", (("Metadata", "true"),))

TWO_VMS = """
[[vm]]
name = "first"
address = "127.0.0.1"
priority = "spot"

[[vm]]
name = "second"
address = "127.0.0.2"
"""
FIRST_ALONE = TWO_VMS.replace('"127.0.0.2"', '"127.0.0.8"')
GIVEN_TO_THE_OTHER = FIRST_ALONE.replace('"127.0.0.1"', '"127.0.0.7"').replace('"127.0.0.8"', '"127.0.0.1"')
SEVERAL = 500
MANY = f"""
[[group]]
name = "set"
kind = "availability-set"
[[vm]]
group = "set"
name = "set_{{n}}"
count = {SEVERAL}
addresses = "127.0.1.1-127.0.2.{SEVERAL - 255}"
[[vm]]
name = "other"
address = "127.0.0.2"
"""


@pytest.fixture
def make(make_service: Callable[..., ServiceProcess]) -> Callable[..., ServiceProcess]:
    """Start a service, by default with two VMs."""

    def start(*, fleet: str = TWO_VMS, **variables: str) -> ServiceProcess:
        return make_service("--clock", "virtual", fleet=fleet, **variables)

    return start


def tag_of(service: ServiceProcess, source: str = "127.0.0.1") -> str:
    return service.request(source=source).headers["etag"]


def patient(tag: str, wait: str = "wait=60", *more: tuple[str, str], version: str = "2020-07-01") -> bytes:
    """A poll that may be held."""
    headers = (("Metadata", "true"), ("If-None-Match", tag), ("Prefer", wait), *more)
    return request("GET", f"/metadata/scheduledevents?api-version={version}", headers)


def hold(service: ServiceProcess, line: Line, poll: bytes) -> None:
    """Send a long poll, and check that it waits: a later request of another client gets its response first."""
    line.send(poll)
    see_it_held(service, line)


def see_it_held(service: ServiceProcess, *lines: Line) -> None:
    for _ in range(2):
        assert service.control("GET", "/healthz").status == 200
    assert not select.select([line.socket for line in lines], [], [], 0)[0]


def statuses(reply: Reply) -> list[str]:
    """Return the statuses of its events. The reply must be the response to a long poll of a minute."""
    assert reply.status == 200, reply
    assert reply.header("preference-applied") == "wait=60"
    return [event["EventStatus"] for event in json.loads(reply.body)["Events"]]


# --- What ends a hold -----------------------------------------------------------------------------


def test_a_long_poll_gets_each_change_at_once(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    with Line(service) as line:

        def held_while(change: Callable[[], object]) -> list[str]:
            hold(service, line, patient(tag))
            change()
            reply = line.read_response()
            assert reply.header("etag") == tag_of(service)
            return statuses(reply)

        tag = tag_of(service)
        assert held_while(lambda: service.request_operation("restart", "first")) == ["Scheduled"]
        event = service.document()["Events"][0]["EventId"]
        tag = tag_of(service)
        assert held_while(lambda: service.approve(event)) == ["Started"]
        tag = tag_of(service)
        assert held_while(lambda: service.advance("10m")) == []
        tag = tag_of(service)
        assert held_while(lambda: service.request_operation("restart", "first")) == ["Scheduled"]
        tag = tag_of(service)
        assert held_while(lambda: service.advance("15m")) == ["Started"]


def test_the_response_equals_a_poll_and_has_preference_applied(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    row = Row(name="", mark="", says="", answer=b"{}", tag=1, applied="wait=60")
    with Line(service) as line:
        hold(service, line, patient(tag_of(service), "respond-async, wait=300"))
        service.request_operation("restart", "first")
        reply = line.read_response()
        assert (
            Reply(reply.head, b"").masked.replace(b": %d\r" % len(reply.body), b": <length>\r") + b"{}" == row.expected
        )
        assert reply.body == service.request().body


def test_a_change_that_the_version_does_not_show_ends_the_wait(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    with Line(service) as line:
        hold(service, line, patient(tag_of(service), version="2017-08-01"))
        assert service.control("POST", "/v1/operations", {"cause": "eviction", "vms": ["first"]}).status == 201
        assert line.read_response().body == b'{"DocumentIncarnation":1,"Events":[]}'


def test_a_change_of_another_group_does_not_end_the_wait(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag_of(service, "127.0.0.2")
    with Line(service) as line:
        hold(service, line, patient(tag_of(service)))
        service.request_operation("restart", "second")
        see_it_held(service, line)
        service.request_operation("restart", "first")
        assert statuses(line.read_response()) == ["Scheduled"]


def test_an_approval_without_effect_does_not_end_the_wait(make: Callable[..., ServiceProcess]) -> None:
    shared = '[[host]]\nname = "shared"\n' + TWO_VMS.replace("[[vm]]", '[[vm]]\nhost = "shared"')
    service = make(fleet=shared)
    tag_of(service, "127.0.0.2")
    tag_of(service)
    assert service.control("POST", "/v1/operations", {"cause": "host-update", "host": "shared"}).status == 201
    event = service.document()["Events"][0]["EventId"]
    with Line(service) as line:
        hold(service, line, patient(tag_of(service)))
        assert service.approve(event).status == 200  # it starts when the other group has approved
        see_it_held(service, line)
        other = service.document(source="127.0.0.2")["Events"][0]["EventId"]
        assert service.approve(other, source="127.0.0.2").status == 200
        assert statuses(line.read_response()) == ["Started"]


def test_the_wait_is_in_real_time(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line, Line(service) as short:
        hold(service, line, patient(tag))
        service.advance("2h")
        see_it_held(service, line)
        unchanged = short.exchange(patient(tag, "wait=1"))
        assert (unchanged.status, unchanged.header("etag"), unchanged.body) == (304, tag, b"")
        assert unchanged.header("preference-applied") == "wait=1"
        assert short.exchange(POLL).status == 200


def test_a_group_with_a_long_poll_does_not_become_inactive(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line:
        hold(service, line, patient(tag))
        service.advance("25h")
        see_it_held(service, line)
        assert service.get_json("/v1/vms/first")["events_enabled"]
        service.request_operation("restart", "first")
        assert statuses(line.read_response()) == ["Scheduled"]
    assert service.get_json("/v1/history?kind=disabled")["history"] == []
    service.advance("25h")
    assert not service.get_json("/v1/vms/first")["events_enabled"], "no long poll is open"


def test_a_group_whose_long_poll_disconnected_becomes_inactive(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    with Line(service) as line:
        hold(service, line, patient(tag_of(service)))
    while b"\nforewarn_long_polls 0.0\n" not in service.control("GET", "/metrics").body:
        pass
    service.advance("25h")
    assert not service.get_json("/v1/vms/first")["events_enabled"]


def test_a_star_and_a_list_of_tags_wait_too(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as star, Line(service) as several:
        hold(service, star, patient("*"))
        hold(service, several, patient(f'"other", {tag}'))
        service.request_operation("restart", "first")
        assert (star.read_response().status, statuses(several.read_response())) == (304, ["Scheduled"])


def test_a_tag_that_the_service_never_sent_does_not_change_the_wait(make: Callable[..., ServiceProcess]) -> None:
    """Another node could have sent a later tag of this group. Without other nodes, nobody has."""
    service = make()
    tag = tag_of(service)
    enabling, incarnation, scope = tag.strip('"').split(".")
    tags = f'{tag}, "{enabling}.{int(incarnation) + 1000}.{scope}"'
    with Line(service) as line, Line(service) as short:
        hold(service, line, patient(tags))
        expired = short.exchange(patient(tags, "wait=1"))
        assert (expired.status, expired.header("etag")) == (304, tag)
        assert service.control("GET", "/metrics").body.count(b"\nforewarn_long_polls 1.0\n") == 1
        service.request_operation("restart", "first")
        assert statuses(line.read_response()) == ["Scheduled"]


# --- What is not held -----------------------------------------------------------------------------


def test_a_poll_that_need_not_wait_gets_its_response_at_once(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    at_once: list[tuple[str | None, str, int, str | None]] = [
        ('"old"', "wait=10", 200, "wait=10"),
        ('"old"', "wait=300", 200, "wait=60"),
        (tag, "wait=0", 304, "wait=0"),
        (tag, "wait=abc", 304, None),
        (tag, "wait=abc, wait=10", 304, None),
        (tag, "respond-async", 304, None),
        (tag, "", 304, None),
        (None, "wait=10", 200, None),
    ]
    with Line(service) as line:
        for if_none_match, prefer, status, applied in at_once * 2:
            headers = [("Metadata", "true"), ("Prefer", prefer)]
            headers += [("If-None-Match", if_none_match)] if if_none_match else []
            reply = line.exchange(request("GET", "/metadata/scheduledevents?api-version=2020-07-01", tuple(headers)))
            assert (reply.status, reply.header("preference-applied")) == (status, applied), prefer


def test_an_invalid_request_is_rejected_at_once(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line:
        replies = [
            line.exchange(patient(tag, "wait=60", version="2018-01-01")),
            line.exchange(patient(tag).replace(b"Metadata: true\r\n", b"")),
            line.exchange(patient(tag, "wait=60", ("X-Forwarded-For", "1.2.3.4"))),
        ]
        assert [reply.status for reply in replies] == [404, 400, 400]
        assert [reply.header("preference-applied") for reply in replies] == [None] * 3


def test_a_long_poll_counts_once_for_the_rate_limit(make: Callable[..., ServiceProcess]) -> None:
    # One request in a hundred seconds: what enables the group is sent by the other VM of it.
    fleet = MANY.replace(f"count = {SEVERAL}", "count = 2").replace("127.0.1.1-127.0.2.245", "127.0.1.1-127.0.1.2")
    service = make(fleet=fleet, FOREWARN_RATE_LIMIT="0.01")
    tag = tag_of(service, "127.0.1.2")
    with Line(service, "127.0.1.1") as line:
        hold(service, line, patient(tag))
        assert service.request(source="127.0.1.1").status == 429
        service.request_operation("restart", "set_0")
        assert statuses(line.read_response()) == ["Scheduled"]
        assert line.exchange(patient(tag)).unmeasured == THROTTLED.expected


# --- The connection -------------------------------------------------------------------------------


def test_a_request_pipelined_after_a_long_poll_gets_its_response_after_it(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line:
        hold(service, line, patient(tag) + patient(tag) + VERSIONS + POLL)
        service.request_operation("restart", "first")
        assert [statuses(line.read_response()) for _ in range(2)] == [["Scheduled"]] * 2
        assert line.read_response().body.startswith(b'{"apiVersions"')
        assert line.read_response().header("preference-applied") is None
        hold(service, line, patient(tag_of(service)))
        service.advance("15m")
        assert statuses(line.read_response()) == ["Started"]


def test_connection_close_is_honoured_after_the_response(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    with Line(service) as line:
        hold(service, line, patient(tag_of(service), "wait=60", ("Connection", "close")))
        service.request_operation("restart", "first")
        reply = line.read_response()
        assert (statuses(reply), reply.header("connection")) == (["Scheduled"], "close")
        assert line.rest() == b""


def test_each_of_many_long_polls_gets_one_response(make: Callable[..., ServiceProcess]) -> None:
    service = make(fleet=MANY)
    sources = [f"127.0.{1 + number // 256}.{number % 256}" for number in range(1, SEVERAL + 1)]
    tag = tag_of(service, sources[0])
    lines = [Line(service, source) for source in sources]
    for line in lines:
        line.send(patient(tag))
    see_it_held(service, *lines)
    for line in lines[:5]:
        line.socket.close()
    lines = lines[5:]
    event = service.request_operation("restart", "set_0")["events"][0]["id"]
    tag = tag_of(service, sources[0])
    # Each polls again at once, every second one with a pipelined request.
    for number, line in enumerate(lines):
        assert statuses(line.read_response()) == ["Scheduled"]
        line.send(patient(tag) + POLL * (number % 2))
    see_it_held(service, *lines)
    assert service.control("POST", f"/v1/events/{event}/cancel").status == 200
    for number, line in enumerate(lines):
        assert statuses(line.read_response()) == []
        if number % 2:
            assert line.read_response().header("preference-applied") is None
    stop_cleanly(service)
    assert [line.rest() for line in lines] == [b""] * len(lines)
    for line in lines:
        line.socket.close()


# --- The service and the fleet --------------------------------------------------------------------


def test_a_stop_does_not_wait_for_long_polls(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line, Line(service) as behind:
        hold(service, line, patient(tag))
        hold(service, behind, patient(tag) * 2)
        stop_cleanly(service)
        replies = [line.read_response(), behind.read_response(), behind.read_response()]
        assert {reply.status for reply in replies} == {304}
        assert {reply.header("preference-applied") for reply in replies} == {"wait=60"}
        assert [reply.header("connection") for reply in replies] == ["close", None, "close"]
        assert (line.rest(), behind.rest()) == (b"", b"")


def test_a_client_that_polls_again_after_a_crash_has_missed_nothing(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag = tag_of(service)
    with Line(service) as line:
        hold(service, line, patient(tag))
        service.kill()
        assert line.rest() == b""
    service.start("--clock", "virtual")
    with Line(service) as line:
        hold(service, line, patient(tag))
        service.request_operation("restart", "first")
        assert statuses(line.read_response()) == ["Scheduled"]
    service.kill()
    service.start("--clock", "virtual")
    with Line(service) as line:
        assert statuses(line.exchange(patient(tag))) == ["Scheduled"]


def test_the_long_poll_of_a_removed_vm_ends_and_others_continue(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    with Line(service) as staying, Line(service, "127.0.0.2") as leaving:
        hold(service, staying, patient(tag_of(service)))
        hold(service, leaving, patient(tag_of(service, "127.0.0.2")))
        assert service.control("PUT", "/v1/fleet", FIRST_ALONE.encode()).status == 200
        gone = leaving.read_response()
        assert (gone.status, gone.body, gone.header("preference-applied")) == (404, NOT_A_VM, None)
        see_it_held(service, staying)
        service.request_operation("restart", "first")
        assert statuses(staying.read_response()) == ["Scheduled"]


def test_an_address_that_moves_to_another_vm_gets_that_vms_document(make: Callable[..., ServiceProcess]) -> None:
    service = make()
    tag_of(service, "127.0.0.2")
    service.request_operation("restart", "second")
    with Line(service) as line:
        hold(service, line, patient(tag_of(service)))
        assert service.control("PUT", "/v1/fleet", GIVEN_TO_THE_OTHER.encode()).status == 200
        assert statuses(line.read_response()) == ["Scheduled"]


def test_a_vm_with_an_address_of_its_own_waits_there(make: Callable[..., ServiceProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        own = free.getsockname()
    service = make(fleet=TWO_VMS.replace('address = "127.0.0.2"', f'listen = "127.0.0.1:{own[1]}"'))
    tag = service.request(address=own).headers["etag"]
    with Line(service, address=own) as line:
        hold(service, line, patient(tag))
        service.request_operation("restart", "second")
        assert statuses(line.read_response()) == ["Scheduled"]
        hold(service, line, patient(service.request(address=own).headers["etag"]))
        assert service.control("PUT", "/v1/fleet", FIRST_ALONE.encode()).status == 200
        assert line.read_response().body == NOT_A_VM
