"""`forewarn verify` as it is typed: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

import foreground
from forewarn.testing.client import COMMAND
from forewarn.verify.runner import CHECKS
from verify.broken import Answer, Ask, Fault, Running, running
from verify.faults import RIGHT, instead, member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEITHER = "http://127.0.0.1:1"


def typed(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "verify", *arguments], capture_output=True, text=True, timeout=120, check=False)


def results(*arguments: str) -> dict[str, Any]:
    """The checks of a run by name."""
    return {check["name"]: check for check in json.loads(typed(*arguments, "--json").stdout)["checks"]}


@pytest.fixture
def right() -> Iterator[Running]:
    with running(RIGHT) as server:
        yield server


def _rude(_: Ask, answer: Answer) -> None:
    if answer.status == 404:
        answer.body = b'\x00\x1b[31m<&"]]>\xff\n'


RUDE = Fault("sends what no report can hold", (), answer=_rude)


def test_it_ends_with_0_when_all_that_was_made_has_passed(right: Running) -> None:
    run = typed(right.here, "--only", "versions/*")
    assert run.returncode == 0, run.stdout
    assert "versions/latest-refused" in run.stdout
    assert "0 failed" in run.stdout


def test_it_ends_with_1_and_says_what_was_sent_what_came_and_what_would_be_right() -> None:
    with running(Fault("", (), answer=member("EventId", "x"))) as server:
        command = server.command("schedule", "type", "FOREWARN_EVENT_TYPE")
        run = typed(server.here, "--only", "document/event-id-guid", "--schedule-command", command)
    assert run.returncode == 1
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["document/event-id-guid", "observed", "failed"] in lines
    assert [line[0] for line in lines if line and line[0] in ("rule", "sent", "came", "right")] == [
        *("rule", "sent", "came", "right")
    ]
    assert "GET /metadata/scheduledevents?api-version=2020-07-01" in run.stdout
    assert "1 failed" in run.stdout


def test_it_ends_with_1_when_nothing_could_be_made(right: Running) -> None:
    run = typed(right.here, "--only", "life/told")
    assert run.returncode == 1
    assert "No check could be made" in run.stdout


def test_what_a_check_lacks_is_named_by_its_option(right: Running) -> None:
    found = results(right.here, "--only", "scope/*", "--only", "life/*")
    assert found["scope/same-document"]["reason"] == "give --other"
    assert found["life/never-early"]["reason"] == "give --schedule-command and --advance-command or --patience"
    assert {check["result"] for name, check in found.items() if name.startswith("scope/")} == {"skipped"}


def test_what_a_command_said_last_is_why_a_check_is_skipped(right: Running) -> None:
    command = 'echo first; echo "no way to make a $FOREWARN_EVENT_TYPE of $FOREWARN_VM"; exit 3'
    found = results(right.here, "--only", "life/notice-of-freeze", "--schedule-command", command)
    assert found["life/notice-of-freeze"]["result"] == "skipped"
    assert found["life/notice-of-freeze"]["reason"].endswith("no way to make a Freeze of pool_0")


@pytest.mark.parametrize("name", [b"a\x00b", b"a" * 300_000], ids=["control character", "endless"])
def test_a_name_that_no_command_could_be_told_is_none(name: bytes) -> None:
    fault = Fault("", (), answer=instead(lambda ask: ask.path.endswith("/name"), 200, name))
    with running(fault) as server:
        found = results(server.here, "--only", "life/told", "--schedule-command", "true")
    assert found["life/told"]["reason"].endswith("give --vm-name")


def test_a_notice_that_is_longer_than_the_patience_is_not_waited_for(right: Running) -> None:
    command = right.command("schedule", "type", "FOREWARN_EVENT_TYPE")
    found = results(right.here, "--only", "life/never-early", "--schedule-command", command, "--patience", "1s")
    assert found["life/never-early"]["reason"] == (
        "its notice is 900 s: give --advance-command, or --patience 960s or more"
    )


def test_what_a_command_leaves_running_is_not_waited_for(right: Running, tmp_path: Path) -> None:
    """A hook may start something in the background; here it ends when the test lets it."""
    os.mkfifo(tmp_path / "end")
    command = f"cat {tmp_path / 'end'} & {right.command('schedule', 'type', 'FOREWARN_EVENT_TYPE')}"
    try:
        found = results(right.here, "--only", "life/told", "--schedule-command", command)
    finally:
        (tmp_path / "end").write_text("now")
    assert found["life/told"]["result"] == "passed"


def test_marks_leave_out_what_is_only_assumed(right: Running) -> None:
    assert {check["mark"] for check in results(right.here, "--marks", "documented").values()} == {"documented"}


def test_json_has_the_counts_and_what_a_machine_wants_to_know(right: Running) -> None:
    run = typed(right.here, "--only", "requests/head-refused", "--json")
    found = json.loads(run.stdout)
    assert found["counts"] == {"passed": 1, "failed": 0, "skipped": 0}
    (check,) = found["checks"]
    assert (check["section"], check["mark"], check["result"]) == (3, "documented", "passed")


def test_junit_can_be_read_whatever_the_server_sends(tmp_path: Path) -> None:
    file = tmp_path / "verify.xml"
    with running(RUDE) as server:
        run = typed(server.here, "--only", "requests/*path", "--only", "life/told", "--junit", str(file))
    assert run.returncode == 1
    assert "\x1b" not in run.stdout
    suites = ET.fromstring(file.read_bytes())  # noqa: S314 - written by the program under test
    assert (suites.get("tests"), suites.get("failures"), suites.get("skipped")) == ("2", "1", "1")
    failure = suites.find(".//testcase[@name='requests/other-path']/failure")
    assert failure is not None
    assert 'right: 404 with a body like {"error": "…"}' in (failure.text or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_interrupts_it_gets_what_is_known_and_no_command_stays_behind(
    right: Running, tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "never")
    file = tmp_path / "verify.xml"
    only = ("--only", "requests/document-served", "--only", "life/told")
    command = f"echo $$ >{tmp_path}/begun; cat {tmp_path}/never"
    arguments = [*COMMAND, "verify", right.here, *only, "--schedule-command", command, "--junit", str(file)]
    with foreground.running(arguments) as run:
        pid = int((tmp_path / "begun").read_text())
        run.send_signal(number)
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert ["requests/document-served", "documented", "passed"] in [line.split() for line in stdout.splitlines()]
    assert "1 passed, 0 failed, 0 skipped." in stdout
    assert stderr == "forewarn: interrupted; 1 checks were not made.\n"
    assert ET.fromstring(file.read_bytes()).get("tests") == "1"  # noqa: S314 - written by the program under test
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_report_that_cannot_be_written_does_not_take_the_table_with_it(right: Running) -> None:
    run = typed(right.here, "--only", "requests/document-served", "--junit", "/dev/full")
    assert run.returncode == 5
    assert "1 passed, 0 failed, 0 skipped." in run.stdout
    assert "/dev/full" in run.stderr


def test_the_list_needs_no_server() -> None:
    run = typed("--list", "--json")
    assert run.returncode == 0
    assert [check["name"] for check in json.loads(run.stdout)["checks"]] == [check.name for check in CHECKS]
    assert "finding/any-host" in typed("--list").stdout


def test_the_list_asks_no_server_and_runs_no_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = f"touch {tmp_path}/ran"
        places = (url, "--other", url, "--outside", url, "--timeout", "1s")
        assert typed(*places, "--schedule-command", command, "--list").returncode == 0
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody has connected
            server.accept()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Say which server"),
        (("ftp://127.0.0.1",), "like http://127.0.0.1:8169"),
        (("127.0.0.1:8169",), "like http://127.0.0.1:8169"),
        (("http://127.0.0.1:8169/metadata/instance",), "like http://127.0.0.1:8169"),
        (("http://127.0.0.1:x",), "like http://127.0.0.1:8169"),
        (("http://[::1",), "like http://127.0.0.1:8169"),
        (("",), "like http://127.0.0.1:8169"),
        (("http://a..b",), "like http://127.0.0.1:8169"),
        (("http://",), "like http://127.0.0.1:8169"),
        ((NEITHER, "--other", "x"), "'x' is not the URL"),
        ((NEITHER, "--only", "requests/head-refusd"), "Did you mean 'requests/head-refused'?"),
        ((NEITHER, "--marks", "known"), "documented, observed, assumed"),
        ((NEITHER, "--marks", ","), "documented, observed, assumed"),
        ((NEITHER, "--only", "requests/head-*", "--marks", "observed,assumed"), "are marked documented, not"),
        (("--list", "--only", "life/told", "--marks", "assumed"), "The checks that match 'life/told' are marked"),
        ((NEITHER, "--patience", "soon"), "90s"),
        ((NEITHER, "--timeout", "0s"), "more than 0s"),
        ((NEITHER, "--junit", "/nowhere/at/all.xml"), "folder does not exist"),
        ((NEITHER, "--junit", "/"), "Name a file"),
        ((NEITHER, "--junit", "/tmp/" + "x" * 300), "Name a file"),  # noqa: S108 - nothing is written
    ],
)
def test_what_is_typed_wrong_is_said_with_what_would_be_right(arguments: tuple[str, ...], said: str) -> None:
    run = typed(*arguments)
    assert run.returncode == 2
    assert said in run.stderr
    assert "Traceback" not in run.stderr


def test_a_server_that_is_not_there_is_said_to_be_unreachable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets the port meanwhile
        run = typed(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert run.returncode == 6
    assert "does not respond" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_path_may_stand_behind_the_address(right: Running) -> None:
    run = typed(f"{right.here}/metadata/scheduledevents", "--only", "finding/*")
    assert run.returncode == 0


def test_no_proxy_gets_in_between(right: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", NEITHER)
    monkeypatch.setenv("HTTP_PROXY", NEITHER)
    assert typed(right.here, "--only", "requests/document-served").returncode == 0
