"""The programs of examples/clients: each handles an event from its notice to its end, and survives every fault."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
import tree_sitter
import tree_sitter_powershell

from acceptance.example_client import FOLDER, LANGUAGES, ExampleClient, build
from agent.raw_server import RawServer, answer, document, event, reset
from tcp_ports import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from forewarn.testing import Service

    StartClient = Callable[..., ExampleClient]

ODD_ID = "A-1 \"quoted\" back\\slash $(false) `false` 'x' {y} % é\u20ac"
MALFORMED = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"<html>busy</html>",
    b'{"Events":[]}',
    b'{"DocumentIncarnation":1}',
    b'{"DocumentIncarnation":1,"Events":null}',
    b'{"DocumentIncarnation":1,"Events":[null]}',
    b'{"DocumentIncarnation":1,"Events":[{"EventType":"Reboot","EventStatus":"Scheduled","Resources":["web-0"]}]}',
]


@pytest.fixture(params=list(LANGUAGES))
def start_client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartClient]:
    """Start the client of this language. It is killed after the test."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "clients"
    shared.mkdir(exist_ok=True)
    command = build(LANGUAGES[request.param], shared)
    started: list[ExampleClient] = []

    def start(*options: str, interval: str = "0.05", **variables: str) -> ExampleClient:
        started.append(ExampleClient([*command, "--interval", interval, *options], **variables))
        return started[-1]

    yield start
    for client in started:
        client.kill()


def test_a_reboot_from_its_notice_to_its_end(forewarn: Service, start_client: StartClient, tmp_path: Path) -> None:
    vm = forewarn.group("web", vms=2)[0]
    note = tmp_path / "it's noted"
    command = f'printf "%s\\n" "$EVENT_TYPE $EVENT_ID $EVENT_NOT_BEFORE" >> "{note}"'
    client = start_client("--endpoint", vm.endpoint, "--run", command)
    forewarn.advance(seen_by=vm)
    reboot = vm.restart()
    forewarn.advance(minutes=25, seen_by=vm)
    client.until_said("ended ")
    assert reboot.status == "Completed"
    assert reboot.approved_by == vm.name
    not_before = forewarn.documents_seen_by(vm)[1].events[0].raw["NotBefore"]
    assert client.lines == [
        f"polling {vm.endpoint} as {vm.name}",
        f"scheduled Reboot {reboot.id}: not before {not_before}",
        f"prepared Reboot {reboot.id}",
        f"approved Reboot {reboot.id}",
        f"started Reboot {reboot.id}",
        f"ended Reboot {reboot.id}",
    ]
    assert note.read_text() == f"Reboot {reboot.id} {not_before}\n"
    assert client.stop() == 0
    assert client.problems == []


def test_events_that_it_does_not_approve(forewarn: Service, start_client: StartClient) -> None:
    vm, other = forewarn.group("web", vms=2, host="rack-1")
    client = start_client("--endpoint", vm.endpoint, "--run", 'echo "prepares for $EVENT_TYPE"')
    client.until_said("polling ")
    of_the_other = other.restart()
    forewarn.advance(seen_by=vm)
    of_both = vm.freeze()
    forewarn.advance(seen_by=vm)
    assert not of_the_other.was_approved
    assert not of_both.was_approved
    assert client.lines[2:] == [
        "prepares for Freeze",
        f"prepared Freeze {of_both.id}",
        f"not approved Freeze {of_both.id}: it names other VMs too",
    ]
    assert client.stop() == 0


def test_a_command_that_fails(forewarn: Service, start_client: StartClient) -> None:
    """No approval. The event starts at its NotBefore."""
    vm = forewarn.vm("web-0")
    client = start_client("--run", "exit 3", FOREWARN_ENDPOINT=f"{vm.endpoint}/")
    client.until_said("polling ")
    reboot = vm.restart()
    forewarn.advance(minutes=15, seen_by=vm)
    client.until_said("started ")
    assert not reboot.was_approved
    assert client.lines[2:] == [
        f"not approved Reboot {reboot.id}: the command ended with 3",
        f"started Reboot {reboot.id}",
    ]
    assert client.stop() == 0


