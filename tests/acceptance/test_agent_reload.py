"""SIGHUP: the agent reads its policy file again, and loses no work."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from systemd_socket import SystemdSocket

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.agent_process import AgentProcess, Diary
    from forewarn.testing import Service

RULE = '[[rule]]\non = ["Reboot"]\nprepare = ["{handler}"]\n{more}\n'


@pytest.fixture
def reload(new_agent: Callable[..., AgentProcess]) -> Callable[..., None]:
    """Write another policy, send SIGHUP, and wait for the result."""

    def reload_with(agent: AgentProcess, policy: str, result: str = "config_reloaded") -> None:
        before = sum(line.get("event") == result for line in agent.lines)
        agent.config.write_text(policy)
        os.kill(agent.pid, signal.SIGHUP)
        agent.until_logged(f"{result}:", before + 1)

    return reload_with


def test_what_was_prepared_under_the_old_policy_is_undone(
    forewarn: Service, new_agent: Callable[..., AgentProcess], diary: Diary, reload: Callable[..., None]
) -> None:
    vm = forewarn.vm("web-0")
    old = '[[rule]]\non = ["Reboot"]\nprepare = ["old", "second"]\n' + diary.handler("old") + diary.handler("second")
    diary.hold("prepare", "old")
    agent = new_agent(old, vm.environment).start()
    agent.until_logged("endpoint_connected")
    event = vm.restart()
    agent.until(diary.has("begin prepare old"))
    # The handler runs while the policy changes. The new policy has neither the rule nor the handlers.
    reload(agent, RULE.format(handler="new", more="") + diary.handler("new"))
    diary.release("prepare", "old")
    agent.until(diary.has("end prepare second"))
    event.cancel()
    agent.until_logged("work_undone")
    assert diary.done == ["prepare old", "prepare second", "undo second", "undo old"]
    other = vm.restart()
    agent.until(diary.has("end prepare new"))
    other.cancel()
    agent.until(diary.has("end undo new"))
    assert agent.stop() == 0


def test_a_waiting_event_gets_the_new_policy(
    forewarn: Service, new_agent: Callable[..., AgentProcess], diary: Diary, reload: Callable[..., None]
) -> None:
    vm = forewarn.vm("web-0")
    agent = new_agent(RULE.format(handler="old", more='when = "5m"') + diary.handler("old"), vm.environment).start()
    agent.until_logged("endpoint_connected")
    event = vm.restart()
    agent.until_logged("event_scheduled")
    reload(agent, RULE.format(handler="new", more='approve = "self"') + diary.handler("new"))
    agent.until(lambda: event.status == "Started", "the approval")
    assert diary.done == ["prepare new"]
    assert event.was_approved_by("web-0")
    # The rule of a started event stays, also with a policy that ignores such events.
    reload(agent, "")
    forewarn.advance(minutes=10)
    agent.until_logged("work_undone")
    assert diary.done == ["prepare new", "undo new"]


def test_an_invalid_policy_changes_nothing(
    forewarn: Service,
    new_agent: Callable[..., AgentProcess],
    diary: Diary,
    reload: Callable[..., None],
    tmp_path: Path,
) -> None:
    vm = forewarn.vm("web-0")
    policy = RULE.format(handler="web", more="") + diary.handler("web")
    with SystemdSocket(tmp_path) as systemd:
        agent = new_agent(policy, {**vm.environment, **systemd.variables}).start()
        assert systemd.receive() == {"READY": "1"}
        agent.until_logged("endpoint_connected")
        for wrong, problem in (
            ("[[rule]]\nonn = 1\n", "agent.toml:2: "),
            (f'[agent]\nlisten = "127.0.0.1:9169"\n{policy}', "changes listen. Restart the agent"),
        ):
            reload(agent, wrong, "config_reload_failed")
            assert problem in agent.messages()[-1]
            assert "RELOADING" in systemd.receive()
            assert systemd.receive() == {"READY": "1"}
        agent.config.unlink()
        os.kill(agent.pid, signal.SIGHUP)
        agent.until_logged("No such file")
        vm.restart()
        agent.until(diary.has("end prepare web"))
        assert agent.stop() == 0
