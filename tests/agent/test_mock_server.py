"""The agent and the library with a server that behaves like Microsoft's mock server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from agent.agent_process import AgentProcess, Diary
from agent.mock_server import MockServer
from forewarn.agent import Client
from forewarn.core.durations import from_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RULE = '[[rule]]\nname = "web"\nprepare = ["web"]\n'


@pytest.fixture
def server() -> Iterator[MockServer]:
    with MockServer() as server:
        yield server


@pytest.fixture
def diary(tmp_path: Path) -> Diary:
    return Diary(tmp_path)


@pytest.fixture
def start(server: MockServer, diary: Diary, tmp_path: Path) -> Iterator[Callable[[str], AgentProcess]]:
    """Start an agent whose rule has these lines too."""
    started: list[AgentProcess] = []

    def start_agent(lines: str) -> AgentProcess:
        config = f"{RULE}{lines}\n{diary.handler('web')}"
        started.append(AgentProcess(tmp_path, config, server.environment).start())
        return started[-1]

    yield start_agent
    for agent in started:
        if agent.runs:
            agent.stop()


def ids(agent: AgentProcess, name: str) -> list[str]:
    """The event ids in the log entries with this name."""
    return [line["event_id"] for line in agent.lines if line.get("event") == name]


@pytest.mark.parametrize("upper_case", [False, True])
def test_an_approval_has_the_id_exactly_as_received_and_people_see_lower_case(
    server: MockServer, diary: Diary, start: Callable[[str], AgentProcess], upper_case: bool
) -> None:
    server.upper_case = upper_case
    scheduled = server.schedule()
    assert scheduled == (scheduled.upper() if upper_case else scheduled.lower())
    agent = start('approve = "self"')
    agent.until_logged("event_started")
    agent.until_logged("event_approved")
    assert server.approvals == [scheduled]
    assert ids(agent, "event_approved") in ([scheduled.lower()], [server.ids[1].lower()])
    (shown,) = agent.status()["events"]
    assert shown["id"] == server.ids[1].lower()
    assert agent.status()["ready_reason"].startswith(f"Reboot {server.ids[1].lower()}: ")
    server.complete()
    agent.until_logged("work_undone")
    assert diary.done == ["prepare web", "undo web"]
    assert agent.status()["counts"]["approved"] == 1


def test_an_event_whose_id_changes_is_prepared_once_and_undone_at_its_end(
    server: MockServer, diary: Diary, start: Callable[[str], AgentProcess]
) -> None:
    server.schedule()
    agent = start("")
    agent.until(diary.has("end prepare web"))
    server.start()
    agent.until_logged("event_started")
    server.start()  # the mock's playback does this after an approval
    agent.until_logged("event_id_changed", times=2)
    assert [event["id"] for event in agent.status()["events"]] == [server.ids[2]]
    agent.kill()
    server.start()
    agent.start()
    agent.until_logged("event_id_changed", times=3)
    server.complete()
    agent.until_logged("work_undone")
    assert diary.done == ["prepare web", "undo web"]
    assert ids(agent, "event_completed") == [server.ids[3]]
    assert not any("event_cancelled" in message for message in agent.messages())


def test_an_id_that_changes_while_a_handler_runs(
    server: MockServer, diary: Diary, start: Callable[[str], AgentProcess]
) -> None:
    """The result of the handler belongs to the event with the new id."""
    diary.hold("prepare", "web")
    server.schedule()
    agent = start("")
    agent.until(diary.has("begin prepare web"))
    server.start()
    agent.until_logged("event_started")
    diary.release("prepare", "web")
    agent.until_logged("handler_completed")
    server.complete()
    agent.until_logged("work_undone")
    assert diary.done == ["prepare web", "undo web"]


def test_the_handler_gets_the_first_id_in_undo_too(
    server: MockServer, start: Callable[[str], AgentProcess], tmp_path: Path
) -> None:
    server.schedule()
    seen = tmp_path / "seen"
    note = json.dumps(["sh", "-c", f"echo $FOREWARN_ACTION $FOREWARN_EVENT_ID >> {seen}"])
    agent = AgentProcess(
        tmp_path,
        f'[[rule]]\nprepare = ["note"]\n[handler.note]\nkind = "command"\nprepare = {note}\nundo = {note}\n',
        server.environment,
    ).start()
    try:
        agent.until_logged("handler_completed")
        server.start()
        agent.until_logged("event_id_changed")
        server.complete()
        agent.until_logged("work_undone")
    finally:
        agent.stop()
    assert seen.read_text().splitlines() == [f"prepare {server.ids[0]}", f"undo {server.ids[0]}"]


def test_every_log_line_after_a_change_of_the_id_has_the_new_one(server: MockServer, tmp_path: Path) -> None:
    server.schedule()
    log_file = tmp_path / "log_file"
    agent = AgentProcess(
        tmp_path,
        '[[rule]]\nprepare = ["own", "file"]\n[handler.own]\nkind = "log"\njournal = false\n'
        f'[handler.file]\nkind = "log"\npath = "{log_file}"\n',
        server.environment,
    ).start()
    try:
        agent.until_logged("handler_completed", times=2)
        server.start()
        agent.until_logged("event_id_changed")
        server.complete()
        agent.until_logged("work_undone")
    finally:
        agent.stop()
    first, later = server.ids
    changed = [line.get("event") for line in agent.lines].index("event_id_changed")
    assert {line["event_id"] for line in agent.lines[changed:] if "event_id" in line} == {later}
    (undone,) = [line for line in agent.lines[changed:] if line.get("event") == "handler_reported"]
    assert undone["message"] == f"Reboot {later} is over or was cancelled"
    messages = [json.loads(line)["message"] for line in log_file.read_text().splitlines()]
    assert [first in messages[0], later in messages[1]] == [True, True]


def test_an_iso_time_is_understood(server: MockServer, diary: Diary, start: Callable[[str], AgentProcess]) -> None:
    server.schedule()
    agent = start('when = "5m"')
    agent.until_logged("event_scheduled")
    (event,) = agent.status()["events"]
    assert event["not_before"] == server.not_before()
    assert (from_text(event["not_before"]) - from_text(event["next_at"])).total_seconds() == 300
    assert diary.lines == []
    server.advance(minutes=10)
    agent.until(diary.has("end prepare web"))


def test_an_approval_without_effect_is_repeated_after_a_minute(
    server: MockServer, start: Callable[[str], AgentProcess]
) -> None:
    server.ignores_approvals = True
    scheduled = server.schedule()
    agent = start('approve = "self"')
    agent.until_logged("event_approved")
    assert agent.status()["events"][0]["approval"]["reason"] == "it is already approved"
    server.advance(seconds=61)
    agent.until_logged("approval_repeated")
    agent.kill()
    agent.start()
    server.ignores_approvals = False
    server.advance(seconds=61)
    agent.until_logged("event_started")
    assert server.approvals == [scheduled] * 3
    (repeated, *_) = [line for line in agent.lines if line.get("event") == "approval_repeated"]
    assert repeated["level"] == "info"
    assert sum(line.get("event") == "event_approved" for line in agent.lines) == 1


def test_an_event_of_other_vms_too_is_not_approved_and_that_is_logged_once(
    server: MockServer, diary: Diary, start: Callable[[str], AgentProcess]
) -> None:
    server.schedule("web-0", "web-1")
    agent = start('approve = "self"')
    agent.until_logged("approval_withheld")
    responses = agent.status()["polling"]["responses"]
    agent.until(lambda: agent.status()["polling"]["responses"] > responses + 2, "more polls")
    withheld = [message for message in agent.messages() if message.startswith("approval_withheld")]
    assert len(withheld) == 1
    assert "others=web-1" in withheld[0]
    assert server.approvals == []
    assert diary.done == ["prepare web"]


def test_the_library_keeps_ids_as_received(server: MockServer) -> None:
    scheduled = server.schedule()
    with Client(server.url, "web-0") as client:
        (event,) = client.document().events
        assert event.id == scheduled
        assert client.document().event(scheduled.upper()) == event
        changes = client.changes()
        assert next(changes).event == event
        client.approve(scheduled.upper())
        assert server.approvals == [scheduled]
        after = [next(changes), next(changes)]
    assert [(change.kind, change.event.id) for change in after] == [("started", server.ids[1]), ("gone", scheduled)]
