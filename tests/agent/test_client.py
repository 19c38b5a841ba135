"""The client with a running service, and with misbehaving servers."""

from __future__ import annotations

import json
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.raw_server import RawServer, answer, close, document, event, reset, silence, then
from agent.shifted_clock import Shifted, allow_seconds
from depth import amount
from forewarn.agent import Change, Client, Document, EndpointError, Event
from forewarn.agent.address import EndpointAddress
from forewarn.core.faults import FAULTS
from forewarn.errors import BadEndpoint, BadPollSeconds, EndpointNotFound, NothingToApprove

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.testing import VM, Service

    Deed = bytes | Callable[[socket.socket], object]

LONG = 20.0


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FOREWARN_ENDPOINT", "FOREWARN_VM_NAME"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Shifted:
    return Shifted(monkeypatch)


@pytest.fixture
def vm(forewarn: Service) -> VM:
    return forewarn.vm("web-0")


@pytest.fixture
def client(vm: VM, shifted: Shifted) -> Iterator[Client]:
    with Client(vm.endpoint, pause=shifted.pause, jitter=lambda: 0.5) as client:
        yield client


@pytest.fixture
def at(shifted: Shifted) -> Iterator[Callable[[RawServer], Client]]:
    """A client of a server of the test's own."""
    clients = []

    def make(server: RawServer) -> Client:
        clients.append(Client(server.url, "web-0", pause=shifted.pause, jitter=lambda: 0.5))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


def kind_of(work: Callable[[], object]) -> str:
    with pytest.raises(EndpointError) as trouble:
        work()
    return trouble.value.kind


# --- As it should be ----------------------------------------------------------------------------------


def test_it_has_the_endpoint_the_vm_name_and_the_time(forewarn: Service, client: Client, vm: VM) -> None:
    assert client.endpoint.url == vm.endpoint
    assert (client.me.name, client.me.origin) == ("web-0", "the endpoint")
    forewarn.advance(days=3)
    for _ in range(2):  # so far away from what was expected, one answer is not believed
        client.poll()
    assert timedelta(0) <= client.clock.now() - forewarn.now < timedelta(minutes=1)


