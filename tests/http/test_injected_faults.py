"""Every fault from the client's view: its effect on the wire, and a correct response to the next request.

No test waits for a delay of 10m: it checks that the client waits, and then something else ends the wait.
"""

from __future__ import annotations

import json
import select
from typing import TYPE_CHECKING, Any

import pytest

from golden.exchange import POLL, Line, Reply, request, stop_cleanly
from golden.rows import JSON, TEXT, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from forewarn.testing import ServiceProcess

    MakeService = Callable[..., ServiceProcess]

FLEET = """
[[group]]
name = "web"
kind = "availability-set"
[[vm]]
name = "web-0"
group = "web"
address = "127.0.0.1"
[[vm]]
name = "web-1"
group = "web"
address = "127.0.0.2"
[[vm]]
name = "db"
address = "127.0.0.3"
"""
EVENTS = "/metadata/scheduledevents"
TARGET = f"{EVENTS}?api-version=2020-07-01"
TRUE = (("Metadata", "true"),)
NOTHING_YET = b'{"DocumentIncarnation":0,"Events":[]}'
DIRECT = {
    "410": (b'{ "error": "Gone. The service is being updated. Try again in a while." }', JSON),
    "429": (b"Throttle Result: Too Many Requests", TEXT),
    "500": (b'{ "error": "Internal server error. Try again in a while." }', JSON),
}


@pytest.fixture
def service(make_service: MakeService) -> ServiceProcess:
    """A service with faults allowed, on which every VM has polled once."""
    service = make_service("--allow-faults", "--clock", "virtual", fleet=FLEET)
    for number in (1, 2, 3):
        service.document(source=f"127.0.0.{number}")
    return service


def add(service: ServiceProcess, kind: str, **options: Any) -> str:
    """The id of a new fault; `duration` is how long it stays."""
    answer = service.control("POST", "/v1/faults", {"kind": kind, **options})
    assert answer.status == 201, answer
    return str(answer.json()["id"])


def active(service: ServiceProcess) -> dict[str, int]:
    """Return the active faults with their hits."""
    return {fault["id"]: fault["hits"] for fault in service.list_all("/v1/faults")}


def until_struck(service: ServiceProcess) -> None:
    """Wait until no fault is active. The timeout of the socket limits this loop."""
    for _ in range(100_000):
        if not active(service):
            return
    raise AssertionError(active(service))


def see_it_wait(service: ServiceProcess, line: Line) -> None:
    """Check that it gets no response, although later requests do."""
    for _ in range(2):
        assert service.request().status == 200
    assert not select.select([line.socket], [], [], 0)[0]


def approval(event_id: str) -> bytes:
    return request("POST", TARGET, TRUE, json.dumps({"StartRequests": [{"EventId": event_id}]}).encode())


def status_of(service: ServiceProcess, event_id: str) -> str:
    return str(service.get_json(f"/v1/events/{event_id}")["status"])


def end(service: ServiceProcess) -> None:
    """It stops at once and well, and has had nothing to complain of."""
    stop_cleanly(service)
    assert "ERROR" not in service.output
    assert "Cancel" not in service.output


# --- The kinds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("kind", DIRECT)
def test_a_status_fault_sends_the_response_of_the_wire(service: ServiceProcess, kind: str, method: str) -> None:
    add(service, kind, method=method)
    text, content_type = DIRECT[kind]
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    sent = POLL if method == "GET" else approval(event)
    with Line(service) as line:
        row = Row(name="", mark="", says="", status=int(kind), answer=text, content_type=content_type)
        assert line.exchange(sent).unmeasured == row.expected
        assert status_of(service, event) == "scheduled", "what is faulted approves nothing"
        assert line.exchange(sent).status == 200
    assert status_of(service, event) == ("started" if method == "POST" else "scheduled")
    end(service)


def test_an_empty_body(service: ServiceProcess) -> None:
    add(service, "empty")
    with Line(service) as line:
        faulted, good = line.exchange(POLL), line.exchange(POLL)
    assert (faulted.status, faulted.header("content-length"), faulted.body) == (200, "0", b"")
    for name in ("etag", "server", "content-type"):
        assert faulted.header(name) == good.header(name)
    assert faulted.header("x-ms-request-id")
    assert faulted.header("date")
    assert good.body == NOTHING_YET
    end(service)


