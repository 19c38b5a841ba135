"""Health, readiness, metrics and status of an agent, over TCP and over its Unix socket."""

from __future__ import annotations

import http.client
import json
import os
import socket
import stat
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.events import NOW
from agent.snapshots import event, snapshot
from forewarn.agent.cli.main import main
from forewarn.agent.cli.status import status_lines
from forewarn.agent.metrics import METRICS, render_metrics
from forewarn.agent.status_server import SOCKET_NAME, StatusPages, Watchdog, connect
from forewarn.errors import CannotListen, StateInUse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Said:
    """An agent that says what the test wants it to."""

    def __init__(self) -> None:
        self.value: dict[str, Any] | None = snapshot()

    def __call__(self) -> dict[str, Any]:
        if self.value is None:
            raise RuntimeError("the agent is beside itself")
        return self.value


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def pages(said: Said, tmp_path: Path) -> Iterator[StatusPages]:
    with StatusPages(said, tmp_path / "state", ("127.0.0.1", 0)) as pages:
        yield pages


def ask(pages: StatusPages, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    assert pages.address is not None
    with closing(http.client.HTTPConnection(*pages.address, timeout=20)) as line:
        line.request(method, path)
        answer = line.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


def raw(pages: StatusPages, request: bytes) -> bytes:
    assert pages.address is not None
    with socket.create_connection(pages.address, 20) as line:
        line.sendall(request)
        return b"".join(iter(lambda: line.recv(65536), b""))


def test_health_is_whether_the_loop_turns(pages: StatusPages, said: Said) -> None:
    assert ask(pages, "/healthz")[::2] == (200, "ok\n")
    said.value = snapshot(seconds_since_last_loop=61.0)
    assert ask(pages, "/healthz")[::2] == (503, "the agent's loop has not run for 61 s\n")


def test_ready_turns_red_on_an_event(pages: StatusPages, said: Said) -> None:
    status, headers, body = ask(pages, "/readyz")
    assert (status, json.loads(body)) == (503, {"ready": False, "reason": "Reboot E1: preparing"})
    assert headers["Content-Type"] == "application/json"
    said.value = snapshot(ready=True, ready_reason="")
    status, _, body = ask(pages, "/readyz")
    assert (status, json.loads(body)) == (200, {"ready": True, "reason": ""})
    said.value = snapshot(ready=True, ready_reason="", seconds_since_last_loop=75)
    status, _, body = ask(pages, "/readyz")
    assert (status, json.loads(body)["reason"]) == (503, "the agent's loop has not run for 75 s")


def test_the_other_pages(pages: StatusPages, said: Said) -> None:
    assert json.loads(ask(pages, "/status")[2]) == said.value
    assert json.loads(ask(pages, "/status?pretty=1")[2]) == said.value
    assert ask(pages, "/metrics")[1]["Content-Type"].startswith("text/plain; version=0.0.4")
    for path, status in (("/", 200), ("/nothing", 404)):
        found, _, body = ask(pages, path)
        assert found == status
        assert all(page in body for page in ("/healthz", "/readyz", "/metrics", "/status"))


def test_head_has_the_headers_alone(pages: StatusPages) -> None:
    status, headers, body = ask(pages, "/status", "HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) == len(ask(pages, "/status")[2])
    assert raw(pages, b"HEAD /status HTTP/1.1\r\n\r\n").endswith(b"\r\n\r\n")


def test_invalid_requests(pages: StatusPages, said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    status, headers, _ = ask(pages, "/status", "POST")
    assert (status, headers["Allow"]) == (405, "GET, HEAD")
    assert raw(pages, b"hello\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    assert raw(pages, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 3000).startswith(b"HTTP/1.1 431 ")
    assert raw(pages, b"\x00\xff\x00\r\n\r\n").startswith(b"HTTP/1.1 400 ")
    said.value = None
    assert ask(pages, "/healthz")[0] == 500
    said.value = snapshot()
    assert ask(pages, "/healthz")[0] == 200


def test_an_error_in_a_page_does_not_end_the_server(pages: StatusPages, said: Said) -> None:
    said.value = snapshot(now="noon", odd={1})
    assert ask(pages, "/metrics")[0] == 500
    assert ask(pages, "/status")[0] == 500
    assert ask(pages, "/healthz")[0] == 200


def test_only_the_owner_can_use_the_socket_and_its_path_can_be_long(said: Said, tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 20) / ("down" * 20)
    assert len(str(folder)) > 107
    with StatusPages(said, folder):
        found = (folder / SOCKET_NAME).stat()
        assert stat.S_ISSOCK(found.st_mode)
        assert stat.S_IMODE(found.st_mode) == 0o600
        with connect(folder) as line:
            line.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert line.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert os.listdir(folder) == []  # noqa: PTH208 - nothing at all is left


def test_the_socket_of_a_killed_agent_is_replaced(said: Said, tmp_path: Path) -> None:
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(tmp_path / SOCKET_NAME))
    dead.close()  # as after a kill: the name stays, nobody listens
    with StatusPages(said, tmp_path), connect(tmp_path):
        pass
    (tmp_path / SOCKET_NAME).write_text("no socket at all")
    with StatusPages(said, tmp_path), connect(tmp_path):
        pass


def test_a_running_agent_is_not_replaced(said: Said, tmp_path: Path) -> None:
    with StatusPages(said, tmp_path):
        with pytest.raises(StateInUse, match="Another agent uses"):
            StatusPages(said, tmp_path).start()
        with connect(tmp_path):
            pass


def test_an_address_in_use(pages: StatusPages, said: Said, tmp_path: Path) -> None:
    with pytest.raises(
        CannotListen, match=r"127\.0\.0\.1:\d+: Address already in use. Choose another address with --listen"
    ):
        StatusPages(said, tmp_path / "other", pages.address).start()
    assert not (tmp_path / "other" / SOCKET_NAME).exists()
    with pytest.raises(CannotListen):
        StatusPages(said, tmp_path / "other", ("no such host.invalid", 1)).start()


def test_status_shows_the_running_agent(
    pages: StatusPages, said: Said, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--state", str(tmp_path / "state")]) == 0
    assert "vm         web-0 (from --vm-name)\n" in capsys.readouterr().out
    assert main(["status", "--state", str(tmp_path / "state"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"running": True, **snapshot()}
    said.value = None
    assert main(["status", "--state", str(tmp_path / "state")]) == 6
    assert "does not respond (Cannot build the agent's status" in capsys.readouterr().err


def test_the_status_for_people() -> None:
    assert status_lines(snapshot(), NOW) == [
        "vm         web-0 (from --vm-name)",
        "endpoint   http://127.0.0.1:8169 (from FOREWARN_ENDPOINT)",
        "config     agent.toml",
        "uptime     1h2m6s",
        "polling    1,234 responses, last 0.5s ago, api-version 2020-07-01, long poll",
        "ready      no: Reboot E1: preparing",
        "",
        "Reboot E1  Scheduled 2031-05-04 12:15:00 UTC (in 15m)",
        "  web-0, web-1",
        "  Platform; Host server is undergoing maintenance.; duration 9s",
        "  rule       web",
        "  phase      preparing",
        "  handler    leave-pool: prepared (1.2 s)",
        "  handler    stop-web: preparing",
        "  approval   self: it is not prepared yet",
        "  next       is preparing stop-web",
        "",
        "Since the agent started: 1 prepared, 2 approved.",
    ]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"dry_run": True}, "uptime     1h2m6s (dry run)"),
        ({"ready": True}, "ready      yes"),
        ({"events": []}, "No scheduled events."),
        (
            {"polling": {"error": "is throttling", "failing_seconds": 70}},
            "polling    failing for 1m10s: is throttling",
        ),
        ({"polling": {"responses": 0}}, "polling    no response yet"),
        (
            {"polling": {"responses": 1, "seconds_since_last_response": 2}},
            "polling    1 response, last 2s ago",
        ),
        (
            {"counts": {"prepare failed": 1, "undo failed": 2}},
            "Since the agent started: 1 failed to prepare, 2 failed to undo.",
        ),
        (
            {"events": [{"mine": True, "phase": "failed", "failure": "stop-web: exit code 1"}]},
            "  failed     stop-web: exit code 1",
        ),
        (
            {"peers": {"web-1": {"seconds_since_last_response": 0.4, "unreachable": False}}},
            "peer       web-1: last response 0.4s ago",
        ),
        (
            {"peers": {"web-1": {"seconds_since_last_response": None, "unreachable": True}}},
            "peer       web-1: no response yet, unreachable",
        ),
        ({"events": [event(mine=False)]}, "  not this VM: web-0, web-1"),
        ({"events": [event(rule=None)]}, "  rule       no rule matches"),
        (
            {"events": [event(next="approves it", next_at="2031-05-04T12:05:00Z")]},
            "  next       approves it (in 5m)",
        ),
        (
            {"events": [event(approval={"mode": "self", "sent_at": "2031-05-04T11:59:00Z"})]},
            "  approval   self: sent 2031-05-04 11:59:00 UTC (1m ago)",
        ),
        (
            {"events": [event(steps=[{"handler": "a", "state": "failed", "problem": "exit code 1", "seconds": 2}])]},
            "  handler    a: failed (2.0 s): exit code 1",
        ),
        ({"events": [event(description="\x1b[2Jboo")]}, "  Platform; \\x1b[2Jboo; duration 9s"),
    ],
)
def test_lines_of_the_status(changes: dict[str, Any], line: str) -> None:
    assert line in status_lines(snapshot(**changes), NOW)


def metrics(**changes: Any) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(render_metrics(snapshot(**changes), "0.1.0"))
    return {
        (sample.name.removeprefix("forewarn_agent_"), tuple(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
    }


def test_prometheus_can_read_the_metrics() -> None:
    found = metrics(peers={"web-1": {"seconds_since_last_response": 0.4, "unreachable": False}})
    me = (("version", "0.1.0"), ("vm", "web-0"))
    e1 = (("event", "E1"), ("type", "Reboot"), ("rule", "web"))
    assert found == {
        ("info", (*me, ("endpoint", "http://127.0.0.1:8169"), ("api_version", "2020-07-01"))): 1,
        ("ready", ()): 0,
        ("dry_run", ()): 0,
        ("uptime_seconds", ()): 3725.5,
        ("seconds_since_last_loop", ()): 0.2,
        ("responses_total", ()): 1234,
        ("request_errors_total", (("kind", "throttled"),)): 3,
        ("request_errors_total", (("kind", "timeout"),)): 1,
        ("endpoint_failing", ()): 0,
        ("seconds_since_last_response", ()): 0.5,
        ("incarnation", ()): 5,
        ("long_poll", ()): 1,
        ("events", (("type", "Reboot"), ("status", "Scheduled"), ("mine", "true"))): 1,
        ("event_phase", (*e1, ("phase", "preparing"))): 1,
        ("event_not_before_seconds", e1): 900,
        ("handler_runs_total", (("action", "prepare"), ("result", "done"))): 1,
        ("handler_runs_total", (("action", "prepare"), ("result", "failed"))): 0,
        ("handler_runs_total", (("action", "undo"), ("result", "done"))): 0,
        ("handler_runs_total", (("action", "undo"), ("result", "failed"))): 0,
        ("approvals_total", (("result", "done"),)): 2,
        ("approvals_total", (("result", "failed"),)): 0,
        ("peer_unreachable", (("peer", "web-1"),)): 0,
        ("seconds_since_peer_response", (("peer", "web-1"),)): 0.4,
    }
    assert {name for name, _ in found} == set(METRICS)


def test_a_label_can_contain_any_text() -> None:
    strange = 'a"b\\c\nd'
    found = metrics(vm=strange, events=[event(rule=strange), event(id="E2", mine=False)])
    labels = [dict(labels) for name, labels in found if name == "info"]
    assert labels[0]["vm"] == strange
    assert found["events", (("type", "Reboot"), ("status", "Scheduled"), ("mine", "false"))] == 1


def test_unknown_values_are_omitted() -> None:
    names = {name for name, _ in metrics(polling={"responses": 0, "error": "x"}, now=None, vm=None, events=[])}
    assert "seconds_since_last_response" not in names
    assert "events" not in names
    assert "endpoint_failing" in names


def test_systemd_gets_ready_status_and_watchdog_messages(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        watchdog = Watchdog({"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "30000"})
        said = Said()
        watchdog.ready()
        assert systemd.recv(1000) == b"READY=1"
        with StatusPages(said, tmp_path, None, watchdog) as pages:
            assert systemd.recv(1000) == b"WATCHDOG=1\nSTATUS=Reboot preparing"
            assert pages.address is None
            said.value = snapshot(events=[event(type="\ud800")])
            while (word := systemd.recv(1000)) != b"WATCHDOG=1\nSTATUS=\\ud800 preparing":
                assert word == b"WATCHDOG=1\nSTATUS=Reboot preparing"
            said.value = snapshot(events=[], polling={"error": "is throttling"})
            while (word := systemd.recv(1000)) != b"WATCHDOG=1\nSTATUS=no events; endpoint: is throttling":
                assert word == b"WATCHDOG=1\nSTATUS=\\ud800 preparing"
            watchdog.stopping()
            while (word := systemd.recv(1000)) != b"STOPPING=1":
                assert word.startswith(b"WATCHDOG=1")


def test_a_hanging_agent_sends_nothing_to_systemd(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(b"\0forewarn-test-" + str(os.getpid()).encode())
        systemd.setblocking(False)
        watchdog = Watchdog(
            {"NOTIFY_SOCKET": f"@forewarn-test-{os.getpid()}", "WATCHDOG_USEC": "3", "WATCHDOG_PID": str(os.getpid())}
        )
        watchdog.ready()
        assert systemd.recv(1000) == b"READY=1"
        assert watchdog.due_at is not None
        watchdog.due_at -= 1
        watchdog.notify_if_due(lambda: snapshot(seconds_since_last_loop=61))
        watchdog.due_at -= 1
        watchdog.notify_if_due(lambda: None)
        with pytest.raises(BlockingIOError):
            systemd.recv(1000)
        watchdog.due_at -= 1
        watchdog.notify_if_due(lambda: snapshot())
        assert systemd.recv(1000).startswith(b"WATCHDOG=1")


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "5", "WATCHDOG_PID": "1"},
    ],
)
def test_without_systemd_nothing_is_sent(environment: dict[str, str]) -> None:
    watchdog = Watchdog(environment)
    watchdog.ready()
    assert watchdog.due_at is None
    watchdog.notify_if_due(snapshot)
