"""`forewarn verify` on the command line: output, reports and exit codes."""

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
from verify.broken_server import Defect, RunningServer, ServerRequest, ServerResponse, running
from verify.defects import CORRECT, member, respond_instead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNREACHABLE = "http://127.0.0.1:1"
DETAILS = ("rule", "request", "expected", "actual")


def run_verify(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, "verify", *arguments], capture_output=True, text=True, timeout=120, check=False)


def results(*arguments: str) -> dict[str, Any]:
    """Run the checks. Return the JSON results by name."""
    return {check["name"]: check for check in json.loads(run_verify(*arguments, "--json").stdout)["checks"]}


@pytest.fixture
def correct() -> Iterator[RunningServer]:
    with running(CORRECT) as server:
        yield server


def _invalid_text(_: ServerRequest, response: ServerResponse) -> None:
    if response.status == 404:
        response.body = b'\x00\x1b[31m<&"]]>\xff\n'


INVALID_TEXT = Defect("bytes that are invalid in XML", (), response=_invalid_text)


def test_exit_code_0_if_every_check_passes(correct: RunningServer) -> None:
    run = run_verify(correct.endpoint, "--only", "versions/*")
    assert run.returncode == 0, run.stdout
    assert "versions/latest-rejected" in run.stdout
    assert "0 failed" in run.stdout


def test_exit_code_1_and_the_details_of_a_failure() -> None:
    with running(Defect("", (), response=member("EventId", "x"))) as server:
        command = server.command("schedule", "type", "FOREWARN_EVENT_TYPE")
        run = run_verify(server.endpoint, "--only", "document/event-id-guid", "--schedule-command", command)
    assert run.returncode == 1
    lines = [line.split() for line in run.stdout.splitlines()]
    assert ["document/event-id-guid", "observed", "failed"] in lines
    assert [line[0] for line in lines if line and line[0] in DETAILS] == list(DETAILS)
    assert "GET /metadata/scheduledevents?api-version=2020-07-01" in run.stdout
    assert "1 failed" in run.stdout


def test_exit_code_1_if_no_check_could_run(correct: RunningServer) -> None:
    run = run_verify(correct.endpoint, "--only", "life/event-appears")
    assert run.returncode == 1
    assert "No check could run" in run.stdout


def test_a_skipped_check_names_the_missing_option(correct: RunningServer) -> None:
    found = results(correct.endpoint, "--only", "scope/*", "--only", "life/*")
    assert found["scope/same-document"]["reason"] == "give --same-group"
    assert found["life/no-early-start"]["reason"] == "give --schedule-command and --advance-command or --max-wait"
    assert {check["result"] for name, check in found.items() if name.startswith("scope/")} == {"skipped"}


def test_the_last_line_of_a_failed_command_is_the_skip_reason(correct: RunningServer) -> None:
    command = 'echo first; echo "no way to make a $FOREWARN_EVENT_TYPE of $FOREWARN_VM"; exit 3'
    found = results(correct.endpoint, "--only", "life/notice-of-freeze", "--schedule-command", command)
    assert found["life/notice-of-freeze"]["result"] == "skipped"
    assert found["life/notice-of-freeze"]["reason"].endswith("no way to make a Freeze of pool_0")


@pytest.mark.parametrize("name", [b"a\x00b", b"a" * 300_000], ids=["control character", "endless"])
def test_an_invalid_vm_name_is_ignored(name: bytes) -> None:
    defect = Defect("", (), response=respond_instead(lambda request: request.path.endswith("/name"), 200, name))
    with running(defect) as server:
        found = results(server.endpoint, "--only", "life/event-appears", "--schedule-command", "true")
    assert found["life/event-appears"]["reason"].endswith("give --vm-name")


def test_a_notice_longer_than_max_wait_is_skipped(correct: RunningServer) -> None:
    command = correct.command("schedule", "type", "FOREWARN_EVENT_TYPE")
    found = results(
        correct.endpoint, "--only", "life/no-early-start", "--schedule-command", command, "--max-wait", "1s"
    )
    assert found["life/no-early-start"]["reason"] == (
        "the notice is 900 s: give --advance-command, or --max-wait 960s or more"
    )


def test_background_processes_of_a_command_are_not_awaited(correct: RunningServer, tmp_path: Path) -> None:
    """A hook command may start a background process. Here it ends when the test writes to the pipe."""
    os.mkfifo(tmp_path / "end")
    command = f"cat {tmp_path / 'end'} & {correct.command('schedule', 'type', 'FOREWARN_EVENT_TYPE')}"
    try:
        found = results(correct.endpoint, "--only", "life/event-appears", "--schedule-command", command)
    finally:
        (tmp_path / "end").write_text("now")
    assert found["life/event-appears"]["result"] == "passed"


def test_marks_select_checks(correct: RunningServer) -> None:
    assert {check["mark"] for check in results(correct.endpoint, "--marks", "documented").values()} == {"documented"}
    twice = results(correct.endpoint, "--marks", "documented", "--marks", "observed", "--only", "versions/*")
    assert {check["mark"] for check in twice.values()} == {"documented", "observed"}


def test_json_has_counts_and_details(correct: RunningServer) -> None:
    run = run_verify(correct.endpoint, "--only", "requests/head-rejected", "--json")
    found = json.loads(run.stdout)
    assert found["counts"] == {"passed": 1, "failed": 0, "consequence": 0, "skipped": 0}
    (check,) = found["checks"]
    assert (check["section"], check["mark"], check["result"]) == (3, "documented", "passed")


