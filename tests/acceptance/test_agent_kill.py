"""Kills of the agent at every step, and restarts of the machine: each preparation is undone exactly once."""

from __future__ import annotations

import shutil
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from agent.agent_process import AgentProcess, Diary
from forewarn.agent.history import read_history
from programs import need_root

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from forewarn.testing import Service

RULE = '[[rule]]\non = ["Reboot"]\nprepare = ["pool", "web"]\napprove = "{approve}"\n'
STEPS = ("prepare pool", "prepare web", "undo web", "undo pool")
NEW_MACHINE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; exit', "first"]
"""A first process of its own: to an agent it is a machine, or a container, that was just started."""


class Scene:
    """One machine, its agent, and what its handlers write down."""

    def __init__(self, forewarn: Service, folder: Path) -> None:
        self.forewarn = forewarn
        self.vm = forewarn.vm("web-0")
        self.vm.poll()
        self.diary = Diary(folder)
        self._folder = folder
        self.agent = self.make("self")

    def make(self, approve: str) -> AgentProcess:
        handlers = self.diary.handler("pool") + self.diary.handler("web")
        self.agent = AgentProcess(self._folder, RULE.format(approve=approve) + handlers, self.vm.environment)
        return self.agent

    def to_its_end(self) -> None:
        """Advance the clock until the event has ended and the agent has undone everything."""
        self.forewarn.advance(minutes=30)
        self.agent.until(self.all_is_undone, "the undo")
        self.agent.stop()

    def all_is_undone(self) -> bool:
        path = self.agent.state / "state.json"
        return path.exists() and '"works": []' in path.read_text() and "end undo pool" in self.diary.lines