def test_the_endpoint_and_the_name_come_from_the_environment(vm: VM, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in vm.environment.items():
        monkeypatch.setenv(name, value)
    with Client() as client:
        assert (client.endpoint.url, client.endpoint.origin) == (vm.endpoint, "FOREWARN_ENDPOINT")
        assert client.me.name == "web-0"
        assert client.document().events == ()
    monkeypatch.setenv("FOREWARN_VM_NAME", "other")
    with Client(vm_name="given") as client:
        assert client.me.name == "given"


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_a_blank_name_is_ignored(vm: VM, monkeypatch: pytest.MonkeyPatch, blank: str) -> None:
    monkeypatch.setenv("FOREWARN_VM_NAME", blank)
    with Client(vm.endpoint, blank) as client:
        assert (client.me.name, client.me.origin) == ("web-0", "the endpoint")


def test_a_life_from_the_notice_to_the_end(forewarn: Service, client: Client, vm: VM) -> None:
    made = vm.restart()
    changes = client.changes()
    scheduled = next(changes)
    assert isinstance(scheduled, Change)
    assert isinstance(scheduled.event, Event)
    assert (scheduled.kind, scheduled.event.id, scheduled.event.type) == ("scheduled", made.id.upper(), "Reboot")
    assert scheduled.approve()
    assert made.was_approved_by(vm)
    started = next(changes)
    assert (started.kind, started.before, started.approve()) == ("started", scheduled.event, False)
    forewarn.advance(minutes=10)
    assert next(changes).over


def test_a_cancelled_event_is_reported_and_cannot_be_approved(client: Client, vm: VM, forewarn: Service) -> None:
    made = vm.restart()
    changes = client.changes()
    scheduled = next(changes)
    made.cancel()
    forget_ended_events(forewarn)
    assert scheduled.approve() is False
    assert next(changes).cancelled


def forget_ended_events(forewarn: Service) -> None:
    """For a day, the service accepts an approval of an ended event."""
    forewarn.advance(hours=23)
    forewarn.vm("web-0").poll()  # otherwise it is disabled
    forewarn.advance(hours=1)


def test_events_of_other_vms_are_returned_only_on_request(forewarn: Service) -> None:
    web = forewarn.group("web", vms=2)
    other, mine = web[1].restart(), web[0].redeploy()
    with Client(web[0].endpoint) as client:
        assert next(client.changes()).event.id == mine.id.upper()
        changes = client.changes(mine=False)
        assert {next(changes).event.id, next(changes).event.id} == {other.id.upper(), mine.id.upper()}


def test_two_may_follow_the_changes_of_one_client(vm: VM) -> None:
    """Each iteration gets all changes, although the other saw them first."""
    with Client(vm.endpoint) as client, ThreadPoolExecutor(2) as threads:
        followers = [client.changes(), client.changes()]
        vm.restart()
        assert [next(changes).kind for changes in followers] == ["scheduled", "scheduled"]
        waiting = [threads.submit(next, changes) for changes in followers]
        client.approve(client.document().events[0])
        assert [change.result(LONG).kind for change in waiting] == ["started", "started"]


def test_one_request_reads_the_document_and_one_approves_several_events(forewarn: Service) -> None:
    web = forewarn.group("web", vms=2)
    made = [web[0].restart(), web[1].restart()]
    with Client(web[0].endpoint) as client:
        shown = client.document()
        assert isinstance(shown, Document)
        client.approve(shown.events[0], shown.events[1].id.lower())
    assert [one.status for one in made] == ["Started", "Started"]


def test_an_unknown_id_is_rejected_with_the_text_of_the_endpoint(client: Client, vm: VM) -> None:
    made = vm.restart()
    with pytest.raises(EndpointError, match="rejected the request with 400: ") as trouble:
        client.approve(made.id, "00000000-0000-0000-0000-000000000000")
    assert trouble.value.kind == "rejected"
    assert not made.was_approved


@pytest.mark.parametrize("given", [(), ("",), (None,), (5,), ("id", None)])
def test_nothing_cannot_be_approved(client: Client, given: tuple[str, ...]) -> None:
    with pytest.raises(NothingToApprove):
        client.approve(*given)


def test_polls_return_changes(client: Client, vm: VM) -> None:
    first = client.poll()
    assert (first.document, first.changed, first.error) == (Document(0, ()), True, None)
    again = client.poll()
    assert (again.document, again.changed) == (first.document, False)
    assert 0 < again.pause_seconds <= 1
    vm.restart()
    changed = client.poll()
    assert changed.document is not None
    assert (changed.changed, len(changed.document.events)) == (True, 1)


def test_a_long_poll_waits_for_a_change_and_an_approval_does_not_wait_for_it(forewarn: Service, vm: VM) -> None:
    made = vm.restart()
    with Client(vm.endpoint) as client, ThreadPoolExecutor(1) as thread:
        client.poll(60)
        polls = forewarn.poll_count(vm)
        held = thread.submit(client.poll, 60)
        forewarn.advance(seen_by=vm)
        assert forewarn.poll_count(vm) == polls + 1
        client.approve(made.id)
        polled = held.result(LONG)
        assert (polled.changed, polled.pause_seconds, client.offers_long_poll) == (True, 0, True)


def test_closing_from_another_thread_ends_open_requests(forewarn: Service, vm: VM) -> None:
    client = Client(vm.endpoint)
    client.poll(60)
    with ThreadPoolExecutor(1) as thread:
        changes = thread.submit(list, client.changes())
        forewarn.advance(seen_by=vm)
        client.close()
        assert changes.result(LONG) == []
    polled = client.poll()
    assert polled.error is not None
    assert polled.error.kind == "closed"
    assert polled.pause_seconds > 0
    assert list(client.changes()) == []
    assert kind_of(client.document) == "closed"


def test_closing_ends_a_pause() -> None:
    with RawServer(answer(500)) as server, ThreadPoolExecutor(1) as thread:
        client = Client(server.url, poll_seconds=3600)
        changes = thread.submit(list, client.changes())
        assert server.came.acquire(timeout=LONG)
        client.close()
        assert changes.result(LONG) == []


@pytest.mark.parametrize("seconds", [0, -1, 0.1, 7200, float("nan"), float("inf")])
def test_how_often_to_poll_has_bounds(seconds: float) -> None:
    with pytest.raises(BadPollSeconds, match=r"to 3600. Azure"):
        Client("127.0.0.1", poll_seconds=seconds)


def test_an_invalid_endpoint_is_an_error_at_once() -> None:
    with pytest.raises(BadEndpoint):
        Client("ftp://127.0.0.1")


def test_a_proxy_is_never_used(vm: VM, monkeypatch: pytest.MonkeyPatch) -> None:
    with RawServer(answer(502)) as proxy:
        for name in ("http_proxy", "HTTP_PROXY", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        made = vm.restart()
        with Client(vm.endpoint) as client:
            next(client.changes()).approve()
        assert made.was_approved_by(vm)
        assert proxy.connections == 0


# --- Every fault --------------------------------------------------------------------------------------

GETS = {
    "slow": "",
    "empty": "empty",
    "unchanged": "not-modified",
    "410": "gone",
    "429": "throttled",
    "500": "failing",
    "stall": "stalled",
    "reset": "reset",
    "length": "cut-off",
    "stale": "",
    "disabled": "",
}


def test_the_faults_are_all_there_are() -> None:
    assert set(GETS) == set(FAULTS)


def strike(vm: VM, kind: str, count: int, on: str = "GET") -> None:
    delay = {"slow": 0.2, "stall": 60}.get(kind)
    vm.fault(kind, method=on, count=None if kind == "disabled" else count, delay=delay)


@pytest.mark.parametrize("kind", GETS)
def test_a_poll_survives_every_fault_of_a_get(
    vm: VM, client: Client, kind: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "forewarn.agent.endpoint")
    allow_seconds(monkeypatch, 1.0, 1.0, 1.0, 1.0)
    vm.restart()
    strike(vm, kind, 3)
    polls = [client.poll() for _ in range(5)]
    troubles = [polled.error.kind for polled in polls if polled.error is not None]
    assert troubles == ([GETS[kind]] * 3 if GETS[kind] else [])
    assert all(polled.pause_seconds >= 0.5 for polled in polls if polled.error is not None)
    assert polls[-1].error is None
    assert polls[-1].document is not None
    assert len(polls[-1].document.events) == 1
    said = [record.levelname for record in caplog.records if record.name.startswith("forewarn.agent")]
    assert said == (["WARNING", "INFO"] if troubles else [])


@pytest.mark.parametrize("kind", GETS)
def test_changes_live_through_every_fault_of_a_get(
    forewarn: Service, vm: VM, client: Client, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault applies before each step, and every step is reported once."""
    allow_seconds(monkeypatch, 1.0, 1.0, 1.0, 1.0)
    changes = client.changes()
    received: list[Change] = []
    for act in (vm.restart, lambda: received[0].approve(), lambda: forewarn.advance(minutes=10), vm.redeploy):
        act()
        if kind != "disabled":
            strike(vm, kind, 2)
        received.append(next(changes))
        forewarn.clear_faults()
    assert [change.kind for change in received] == ["scheduled", "started", "gone", "scheduled"]


def test_restarted_incarnations_are_accepted_after_a_while(
    forewarn: Service, vm: VM, client: Client, shifted: Shifted
) -> None:
    """After a day of inactivity the group is enabled again, and incarnations restart at lower numbers."""
    first = vm.restart()
    changes = client.changes()
    assert next(changes).kind == "scheduled"
    first.approve()
    assert next(changes).kind == "started"
    vm.fault("disabled")
    forewarn.advance(minutes=10)
    vm.poll()  # enables it
    second = vm.redeploy()
    received = [next(changes), next(changes)]
    assert {(change.kind, change.event.id) for change in received} == {
        ("gone", first.id.upper()),
        ("scheduled", second.id.upper()),
    }


@pytest.mark.parametrize(
    ("kind", "trouble"), [("410", "gone"), ("429", "throttled"), ("500", "failing"), ("reset", "reset")]
)
def test_an_approval_through_every_fault_of_a_post(
    vm: VM, client: Client, shifted: Shifted, kind: str, trouble: str
) -> None:
    made = vm.restart()
    change = next(client.changes())
    strike(vm, kind, 2, "POST")
    assert kind_of(lambda: client.approve(made.id)) == trouble
    assert not made.was_approved
    strike(vm, kind, 3, "POST")
    assert change.approve()
    assert made.was_approved_by(vm)
    assert min(shifted.pauses) >= 0.5


def test_a_slow_approval_is_waited_for_and_sent_again(vm: VM, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = vm.restart()
    change = next(client.changes())
    allow_seconds(monkeypatch, LONG, 0.3, LONG)
    vm.fault("slow", method="POST", count=1, delay=60)
    assert kind_of(lambda: client.approve(made.id)) == "timeout"
    vm.fault("slow", method="POST", count=2, delay=1)
    assert change.approve()
    assert made.was_approved_by(vm)


def test_an_approval_that_never_succeeds_times_out_after_a_minute(vm: VM, client: Client, shifted: Shifted) -> None:
    vm.restart()
    change = next(client.changes())
    vm.fault(500, method="POST", duration=3600)
    assert kind_of(change.approve) == "failing"
    assert 50 < sum(shifted.pauses) < 80


@pytest.mark.parametrize("kind", ["500", "reset", "empty"])
def test_a_rejected_approval_is_checked_despite_every_fault(
    vm: VM, client: Client, forewarn: Service, kind: str
) -> None:
    """The event ended a day ago, so the approval is rejected. A fault delays the poll that checks it."""
    made = vm.restart()
    change = next(client.changes())
    made.cancel()
    forget_ended_events(forewarn)
    strike(vm, kind, 3)
    assert change.approve() is False


def test_a_rejected_approval_that_cannot_be_checked_times_out_after_a_minute(
    vm: VM, client: Client, forewarn: Service, shifted: Shifted
) -> None:
    made = vm.restart()
    change = next(client.changes())
    made.cancel()
    forget_ended_events(forewarn)
    vm.fault(500, method="GET", duration=3600)
    assert kind_of(change.approve) == "failing"
    assert 50 < sum(shifted.pauses) < 80


def test_a_rejection_of_an_existing_event_is_raised_at_once(at: Callable[[RawServer], Client]) -> None:
    with RawServer(document(1, event(1)), answer(400), document(1, event(1))) as server:
        assert kind_of(next(at(server).changes()).approve) == "rejected"
        assert [request.method for request in server.received] == ["GET", "POST", "GET"]


def test_the_first_call_has_a_long_timeout_and_later_timeouts_grow(
    vm: VM, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_seconds(monkeypatch, LONG, 0.2, 0.3, LONG)
    vm.fault("slow", count=1, delay=1)
    assert client.poll().error is None
    vm.fault("slow", count=3, delay=1)
    kinds = [polled.error and polled.error.kind for polled in (client.poll() for _ in range(4))]
    assert kinds == ["timeout", "timeout", None, None]


@pytest.mark.forewarn(rate_limit=5)
def test_at_its_own_pace_it_is_never_throttled(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.restart()
    with Client(vm.endpoint) as client:
        changes = client.changes()
        for what in ("scheduled", "started"):
            change = next(changes)
            assert change.kind == what
            change.approve()
        assert client.me.name == "web-0"
        for _ in range(4):
            client.document()


# --- Worse servers ------------------------------------------------------------------------------------


def test_an_endpoint_without_long_polls_is_polled_once_a_second(
    at: Callable[[RawServer], Client], shifted: Shifted
) -> None:
    with RawServer(document(1), answer(304)) as server:
        client = at(server)
        for number in range(10):
            polled = client.poll(30)
            assert polled.error is None
            assert 0.5 < polled.pause_seconds <= 1
            shifted.pause(polled.pause_seconds)
            assert ("prefer" in server.received[-1].headers) == (number == 1)
    assert client.offers_long_poll is False


@pytest.mark.parametrize("changing", [True, False])
def test_an_endpoint_that_falsely_announces_long_polls_causes_no_busy_loop(
    at: Callable[[RawServer], Client], shifted: Shifted, changing: bool
) -> None:
    def reply(number: int) -> bytes:
        applied = b"HTTP/1.1 200 OK\r\nPreference-Applied: wait=30\r\n"
        return document(number if changing else 1, tag=f'"{number}"').replace(b"HTTP/1.1 200 Words\r\n", applied)

    with RawServer(*map(reply, range(40))) as server:
        client, begun = at(server), []
        for _ in range(30):
            begun.append(shifted.monotonic())
            shifted.pause(client.poll(30).pause_seconds)
    # As often as the limit allows where it was worth it, and no more than once a second where it was not.
    apart = [later - sooner for sooner, later in zip(begun, begun[4 if changing else 1 :], strict=False)]
    assert min(apart) >= 0.99


def test_repeated_304_responses_are_an_error_until_a_document_arrives(
    at: Callable[[RawServer], Client],
) -> None:
    with RawServer(answer(304), answer(304), document(1, event(1))) as server:
        assert next(at(server).changes()).kind == "scheduled"
        assert ["if-none-match" in request.headers for request in server.received] == [False] * 3


@pytest.mark.parametrize("known", ["2019-08-01", "2017-08-01", "2017-03-01"])
@pytest.mark.parametrize("mine", [True, False])
def test_an_old_endpoint_is_understood_and_approved_at_in_its_own_version(
    at: Callable[[RawServer], Client], shifted: Shifted, known: str, mine: bool
) -> None:
    def old(connection: socket.socket) -> None:
        request = server.received[-1]
        if not request.target.endswith(known):
            connection.sendall(answer(404, b'{ "error": "Not found. Invalid version requested" }'))
        elif request.method == "POST":
            connection.sendall(answer(200))
        else:
            name = "_web-0" if known == "2017-03-01" else "web-0"
            connection.sendall(document(1, event(1, vm=name)))

    with RawServer(old) as server:
        client = at(server)
        assert next(client.changes(mine)).approve()
        assert server.received[-1].method == "POST"
        assert server.received[-1].target.endswith(known)
        assert server.most_in_a_second <= 5
        with Client(server.url, pause=shifted.pause) as other:
            other.approve("one")
            assert server.received[-1].target.endswith(known)
            assert other.document().incarnation == 1


def test_an_endpoint_that_knows_no_version_is_reported(at: Callable[[RawServer], Client], shifted: Shifted) -> None:
    with RawServer(answer(404, b'{ "error": "Not found." }')) as server:
        client = at(server)
        assert kind_of(client.document) == "not-found"
        polls = [client.poll() for _ in range(7)]
        assert [polled.error and polled.error.kind for polled in polls] == [None] * 6 + ["not-found"]
        assert min(polled.pause_seconds for polled in polls) >= 0.2


def test_a_moved_endpoint_is_discovered_again_unless_it_was_configured(
    shifted: Shifted, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        nowhere = EndpointAddress("http", "127.0.0.1", gone.getsockname()[1], "first")
    with RawServer(document(7, event(1))) as server:
        for given, expected in (("", server.url), (nowhere.url, nowhere.url)):
            client = Client(nowhere.url, "web-0", pause=shifted.pause)
            found = iter([nowhere, nowhere, server.endpoint])
            client._locator._find = lambda *_, found=found, **__: next(found)
            client._locator._is_given = bool(given)
            began = shifted.monotonic()
            while client.poll().error is not None and shifted.monotonic() - began < 120:
                shifted.pause(5)
            assert client.endpoint.url == expected
            client.close()
    assert shifted.monotonic() - began >= 120
    assert any(record.__dict__["event_name"] == "endpoint_changed" for record in caplog.records)


def test_the_knowledge_about_one_endpoint_does_not_apply_to_the_next(shifted: Shifted) -> None:
    """Its tag would mean nothing there, or another document."""
    with RawServer(answer(404, b"no such version"), document(7, tag='"5"'), answer(304)) as first:
        client = Client(first.url, "web-0", pause=shifted.pause)
        client._locator._is_given = False
        for _ in range(3):
            client.poll(20)
        assert (first.received[-1].headers["if-none-match"], client.offers_long_poll) == ('"5"', False)
    with RawServer(document(3, tag='"5"')) as second:
        client._locator._find = lambda *_, **__: second.endpoint
        while client.poll(20).error is not None:
            shifted.pause(5)
        assert "if-none-match" not in second.received[0].headers
        assert second.received[0].target.endswith("2020-07-01")
        assert client.offers_long_poll is None
        client.close()


def test_discovery_continues_until_an_endpoint_is_found(shifted: Shifted) -> None:
    with RawServer(document(7, event(1))) as server:
        client = Client(server.url, "web-0", pause=shifted.pause)
        tries = []

        def find(*_: object, **__: object) -> EndpointAddress:
            tries.append(1)
            if len(tries) < 4:
                raise EndpointNotFound(problem="nothing here.")
            return server.endpoint

        client._locator._find = find
        assert kind_of(lambda: client.endpoint) == "unreachable"
        assert kind_of(client.document) == "unreachable"
        assert next(client.changes()).kind == "scheduled"
        assert len(tries) == 4
        client.close()


def test_the_vm_name_is_requested_again_after_a_failure(shifted: Shifted) -> None:
    def reply(connection: socket.socket) -> None:
        target = server.received[-1].target
        names = sum(request.target.startswith("/metadata/instance") for request in server.received)
        if target.startswith("/metadata/instance"):
            connection.sendall(answer(500) if names < 3 else answer(200, b"web-0"))
        else:
            connection.sendall(document(1, event(1), event(2, vm="web-1")))

    with RawServer(reply) as server, Client(server.url, pause=shifted.pause) as client:
        change = next(client.changes())
        assert (change.event.resources, client.me.name) == (("web-0",), "web-0")


@pytest.mark.parametrize("status", [404, 500])
def test_an_endpoint_without_names_leaves_the_host_name(shifted: Shifted, status: int) -> None:
    mine = socket.gethostname()

    def reply(connection: socket.socket) -> None:
        is_name = server.received[-1].target.startswith("/metadata/instance")
        connection.sendall(answer(status) if is_name else document(1, event(1, vm=mine)))

    with RawServer(reply) as server, Client(server.url, pause=shifted.pause) as client:
        assert next(client.changes()).event.resources == (mine,)
        assert (client.me.name, client.me.origin) == (mine, "the host name")


def test_a_client_that_is_left_alone_leaves_no_connection_open() -> None:
    """Warnings are errors here, so an unclosed socket fails the test."""
    with RawServer(document(1, event(1))) as server:
        for _ in Client(server.url, "web-0").changes():
            break


@pytest.mark.parametrize("bad", [None, {"EventId": "x"}, event(9, EventType=None), event(9, Resources={})])
def test_an_unreadable_event_hides_no_other_and_is_logged_once(
    at: Callable[[RawServer], Client], caplog: pytest.LogCaptureFixture, bad: object
) -> None:
    both = answer(200, json.dumps({"DocumentIncarnation": 1, "Events": [bad, event(1)]}).encode())
    with RawServer(both) as server:
        client = at(server)
        change = next(client.changes())
        assert (change.kind, change.event.resources) == ("scheduled", ("web-0",))
        for _ in range(5):
            assert client.poll().error is None
            assert len(client.document().events) == 1
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1


def test_changing_invalid_documents_do_not_flood_the_log(
    at: Callable[[RawServer], Client], caplog: pytest.LogCaptureFixture
) -> None:
    with RawServer(document(1, *({"EventId": f"x{number}"} for number in range(1000)))) as server:
        client = at(server)
        assert client.poll().error is None
        said = [record.__dict__["fields"]["error"] for record in caplog.records]
        assert 0 < len(said) <= 100
        assert len(set(said)) == len(said)
        assert client.poll().error is None
    assert [record.__dict__["fields"]["error"] for record in caplog.records] == said


def test_a_temporarily_unreadable_event_does_not_disappear(at: Callable[[RawServer], Client]) -> None:
    bad = document(2, event(1, EventStatus=None), tag="")
    with RawServer(document(1, event(1)), bad, bad, document(3, event(1, "Started"))) as server:
        changes = at(server).changes()
        assert [next(changes).kind for _ in range(2)] == ["scheduled", "started"]


def test_an_event_with_an_unreadable_time_is_reported(at: Callable[[RawServer], Client]) -> None:
    with RawServer(document(1, event(1, NotBefore=None))) as server:
        change = next(at(server).changes())
        assert (change.kind, change.event.not_before, change.waits) == ("scheduled", None, True)


# --- How often ----------------------------------------------------------------------------------------


def test_many_iterations_of_one_client_stay_below_the_rate_limit() -> None:
    """Ten threads, of which each alone would be right."""
    with RawServer(document(1)) as server, ThreadPoolExecutor(10) as threads:
        client = Client(server.url, "web-0")
        following = [threads.submit(list, client.changes()) for _ in range(10)]
        for _ in range(12):
            assert server.came.acquire(timeout=LONG)
        client.close()
        assert [result.result(LONG) for result in following] == [[]] * 10
        assert server.most_in_a_second <= 5


def test_all_requests_of_many_threads_stay_below_the_rate_limit() -> None:
    with RawServer(document(1)) as server, Client(server.url, "web-0") as client, ThreadPoolExecutor(12) as threads:
        work: list[Callable[[], object]] = [client.poll, client.document, lambda: client.approve("one")] * 4
        for done in [threads.submit(one) for one in work]:
            done.result(LONG)
        assert len(server.received) == 12
        assert server.most_in_a_second <= 5


def test_a_request_repeated_on_a_new_connection_counts_for_the_rate_limit(shifted: Shifted) -> None:
    """The server ends each connection with the second request, so that every other one is sent twice."""

    def end_or_answer(connection: socket.socket) -> None:
        number = server.received[-1].connection
        if sum(request.connection == number for request in server.received) > 1:
            close(connection)
        else:
            connection.sendall(document(1, tag=""))

    with (
        RawServer(end_or_answer) as server,
        Client(server.url, "web-0", poll_seconds=0.25, pause=shifted.pause) as client,
    ):
        for _ in range(12):
            polled = client.poll()
            assert polled.error is None
            shifted.pause(polled.pause_seconds)
        assert len(server.received) > 20
        assert server.most_in_a_second <= 5


def test_closing_ends_the_wait_for_room() -> None:
    with RawServer(document(1)) as server, ThreadPoolExecutor(1) as thread:
        client = Client(server.url, "web-0")
        for _ in range(4):
            client.document()
        fifth = thread.submit(client.document)
        client.close()
        assert kind_of(lambda: fifth.result(LONG)) == "closed"


def test_several_threads_may_use_one_client(vm: VM, client: Client) -> None:
    vm.restart()
    begin = threading.Barrier(6)

    def work(number: int) -> int:
        begin.wait(LONG)
        found = client.document() if number % 2 else client.poll().document
        return found.incarnation if found is not None else -1

    with ThreadPoolExecutor(6) as threads:
        assert set(threads.map(work, range(6))) == {1}


DEEDS: dict[str, Deed] = {
    "document": document(3, event(1)),
    "other document": document(4),
    "older document": document(2, event(1, "Started")),
    "untagged": document(3, tag=""),
    "held": document(5).replace(b"ETag", b"Preference-Applied: wait=20\r\nETag"),
    "held, other": document(6, event(2)).replace(b"ETag", b"Preference-Applied: wait=20\r\nETag"),
    "not modified": answer(304),
    "held, not modified": answer(304, b"", {"Preference-Applied": "wait=20"}),
    "empty": answer(200),
    "no document": answer(200, b"[]"),
    "no version": answer(404, b'{ "error": "Not found. Invalid version requested" }'),
    "not here": answer(404),
    "rejected": answer(400),
    "gone": answer(410),
    "throttled": answer(429, b"", {"Retry-After": "0"}),
    "failing": answer(503),
    "redirect": answer(301, b"", {"Location": "http://127.0.0.1:1/"}),
    "reset": reset,
    "closed": close,
    "silent": silence,
    "stalled": then(b"HTTP/1.1 200 OK\r\n", silence),
    "cut off": then(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{", close),
    "noise": then(b"\x16\x03\x01", close),
    "no chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n",
    "half a document": document(3, {"EventId": "x"}, event(1)),
}


# Of few sorts each: what makes a client spin is the same again and again.
COURSES = st.lists(st.sampled_from(sorted(DEEDS)), min_size=1, max_size=3).flatmap(
    lambda few: st.lists(st.sampled_from(few), min_size=1, max_size=25)
)


@settings(max_examples=amount(150), suppress_health_check=list(HealthCheck))
@given(course=COURSES, wait=st.sampled_from([0, 20]))
@example(course=["document", *["held, not modified"] * 20], wait=20)
@example(course=[*["held", "held, other"] * 10], wait=20)
def test_no_sequence_of_responses_makes_a_poll_raise_or_spin(
    course: list[str], wait: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if wait:
        # To a poll that may be held, silence is right for as long as it may be: too long for a test.
        course = [name if name != "silent" else "stalled" for name in course]
    with monkeypatch.context() as patch:
        allow_seconds(patch, 0.05, 0.05)
        shifted = Shifted(patch)
        with (
            RawServer(*(DEEDS[name] for name in course)) as server,
            Client(server.url, "web-0", pause=shifted.pause) as client,
        ):
            for _ in course:
                polled = client.poll(wait)
                if polled.error is not None:
                    assert polled.document is None
                    assert polled.pause_seconds >= 0.5
                elif polled.document is None:
                    assert polled.pause_seconds >= 0.2
                shifted.pause(polled.pause_seconds)
            assert shifted.most_sent_in_a_second <= 5
            server.do(DEEDS["document"])
            allow_seconds(patch, 20, 20)  # it answers from now on, but a busy machine may take a while
            for _ in range(12):
                polled = client.poll()
            assert polled.error is None
            assert polled.document is not None
            assert polled.document.incarnation == 3
