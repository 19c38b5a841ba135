"""What an agent of an earlier release had begun is finished or undone by the agent of today, each step once.

The agent was killed with events in every state of its work. Its service is in the fixture too, so that the events are
still there, by the same ids. Two events need nothing more: the machine was already back from the update, and the last
undo of the redeploy came to a good end after the agent was killed. (tests/fixtures/README.md)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from agent.agent_process import AgentProcess
from fixtures.releases import RELEASES, unpack
from forewarn.testing import ServiceProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEP = """#!/bin/sh
echo "$1 $2 ${{FOREWARN_MEMO_TICKET:-nothing}}" >>"{folder}/diary"
if [ "$1" = prepare ]; then echo 'FOREWARN_MEMO {{"ticket": "new"}}'; fi
"""
"""Notes what it does, with what was remembered for it. The one that the release ran said other things to remember."""
ANOTHER_BOOT = "00000000-0000-0000-0000-000000000000.1"


def this_boot() -> str:
    """Which start of the machine this is, as release 0.1 wrote it down."""
    machine = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{machine}.{Path('/proc/1/stat').read_text().rpartition(')')[2].split()[19]}"


class Scene(NamedTuple):
    service: ServiceProcess
    agent: AgentProcess
    diary: Path
    facts: Any

    @property
    def done(self) -> list[str]:
        return self.diary.read_text().splitlines()

    def statuses(self) -> dict[str, str]:
        """The events of the document, by their role in the test."""
        told = {event["EventId"].lower(): event["EventStatus"] for event in self.service.document()["Events"]}
        return {name: told[event_id] for name, event_id in self.facts["events"].items() if event_id in told}

    def until_done(self, *lines: str) -> None:
        self.agent.until(lambda: {*lines} <= {*self.done}, f"{lines}, but {self.done}")

    def until_at_rest(self) -> None:
        """Until the agent knows of nothing more to do."""
        self.agent.until(lambda: not self.agent.status()["events"], "the end of all work")


@pytest.fixture(params=RELEASES)
def make_scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    agents: list[AgentProcess] = []
    with ServiceProcess(tmp_path) as service:

        def make(boot: str, *, has_config: bool = True) -> Scene:
            facts = unpack(request.param, "agent", tmp_path, FOLDER=str(tmp_path), BOOT=boot)
            step = tmp_path / "step"
            step.write_text(STEP.format(folder=tmp_path))
            step.chmod(0o755)
            (tmp_path / "diary").touch()
            service.start("--clock", "virtual")
            environment = {"FOREWARN_ENDPOINT": service.metadata_url, "FOREWARN_VM_NAME": "app-0"}
            config = facts["config"].replace("@FOLDER@", str(tmp_path)) if has_config else ""
            agent = AgentProcess(tmp_path, config, environment)
            agents.append(agent)
            return Scene(service, agent, tmp_path / "diary", facts)

        yield make
        for agent in agents:
            if agent.runs:
                agent.kill()


def test_work_in_progress_continues_and_is_undone(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene(this_boot())
    assert scene.statuses() == {"update": "Started", "migration": "Started", "reboot": "Scheduled"}
    scene.agent.start()
    scene.agent.until(lambda: scene.statuses()["reboot"] == "Started", "the approval")
    scene.until_done("undo mail mail-1")
    assert sorted(scene.done) == ["prepare web web-1", "undo mail mail-1"], "only what was cut off"
    scene.service.advance("10m")
    scene.until_done("undo brief brief-1", "undo pool pool-1")
    scene.until_at_rest()
    assert sorted(scene.done[2:]) == ["undo brief brief-1", "undo pool pool-1", "undo web new"]
    assert scene.done.index("undo web new") < scene.done.index("undo pool pool-1"), "in reverse"


@pytest.mark.parametrize("has_config", [True, False], ids=["same config", "empty config"])
def test_an_ended_event_is_undone(make_scene: Callable[..., Scene], has_config: bool) -> None:
    """Also where the handlers have left the config: their tables are in the state."""
    scene = make_scene(this_boot(), has_config=has_config)
    scene.service.advance("30m")
    assert scene.statuses() == {}
    scene.agent.start()
    scene.until_done("undo brief brief-1", "undo mail mail-1", "undo pool pool-1")
    scene.until_at_rest()
    assert sorted(scene.done) == ["undo brief brief-1", "undo mail mail-1", "undo pool pool-1", "undo web web-1"]
    assert scene.done.index("undo web web-1") < scene.done.index("undo pool pool-1"), "in reverse"


def test_a_restarted_machine_is_restored_and_prepared_again(make_scene: Callable[..., Scene]) -> None:
    """The started event is over after the restart. The scheduled event must be prepared again."""
    scene = make_scene(ANOTHER_BOOT)
    scene.agent.start()
    scene.agent.until(lambda: scene.statuses()["reboot"] == "Started", "the approval")
    scene.until_done("undo brief brief-1", "undo mail mail-1")
    assert scene.statuses() == dict.fromkeys(("update", "migration", "reboot"), "Started"), (
        "all notices have minutes left"
    )
    again = ["prepare pool pool-1", "prepare web web-1", "undo brief brief-1", "undo mail mail-1"]
    assert sorted(scene.done) == again
    scene.service.advance("10m")
    scene.until_done("undo pool new")
    scene.until_at_rest()
    assert scene.done[len(again) :] == ["undo web new", "undo pool new"]
