"""The agent's history: what it keeps, its limit, and what a reader gets."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from forewarn.agent.cli.main import main
from forewarn.agent.history import FILE, MAX_FILE_BYTES, OLDER_FILE, HistoryWriter, read_history
from forewarn.system.logs import EventLogger

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def log(tmp_path: Path) -> EventLogger:
    logger = logging.Logger("test")  # noqa: LOG001 - no other test sees it
    logger.addHandler(HistoryWriter(tmp_path))
    return EventLogger(logger)


def test_results_about_events_are_kept(log: EventLogger, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    about: dict[str, Any] = {"event_id": "E1", "event_type": "Reboot"}
    log.info("agent_started", "Agent started.")
    log.info("event_scheduled", "Event scheduled.", **about, rule="web")
    log.info("handler_started", "Handler started.", **about, handler="pool")
    log.error("handler_failed", "Handler failed.", **about, handler="pool", seconds=1.5, error="\x1b[2Jno luck")
    assert main(["history", "--state", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("Z  Reboot e1  Event scheduled. rule=web")
    assert second.endswith('Z  Reboot e1  Handler failed. handler=pool seconds=1.5 error="\\u001b[2Jno luck"')
    assert main(["history", "--state", str(tmp_path), "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)["entries"]
    assert [entry["event"] for entry in entries] == ["event_scheduled", "handler_failed"]
    assert entries[1]["seconds"] == 1.5
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_the_size_is_limited(log: EventLogger, tmp_path: Path) -> None:
    for number in range(400):
        log.info("event_approved", "Event approved.", event_id=str(number), text="x" * 4000)
    kept = [int(entry["event_id"]) for entry in read_history(tmp_path)]
    assert kept == list(range(kept[0], 400))
    assert 0 < kept[0] < 300
    assert all((tmp_path / name).stat().st_size <= MAX_FILE_BYTES for name in (FILE, OLDER_FILE))


def test_a_line_that_was_cut_off_is_skipped(log: EventLogger, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"event_id": "E0"\n[]\n\xff\n')
    log.info("event_approved", "Event approved.", event_id="E1")
    assert [entry["event_id"] for entry in read_history(tmp_path)] == ["e1"]


def test_an_agent_whose_history_cannot_be_written_goes_on(
    log: EventLogger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging, "raiseExceptions", False)  # as configure_logging does
    (tmp_path / FILE).mkdir()
    log.info("event_approved", "Event approved.", event_id="E1")
    assert main(["history", "--state", str(tmp_path)]) == 5


def test_without_history(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["history", "--state", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'none'} has no history.\n"
