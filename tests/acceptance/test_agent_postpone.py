"""Events that are postponed after the agent has prepared: it restores the machine, and prepares again later."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from acceptance.test_agent_leader import Trio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from agent.agent_process import AgentProcess, Diary
    from forewarn.testing import Event, Service

RULE = '[[rule]]\non = ["Freeze"]\nprepare = ["pool", "web"]\nwhen = "5m"\n'
"""Each handler may take 30 s: the machine is restored if the preparation is due in two minutes or later."""
HOUR = timedelta(hours=1)


class Scene:
    """A machine that is prepared for a Freeze."""

    def __init__(self, forewarn: Service, diary: Diary, new_agent: Callable[..., AgentProcess], rule: str) -> None:
        self.forewarn, self.diary = forewarn, diary
        self.vm = forewarn.vm("web-0")
        self.vm.poll()
        self.agent = new_agent(rule + diary.handler("pool") + diary.handler("web"), self.vm.environment).start()
        self.event: Event = self.vm.migrate()
        self.agent.until_logged("event_scheduled")
        forewarn.advance(minutes=10)
        self.agent.until(diary.has("end prepare web"))

    def postpone(self, by: timedelta = HOUR) -> None:
        self.event.postpone(self.event.not_before + by)

    def to_its_end(self) -> None:
        """The preparation is due again, then the event starts and ends."""
        done = self.diary.lines.count("end prepare web")
        self.forewarn.advance(self.event.not_before - self.forewarn.now - timedelta(minutes=5))
        self.agent.until(self.diary.has("end prepare web", done + 1), "the second preparation")
        self.forewarn.advance(minutes=30)
        self.agent.until(lambda: self.agent.status()["events"] == [], "the end")
        self.diary.check()
        assert self.diary.done[-2:] == ["undo web", "undo pool"]

    def phase(self) -> str:
        return str(self.agent.status()["events"][0]["phase"])


@pytest.fixture
def make_scene(forewarn: Service, diary: Diary, new_agent: Callable[..., AgentProcess]) -> Callable[..., Scene]:
    return lambda more="": Scene(forewarn, diary, new_agent, RULE + more)


ONCE = ["prepare pool", "prepare web", "undo web", "undo pool"]


def test_the_machine_is_restored_and_prepared_again(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    assert not scene.agent.status()["ready"]
    scene.postpone()
    scene.agent.until_logged("work_undone")
    assert scene.diary.done == ONCE
    scene.agent.until(lambda: scene.agent.status()["ready"], "readiness")
    assert scene.phase() == "waiting"
    scene.to_its_end()
    assert scene.diary.done == ONCE + ONCE
    (postponed,) = [line for line in scene.agent.lines if line.get("event") == "event_postponed"]
    assert postponed["restores"] is True


def test_it_stays_prepared_if_there_is_not_enough_time(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.postpone(timedelta(minutes=1))
    scene.agent.until_logged("restores=False")
    assert scene.phase() == "prepared"
    # Two small steps can be enough together.
    scene.postpone(timedelta(minutes=2))
    scene.agent.until_logged("work_undone")
    scene.to_its_end()


@pytest.mark.parametrize("step", ["undo web", "undo pool", "prepare pool", "prepare web"])
def test_killed_in_the_middle(make_scene: Callable[..., Scene], step: str) -> None:
    scene = make_scene()
    action, name = step.split()
    scene.diary.hold(action, name)
    scene.postpone()
    if action == "prepare":
        scene.agent.until_logged("work_undone")
        scene.forewarn.advance(HOUR)
    scene.agent.until(scene.diary.has(f"begin {step}", 2 if action == "prepare" else 1), step)
    scene.agent.kill()
    scene.diary.release(action, name)
    scene.agent.start()
    if action == "undo":
        scene.agent.until_logged("work_undone")
        scene.to_its_end()
    else:
        scene.agent.until(scene.diary.has("end prepare web", 2))
        scene.forewarn.advance(minutes=30)
        scene.agent.until(lambda: scene.agent.status()["events"] == [], "the end")
        scene.diary.check()
    assert scene.diary.done == ONCE + ONCE


@pytest.mark.parametrize("moment", ["event_postponed", "handler=web action=undo", "work_undone"])
def test_killed_right_after_a_line_of_the_log(make_scene: Callable[..., Scene], moment: str) -> None:
    scene = make_scene()
    scene.postpone()
    scene.agent.until_logged(moment)
    scene.agent.kill()
    scene.agent.start()
    scene.agent.until(lambda: scene.phase() == "waiting", "the restored machine")
    scene.to_its_end()
    assert scene.diary.done.count("undo pool") == 2


def test_postponed_while_the_agent_is_down(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.agent.kill()
    scene.postpone()
    scene.agent.start()
    scene.agent.until_logged("work_undone")
    scene.to_its_end()


def test_due_again_before_everything_is_undone(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.diary.hold("undo", "web")
    scene.postpone()
    scene.agent.until(scene.diary.has("begin undo web"))
    scene.forewarn.advance(HOUR)
    scene.agent.until_logged("restore_stopped")
    scene.diary.release("undo", "web")
    scene.agent.until(scene.diary.has("end prepare web", 2))
    assert scene.phase() == "prepared"
    assert scene.diary.done == ["prepare pool", "prepare web", "undo web", "prepare web"], "pool was not undone"
    scene.forewarn.advance(minutes=30)
    scene.agent.until_logged("work_undone")
    scene.diary.check()


def test_cancelled_while_the_machine_is_restored(make_scene: Callable[..., Scene]) -> None:
    scene = make_scene()
    scene.diary.hold("undo", "web")
    scene.postpone()
    scene.agent.until(scene.diary.has("begin undo web"))
    scene.event.cancel()
    scene.agent.until_logged("event_cancelled")
    scene.diary.release("undo", "web")
    scene.agent.until_logged("work_undone")
    assert scene.agent.status()["events"] == []
    assert scene.diary.done == ONCE


@pytest.fixture
def trio(forewarn: Service, tmp_path: Path) -> Iterator[Trio]:
    made = Trio(forewarn, tmp_path, more='when = "5m"')
    yield made
    made.close()


def test_peers_restore_and_approve_together_later(trio: Trio) -> None:
    """One machine is not ready when the event is postponed, so nobody has approved it."""
    trio.hold("web-2")
    trio.start()
    event = trio.freeze()
    for agent in trio.agents.values():
        agent.until_logged("event_scheduled")
    trio.service.advance(minutes=10)
    trio.until_phase("web-0", "prepared")
    trio.until_phase("web-1", "prepared")
    trio.agents["web-2"].until(trio.diaries["web-2"].has("begin prepare web"))
    event.postpone(event.not_before + HOUR)
    trio.agents["web-0"].until_logged("work_undone")
    trio.agents["web-1"].until_logged("work_undone")
    trio.diaries["web-2"].release("prepare", "web")
    trio.agents["web-2"].until_logged("work_undone")
    assert trio.approvers(event) == set()
    trio.service.advance(event.not_before - trio.service.now - timedelta(minutes=5))
    trio.until_started(event, "web-0")
    assert "web-0" in trio.approvers(event)
    # The preparation of web-2 may have been ended early.
    assert all(diary.done[-2:] == ["undo web", "prepare web"] for diary in trio.diaries.values())
    trio.service.advance(minutes=15)
    for agent in trio.agents.values():
        agent.until_logged("work_undone", times=2)
