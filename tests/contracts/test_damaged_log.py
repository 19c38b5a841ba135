"""A damaged write-ahead log never loses commits silently."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.state import FORGOTTEN_ENABLING, Changes, Delivery, HistoryEntry
from forewarn.errors import StoreDamaged
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import DATABASE_NAME
from forewarn.stores.sqlite_log import log_path, sequence_path

NOW = datetime(2041, 5, 6, tzinfo=UTC)
COMMITS = 12
FRAME = 24 + 4096


def fill(folder: Path) -> SqliteStore:
    store = SqliteStore(folder)
    store.commit(Changes(deliveries={"web": Delivery("web", True, 3, 7)}, last_seen={"web": NOW}))
    for number in range(1, COMMITS + 1):
        entry = HistoryEntry(NOW, "requested", "test", number)
        store.commit(Changes(facts={f"fact-{number:02d}": "x" * 500}, history=[entry]))
    return store


def crashed(folder: Path, *, checkpoint: bool = False, only_facts: int = 0) -> Path:
    """Return a database with a log that contains commits, as a killed process leaves it."""
    code = (
        "import sys, os, pathlib; sys.path.insert(0, sys.argv[1]); from test_damaged_log import *\n"
        "store = fill(pathlib.Path(sys.argv[2]))\n"
        "if sys.argv[3] == 'True': store._db.execute('PRAGMA wal_checkpoint')\n"
        "for n in range(int(sys.argv[4])): store.commit(Changes(facts={'alive_at': str(n) * 2000}))\n"
        "os._exit(9)"
    )
    arguments = [str(Path(__file__).parent), str(folder), str(checkpoint), str(only_facts)]
    ended = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert ended.returncode == 9, ended.stderr
    return folder / DATABASE_NAME


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 4
    path.write_bytes(content)


def commit_ends(log: Path) -> list[int]:
    """Return the number of the last frame of each commit."""
    content = log.read_bytes()
    salt, ends = content[16:24], []
    for number, start in enumerate(range(32, len(content), FRAME)):
        if content[start + 8 : start + 16] != salt:
            break
        if content[start + 4 : start + 8] != bytes(4):
            ends.append(number)
    return ends


REGIONS = {"page": 1, "size": 6, "salt": 9, "checksum": 17, "first byte": 24, "middle": 2000, "last byte": FRAME - 1}


def every_position(log: Path) -> list[int]:
    """Return a position in each region of the header, and of frames of the first, a middle and the last commit."""
    ends = commit_ends(log)
    assert len(ends) > COMMITS
    frames = {0, ends[0], ends[len(ends) // 2], ends[-2] + 1, ends[-1]}
    return [0, 9, 13, 17, 22, 25, 30] + [32 + frame * FRAME + offset for frame in frames for offset in REGIONS.values()]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_flipped_bit_never_loses_a_commit_silently(tmp_path: Path, checkpoint: bool) -> None:
    original = crashed(tmp_path / "original", checkpoint=checkpoint)
    losses = 0
    for position in every_position(log_path(original)):
        folder = tmp_path / str(position)
        shutil.copytree(original.parent, folder)
        database = folder / DATABASE_NAME
        flip(log_path(database), position)
        damaged = log_path(database).read_bytes()
        try:
            store = SqliteStore(folder)
        except StoreDamaged:  # only if the database file had all changes: SQLite replaces newer pages by older ones
            assert checkpoint
            shutil.rmtree(folder)
            continue
        with closing(store):
            state = store.load()
            facts = sorted(state.facts.keys() - {FORGOTTEN_ENABLING})
            rows = store.history(HistoryFilter())
        expected = [f"fact-{number:02d}" for number in range(1, COMMITS + 1)]
        aside = log_path(database).with_name(f"{DATABASE_NAME}-wal.damaged-1")
        if facts == expected and rows[-1].kind != "changes-lost":
            assert [row.sequence for row in rows] == list(range(1, COMMITS + 1))
            continue
        losses += 1
        assert facts == expected[: len(facts)], "an earlier state, not a mixture"
        assert aside.read_bytes() == damaged
        assert aside.stat().st_mode & 0o777 == 0o600
        assert rows[-1].kind == "changes-lost"
        assert f"{COMMITS - len(facts)} rows" in rows[-1].reason
        assert state.sequence == COMMITS + SKIPPED_NUMBERS, "no sequence is used twice"
        if state.deliveries:
            assert state.deliveries[0].incarnation == 7 + SKIPPED_NUMBERS
            enabling = state.deliveries[0].enabling
            assert enabling > SKIPPED_NUMBERS
            assert state.facts[FORGOTTEN_ENABLING] == str(enabling)
        with closing(SqliteStore(folder)) as store:
            assert store.load().sequence == state.sequence, "reported once"
        shutil.rmtree(folder)
    assert checkpoint or losses > 20


@pytest.mark.parametrize("content", [None, b"", b"garbage", "behind"])
def test_a_missing_damaged_or_older_sequence_file_is_no_alarm(tmp_path: Path, content: bytes | str | None) -> None:
    database = crashed(tmp_path)
    path = sequence_path(database)
    if content == "behind":
        with closing(SqliteStore(tmp_path)) as store:
            assert store._opened.sequence_file is not None
            store._opened.sequence_file.write(3)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.unlink()
    with closing(SqliteStore(tmp_path)) as store:
        assert store.load().sequence == COMMITS


def test_an_older_database_under_a_newer_sequence_is_noticed(tmp_path: Path) -> None:
    """As if somebody had copied an old database into the folder."""
    fill(tmp_path).close()
    older = (tmp_path / DATABASE_NAME).read_bytes()
    with closing(SqliteStore(tmp_path)) as store:
        store.commit(Changes(history=[HistoryEntry(NOW, "requested", "test", COMMITS + 1)]))
    (tmp_path / DATABASE_NAME).write_bytes(older)
    with closing(SqliteStore(tmp_path)) as store:
        assert store.load().sequence == COMMITS + 1 + SKIPPED_NUMBERS


def test_a_crash_without_damage_is_no_alarm(tmp_path: Path) -> None:
    for checkpoint in (False, True):
        database = crashed(tmp_path / str(checkpoint), checkpoint=checkpoint)
        with closing(SqliteStore(database.parent)) as store:
            assert store.load().sequence == COMMITS
        assert not list(database.parent.glob("*damaged*"))


def test_the_log_stays_small_after_a_large_transaction(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        log = log_path(tmp_path / DATABASE_NAME)
        normal = log.stat().st_size
        store.commit(Changes(facts={"large": "x" * 20_000_000}))
        assert log.stat().st_size > 20_000_000
        store.commit(Changes(facts={"small": "x"}))
        assert log.stat().st_size <= normal * 2


def test_a_refused_database_keeps_its_log(tmp_path: Path) -> None:
    database = crashed(tmp_path)
    content = bytearray(database.read_bytes())
    content[4096:] = b"\xa5" * (len(content) - 4096)
    database.write_bytes(content)
    log = log_path(database).read_bytes()
    with pytest.raises(StoreDamaged):
        SqliteStore(tmp_path)
    assert database.read_bytes() == content
    assert log_path(database).read_bytes() == log