def test_junit_is_valid_xml_whatever_the_server_sends(tmp_path: Path) -> None:
    file = tmp_path / "verify.xml"
    with running(INVALID_TEXT) as server:
        run = run_verify(
            server.endpoint, "--only", "requests/error-format", "--only", "life/event-appears", "--junit", str(file)
        )
    assert run.returncode == 1
    assert "\x1b" not in run.stdout
    suites = ET.fromstring(file.read_bytes())  # noqa: S314 - written by the program under test
    assert (suites.get("tests"), suites.get("failures"), suites.get("skipped")) == ("2", "1", "1")
    failure = suites.find(".//testcase[@name='requests/error-format']/failure")
    assert failure is not None
    assert 'expected: application/json with exactly the member "error"' in (failure.text or "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_its_results_and_kills_the_command(
    correct: RunningServer, tmp_path: Path, number: signal.Signals
) -> None:
    os.mkfifo(tmp_path / "begun")
    os.mkfifo(tmp_path / "never")
    file = tmp_path / "verify.xml"
    only = ("--only", "requests/document-served", "--only", "life/event-appears")
    command = f"echo $$ >{tmp_path}/begun; cat {tmp_path}/never"
    arguments = [*COMMAND, "verify", correct.endpoint, *only, "--schedule-command", command, "--junit", str(file)]
    with foreground.running(arguments) as run:
        pid = int((tmp_path / "begun").read_text())
        run.send_signal(number)
        stdout, stderr = run.communicate(timeout=60)
    assert run.returncode == 130
    assert ["requests/document-served", "documented", "passed"] in [line.split() for line in stdout.splitlines()]
    assert "1 passed, 0 failed, 0 skipped." in stdout
    assert stderr == "forewarn: interrupted; 1 checks did not run.\n"
    assert ET.fromstring(file.read_bytes()).get("tests") == "1"  # noqa: S314 - written by the program under test
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_unwritable_report_does_not_hide_the_table(correct: RunningServer) -> None:
    run = run_verify(correct.endpoint, "--only", "requests/document-served", "--junit", "/dev/full")
    assert run.returncode == 5
    assert "1 passed, 0 failed, 0 skipped." in run.stdout
    assert "/dev/full" in run.stderr


def test_the_list_needs_no_server() -> None:
    run = run_verify("--list", "--json")
    assert run.returncode == 0
    assert [check["name"] for check in json.loads(run.stdout)["checks"]] == [check.name for check in CHECKS]
    assert "discovery/any-host" in run_verify("--list").stdout


def test_the_list_sends_no_request_and_runs_no_command(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        command = f"touch {tmp_path}/ran"
        places = (url, "--same-group", url, "--other-group", url, "--timeout", "1s")
        assert run_verify(*places, "--schedule-command", command, "--list").returncode == 0
        server.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection was made
            server.accept()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), "Give the URL of the server"),
        (("ftp://127.0.0.1",), "like http://127.0.0.1:8169"),
        (("127.0.0.1:8169",), "like http://127.0.0.1:8169"),
        (("http://127.0.0.1:8169/metadata/instance",), "like http://127.0.0.1:8169"),
        (("http://127.0.0.1:x",), "like http://127.0.0.1:8169"),
        (("http://[::1",), "like http://127.0.0.1:8169"),
        (("",), "like http://127.0.0.1:8169"),
        (("http://a..b",), "like http://127.0.0.1:8169"),
        (("http://",), "like http://127.0.0.1:8169"),
        ((UNREACHABLE, "--same-group", "x"), "'x' is not the URL"),
        ((UNREACHABLE, "--only", "requests/head-rejectd"), "Did you mean 'requests/head-rejected'?"),
        ((UNREACHABLE, "--marks", "known"), "documented, observed, assumed"),
        ((UNREACHABLE, "--marks", ","), "documented, observed, assumed"),
        (
            (UNREACHABLE, "--only", "requests/head-*", "--marks", "observed,assumed"),
            "are marked documented, not",
        ),
        (
            ("--list", "--only", "life/event-appears", "--marks", "assumed"),
            "The checks that match 'life/event-appears' are marked",
        ),
        ((UNREACHABLE, "--max-wait", "soon"), "90s"),
        ((UNREACHABLE, "--timeout", "0s"), "more than 0s"),
        ((UNREACHABLE, "--junit", "/nowhere/at/all.xml"), "folder does not exist"),
        ((UNREACHABLE, "--junit", "/"), "Name a file"),
        ((UNREACHABLE, "--junit", "/tmp/" + "x" * 300), "Name a file"),  # noqa: S108 - nothing is written
    ],
)
def test_an_invalid_argument_is_an_error_with_help(arguments: tuple[str, ...], expected: str) -> None:
    run = run_verify(*arguments)
    assert run.returncode == 2
    assert expected in run.stderr
    assert "Traceback" not in run.stderr


def test_an_unreachable_server_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening, so that no other process takes the port
        run = run_verify(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert run.returncode == 6
    assert "does not respond" in run.stderr
    assert "Traceback" not in run.stderr


def test_the_url_may_include_the_path(correct: RunningServer) -> None:
    run = run_verify(f"{correct.endpoint}/metadata/scheduledevents", "--only", "discovery/*")
    assert run.returncode == 0


def test_proxy_settings_are_ignored(correct: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", UNREACHABLE)
    monkeypatch.setenv("HTTP_PROXY", UNREACHABLE)
    assert run_verify(correct.endpoint, "--only", "requests/document-served").returncode == 0
