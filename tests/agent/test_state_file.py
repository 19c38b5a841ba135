"""What an agent leaves behind for the next one."""

from __future__ import annotations

import json
import logging
import os
import stat
from typing import TYPE_CHECKING

import pytest

from agent.events import ME, make_event
from forewarn.agent.policy import Rule
from forewarn.agent.state import FILE, PREPARED, StateFile, WorkStore, from_json, new_work, to_json
from forewarn.errors import NotPermitted, StateInUse
from forewarn.wire.document_reader import read_event_leniently

if TYPE_CHECKING:
    from pathlib import Path

WORK = new_work(make_event(), ME, Rule("r", prepare=("a",)), "boot").with_step(0, state=PREPARED, memo={"was": "ready"})


def test_the_next_agent_finds_the_work_in_progress(tmp_path: Path) -> None:
    first = StateFile(tmp_path / "deep" / "state")
    assert WorkStore(first).keep(WORK)
    first.close()
    assert StateFile(tmp_path / "deep" / "state").load() == [WORK]
    assert stat.S_IMODE((tmp_path / "deep" / "state" / FILE).stat().st_mode) == 0o600


def test_two_agents_do_not_share_a_folder(tmp_path: Path) -> None:
    first = StateFile(tmp_path)
    with pytest.raises(StateInUse, match="--state"):
        StateFile(tmp_path)
    first.close()
    StateFile(tmp_path).close()


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotPermitted, match="--state"):
        StateFile(tmp_path / "file" / "state")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 1}', '{"version": 2, "works": []}', '{"version":1,"works":[{}]}']
)
def test_an_unreadable_file_is_moved_aside(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / FILE).write_text(text)
    file = StateFile(tmp_path)
    assert file.load() == []
    assert (tmp_path / "state.unreadable").read_text() == text
    assert "state.unreadable" in str(caplog.records[0].__dict__["fields"]["renamed_to"])


def test_a_failed_write_is_repeated_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    store = WorkStore(StateFile(tmp_path))
    (tmp_path / FILE).mkdir()  # in the way of every write, also for root
    assert not store.keep(WORK)
    assert not store.save_pending()
    assert caplog.text.count("Cannot write the state file") == 1
    (tmp_path / FILE).rmdir()
    assert store.save_pending()
    assert "The state file can be written again" in caplog.text
    store.close()
    assert StateFile(tmp_path).load() == [WORK]


def test_an_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    store = WorkStore(StateFile(tmp_path))
    store.keep(WORK)
    os.utime(tmp_path / FILE, (1, 1))
    assert store.replace(dict(store.works))
    assert (tmp_path / FILE).stat().st_mtime == 1
    assert store.save_pending()
    assert (tmp_path / FILE).stat().st_mtime == 1
    assert store.keep(ended=[WORK.id])
    assert (tmp_path / FILE).stat().st_mtime != 1


def test_changes_for_later_are_one_write(tmp_path: Path) -> None:
    file = StateFile(tmp_path)
    store = WorkStore(file)
    approved = WORK._replace(approved_at="2031-05-04T12:00:00Z")
    store.keep_for_later(approved)
    assert not (tmp_path / FILE).exists()
    assert store.save_pending()
    other = WORK._replace(event=make_event("E2"))
    assert store.keep(other)
    assert store.keep(ended=[approved.id])
    store.close()
    assert StateFile(tmp_path).load() == [other]


def test_an_event_with_an_unreadable_time_is_stored() -> None:
    """Work can start for such an event, so the next start must find that work."""
    raw = {
        "EventId": "A",
        "EventType": "Reboot",
        "EventStatus": "Scheduled",
        "Resources": ["web-0"],
        "NotBefore": "0001-01-01T00:00:00Z",
    }
    event, problem = read_event_leniently(raw)
    assert event is not None
    assert problem
    work = new_work(event, "web-0", Rule("one", on=("Reboot",)), "boot")
    assert from_json(json.loads(json.dumps(to_json(work)))) == work
