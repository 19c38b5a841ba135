"""The status of an agent: for Prometheus, systemd and the command line, and after a kill."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.error import HTTPError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from agent.agent_process import COMMAND, SECONDS, AgentProcess, Diary

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from forewarn.testing import Service

RULES = """
[[rule]]
name = "web"
prepare = ["pool", "web"]
"""


@pytest.fixture
def agent(forewarn: Service, tmp_path: Path, new_agent: Callable[..., AgentProcess], diary: Diary) -> AgentProcess:
    """Not started yet."""
    vm = forewarn.vm("web-0")
    notify = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "300000"}
    return new_agent(RULES + diary.handler("pool") + diary.handler("web"), {**vm.environment, **notify})


def status_text(agent: AgentProcess) -> tuple[int, str, str]:
    command = [*COMMAND, "status", "--state", str(agent.state)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    return done.returncode, done.stdout, done.stderr


def test_metrics_of_a_real_agent_are_read_by_prometheus(forewarn: Service, agent: AgentProcess, diary: Diary) -> None:
    agent.start("--listen", "127.0.0.1:0")
    agent.until_logged("Serving metrics and health.")
    (address,) = [line["address"] for line in agent.lines if "address" in line]
    event = forewarn.vm("web-0").restart()
    agent.until(lambda: diary.done == ["prepare pool", "prepare web"])
    agent.until(lambda: agent.status()["counts"]["prepared"] == 2)
    with urllib.request.urlopen(f"http://{address}/metrics") as answer:
        families = {family.name: family.samples for family in text_string_to_metric_families(answer.read().decode())}
    assert families["forewarn_agent_ready"][0].value == 0
    (phase,) = families["forewarn_agent_event_phase"]
    assert phase.labels == {"event": event.id.lower(), "type": "Reboot", "rule": "web", "phase": "prepared"}
    runs = {tuple(sample.labels.values()): sample.value for sample in families["forewarn_agent_handler_runs"]}
    assert runs == {("prepare", "done"): 2, ("prepare", "failed"): 0, ("undo", "done"): 0, ("undo", "failed"): 0}
    assert 0 < families["forewarn_agent_event_not_before_seconds"][0].value <= 900
    with urllib.request.urlopen(f"http://{address}/healthz") as answer:
        assert answer.read() == b"ok\n"


def test_the_state_of_a_killed_agent_is_shown_and_the_next_agent_responds(
    forewarn: Service, agent: AgentProcess, diary: Diary
) -> None:
    agent.start()
    event = forewarn.vm("web-0").restart()
    agent.until(lambda: diary.done == ["prepare pool", "prepare web"])
    agent.until(lambda: agent.status()["counts"]["prepared"] == 2)
    code, shown, _ = status_text(agent)
    assert code == 0
    assert re.search(rf"^Reboot {event.id.lower()}  Scheduled .* UTC \(in 1[45]m", shown, re.MULTILINE)
    assert "vm         web-0 (from FOREWARN_VM_NAME)\n" in shown
    agent.kill()
    assert (agent.state / "agent.sock").exists()  # it stays behind, and nobody listens
    code, shown, error = status_text(agent)
    assert code == 6
    assert error.startswith(
        f"forewarn: No agent uses the state folder {agent.state}. Start one with: forewarn agent run."
    )
    assert f"Reboot {event.id.lower()}  Scheduled" in shown
    assert "  handler    web: prepared" in shown
    agent.start()
    agent.until(lambda: agent.status().get("running"))
    assert agent.status()["events"][0]["phase"] == "prepared"


def test_systemd_gets_watchdog_messages_until_the_stop(agent: AgentProcess, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(SECONDS)
        agent.start()
        words = iter(lambda: systemd.recv(1000), b"")
        assert b"READY=1" in words
        assert next(words).startswith(b"WATCHDOG=1\nSTATUS=no events")
        assert agent.stop() == 0
        while (word := systemd.recv(1000)) != b"STOPPING=1":
            assert word.startswith(b"WATCHDOG=1\n")


def test_programs_of_handlers_cannot_notify_systemd(forewarn: Service, tmp_path: Path) -> None:
    vm = forewarn.vm("web-0")
    said = tmp_path / "said"
    heard = "echo ${NOTIFY_SOCKET-nothing} ${WATCHDOG_USEC-nothing}"
    config = f"""{RULES}
[handler.pool]
kind = "command"
prepare = ["sh", "-c", "{heard} > '{said}.new'; mv '{said}.new' '{said}'"]
[handler.web]
kind = "log"
"""
    agent = AgentProcess(tmp_path, config, {**vm.environment, "NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000000"})
    agent.start()
    try:
        vm.restart()
        agent.until(said.exists)
        assert said.read_text() == "nothing nothing\n"
    finally:
        agent.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_in_good_order_also_while_a_handler_runs(
    forewarn: Service, agent: AgentProcess, diary: Diary, number: signal.Signals
) -> None:
    diary.hold("prepare", "pool")
    agent.start()
    forewarn.vm("web-0").restart()
    agent.until(diary.has("begin prepare pool"))
    assert agent._end(number) == 0
    assert agent.messages()[-1] == "agent_stopped: Agent stopped."
    assert not (agent.state / "agent.sock").exists()


def test_the_log_has_the_endpoint_and_the_vm_name(agent: AgentProcess, forewarn: Service) -> None:
    agent.start()
    vm = forewarn.vm("web-0")
    endpoint = vm.environment["FOREWARN_ENDPOINT"]
    said = f"endpoint_connected: The endpoint responds. endpoint={endpoint} vm=web-0 api_version=2020-07-01"
    agent.until_logged(said)
    forewarn.advance(seen_by=vm)
    forewarn.advance(seen_by=vm)
    assert agent.stop() == 0
    assert agent.messages().count(said) == 1


@pytest.mark.parametrize(("seconds", "expected"), [(9, 200), (30, 503)])
def test_readyz_during_a_freeze(
    forewarn: Service, new_agent: Callable[..., AgentProcess], seconds: int, expected: int
) -> None:
    vm = forewarn.vm("web-0")
    agent = new_agent('[[rule]]\non = ["Freeze"]\napprove = "self"\n', vm.environment).start("--listen", "127.0.0.1:0")
    agent.until_logged("Serving metrics and health.")
    (address,) = [line["address"] for line in agent.lines if "address" in line]

    def readyz() -> int:
        with suppress(HTTPError):
            return int(urllib.request.urlopen(f"http://{address}/readyz").status)
        return 503

    assert readyz() == 200
    event = vm.freeze(seconds)
    agent.until(lambda: event.status == "Started", "the approval")
    agent.until_logged("event_started")
    assert readyz() == expected
    assert agent.status()["ready"] is (expected == 200)
    forewarn.advance(minutes=30)
    agent.until_logged("event_completed")
    agent.until(lambda: readyz() == 200, "readiness after the event")
