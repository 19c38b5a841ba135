"""An open connection gets correct responses while events and the fleet change."""

from __future__ import annotations

import json
from email.utils import format_datetime
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

from golden.exchange import POLL, Line, request

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

TRUE = (("Metadata", "true"),)

TWO_VMS = """
[[vm]]
name = "first"
address = "127.0.0.1"

[[vm]]
name = "second"
address = "127.0.0.2"
"""
MOVED_AWAY = TWO_VMS.replace("127.0.0.1", "127.0.0.8")
GIVEN_TO_THE_OTHER = MOVED_AWAY.replace("127.0.0.2", "127.0.0.1")
FIRST_ALONE = TWO_VMS.partition("\n\n")[0]


def apply(service: ServiceProcess, fleet: str) -> None:
    answer = service.control("PUT", "/v1/fleet", fleet.encode())
    assert answer.status == 200, answer


def test_the_same_poll_again_and_again_sees_each_change_at_once(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", fleet=TWO_VMS)
    with Line(service) as line:

        def poll() -> tuple[int, list[str]]:
            document = json.loads(line.exchange(POLL).body)
            return document["DocumentIncarnation"], [event["EventStatus"] for event in document["Events"]]

        assert [poll() for _ in range(3)] == [(0, [])] * 3
        event = service.request_operation("restart", "first")["events"][0]["id"]
        assert [poll() for _ in range(3)] == [(1, ["Scheduled"])] * 3
        service.request_operation("redeploy", "first")
        assert [poll() for _ in range(3)] == [(2, ["Scheduled"] * 2)] * 3
        assert service.approve(event).status == 200
        assert [poll() for _ in range(3)] == [(3, ["Started", "Scheduled"])] * 3
        service.advance("30m")
        assert [poll() for _ in range(3)] == [(6, [])] * 3


def test_a_tag_stops_matching_when_the_document_changes(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", fleet=TWO_VMS)
    with Line(service) as line:
        tag = line.exchange(POLL).header("etag") or ""
        conditional = POLL.replace(b"\r\n\r\n", f"\r\nIf-None-Match: {tag}\r\n\r\n".encode())
        assert [line.exchange(conditional).status for _ in range(3)] == [304] * 3
        service.request_operation("restart", "first")
        replies = [line.exchange(conditional) for _ in range(3)]
        assert [reply.status for reply in replies] == [200] * 3
        assert {reply.header("etag") for reply in replies}.isdisjoint({tag})


def test_an_open_connection_loses_its_vm_and_gets_another(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual", fleet=TWO_VMS)
    name = request("GET", "/metadata/instance/compute/name?api-version=2021-02-01&format=text", TRUE)
    for source in ("127.0.0.1", "127.0.0.2"):
        service.document(source=source)
    service.request_operation("restart", "second")
    with Line(service) as line:
        assert [line.exchange(POLL).body for _ in range(3)] == [b'{"DocumentIncarnation":0,"Events":[]}'] * 3
        apply(service, MOVED_AWAY)
        assert [line.exchange(POLL).masked for _ in range(3)] == [line.exchange(name).masked] * 3
        assert line.exchange(POLL).status == 404
        assert line.exchange(POLL).body == b'{ "error": "Not found." }'
        apply(service, GIVEN_TO_THE_OTHER)
        assert line.exchange(name).body == b"second"
        assert [json.loads(line.exchange(POLL).body)["Events"][0]["Resources"] for _ in range(3)] == [["second"]] * 3
        apply(service, TWO_VMS)
        assert [json.loads(line.exchange(POLL).body)["Events"] for _ in range(3)] == [[]] * 3


def test_a_vm_removed_during_its_first_poll_gets_no_document(
    make_service: Callable[..., ServiceProcess],
) -> None:
    service = make_service("--first-get-delay", "1h", fleet=TWO_VMS)
    with Line(service, "127.0.0.2") as leaving, Line(service) as staying:
        # The answers to what is sent first show that the polls behind them have been read.
        for line in (leaving, staying):
            line.send(request("GET", "/metadata/versions", TRUE) + POLL)
            assert line.read_response().status == 200
        apply(service, FIRST_ALONE)
        assert service.stop() == 0
        gone = leaving.read_response()
        assert (gone.status, gone.body) == (404, b'{ "error": "Not found." }')
        assert staying.read_response().status == 200


def test_the_date_follows_the_virtual_clock(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service("--clock", "virtual")
    polls = (POLL, POLL, request("GET", "/metadata/versions", TRUE), b"not HTTP\r\n\r\n")

    def dates() -> set[str | None]:
        with Line(service) as line:
            return {line.exchange(poll).header("date") for poll in polls}

    for length in ("0s", "1h", "400d"):
        now = service.advance(length)
        (date,) = dates()
        assert format_datetime(now, usegmt=True) == date


def test_a_request_id_says_nothing_about_other_requests(make_service: Callable[..., ServiceProcess]) -> None:
    service = make_service(fleet=TWO_VMS)
    with Line(service) as line:
        ids = [UUID(line.exchange(POLL).header("x-ms-request-id")) for _ in range(600)]
    assert len(set(ids)) == len(ids)
    assert {each.version for each in ids} == {4}
    for part in ("time_low", "node"):  # the first and the last digits
        values = [getattr(each, part) for each in ids]
        steps = [after - before for before, after in pairwise(values)]
        assert len(set(values)) > 590
        assert 200 < sum(step > 0 for step in steps) < 400, "they neither grow nor shrink"
