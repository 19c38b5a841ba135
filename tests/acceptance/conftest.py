"""Fixtures for tests of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.agent_process import AgentProcess, Diary

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.fixture
def new_agent(tmp_path: Path) -> Iterator[Callable[..., AgentProcess]]:
    """Create an agent in the folder of the test. It is not started yet, and is killed after the test."""
    made: list[AgentProcess] = []

    def make(config: str, environment: Mapping[str, str]) -> AgentProcess:
        made.append(AgentProcess(tmp_path, config, environment))
        return made[-1]

    yield make
    for agent in made:
        if agent.runs:
            agent.kill()
