"""The agent process with a service that has the preview version: recommendations for a Spot VM."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.agent_process import AgentProcess, Diary

FLEET = """
[[vm]]
name = "spot"
address = "127.0.0.1"
priority = "spot"
"""
RULES = """
[[rule]]
on = "SpotRebalanceRecommendation"
prepare = ["pool"]
approve = "self"

[[rule]]
prepare = ["pool", "web"]
approve = "self"
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    (tmp_path / "fleet.toml").write_text(FLEET)
    with ServiceProcess() as service:
        yield service.start("--fleet", str(tmp_path / "fleet.toml"), "--clock", "virtual", "--preview-versions", "true")


@pytest.fixture
def agent(service: ServiceProcess, new_agent: Callable[..., AgentProcess], diary: Diary) -> AgentProcess:
    """An agent that has prepared for a recommendation."""
    rules = RULES + diary.handler("pool") + diary.handler("web")
    agent = new_agent(rules, {"FOREWARN_ENDPOINT": service.metadata_url}).start()
    agent.until_logged("api_version=2024-07-09")
    service.request_operation("rebalance", "spot")
    agent.until_logged("handler_completed")
    return agent


def kinds_of_history(service: ServiceProcess) -> list[str]:
    return [row["kind"] for row in json.loads(service.cli("history", "--json").stdout)["history"]]


def test_a_recommendation_without_an_eviction_is_undone(
    service: ServiceProcess, agent: AgentProcess, diary: Diary
) -> None:
    (shown,) = agent.status()["events"]
    assert (shown["type"], shown["phase"]) == ("SpotRebalanceRecommendation", "prepared")
    service.cli("event", "cancel", shown["id"])
    agent.until_logged("work_undone")
    assert diary.done == ["prepare pool", "undo pool"]
    assert "approved" not in kinds_of_history(service)


def test_an_eviction_after_a_recommendation_is_prepared_once(
    service: ServiceProcess, agent: AgentProcess, diary: Diary
) -> None:
    service.request_operation("eviction", "spot")
    agent.until_logged("event_started")
    agent.until_logged("eviction_followed")
    assert kinds_of_history(service).count("approved") == 1
    service.advance(minutes=1)
    agent.until_logged("work_undone", times=2)
    assert diary.done == ["prepare pool", "prepare web", "undo web", "undo pool"]