@pytest.mark.parametrize("tag", [None, '"another.7"', '"a", "b"', "*"])
def test_unchanged_ignores_the_entity_tag(service: ServiceProcess, tag: str | None) -> None:
    add(service, "unchanged", count=2)
    sent = request("GET", TARGET, (*TRUE, *((("If-None-Match", tag),) if tag else ())))
    with Line(service) as line:
        for _ in range(2):
            faulted = line.exchange(sent)
            assert (faulted.status, faulted.body) == (304, b"")
            assert faulted.header("etag") == (tag if tag == '"another.7"' else None)
            assert faulted.header("x-ms-request-id")
        assert line.exchange(POLL).body == NOTHING_YET
    end(service)


def test_a_stall_is_half_of_the_body_then_nothing_then_the_end(service: ServiceProcess) -> None:
    add(service, "stall", delay="0.05s")
    right = service.control("GET", "/v1/vms/web-0/document").body
    with Line(service) as line:
        line.send(POLL)
        head, _, part = line.rest().partition(b"\r\n\r\n")
    faulted = Reply(head + b"\r\n\r\n", part)
    assert (faulted.status, faulted.header("content-length")) == (200, str(len(right)))
    assert part == right[: len(right) // 2]
    assert service.request().body == right
    end(service)


def test_a_stall_blocks_neither_other_clients_nor_the_stop(service: ServiceProcess) -> None:
    add(service, "stall", delay="10m", vm="web-1")
    with Line(service, "127.0.0.2") as line:
        line.send(POLL)
        until_struck(service)
        started = line.socket.recv(65536)
        while not started.endswith(NOTHING_YET[: len(NOTHING_YET) // 2]):
            started += line.socket.recv(65536)
        see_it_wait(service, line)
        end(service)
        assert line.rest() == b""


def test_a_reset_closes_the_connection_without_a_response(service: ServiceProcess) -> None:
    add(service, "reset")
    with Line(service) as line:
        line.send(POLL)
        with pytest.raises(ConnectionResetError):
            line.socket.recv(65536)
    assert service.request().body == NOTHING_YET
    end(service)


def test_length_announces_more_bytes_than_it_sends(service: ServiceProcess) -> None:
    add(service, "length")
    with Line(service) as line:
        line.send(POLL)
        head, _, body = line.rest().partition(b"\r\n\r\n")
    faulted = Reply(head + b"\r\n\r\n", body)
    assert body == NOTHING_YET
    assert int(faulted.header("content-length") or 0) > len(body)
    assert service.request().body == NOTHING_YET
    end(service)


def test_stale_is_the_document_before_with_its_own_tag(service: ServiceProcess) -> None:
    before = service.request()
    add(service, "stale", count=3)
    assert service.request().body == before.body
    assert active(service) == {"f1": 0}, "it waits until there is an older document"
    service.request_operation("restart", "web-0")
    with Line(service) as line:
        tags = [before.headers["etag"], before.headers["etag"].replace(".0", ".1"), '"another.7"']
        for tag in tags:  # none of them matters
            faulted = line.exchange(request("GET", TARGET, (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60"))))
            assert (faulted.status, faulted.body, faulted.header("etag")) == (200, before.body, before.headers["etag"])
        now = line.exchange(POLL)
    assert json.loads(now.body)["DocumentIncarnation"] == 1
    assert now.header("etag") == tags[1]
    end(service)


def test_stale_sends_the_previous_incarnation_in_the_requested_version(service: ServiceProcess) -> None:
    service.request_operation("restart", "web-0")
    old = f"{EVENTS}?api-version=2017-08-01"
    second = service.request(target=old)
    service.request_operation("restart", "web-1")
    add(service, "stale")
    faulted = service.request(target=old)
    assert (faulted.body, faulted.headers["etag"]) == (second.body, second.headers["etag"])
    assert service.request(target=old).json()["DocumentIncarnation"] == 2


def test_stale_does_not_cross_an_enabling(service: ServiceProcess) -> None:
    service.request_operation("restart", "web-0")
    add(service, "stale")
    add(service, "disabled")
    anew = service.request()
    assert service.request().body == anew.body
    assert active(service) == {"f1": 0}


def test_slow_sends_the_correct_response_later(service: ServiceProcess) -> None:
    add(service, "slow", delay="0.05s", method="any", count=2)
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    with Line(service) as line:
        assert len(json.loads(line.exchange(POLL).body)["Events"]) == 1
        assert line.exchange(approval(event)).status == 200
    assert status_of(service, event) == "started"
    assert active(service) == {}
    end(service)


def test_slow_enables_a_group_by_its_first_call(make_service: MakeService) -> None:
    service = make_service("--allow-faults", "--clock", "virtual", fleet=FLEET)
    add(service, "slow", delay="0.05s")
    assert service.request().body == NOTHING_YET
    assert [row["kind"] for row in service.list_all("/v1/history")][-1] == "enabled"


def test_a_slow_response_is_sent_when_the_service_stops(service: ServiceProcess) -> None:
    add(service, "slow", delay="10m")
    with Line(service) as line:
        line.send(POLL)
        until_struck(service)
        see_it_wait(service, line)
        end(service)
        assert line.read_response().body == NOTHING_YET


def test_a_slow_approval_is_neither_early_nor_lost_at_a_stop(service: ServiceProcess) -> None:
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    add(service, "slow", delay="10m", method="POST")
    whole = approval(event)
    with Line(service) as line:
        line.send(whole[:-10])  # the rest of its body comes while it waits
        until_struck(service)
        line.send(whole[-10:])
        see_it_wait(service, line)
        assert status_of(service, event) == "scheduled"
        assert service.stop() == 0
        assert line.read_response().status == 200
    service.start("--clock", "virtual")
    assert status_of(service, event) == "started"


@pytest.mark.parametrize("kind", ["slow", "stall"])
def test_a_kill_ends_them_and_the_next_start_knows_no_fault(service: ServiceProcess, kind: str) -> None:
    add(service, kind, delay="10m")
    add(service, "500", duration="1d")
    with Line(service) as line:
        line.send(POLL)
        while active(service).keys() != {"f2"}:
            pass
        service.kill()
        line.rest()
    service.start("--allow-faults", "--clock", "virtual")
    assert active(service) == {}
    assert service.request().status == 200


def test_disabled_has_the_effect_of_inactivity(service: ServiceProcess) -> None:
    service.request_operation("restart", "web-0")
    before = {source: service.request(source=source) for source in ("127.0.0.1", "127.0.0.3")}
    add(service, "disabled", vm="web-1")
    assert active(service) == {}, "it is over at once"
    rows = [(row["kind"], row["group"], row["by"], row["reason"]) for row in service.list_all("/v1/history")[-3:]]
    assert rows == [
        ("fault-added", "web", "admin", "f1: disabled"),
        ("disabled", "web", "admin", "fault f1"),
        ("fault-expired", "web", "admin", "f1: disabled; hits: 1"),
    ]
    after = service.request()
    assert after.headers["etag"].split(".")[0] != before["127.0.0.1"].headers["etag"].split(".")[0]
    assert after.json()["DocumentIncarnation"] == 1, "as many as there are live events"
    assert service.list_all("/v1/history")[-1]["kind"] == "enabled"
    assert service.request(source="127.0.0.3").headers["etag"] == before["127.0.0.3"].headers["etag"]
    add(service, "disabled")
    assert {row["group"] for row in service.list_all("/v1/history") if row["reason"] == "fault f2"} == {"web", "db"}


def test_a_long_poll_ends_when_its_group_is_disabled(service: ServiceProcess) -> None:
    tag = service.request().headers["etag"]
    with Line(service) as line:
        line.send(request("GET", TARGET, (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60"))))
        while b"forewarn_long_polls 1.0" not in service.control("GET", "/metrics").body:
            pass
        add(service, "disabled")
        response = line.read_response()
    assert (response.status, response.body) == (200, NOTHING_YET)
    assert response.header("etag") != tag


# --- Which requests -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*DIRECT, "reset"])
def test_a_faulted_post_approves_nothing_and_can_be_retried(service: ServiceProcess, kind: str) -> None:
    event = service.request_operation("restart", "web-0")["events"][0]["id"]
    add(service, kind, method="POST", count=3)
    assert service.request().status == 200, "a GET is not faulted"
    for _ in range(3):
        if kind == "reset":
            with pytest.raises(ConnectionResetError):
                service.approve(event)
        else:
            assert service.approve(event).status == int(kind)
        assert status_of(service, event) == "scheduled"
    assert service.approve(event).status == 200
    assert status_of(service, event) == "started"
    end(service)


def test_one_vm_or_all(service: ServiceProcess) -> None:
    add(service, "500", vm="web-1", duration="1h")
    found = [service.request(source=f"127.0.0.{number}").status for number in (1, 2, 3)]
    assert found == [200, 500, 200]
    add(service, "429", duration="1h")
    found = [service.request(source=f"127.0.0.{number}").status for number in (1, 2, 3)]
    assert found == [429, 500, 429], "the oldest strikes"


def test_faults_apply_only_to_the_document_and_to_known_vms(service: ServiceProcess) -> None:
    add(service, "500", method="any", count=2)
    assert service.request(target="/metadata/versions").status == 200
    assert service.request(target="/metadata/instance?api-version=2021-02-01").status == 200
    assert service.request("DELETE").status == 405
    assert service.request(source="127.0.0.9").status == 404
    assert active(service) == {"f1": 0}
    assert service.request(target=TARGET.replace("scheduledevents", "ScheduledEvents")).status == 500
    assert service.request(headers={}).status == 500, "before anything of the request is looked at"


@pytest.mark.parametrize("kind", ["empty", "stall", "length", "stale"])
def test_a_fault_that_corrupts_documents_waits_for_one(service: ServiceProcess, kind: str) -> None:
    service.request_operation("restart", "web-0")
    tag = service.request().headers["etag"]
    add(service, kind, **({"delay": "0.05s"} if kind == "stall" else {}))
    assert service.request(headers={}).status == 400
    assert service.request(target=f"{EVENTS}?api-version=1999-01-01").status == 404
    assert service.approve("nothing").status == 400
    if kind != "stale":
        assert service.request(headers={"Metadata": "true", "If-None-Match": tag}).status == 304
    assert active(service) == {"f1": 0}
    with Line(service) as line:
        line.send(POLL)
        until_struck(service)
    end(service)


# --- How often, how long ------------------------------------------------------------------------------


def test_a_count_a_duration_and_both(service: ServiceProcess) -> None:
    add(service, "500", count=2)
    assert [service.request().status for _ in range(3)] == [500, 500, 200]
    add(service, "500", duration="10m")
    assert [service.request().status for _ in range(3)] == [500, 500, 500]
    service.advance("9m59s")
    assert service.request().status == 500
    service.advance("1s")
    assert service.request().status == 200
    add(service, "500", duration="10m", count=2)
    service.advance("5m")
    assert service.request().status == 500
    service.advance("5m")
    assert service.request().status == 200
    assert active(service) == {}, "who sees none finds in history that they are over"
    rows = [
        (row["kind"], row["by"], row["reason"]) for row in service.list_all("/v1/history") if "fault" in row["kind"]
    ]
    assert rows == [
        ("fault-added", "admin", "f1: 500 2 times"),
        ("fault-expired", "forewarn", "f1: 500 2 times; hits: 2"),
        ("fault-added", "admin", "f2: 500 for 10m"),
        ("fault-expired", "forewarn", "f2: 500 for 10m; hits: 4"),
        ("fault-added", "admin", "f3: 500 2 times for 10m"),
        ("fault-expired", "forewarn", "f3: 500 2 times for 10m; hits: 1"),
    ]


def test_responses_keep_their_order_after_a_slow_one(service: ServiceProcess) -> None:
    add(service, "slow", delay="0.05s")
    add(service, "429")
    with Line(service) as line:
        line.send(POLL * 3)
        assert [line.read_response().status for _ in range(3)] == [200, 429, 200]
    end(service)


def test_long_polls_work_with_faults_allowed(service: ServiceProcess) -> None:
    tag = service.request().headers["etag"]
    with Line(service) as line:
        line.send(request("GET", TARGET, (*TRUE, ("If-None-Match", tag), ("Prefer", "wait=60"))))
        while b"forewarn_long_polls 1.0" not in service.control("GET", "/metrics").body:
            pass
        add(service, "500")  # what is held already is not faulted
        service.request_operation("restart", "web-0")
        assert line.read_response().status == 200
        assert line.exchange(POLL).status == 500
