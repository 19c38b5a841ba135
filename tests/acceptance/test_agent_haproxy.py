"""A restart of a web server behind HAProxy, with and without an agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agent.pool import Pool, Traffic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.agent_process import AgentProcess
    from forewarn.testing import Service

EXAMPLE = Path(__file__).parents[2] / "examples" / "agent" / "web.toml"
SYSTEMCTL = '#!/bin/sh\necho "$*" >> "$(dirname "$0")/done"\n[ "$1" != is-active ] || echo active\n'


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool() as pool:
        yield pool


@pytest.fixture
def policy(pool: Pool) -> str:
    """The example, except for the path of the socket and a port that may be in use."""
    text = EXAMPLE.read_text()
    for was, here in {"/run/haproxy/admin.sock": pool.socket, 'listen = "127.0.0.1:9171"': ""}.items():
        assert was in text
        text = text.replace(was, here)
    return text


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A stand-in for systemctl that records its arguments, because there is no nginx."""
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "systemctl").write_text(SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.fixture
def agent(forewarn: Service, new_agent: Callable[..., AgentProcess], policy: str, path: str) -> AgentProcess:
    """An agent on web-0 that has polled once."""
    vm = forewarn.vm("web-0")
    made = new_agent(policy, {**vm.environment, "PATH": path}).start()
    made.until(lambda: forewarn.poll_count(vm), "the first question")
    return made


def test_with_an_agent_a_restart_causes_no_client_errors(
    forewarn: Service, pool: Pool, agent: AgentProcess, tmp_path: Path
) -> None:
    vm = forewarn.vm("web-0")
    with Traffic(pool.port) as traffic:
        traffic.until_more(20, "web-0")
        event = vm.restart()
        agent.until(lambda: event.status == "Started", "the approval")
        assert event.was_approved_by("web-0")
        # The machine goes down and comes back; a while later the event is over.
        pool.stop_server("web-0")
        traffic.until_more()
        pool.start_server("web-0")
        forewarn.advance(minutes=10)
        agent.until_logged("work_undone")
        traffic.until_more(20, "web-0")
    assert traffic.errors == []
    done = (tmp_path / "system" / "done").read_text().splitlines()
    assert done == ["is-active nginx.service", "stop nginx.service", "start nginx.service"]


def test_without_an_agent_it_costs_errors(forewarn: Service, pool: Pool) -> None:
    """The same restart without a preparation."""
    vm = forewarn.vm("web-0")
    with Traffic(pool.port) as traffic:
        traffic.until_more(20, "web-0")
        event = vm.restart()
        forewarn.advance(minutes=15)
        assert event.status == "Started"
        pool.stop_server("web-0")
        traffic.until_more()
    assert len(traffic.errors) > 0


def test_an_agent_that_is_killed_while_it_drains_still_puts_the_server_back(
    forewarn: Service, pool: Pool, agent: AgentProcess
) -> None:
    vm = forewarn.vm("web-0")
    with Traffic(pool.port) as traffic:
        traffic.until_more(20, "web-0")
        event = vm.restart()
        agent.until(lambda: pool.state("web-0") == "drain", "the drain")
        agent.kill()
        agent.start()
        agent.until(lambda: event.status == "Started", "the approval")
        forewarn.advance(minutes=10)
        agent.until_logged("work_undone")
        assert pool.state("web-0") == "ready"
    assert traffic.errors == []
