"""seen_by: the clock waits for the application, so that it misses no step."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from forewarn import errors
from forewarn.testing import HTTPResponse, Service, ServiceProcess
from forewarn.testing.client import DOCUMENT, address_in

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAYS = ("plain", "with tags", "long poll")


class Application:
    """Polls in its own thread, and records each document that differs from the previous one."""

    def __init__(self, url: str, way: str, *, approves: bool = False) -> None:
        self._connection = http.client.HTTPConnection(*address_in(url), timeout=90)
        self.way = way
        self.approves = approves
        self.seen: list[Any] = []
        self.polls = 0
        self.ended = threading.Event()
        self._tag: str | None = None

    def end(self) -> None:
        """Also while a poll is held."""
        self.ended.set()
        with contextlib.suppress(OSError):
            if self._connection.sock is not None:
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def run(self) -> None:
        with contextlib.closing(self._connection):
            self._poll()

    def _poll(self) -> None:
        while not self.ended.is_set():
            document = self._ask()
            if document is not None:
                self.polls += 1
                for event in document["Events"] if self.approves else ():
                    if event["EventStatus"] == "Scheduled":
                        self._send("POST", json.dumps({"StartRequests": [{"EventId": event["EventId"]}]}).encode())
                if not self.seen or document != self.seen[-1]:
                    self.seen.append(document)

    def _ask(self) -> Any:
        headers = {"If-None-Match": self._tag} if self._tag and self.way != "plain" else {}
        if self.way == "long poll":
            headers["Prefer"] = "wait=60"
        try:
            answer, body = self._send("GET", None, headers)
        except (OSError, http.client.HTTPException):  # the service has stopped
            self.ended.set()
            return None
        if answer.status not in (200, 304):  # its VM has left the fleet
            self.ended.set()
        self._tag = answer.getheader("ETag")
        return json.loads(body) if answer.status == 200 and body else None

    def _send(
        self, method: str, body: bytes | None, headers: dict[str, str] | None = None
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """It uses one open connection, so that the fast path of the protocol is tested too."""
        self._connection.request(method, DOCUMENT, body, {"Metadata": "true", **(headers or {})})
        answer = self._connection.getresponse()
        return answer, answer.read()

    def steps(self) -> list[tuple[int, list[tuple[str, str]]]]:
        return [
            (
                document["DocumentIncarnation"],
                [(event["EventType"], event["EventStatus"]) for event in document["Events"]],
            )
            for document in self.seen
        ]


@contextlib.contextmanager
def running(*applications: Application) -> Iterator[None]:
    threads = [threading.Thread(target=application.run, daemon=True) for application in applications]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for application, thread in zip(applications, threads, strict=True):
            application.end()
            thread.join()


LIFE = [(0, []), (1, [("Reboot", "Scheduled")]), (2, [("Reboot", "Started")]), (3, [])]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("approves", [False, True], ids=["leaves it", "approves"])
def test_an_application_misses_no_step(forewarn: Service, way: str, approves: bool) -> None:
    vm = forewarn.vm("web-0")
    application = Application(vm.endpoint, way, approves=approves)
    with running(application):
        forewarn.advance(seen_by=vm)
        event = vm.restart()
        forewarn.advance(hours=1, seen_by=[vm])
        assert application.steps() == LIFE
        assert event.was_approved_by(vm) == approves
        assert event.started_at is not None
        assert event.ended_at == event.started_at + timedelta(minutes=10)


def test_the_clock_waits_only_for_the_named_vms(forewarn: Service) -> None:
    group, other = forewarn.group("web", vms=3), forewarn.vm("db-0")
    applications = [Application(vm.endpoint, way) for vm, way in zip(group, WAYS, strict=True)]
    with running(*applications):
        group[0].restart()
        other.restart()
        forewarn.advance(minutes=30, seen_by=group)
        for application in applications:
            assert application.steps()[-3:] == LIFE[-3:]


def test_a_vm_in_seen_by_does_not_become_inactive(forewarn: Service) -> None:
    with Service(inactivity_timeout="24h") as strict:
        vm, silent = strict.vm("web-0"), strict.vm("db-0")
        application = Application(vm.endpoint, "with tags")
        with running(application):
            event = vm.degrade()
            strict.advance(days=8, seen_by=vm)
            assert event.status == "Completed"
            assert application.steps()[-3:] == [
                (1, [("Freeze", "Scheduled")]),
                (2, [("Freeze", "Started")]),
                (3, []),
            ]
            assert strict.get_json("/v1/vms/web-0")["events_enabled"]
            assert not strict.get_json(f"/v1/vms/{silent.name}")["events_enabled"]


def test_the_clock_does_not_wait_for_a_deleted_vm(forewarn: Service) -> None:
    group = forewarn.group("pool", vms=2, kind="scale-set", terminate_notice="5m")
    application = Application(group[1].endpoint, "plain")
    with running(application):
        group[1].delete()
        forewarn.advance(minutes=30, seen_by=group[1])
        assert not forewarn.has_vm("pool_1")
        expected = [("Terminate", "Scheduled")], [("Terminate", "Started")]
        assert [events for _, events in application.steps() if events] == list(expected)


def test_a_vm_that_does_not_poll_is_named_and_stops_the_clock(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    event, before = vm.restart(), forewarn.now
    with pytest.raises(errors.DocumentNotSeen, match=r"web-0 has not seen its document within 0.05 s.*it did not poll"):
        forewarn.advance(minutes=15, seen_by=vm, timeout=0.05)
    assert forewarn.now == before
    assert event.status == "Scheduled"
    forewarn.advance(minutes=15)
    assert event.status == "Started", "the clock goes on when it is let"


def test_the_clock_waits_for_a_restarted_application(forewarn: Service) -> None:
    """Documents that the first program or the test received do not count for the second program."""
    vm = forewarn.vm("web-0")
    first = Application(vm.endpoint, "with tags")
    with running(first):
        event = vm.restart()
        forewarn.advance(seen_by=vm)
    vm.poll()
    vm.poll()
    with pytest.raises(errors.DocumentNotSeen, match="it did not poll"):
        forewarn.advance(minutes=15, seen_by=vm, timeout=0.05)
    second = Application(vm.endpoint, "plain", approves=True)
    with running(second):
        forewarn.advance(minutes=15, seen_by=vm)
        assert second.steps()[:2] == [(1, [("Reboot", "Scheduled")]), (2, [("Reboot", "Started")])]
    assert event.was_approved_by(vm)


def test_an_old_entity_tag_does_not_count_as_seen(forewarn: Service) -> None:
    """Only an open long poll shows that the program runs."""
    vm = forewarn.vm("web-0")
    tag = forewarn.request(address=address_in(vm.endpoint)).headers["etag"]
    named = {"Metadata": "true", "If-None-Match": tag}
    assert forewarn.request(headers=named, address=address_in(vm.endpoint)).status == 304
    with pytest.raises(errors.DocumentNotSeen, match="it did not poll"):
        forewarn.advance(minutes=1, seen_by=vm, timeout=0.05)


def test_the_error_distinguishes_a_vm_that_polls_but_receives_no_new_document(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.restart()
    vm.fault("unchanged", duration=3600)
    application = Application(vm.endpoint, "with tags")
    with (
        running(application),
        pytest.raises(errors.DocumentNotSeen, match=r"last response was 304\..*Limit it by count"),
    ):
        forewarn.advance(minutes=40, seen_by=vm, timeout=2)


def test_a_corrupted_document_is_not_a_seen_step(forewarn: Service) -> None:
    vm = forewarn.vm("web-0")
    vm.restart()
    vm.fault("empty", count=3)
    application = Application(vm.endpoint, "plain")
    with running(application):
        forewarn.advance(minutes=30, seen_by=vm)
        assert application.steps() == LIFE[1:]


def test_advance_without_seen_by_does_not_wait(forewarn: Service) -> None:
    event = forewarn.vm("web-0").restart()
    forewarn.advance(days=1)
    assert event.status == "Completed"


FLEET = '[[vm]]\nname = "web-0"\naddress = "127.0.0.1"\n'


@pytest.mark.parametrize("way", WAYS)
def test_the_command_line_can_wait_for_vms(tmp_path: Path, way: str) -> None:
    """A service without --allow-faults observes polls only while a clock waits."""
    (tmp_path / "fleet.toml").write_text(FLEET)
    service = ServiceProcess(tmp_path).start("--clock", "virtual", "--fleet", str(tmp_path / "fleet.toml"))
    with service:
        application = Application(service.metadata_url, way)
        with running(application):
            service.advance(seen_by="web-0")
            service.request_operation("restart", "web-0")
            done = service.cli("clock", "advance", "30m", "--seen-by", "web-0")
            assert done.returncode == 0, done.stderr
            assert application.steps() == LIFE
        service.stop()


def test_the_command_line_reports_a_timeout(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    service = ServiceProcess(tmp_path).start("--clock", "virtual", "--fleet", str(tmp_path / "fleet.toml"))
    with service:
        done = service.cli("clock", "advance", "15m", "--seen-by", "web-0", "--timeout", "0.05s")
        assert done.returncode == 6
        assert "web-0 has not seen its document within 0.05 s of real time: it did not poll." in done.stderr
        for arguments, words in {
            ("--timeout", "5s"): "--timeout",
            ("--seen-by", "web-1"): "Did you mean 'web-0'?",
            ("--seen-by", "web-0", "--timeout", "2h"): "at most 1h",
            ("--seen-by", "web-0", "--timeout", "never"): "never",
        }.items():
            done = service.cli("clock", "advance", "15m", *arguments)
            assert done.returncode in (2, 3)
            assert words in done.stderr


def test_a_stop_of_the_service_ends_the_wait(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    service = ServiceProcess(tmp_path).start("--clock", "virtual", "--fleet", str(tmp_path / "fleet.toml"))
    with service:
        body = json.dumps({"by": "15m", "seen_by": ["web-0"], "timeout": "1h"}).encode()
        with service.connect(service.control_address) as waiting:
            head = f"POST /v1/clock/advance HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.token}\r\n"
            waiting.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            service.document()  # the one before is under way when this has been answered
            service.document(headers={"Metadata": "true"})
            assert service.stop() == 0
            answer = waiting.recv(65536)
        assert answer.split()[1] in (b"200", b"503")


def test_a_client_that_disconnects_releases_the_clock(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(FLEET)
    service = ServiceProcess(tmp_path).start("--clock", "virtual", "--fleet", str(tmp_path / "fleet.toml"))
    with service:
        body = json.dumps({"by": "15m", "seen_by": ["web-0"], "timeout": "1h"}).encode()
        with service.connect(service.control_address) as waiting:
            head = f"POST /v1/clock/advance HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {service.token}\r\n"
            waiting.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            refused = first(service, 409)  # it may not be there yet
            assert "waits for web-0" in refused.json()["detail"]
        first(service, 200)  # it may not be noticed yet
        service.advance("15m")


def first(service: ServiceProcess, status: int) -> HTTPResponse:
    """Move the clock by nothing until the response has this status, and return it."""
    for _ in range(5000):
        answer = service.control("POST", "/v1/clock/advance", {"by": "0s"})
        if answer.status == status:
            return answer
    raise AssertionError(answer)