@pytest.fixture
def scene(forewarn: Service, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(forewarn, tmp_path)
    yield made
    if made.agent.runs:
        made.agent.kill()


@pytest.mark.parametrize("outlives", [False, True], ids=["handler ends alone", "handler outlives it"])
@pytest.mark.parametrize("gone", [False, True], ids=["event still there", "event gone meanwhile"])
@pytest.mark.parametrize("step", STEPS)
def test_killed_in_the_middle_of_a_handler(scene: Scene, step: str, gone: bool, outlives: bool) -> None:
    diary, agent = scene.diary, scene.agent
    action, name = step.split()
    diary.hold(action, name)
    agent.start()
    event = scene.vm.restart()
    if action == "undo":
        agent.until(lambda: event.status == "Started", "the approval")
        scene.forewarn.advance(minutes=10)
    agent.until(diary.has(f"begin {step}"), step)
    agent.kill()
    if gone and action == "prepare":
        event.cancel()
    if outlives:
        agent.start()
        # The agent ends the program of an event that is gone. It waits for any other.
        agent.until_logged("ending process" if gone and action == "prepare" else "waiting for process")
    diary.release(action, name)
    if not outlives:
        agent.until(diary.has(f"end {step}"), "the end")
        agent.start()
    if not gone and action == "prepare":
        agent.until(lambda: event.status == "Started", "the approval")
        assert diary.done[-1] == "prepare web"
    scene.to_its_end()
    diary.check()
    assert diary.lines.count(f"begin {step}") == 1, "what goes on without its agent is not done twice"
    assert diary.done.count("undo pool") == 1


@pytest.mark.parametrize("moment", ["handler_failed", "work_given_up", "handler_started", "work_undone"])
def test_killed_while_a_failed_preparation_is_undone(scene: Scene, moment: str) -> None:
    """The machine is restored at once. The event stays, but is neither approved nor prepared again."""
    diary, agent = scene.diary, scene.make("self")
    agent.config.write_text(agent.config.read_text().replace("approve =", 'on_failure = "undo"\napprove ='))
    diary.fail("prepare", "web")
    agent.start()
    event = scene.vm.restart()
    agent.until_logged("handler_started: Handler started. handler=web action=undo" if "start" in moment else moment)
    agent.kill()
    agent.start()
    agent.until(lambda: '"done": true' in (agent.state / "state.json").read_text(), "the undo")
    assert agent.status()["ready"] is True
    assert agent.status()["events"][0]["phase"] == "failed"
    assert agent.status()["events"][0]["failure"].startswith("web: ")
    assert agent.status()["events"][0]["approval"]["reason"] == "a handler has failed"
    assert event.status == "Scheduled"
    scene.forewarn.advance(minutes=15)
    agent.until(lambda: agent.status()["ready"] is False, "the start of the event")
    scene.to_its_end()
    diary.check()
    assert diary.lines.count("begin prepare pool") == 1
    assert "end prepare web" not in diary.lines
    kept = [entry["event"] for entry in read_history(agent.state)]
    assert kept[0] == "event_scheduled"
    assert kept.count("handler_failed") == 1
    assert kept[-1] == "event_completed"


STARTED, COMPLETED = "handler_started: Handler started.", "handler_completed: Handler completed."
MOMENTS = (
    "event_scheduled",
    f"{STARTED} handler=pool action=prepare",
    f"{COMPLETED} handler=pool action=prepare",
    f"{STARTED} handler=web action=prepare",
    f"{COMPLETED} handler=web action=prepare",
    "event_approved",
    "event_completed",
    f"{STARTED} handler=web action=undo",
    f"{COMPLETED} handler=web action=undo",
    f"{STARTED} handler=pool action=undo",
    f"{COMPLETED} handler=pool action=undo",
)


@pytest.mark.parametrize(
    ("moment", "approve"),
    [
        (moment, word)
        for moment in MOMENTS
        for word in ("self", "never")
        if (moment, word) != ("event_approved", "never")
    ],
)
def test_killed_right_after_a_line_of_the_log(scene: Scene, moment: str, approve: str) -> None:
    agent = scene.make(approve).start()
    event = scene.vm.restart()
    if moment == "event_completed" or "undo" in moment:
        agent.until_logged("event_started" if approve == "self" else f"{COMPLETED} handler=web action=prepare")
        if approve == "never":
            scene.forewarn.advance(minutes=15)
            agent.until_logged("event_started")
        scene.forewarn.advance(minutes=10)
    agent.until_logged(moment)
    agent.kill()
    agent.start()
    if approve == "self":
        agent.until(lambda: event.status != "Scheduled", "the approval")
    else:
        agent.until(lambda: scene.diary.has("end prepare web")() or event.status != "Scheduled", "web prepared")
    scene.to_its_end()
    scene.diary.check()


def test_killed_again_and_again(scene: Scene) -> None:
    """The agent completes the event in spite of kills at any step."""
    agent = scene.agent
    event = scene.vm.restart()
    for times in range(1, 8):
        agent.start()
        written = len(agent.lines)
        agent.until(lambda: len(agent.lines) >= written + times or scene.all_is_undone(), "lines")  # noqa: B023 - at once
        agent.kill()
        if times == 5:
            scene.forewarn.advance(minutes=30)
    agent.start()
    agent.until(lambda: event.status not in ("Scheduled", "Started"), "the end")
    agent.until(scene.all_is_undone, "the undo")
    scene.diary.check(noted=("pool", "web"))


KILLED_AT_ONCE = """
import os, signal
from pathlib import Path
from forewarn.agent import Handler
HERE = Path(__file__).parent
class Fatal(Handler):
    def __init__(self, options):
        pass
    def describe(self, action):
        return "kill the agent"
    def prepare(self, job):
        if not (HERE / "killed").exists():
            (HERE / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        job.info("prepared after all")
    def undo(self, job):
        job.info("undone after all")
"""


@pytest.mark.parametrize("gone", [False, True], ids=["event still there", "event gone meanwhile"])
def test_killed_after_the_note_and_before_the_handler_has_done_anything(
    scene: Scene, tmp_path: Path, gone: bool
) -> None:
    """The next agent cannot know how far the handler came: it prepares again, or undoes what may never have begun."""
    (tmp_path / "fatal.py").write_text(KILLED_AT_ONCE)
    config = '[[rule]]\nprepare = ["pool", "fatal"]\napprove = "self"\n[handler.fatal]\nfile = "fatal.py"\n'
    agent = AgentProcess(tmp_path, config + scene.diary.handler("pool"), scene.vm.environment)
    scene.agent = agent.start()
    event = scene.vm.restart()
    assert agent.wait() == -signal.SIGKILL
    assert scene.diary.done == ["prepare pool"]
    if gone:
        event.cancel()
    agent.start()
    if not gone:
        agent.until(lambda: event.status == "Started", "the approval")
        scene.forewarn.advance(minutes=30)
    agent.until_logged("work_undone")
    said = [message for message in agent.messages() if "after all" in message]
    assert said == [
        f"handler_reported: {action}d after all handler=fatal action={action}".replace("undod", "undone")
        for action in ("prepare", "undo")[gone:]
    ]
    scene.diary.check()


def test_undone_though_the_handler_has_left_the_config(scene: Scene) -> None:
    agent = scene.make("never").start()
    event = scene.vm.restart()
    agent.until(scene.diary.has("end prepare web"))
    agent.kill()
    agent.config.write_text("")
    event.cancel()
    agent.start()
    agent.until(scene.all_is_undone, "the undo")
    scene.diary.check()


def test_undo_uses_the_recorded_handler_when_its_name_now_has_another_kind(scene: Scene) -> None:
    agent = scene.make("never").start()
    event = scene.vm.restart()
    agent.until(scene.diary.has("end prepare web"))
    agent.kill()
    agent.config.write_text('[handler.web]\nkind = "log"\n' + scene.diary.handler("pool"))
    event.cancel()
    agent.start()
    agent.until(scene.all_is_undone, "the undo")
    scene.diary.check()


def test_nothing_is_approved_before_the_first_look(scene: Scene) -> None:
    """The stored state can be outdated, and the first response can take two minutes."""
    agent = scene.make("never").start()
    event = scene.vm.restart()
    agent.until(scene.diary.has("end prepare web"))
    agent.kill()
    text = agent.state / "state.json"
    text.write_text(text.read_text().replace('"approve": "never"', '"approve": "self"'))
    event.cancel()
    other = scene.vm.redeploy()
    scene.forewarn.fault("slow", count=1, delay=2)
    agent.start()
    agent.until(scene.all_is_undone, "the undo")
    assert not any("approve" in message for message in agent.messages())
    assert other.status == "Scheduled"


def test_a_removed_state_folder_is_created_again(scene: Scene) -> None:
    agent = scene.make("never").start()
    agent.until(lambda: agent.status().get("polling", {}).get("responses"), "the first answer")
    shutil.rmtree(agent.state)
    event = scene.vm.restart()
    agent.until(scene.diary.has("end prepare web"))
    event.cancel()
    agent.until(scene.all_is_undone, "the undo")


def test_a_handler_removed_from_the_config_blocks_nothing(scene: Scene) -> None:
    agent = scene.make("never")
    whole = agent.config.read_text().replace('approve = "never"', 'when = "5m"')
    agent.config.write_text(whole)
    agent.start()
    event = scene.vm.restart()
    agent.until(lambda: agent.status()["events"], "the event")
    agent.kill()
    agent.config.write_text(whole.replace('"pool", "web"', '"pool"').replace(scene.diary.handler("web"), ""))
    agent.start()
    scene.forewarn.advance(minutes=11)
    agent.until_logged("the config no longer has a [handler.web]")
    event.cancel()
    agent.until(scene.all_is_undone, "the undo")
    assert scene.diary.done == ["prepare pool", "undo pool"]


def test_a_stopped_agent_continues_at_the_next_start(scene: Scene) -> None:
    scene.diary.hold("prepare", "web")
    agent = scene.agent.start()
    event = scene.vm.restart()
    agent.until(scene.diary.has("begin prepare web"))
    assert agent.stop() == 0
    scene.diary.release("prepare", "web")
    assert event.status == "Scheduled"
    agent.start()
    agent.until(lambda: event.status == "Started", "the approval")
    scene.to_its_end()
    scene.diary.check()


STUCK = """
import threading
from forewarn.agent import Handler
class Stuck(Handler):
    def __init__(self, options):
        pass
    def describe(self, action):
        return "hang"
    def prepare(self, job):
        {prepare}
    def undo(self, job):
        job.info("undone after all")
"""
NO_GRACE = (
    sys.executable,
    "-c",
    (
        "import forewarn.agent.runner as runner; runner.GRACE_SECONDS = 0.0\n"
        "from forewarn.agent.__main__ import main; main()"
    ),
)


@pytest.mark.parametrize("prepare", ["threading.Event().wait()", "raise SystemExit", "job.remember(it=object())"])
def test_a_handler_that_never_ends_or_ends_badly_is_undone(scene: Scene, tmp_path: Path, prepare: str) -> None:
    (tmp_path / "stuck.py").write_text(STUCK.format(prepare=prepare))
    config = (
        '[[rule]]\nprepare = ["pool", "stuck"]\napprove = "self"\n[handler.stuck]\nfile = "stuck.py"\ntimeout = "1s"\n'
    )
    agent = AgentProcess(tmp_path, config + scene.diary.handler("pool"), scene.vm.environment, NO_GRACE)
    scene.agent = agent.start()
    event = scene.vm.restart()
    agent.until_logged("handler_failed: Handler failed. handler=stuck action=prepare")
    if "wait" in prepare:
        agent.until_logged("agent_started", 2)
    agent.until(lambda: agent.status().get("polling", {}).get("responses"), "an answer")
    assert event.status == "Scheduled"
    event.cancel()
    agent.until_logged("work_undone")
    assert "handler_reported: undone after all handler=stuck action=undo" in agent.messages()
    scene.diary.check()


def test_a_restarted_machine_is_restored_at_once(scene: Scene) -> None:
    need_root()
    agent = scene.agent.start(prefix=NEW_MACHINE)
    event = scene.vm.restart()
    agent.until(lambda: event.status == "Started", "the approval")
    agent.until_logged("event_started")
    agent.kill()
    agent.start(prefix=NEW_MACHINE)
    agent.until_logged("work_undone")
    assert event.status == "Started", "its notice has minutes left"
    scene.diary.check()
    scene.forewarn.advance(seconds=30, seen_by=scene.vm)
    assert agent.status()["events"][0]["phase"] == "done"
    scene.forewarn.advance(minutes=10)
    agent.until(scene.all_is_undone, "the end")
    assert len(scene.diary.done) == 4, "nothing is prepared or undone a second time"


def test_a_machine_restarted_before_its_event_is_prepared_again(scene: Scene) -> None:
    need_root()
    agent = scene.make("never").start(prefix=NEW_MACHINE)
    event = scene.vm.restart()
    agent.until(scene.diary.has("end prepare web"))
    agent.kill()
    agent.start(prefix=NEW_MACHINE)
    agent.until(scene.diary.has("end prepare web", 2))
    assert event.status == "Scheduled"
    scene.forewarn.advance(minutes=30)
    agent.until(scene.all_is_undone, "the undo")
    scene.diary.check()
