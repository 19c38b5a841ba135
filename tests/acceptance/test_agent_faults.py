"""Every fault of the endpoint during an event: the agent recovers and misses nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from forewarn.core.faults import FAULTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.agent_process import AgentProcess, Diary
    from forewarn.testing import VM, Service

RULE = '[[rule]]\non = "Reboot"\nprepare = ["pool"]\napprove = "self"\n'
CASES = [(kind.name, method) for kind in FAULTS.values() for method in (kind.methods or ("GET",))]
DELAY: dict[str, dict[str, Any]] = {"slow": {"delay": 2}, "stall": {"delay": 2}}


@pytest.fixture
def make_agent(new_agent: Callable[..., AgentProcess], diary: Diary) -> Callable[..., AgentProcess]:
    """Starts an agent with one handler, `pool`."""

    def make(vm: VM, rule: str = RULE) -> AgentProcess:
        return new_agent(rule + diary.handler("pool"), vm.environment).start()

    return make


@pytest.mark.parametrize(("kind", "method"), CASES)
def test_an_event_under_faults(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary, kind: str, method: str
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm)
    agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
    other = vm.freeze()  # so that there is an older document
    agent.until_logged("event_ignored")
    other.cancel()

    def strike() -> None:
        if kind == "disabled":
            forewarn.fault(kind)
        else:
            forewarn.fault(kind, method=method, count=2, **DELAY.get(kind, {}))

    if kind == "disabled":  # a disabled group gets no notice, so this fault is added after the event
        event = vm.restart()
        strike()
    else:
        strike()
        event = vm.restart()
    agent.until(lambda: event.status == "Started", "the approval")
    assert diary.done == ["prepare pool"]
    strike()
    forewarn.advance(minutes=10)
    agent.until_logged("work_undone")
    assert diary.done == ["prepare pool", "undo pool"]
    assert agent.runs
    assert agent.stop() == 0
    begun = [message for message in agent.messages() if message.startswith("endpoint_failed")]
    assert len(begun) <= 4


def test_an_older_document_undoes_nothing(
    forewarn: Service, make_agent: Callable[..., AgentProcess], diary: Diary
) -> None:
    vm = forewarn.vm("web-0")
    agent = make_agent(vm, RULE.replace("self", "never"))
    agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
    vm.restart()
    agent.until(diary.has("end prepare pool"))
    known = len(forewarn.documents_seen_by(vm))
    forewarn.fault("stale", count=3)

    def had_events() -> list[bool]:
        return [bool(document.events) for document in forewarn.documents_seen_by(vm)[known:]]

    agent.until(lambda: False in had_events() and had_events()[-1], "an old document, and the right one")
    assert agent.status()["events"][0]["phase"] == "prepared"
    assert diary.done == ["prepare pool"]
    agent.stop()


def test_the_endpoint_is_unreachable_at_first(forewarn: Service, make_agent: Callable[..., AgentProcess]) -> None:
    """The agent logs the error once, and continues when the endpoint responds."""
    vm = forewarn.vm("web-0")
    forewarn.fault("reset", count=3)
    agent = make_agent(vm)
    agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
    event = vm.restart()
    agent.until(lambda: event.status == "Started", "the approval")
    warnings = [line for line in agent.lines if line.get("level") == "warning"]
    assert len(warnings) == 1, warnings
    agent.stop()