def test_faults_of_the_endpoint(forewarn: Service, start_client: StartClient) -> None:
    vm = forewarn.vm("web-0")
    client = start_client("--endpoint", vm.endpoint, "--timeout", "0.7")
    client.until_said("polling ")
    forewarn.advance(seen_by=vm)
    for kind in ("500", "429", "410", "empty", "unchanged", "reset", "length"):
        vm.fault(kind)
    for kind in ("500", "429", "410", "reset"):
        vm.fault(kind, method="POST")
    reboot = vm.restart()
    client.until_said("approved ")
    client.until_said("started ")
    vm.fault("stale")
    vm.fault("slow", delay="5s")
    vm.fault("stall", delay="5s")
    forewarn.advance(minutes=10, seen_by=vm)
    client.until_said("ended ")
    assert [line.split(" ")[0] for line in client.lines] == [
        "polling",
        "scheduled",
        "prepared",
        "approved",
        "started",
        "ended",
    ]
    assert reboot.approved_by == vm.name
    assert [line for line in client.problems if "status" in line] == [
        *(f"retrying GET: status {code}" for code in (500, 429, 410, 304)),
        *(f"retrying POST: status {code}" for code in (500, 429, 410)),
    ]
    assert client.stop() == 0


@pytest.mark.forewarn(first_get_delay=1.5)
def test_the_first_response_takes_long(forewarn: Service, start_client: StartClient) -> None:
    vm = forewarn.vm("web-0")
    client = start_client("--endpoint", vm.endpoint, "--timeout", "0.5")
    client.until_said("polling ")
    forewarn.advance(seen_by=vm)
    assert client.problems == []
    reboot = vm.restart()
    client.until_said("approved ")
    assert reboot.was_approved
    vm.fault("slow", delay="30s")
    client.until(lambda: len(client.problems) == 1)  # from now on, the timeout applies
    assert client.stop() == 0


@pytest.mark.forewarn(first_get_delay=60)
def test_a_signal_ends_it_at_any_time(forewarn: Service, start_client: StartClient) -> None:
    """During the first response, and while the command runs."""
    waiting = start_client("--endpoint", forewarn.vm("web-0").endpoint)
    waiting.until_said("polling ")
    assert waiting.stop() == 0
    with RawServer(document(1, event(1))) as server:
        preparing = start_client(
            "--endpoint", server.url, "--name", "web-0", "--run", "echo begins; sleep 60; echo ends"
        )
        preparing.until_said("begins")
        assert preparing.stop() == 0
        assert {request.method for request in server.received} == {"GET"}


def test_odd_documents(start_client: StartClient) -> None:
    """Nobody serves the port at first. Then come malformed documents, an unknown event type, and odd characters."""
    port = free_port()
    client = start_client("--endpoint", f"http://127.0.0.1:{port}", "--repeat", "1")
    client.until(lambda: bool(client.problems))
    odd = event(1, vm="web-0", EventId=ODD_ID, Unknown={"x": [1]}, NotBefore="soon")
    unknown = event(2, vm="web-0", EventType="Vanish")
    failures = (reset, answer(500), answer(200))
    bad = [answer(200, body) for body in MALFORMED]
    good = document(7, unknown, odd)
    with RawServer(*failures, answer(200, b"web-0"), *bad, good, answer(), good, port=port) as server:
        client.until(lambda: len(client.lines) == 6)
        approvals = [request for request in server.received if request.method == "POST"][:2]
        assert [json.loads(request.body) for request in approvals] == [{"StartRequests": [{"EventId": ODD_ID}]}] * 2
        assert approvals[1].at - approvals[0].at >= 0.9
        assert all(request.headers["metadata"] == "true" for request in server.received)
        server.do(document(8))
        client.until_said(f"ended Reboot {ODD_ID}")
        client.until_said(f"ended Vanish {unknown['EventId']}")
    assert client.lines[1:6] == [
        f"ignored Vanish {unknown['EventId']}: unknown event type",
        f"scheduled Reboot {ODD_ID}: not before soon",
        f"prepared Reboot {ODD_ID}",
        f"approved Reboot {ODD_ID}",
        f"approved Reboot {ODD_ID}",
    ]
    assert client.stop() == 0


def test_the_syntax_of_the_powershell_client() -> None:
    """No test runs it. A parser of the language reads it."""
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_powershell.language()))
    text = (FOLDER / "client.ps1").read_bytes()
    assert text.isascii(), "PowerShell 5.1 would read it in the code page of the machine"
    assert not parser.parse(text).root_node.has_error
    assert parser.parse(text.replace(b"}", b"", 1)).root_node.has_error


def test_every_client_has_a_language() -> None:
    tested = {language.file for language in LANGUAGES.values()}
    assert {path.name for path in FOLDER.glob("client.*")} == tested | {"client.ps1"}
