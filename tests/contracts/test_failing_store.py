"""A commit that fails on a failing disk has no effect, also after a crash."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from failing_disk import FailingDisk
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> FailingDisk:
    return FailingDisk.build(tmp_path_factory.mktemp("disk"))


def run(disk: FailingDisk, folder: Path, scenario: str) -> list[str]:
    """Run a scenario of failing_store.py. Returns the outcome of each commit."""
    tests = Path(__file__).parents[1]
    environment = os.environ | disk.variables | {"PYTHONPATH": str(tests)}
    program = [sys.executable, str(Path(__file__).with_name("failing_store.py")), str(folder), scenario]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 9, ended.stderr
    return ended.stdout.split()


def facts(folder: Path) -> list[str]:
    """Return what the database has after the crash."""
    with closing(SqliteStore(folder)) as store:
        found = store.load().facts.keys()
        assert len(found) == len(store.history(HistoryFilter())), "a fact and its history row are one commit"
        return sorted(found)


@pytest.mark.parametrize(
    "scenario",
    [
        "one_sync",
        "large_transaction",
        "large_transaction_without_space",
        "header_of_a_restarted_log",
        "first_commit_of_a_restarted_log",
        "some_writes",
        "no_space_for_some_writes",
    ],
)
def test_a_failed_commit_does_not_appear_after_a_crash(disk: FailingDisk, tmp_path: Path, scenario: str) -> None:
    assert run(disk, tmp_path, scenario) == ["done", "failed"]
    assert facts(tmp_path) == ["kept"]


def test_a_commit_whose_outcome_is_unknown_is_void_when_the_disk_works_again(disk: FailingDisk, tmp_path: Path) -> None:
    assert run(disk, tmp_path, "all_syncs") == ["done", "unknown", "failed", "done"]
    assert facts(tmp_path) == ["kept", "later"]


def test_until_then_it_may_appear_but_nothing_later_does(disk: FailingDisk, tmp_path: Path) -> None:
    assert run(disk, tmp_path, "all_syncs_until_the_crash") == ["done", "unknown", "failed"]
    assert facts(tmp_path) in (["kept"], ["kept", "unknown"])


def test_a_failed_removal_removes_nothing(disk: FailingDisk, tmp_path: Path) -> None:
    assert run(disk, tmp_path, "removal") == ["done", "done", "failed"]
    assert facts(tmp_path) == ["kept", "newest"]
