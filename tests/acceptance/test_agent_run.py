"""The agent process with a running service: when it prepares, approves and undoes."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import TYPE_CHECKING

import pytest

from agent.agent_process import COMMAND
from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.agent_process import AgentProcess, Diary
    from forewarn.testing import VM, Service

RULE = """
[[rule]]
on = ["Reboot", "Redeploy"]
prepare = ["pool", "web"]
{more}
"""
APPROVES = RULE.format(more='approve = "self"')


@pytest.fixture
def make_agent(new_agent: Callable[..., AgentProcess], diary: Diary) -> Callable[..., AgentProcess]:
    """Start an agent for a VM with the handlers `pool` and `web`. It has polled once when this returns."""

    def make(vm: VM, rules: str, *arguments: str) -> AgentProcess:
        agent = new_agent(rules + diary.handler("pool") + diary.handler("web"), vm.environment)
        agent.start(*arguments)
        agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
        return agent

    return make


def test_an_event_from_its_notice_to_its_end(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, APPROVES)
    event = vm.restart()
    agent.until(lambda: event.status == "Started", "the approval")
    assert diary.lines == ["begin prepare pool", "end prepare pool", "begin prepare web", "end prepare web"]
    assert event.was_approved_by("web-0")
    agent.until(lambda: agent.status()["events"][0]["phase"] == "started")
    assert not agent.status()["ready"]
    forewarn.advance(minutes=10)
    agent.until_logged("work_undone")
    assert diary.done[2:] == ["undo web", "undo pool"]
    assert agent.status()["ready"]
    assert agent.status()["events"] == []
    assert agent.stop() == 0
    # All messages except for the start, the endpoint and the end.
    assert all(line.get("event_id") == event.id.lower() for line in agent.lines[2:-1])


def test_a_lead_is_waited_for(forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, RULE.format(more='when = "5m"\napprove = "self"\napprove_when = "1m"'))
    event = vm.restart()
    agent.until_logged("event_scheduled")
    forewarn.advance(minutes=9, seconds=50, seen_by=vm)
    assert agent.status()["events"][0]["phase"] == "waiting"
    assert diary.lines == []
    forewarn.advance(seconds=10)
    agent.until(diary.has("end prepare web"))
    assert event.status == "Scheduled"
    forewarn.advance(minutes=4)
    agent.until(lambda: event.status == "Started", "the approval")
    assert event.was_approved_by("web-0")


def test_without_approval_the_event_starts_at_not_before(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, RULE.format(more=""))
    event = vm.redeploy()
    agent.until(diary.has("end prepare web"))
    forewarn.advance(minutes=15)
    agent.until_logged("event_started")
    assert not event.was_approved_by("web-0")
    forewarn.advance(minutes=10)
    agent.until_logged("work_undone")
    diary.check()


def test_a_cancelled_event_is_undone_when_the_handler_ends(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    diary.hold("prepare", "web")
    agent = make_agent(vm, APPROVES)
    event = vm.restart()
    agent.until(diary.has("begin prepare web"))
    event.cancel()
    agent.until_logged("event_cancelled")
    diary.release("prepare", "web")
    agent.until_logged("work_undone")
    diary.check()


def test_after_a_failure_nothing_is_approved(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    diary.fail("prepare", "pool")
    agent = make_agent(vm, APPROVES)
    event = vm.restart()
    agent.until_logged("handler_failed")
    (shown,) = agent.status()["events"]
    assert shown["phase"] == "failed"
    assert "no luck" in shown["steps"][0]["problem"]
    assert shown["approval"]["reason"] == "a handler has failed"
    forewarn.advance(minutes=14, seen_by=vm)
    assert event.status == "Scheduled"
    assert diary.lines == ["begin prepare pool", "fail prepare pool"]
    event.cancel()
    agent.until_logged("work_undone")
    assert diary.lines[2:] == ["begin undo pool", "end undo pool"]


def test_a_failing_undo_is_retried_and_later_undos_wait(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    diary.fail("undo", "web")
    agent = make_agent(vm, RULE.format(more=""))
    event = vm.restart()
    agent.until(diary.has("end prepare web"))
    event.cancel()
    agent.until(diary.has("fail undo web", 2))
    assert "begin undo pool" not in diary.lines
    assert "no luck" in agent.status()["events"][0]["next"]
    diary.mend("undo", "web")
    agent.until_logged("work_undone")
    assert diary.done == ["prepare pool", "prepare web", "undo web", "undo pool"]


def test_an_event_of_several_machines_is_not_approved_by_one_alone(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    group = forewarn.group("web", vms=3, host="rack-1")
    vm = group.vms[0]
    agent = make_agent(vm, RULE.replace('"Reboot", "Redeploy"', '"Freeze"').format(more='approve = "self"'))
    event = vm.freeze()
    agent.until(diary.has("end prepare web"))
    agent.until(lambda: "also affects" in agent.status()["events"][0]["approval"]["reason"], "the reason")
    assert event.status == "Scheduled"


def test_a_handler_of_two_events_is_undone_after_the_last_one(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(
        vm, RULE.replace(', "Redeploy"', "").format(more="") + '[[rule]]\non = "Freeze"\nprepare = ["pool"]\n'
    )
    first = vm.restart()
    agent.until(diary.has("end prepare web"))
    second = vm.freeze()
    agent.until_logged("handler_shared")
    first.cancel()
    agent.until(diary.has("end undo web"))
    assert agent.status()["events"][0]["next"] == "waits to undo pool: another event needs it"
    second.cancel()
    agent.until_logged("work_undone", 2)
    assert diary.done == ["prepare pool", "prepare web", "undo web", "undo pool"]


def test_an_event_that_no_rule_is_for_is_left_alone(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, APPROVES)
    event = vm.freeze()
    agent.until_logged("event_ignored")
    assert agent.status()["events"][0]["phase"] == "ignored"
    forewarn.advance(minutes=14, seen_by=vm)
    assert event.status == "Scheduled"
    assert diary.lines == []


def test_events_of_other_machines_are_only_logged(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    group = forewarn.group("web", vms=2)
    agent = make_agent(group.vms[0], APPROVES)
    event = group.vms[1].restart()
    agent.until(lambda: agent.status()["events"], "the event")
    assert not agent.status()["events"][0]["mine"]
    forewarn.advance(minutes=14, seen_by=group.vms[0])
    assert event.status == "Scheduled"
    assert diary.lines == []


def test_a_dry_run_does_all_but_act(forewarn: Service, new_agent: Callable[..., AgentProcess], diary: Diary) -> None:
    vm = forewarn.vm("web-0")
    agent = new_agent(APPROVES + diary.handler("pool") + diary.handler("web"), vm.environment)
    agent.start("--dry-run")
    vm.poll()
    event = vm.restart()
    agent.until_logged("approval_skipped")
    assert any("would run" in message and "handler=pool" in message for message in agent.messages())
    event.cancel()
    agent.until_logged("work_undone")
    assert agent.stop() == 0
    assert diary.lines == []
    assert not agent.state.exists(), "nothing is kept"
    assert not event.was_approved_by("web-0")


def test_without_a_config_it_only_logs(forewarn: Service, new_agent: Callable[..., AgentProcess]) -> None:
    vm = forewarn.vm("web-0")
    agent = new_agent("", vm.environment)
    agent.start()
    vm.poll()
    vm.restart()
    agent.until_logged("event_ignored")
    assert agent.stop() == 0


def test_ready_turns_red_on_an_event(forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, '[agent]\nlisten = "127.0.0.1:0"\n' + RULE.format(more=""))
    agent.until_logged("Serving metrics and health")
    (address,) = [line["address"] for line in agent.lines if "address" in line]

    def ready() -> int:
        try:
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert ready() == 200
    event = vm.restart()
    agent.until(lambda: ready() == 503, "red")
    event.cancel()
    agent.until(lambda: ready() == 200, "green")


def test_thirty_seconds_are_enough_in_real_time(
    tmp_path: Path, new_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    """Ten times faster: of the three seconds that are left of a Preempt's notice, less than one may pass."""
    fleet = """
[[group]]
name = "web"
kind = "scale-set"
[[vm]]
name = "web_0"
group = "web"
address = "127.0.0.1"
priority = "spot"
"""
    service = ServiceProcess(tmp_path / "service")
    (tmp_path / "service").mkdir()
    (tmp_path / "fleet.toml").write_text(fleet)
    service.start("--fleet", str(tmp_path / "fleet.toml"), "--speed", "10")
    try:
        rules = '[[rule]]\non = "Preempt"\nprepare = ["pool"]\napprove = "self"\n'
        agent = new_agent(rules + diary.handler("pool"), {"FOREWARN_ENDPOINT": service.metadata_url})
        agent.start()
        agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
        (event,) = service.request_operation("eviction", "web_0")["events"]
        agent.until_logged("event_approved")
        rows = json.loads(service.cli("history", "--event", event["id"], "--json").stdout)["history"]
        assert "approved" in [row["kind"] for row in rows]
        assert agent.stop() == 0
    finally:
        service.kill()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--config", "nowhere.toml"], 2, "No such file"),
        (["--endpoint", "ftp://x"], 2, "http://"),
        (["--listen", "nonsense"], 2, "127.0.0.1:9169"),
    ],
)
def test_an_error_is_one_line(tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    done = subprocess.run(
        [*COMMAND, "run", "--state", str(tmp_path / "state"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_two_agents_of_one_machine_do_not_meet(
    forewarn: Service, make_agent: Callable[..., AgentProcess], tmp_path: Path
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, APPROVES)
    done = subprocess.run(
        [*COMMAND, "run", "--state", str(agent.state)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 4
    assert "Another agent uses" in done.stderr
    assert agent.status()["vm"] == "web-0", "the first one goes on"
