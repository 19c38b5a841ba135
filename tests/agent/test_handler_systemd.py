"""The handler `systemd`: its calls of systemctl, and how it uses the results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from agent.jobs import LoneJob, handler_of, then, toml_list
from forewarn.errors import BadAgentConfig, HandlerFailed
from programs import need

if TYPE_CHECKING:
    from pathlib import Path

# Keeps one file per running unit, and records its arguments.
SYSTEMCTL = """#!/bin/sh
folder=$(dirname "$0")
unit=$folder/active-$2
case $1 in
is-active) if [ -e "$unit" ]; then echo active; else echo inactive; exit 3; fi ;;
stop) [ "$2" = no-such ] && { echo "Failed to stop $2.service: Unit $2.service not loaded." >&2; exit 5; }
  echo "$*" >> "$folder/done"; rm -f "$unit" ;;
start) [ -e "$folder/broken-$2" ] && { echo "Job for $2.service failed." >&2; exit 1; }
  echo "$*" >> "$folder/done"; touch "$unit" ;;
esac
"""


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a systemctl that comes first."""
    folder = tmp_path / "system"
    folder.mkdir()
    (folder / "systemctl").write_text(SYSTEMCTL)
    (folder / "systemctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def done(system: Path) -> list[str]:
    path = system / "done"
    return path.read_text().splitlines() if path.exists() else []


def test_units_are_stopped_in_order_and_started_in_reverse_if_they_were_running(tmp_path: Path, system: Path) -> None:
    for unit in ("web", "worker"):
        (system / f"active-{unit}").touch()
    handler = handler_of(f'kind = "systemd"\nunits = {toml_list("web", "idle", "worker")}')
    assert handler.describe("prepare") == "stop web, idle, worker"
    assert handler.describe("undo") == "start worker, idle, web if they were running"
    job = LoneJob(tmp_path)
    handler.prepare(job)
    assert done(system) == ["stop web", "stop idle", "stop worker"]
    # Once more, as after a kill: what was running before is not forgotten.
    handler.prepare(then(job, "prepare"))
    handler.undo(then(job))
    assert done(system)[6:] == ["start worker", "start web"]


def test_a_missing_unit_is_a_failure_with_the_output_of_systemctl(tmp_path: Path, system: Path) -> None:
    with pytest.raises(HandlerFailed, match=r"stop no-such: .* exit code 5: .*Unit no-such.service not loaded"):
        handler_of('kind = "systemd"\nunit = "no-such"').prepare(LoneJob(tmp_path))
    assert done(system) == []


def test_a_unit_that_does_not_start_does_not_block_the_others(tmp_path: Path, system: Path) -> None:
    for unit in ("web", "worker"):
        (system / f"active-{unit}").touch()
    handler = handler_of(f'kind = "systemd"\nunits = {toml_list("web", "worker")}')
    job = LoneJob(tmp_path)
    handler.prepare(job)
    (system / "broken-worker").touch()
    with pytest.raises(HandlerFailed, match=r"start worker: .*Job for worker.service failed"):
        handler.undo(then(job))
    assert (system / "active-web").exists()


def test_nothing_is_started_that_was_never_stopped(tmp_path: Path, system: Path) -> None:
    handler_of('kind = "systemd"\nunit = "web"').undo(LoneJob(tmp_path, "undo"))
    assert done(system) == []


def test_a_missing_systemctl_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HandlerFailed, match="cannot run systemctl: it is not in PATH"):
        handler_of('kind = "systemd"\nunit = "web"').prepare(LoneJob(tmp_path))


def test_the_real_systemctl_is_understood(tmp_path: Path) -> None:
    """Whether systemd runs here or not: there is no such unit."""
    need("systemctl")
    job = LoneJob(tmp_path)
    with pytest.raises(HandlerFailed, match="systemctl stop forewarn-no-such-unit: systemctl ended with exit code"):
        handler_of('kind = "systemd"\nunit = "forewarn-no-such-unit"').prepare(job)
    assert job.memo == {"running": []}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "unit: It is missing"),
        ('unit = "a"\nunits = ["b"]', "either unit or units"),
        ("units = []", "Is empty"),
        ('units = ["a", "a"]', "listed twice"),
        ('unit = "--all"', "not a unit name"),
        ('unit = "a b"', "is not a valid name"),
    ],
)
def test_invalid_options_are_rejected(text: str, problem: str) -> None:
    with pytest.raises(BadAgentConfig, match=problem):
        handler_of(f'kind = "systemd"\n{text}')
