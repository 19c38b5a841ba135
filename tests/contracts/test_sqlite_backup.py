"""A backup is complete or absent, and a restore leaves the old or the new database, whatever happens meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from depth import amount
from forewarn.core.history import SKIPPED_NUMBERS
from forewarn.core.state import FORGOTTEN_ENABLING, Changes, Delivery, HistoryEntry
from forewarn.core.webhooks import Webhook
from forewarn.errors import (
    BackupFailed,
    BackupInProgress,
    BadBackup,
    BadOption,
    DataInUse,
    ForewarnError,
    NoDatabase,
    RestoreFailed,
    StoreDamaged,
    StoreForeign,
    StoreNewer,
)
from forewarn.ports import HistoryFilter
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_backup import back_up, prepare_restore
from forewarn.stores.sqlite_file import DATABASE_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from forewarn.ports import StoredState

NOW = datetime(2041, 5, 6, 7, 8, 9, tzinfo=UTC)


def history(*sequences: int) -> list[HistoryEntry]:
    return [HistoryEntry(NOW, "enabled", "test", sequence=sequence, group="web") for sequence in sequences]


def write(store: SqliteStore, mark: str, *sequences: int, incarnation: int = 5) -> None:
    """Commit something that names itself, and that fills some pages."""
    store.commit(
        Changes(
            facts={"mark": mark, "filler": mark * 20_000},
            deliveries={"web": Delivery("web", True, 4, incarnation)},
            last_seen={"web": NOW},
            history=history(*sequences),
        )
    )


def read(folder: Path) -> StoredState:
    store = SqliteStore(folder)
    try:
        return store.load()
    finally:
        store.close()


def mark_of(folder: Path) -> str:
    """The mark of a database. All of it must be of one commit."""
    facts = read(folder).facts
    assert facts["filler"] == facts["mark"] * 20_000
    return facts["mark"]


def mark_in(file: Path, folder: Path) -> str:
    """The mark of a backup."""
    folder.mkdir()
    shutil.copyfile(file, folder / DATABASE_NAME)
    try:
        return mark_of(folder)
    finally:
        shutil.rmtree(folder)


def restore(folder: Path, file: Path) -> Path | None:
    with prepare_restore(folder, file) as prepared:
        return prepared.finish(NOW, cancel_pending=False)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The folder of a stopped service."""
    folder = tmp_path / "data"
    store = SqliteStore(folder)
    write(store, "old", 1, 2, 3)
    store.close()
    return folder


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """The folder of a killed service: the newest commit is only in the log."""
    folder = tmp_path / "killed"
    store = SqliteStore(tmp_path / "running")
    write(store, "old", 1, 2, 3)
    shutil.copytree(tmp_path / "running", folder)
    store.close()
    shutil.rmtree(tmp_path / "running")
    assert (folder / f"{DATABASE_NAME}-wal").stat().st_size
    return folder


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of another database."""
    folder = tmp_path / "other"
    store = SqliteStore(folder)
    write(store, "new", *range(1, 9))
    store.close()
    back_up(folder, tmp_path / "backup.db", 1)
    return tmp_path / "backup.db"


# --- Backup ---------------------------------------------------------------------------------------


def test_a_backup_of_a_service_that_commits(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "data")
    write(store, "one", 1)
    first = back_up(tmp_path / "data", tmp_path / "b.db", 1)
    write(store, "two", 2)
    second = back_up(tmp_path / "data", tmp_path / "b.db", 1)
    write(store, "three", 3)
    assert (first.sequence, second.sequence) == (1, 2)
    assert mark_in(tmp_path / "b.db", tmp_path / "look") == "two"
    store.close()


def test_a_backup_is_one_file_that_only_its_owner_can_read(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    usual = os.umask(0)
    try:
        back_up(data, folder / "b.db", 1)
    finally:
        os.umask(usual)
    assert {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()} == {"b.db": 0o600}
    with closing(sqlite3.connect(f"file:{folder}/b.db?immutable=1", uri=True)) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert database.execute("PRAGMA journal_mode").fetchone() == ("delete",)


def test_the_files_of_a_killed_service_stay_as_they_are(killed: Path, tmp_path: Path) -> None:
    before = contents(killed)
    back_up(killed, tmp_path / "b.db", 1)
    after = contents(killed)
    assert mark_in(tmp_path / "b.db", tmp_path / "look") == "old", "it has what is only in the log"
    assert [name for name in before if name != f"{DATABASE_NAME}-shm" and before[name] != after[name]] == []


def test_keep(data: Path, tmp_path: Path) -> None:
    store = SqliteStore(data)
    for number in range(1, 6):
        write(store, str(number), 3 + number)
        back_up(data, tmp_path / "b.db", 3)
    store.close()
    found = {path.name: mark_in(path, tmp_path / "look") for path in tmp_path.glob("*b.db*")}
    assert found == {"b.db": "5", "b.db.1": "4", "b.db.2": "3"}
    back_up(data, tmp_path / "b.db", 1)
    assert sorted(path.name for path in tmp_path.glob("*b.db*")) == ["b.db", "b.db.1", "b.db.2"]


def test_two_backups_to_one_file(data: Path, tmp_path: Path) -> None:
    """The second fails. Afterwards the first has left nothing that stops a third."""
    program = "import fcntl, os, sys; os.mkdir('.b.db.new', 0o700); d = os.open('.b.db.new', os.O_RDONLY)"
    program += "; fcntl.flock(d, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", program], cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    first.stdout.readline()
    with pytest.raises(BackupInProgress, match=r"b\.db"):
        back_up(data, tmp_path / "b.db", 1)
    first.communicate()
    back_up(data, tmp_path / "b.db", 1)
    assert not (tmp_path / ".b.db.new").exists()


def test_a_link_is_followed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "b.db").symlink_to(tmp_path / "disk" / "real.db")
    back_up(data, tmp_path / "b.db", 1)
    back_up(data, tmp_path / "b.db", 2)
    assert (tmp_path / "b.db").is_symlink()
    assert sorted(path.name for path in (tmp_path / "disk").iterdir()) == ["real.db", "real.db.1"]


def _foreign(path: Path) -> None:
    """Replace a file with the database of another program."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE t (x)")


TARGETS: dict[str, tuple[Callable[[Path], Path], type[Exception], str]] = {
    "a folder": (lambda folder: folder, BadOption, "it is a folder"),
    "in the data folder": (lambda folder: folder / "data" / "b.db", BadOption, "it is in the data folder"),
    "the database": (lambda folder: folder / "data" / DATABASE_NAME, BadOption, "it is in the data folder"),
    "a link to it": (lambda folder: folder / "link", BadOption, "it is in the data folder"),
    "another name of it": (lambda folder: folder / "twin", BadOption, "it is in the data folder"),
    "a link to itself": (lambda folder: folder / "loop", BadOption, "(?i)symbolic links"),
    "in no folder": (lambda folder: folder / "no" / "b.db", BadOption, "/no does not exist. Create it first"),
    "another file": (lambda folder: folder / "notes.txt", BadOption, "is not a backup of Forewarn"),
    "another database": (lambda folder: folder / "foreign.db", BadOption, "is not a backup of Forewarn"),
    "not writable": (lambda _: Path("/sys/b.db"), BackupFailed, "not permitted|denied|Read-only"),
    "too long": (lambda folder: folder / ("b" * 252), BackupFailed, "name too long"),
}


@pytest.mark.parametrize("case", TARGETS)
def test_files_that_a_backup_does_not_write(data: Path, tmp_path: Path, case: str) -> None:
    path, error, text = TARGETS[case]
    (tmp_path / "link").symlink_to(data / DATABASE_NAME)
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "twin").hardlink_to(data / DATABASE_NAME)
    (tmp_path / "notes.txt").write_text("important" * 100)
    _foreign(tmp_path / "foreign.db")
    before, names = contents(data), sorted(tmp_path.rglob("*"))
    with pytest.raises(error, match=text):
        back_up(data, path(tmp_path), 3)
    assert contents(data) == before
    assert sorted(tmp_path.rglob("*")) == names


def _damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096 : 4096 * 3] = b"\xa5" * 8192
    path.write_bytes(content)


SOURCES: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "none": (lambda path: path.unlink(), NoDatabase, "has no database"),
    "damaged pages": (_damage, ForewarnError, "damaged|malformed"),
    "garbage": (lambda path: path.write_bytes(b"garbage" * 1000), StoreDamaged, "is damaged"),
    "another program's": (_foreign, StoreForeign, "not a Forewarn database"),
    "empty": (lambda path: path.write_bytes(b""), StoreDamaged, "the file is empty"),
}


@pytest.mark.parametrize("case", SOURCES)
def test_a_database_that_cannot_be_read_replaces_no_backup(data: Path, tmp_path: Path, case: str) -> None:
    back_up(data, tmp_path / "b.db", 1)
    good = (tmp_path / "b.db").read_bytes()
    break_it, error, text = SOURCES[case]
    break_it(data / DATABASE_NAME)
    with pytest.raises(error, match=text):
        back_up(data, tmp_path / "b.db", 3)
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*b.db*")} == {"b.db": good}


def test_content_that_a_service_could_not_load_replaces_no_backup(data: Path, tmp_path: Path) -> None:
    """SQLite finds nothing wrong with it."""
    with closing(sqlite3.connect(data / DATABASE_NAME, isolation_level=None)) as database:
        database.execute("UPDATE delivery SET last_seen_at = 'yesterday'")
    with pytest.raises(BackupFailed, match="its content cannot be read"):
        back_up(data, tmp_path / "b.db", 3)
    assert list(tmp_path.glob("*b.db*")) == []


# --- Restore --------------------------------------------------------------------------------------


def test_the_replaced_database_is_kept_and_can_be_restored_again(killed: Path, backup: Path) -> None:
    aside = restore(killed, backup)
    assert mark_of(killed) == "new"
    assert aside == killed / f"{DATABASE_NAME}.before-restore-1"
    assert restore(killed, aside) == killed / f"{DATABASE_NAME}.before-restore-2"
    assert mark_of(killed) == "old", "with what was only in its log"


def test_an_empty_folder(tmp_path: Path, backup: Path) -> None:
    assert restore(tmp_path / "empty" / "folder", backup) is None
    assert mark_of(tmp_path / "empty" / "folder") == "new"


def test_no_number_is_used_again(data: Path, tmp_path: Path) -> None:
    """Also if the same backup is restored twice."""
    back_up(data, tmp_path / "b.db", 1)
    used, seen = 3, 5
    for _ in range(2):
        store = SqliteStore(data)
        write(store, "later", used + 1, used + 2, incarnation=seen + 1)
        store.close()
        restore(data, tmp_path / "b.db")
        state = read(data)
        assert state.sequence >= used + 2 + SKIPPED_NUMBERS
        assert state.deliveries[0].incarnation >= seen + 1 + SKIPPED_NUMBERS
        assert state.deliveries[0].enabling >= 4 + SKIPPED_NUMBERS
        assert state.facts[FORGOTTEN_ENABLING] == str(state.deliveries[0].enabling)
        used, seen = state.sequence, state.deliveries[0].incarnation


def test_a_row_of_history_marks_the_place(data: Path, tmp_path: Path) -> None:
    back_up(data, tmp_path / "b.db", 1)
    restore(tmp_path / "restored", tmp_path / "b.db")
    store = SqliteStore(tmp_path / "restored")
    (*_, before, row) = store.history(HistoryFilter())
    store.close()
    assert (before.sequence, row.sequence, row.kind) == (3, 3 + SKIPPED_NUMBERS, "restored")
    assert row.reason == "from a backup with history up to row 3"


def test_a_webhook_that_was_up_to_date_is_not_behind(data: Path, tmp_path: Path) -> None:
    store = SqliteStore(data)
    hooks = [
        Webhook(name, "http://example.com/", "s" * 16, "test", NOW, cursor=at) for name, at in (("a", 3), ("b", 2))
    ]
    store.commit(Changes(webhooks={hook.name: hook for hook in hooks}))
    store.close()
    back_up(data, tmp_path / "b.db", 1)
    restore(data, tmp_path / "b.db")
    state = read(data)
    assert {hook.name: state.sequence - hook.cursor for hook in state.webhooks} == {"a": 1, "b": SKIPPED_NUMBERS + 1}


def test_a_folder_in_use(data: Path, backup: Path) -> None:
    store = SqliteStore(data)
    with pytest.raises(DataInUse):
        restore(data, backup)
    store.close()
    restore(data, backup)


def test_a_database_that_another_program_reads(data: Path, backup: Path) -> None:
    """Its log would be used with the new database."""
    store = SqliteStore(data)
    with closing(sqlite3.connect(data / DATABASE_NAME, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM fact").fetchall()
        store.close()
        with pytest.raises(RestoreFailed, match="a backup may be reading it"):
            restore(data, backup)
    assert mark_of(data) == "old"


@pytest.mark.parametrize("name", ["garbage", "cut short", "empty"])
def test_a_damaged_database_is_not_replaced_before_it_is_moved_away(killed: Path, backup: Path, name: str) -> None:
    path = killed / DATABASE_NAME
    path.write_bytes({"garbage": b"garbage" * 1000, "cut short": path.read_bytes()[:5000], "empty": b""}[name])
    damaged = path.read_bytes()
    with pytest.raises(RestoreFailed, match=f"is damaged .*Move {DATABASE_NAME}\\* to another folder first"):
        restore(killed, backup)
    assert path.read_bytes() == damaged
    assert (killed / f"{DATABASE_NAME}-wal").exists()
    for part in list(killed.glob(f"{DATABASE_NAME}*")):
        part.rename(killed.parent / part.name)
    assert restore(killed, backup) is None
    assert mark_of(killed) == "new"


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BACKUPS: dict[str, tuple[Callable[[Path], object], type[Exception], str]] = {
    "a folder": (_folder, BadBackup, "it is a folder"),
    "missing": (lambda path: path.unlink(), BadBackup, "No such file"),
    "empty": (lambda path: path.write_bytes(b""), BadBackup, "it is empty"),
    "a pipe": (_pipe, BadBackup, "it is a pipe"),
    "garbage": (lambda path: path.write_bytes(b"garbage" * 1000), BadBackup, "not a database of Forewarn"),
    "foreign": (_foreign, BadBackup, "not a database of Forewarn"),
    "cut short": (lambda path: path.write_bytes(path.read_bytes()[:9000]), BadBackup, "it is damaged"),
    "only a header": (lambda path: path.write_bytes(path.read_bytes()[:100]), BadBackup, "it is damaged"),
    "damaged": (_damage, BadBackup, "it is damaged"),
    "newer": (lambda path: _execute(path, "PRAGMA user_version = 99"), StoreNewer, "schema 99"),
    "unreadable": (
        lambda path: _execute(path, "UPDATE delivery SET last_seen_at = 'x'"),
        BadBackup,
        "its content cannot be read",
    ),
    "with a log": (
        lambda path: path.with_name(f"{path.name}-wal").write_bytes(b"x"),
        BadBackup,
        "it may be in use.* forewarn backup --data",
    ),
}


def _execute(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(statement)


@pytest.mark.parametrize("case", BACKUPS)
def test_files_that_are_not_restored(data: Path, backup: Path, case: str) -> None:
    change, error, text = BACKUPS[case]
    change(backup)
    before = contents(data)
    with pytest.raises(error, match=text):
        restore(data, backup)
    assert contents(data) == before
    assert not (data / ".restore.new").exists()


def test_the_current_database_is_not_restored(data: Path) -> None:
    with pytest.raises(BadBackup, match="it is the current database"):
        restore(data, data / DATABASE_NAME)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_files_that_root_writes_belong_to_the_owner_of_the_folder(data: Path, tmp_path: Path) -> None:
    nobody = 65534
    for path in (data, *data.iterdir()):
        os.chown(path, nobody, nobody)
    back_up(data, tmp_path / "b.db", 1)
    assert {path.name for path in data.iterdir() if path.stat().st_uid != nobody} == set()
    (data / "lock").unlink()
    restore(data, tmp_path / "b.db")
    assert {path.name for path in data.iterdir() if path.stat().st_uid != nobody} == set()


# --- Full disks and signals -----------------------------------------------------------------------


class Signals:
    """Starts processes that back up or restore, and that get a signal at a line of the code."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).parent / "signal_at_line.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, do: str, folder: Path, file: Path, line: int, number: int = signal.SIGKILL) -> int:
        """Return the exit code: 0 if the code has fewer lines."""
        order: dict[str, Any] = {
            "do": do,
            "folder": str(folder),
            "file": str(file),
            "line": line,
            "signal": number,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture
def signals() -> Iterator[Signals]:
    signals = Signals()
    yield signals
    signals.close()


STEP = 120 // amount(120, 12)
"""Each line in the deep profile; every tenth otherwise."""


@pytest.mark.timeout(900)
def test_a_backup_that_is_killed_leaves_the_earlier_one(
    killed: Path, backup: Path, signals: Signals, tmp_path: Path
) -> None:
    good = backup.read_bytes()
    ends = []
    for line in range(1, 1000, STEP):
        backup.write_bytes(good)
        ends.append(signals.run("backup", killed, backup, line))
        assert mark_in(backup, tmp_path / "look") in ("old", "new")
        for numbered in tmp_path.glob("backup.db.*"):
            assert mark_in(numbered, tmp_path / "look") in ("old", "new")
        if ends[-1] == 0:
            break
        assert ends[-1] == -signal.SIGKILL
        back_up(killed, backup, 2)
        assert mark_in(backup, tmp_path / "look") == "old"
        assert list(tmp_path.glob(".*")) == []
    assert ends[-1] == 0
    assert len(ends) > 60 / STEP


def test_a_backup_that_is_terminated_leaves_no_other_file(
    killed: Path, backup: Path, signals: Signals, tmp_path: Path
) -> None:
    for line in range(1, 1000, 2 * STEP):
        code = signals.run("backup", killed, backup, line, signal.SIGTERM)
        assert code in (0, 128 + signal.SIGTERM)
        assert list(tmp_path.glob(".*")) == []
        if code == 0:
            return
    pytest.fail("it never ended")


@pytest.mark.timeout(900)
def test_a_restore_that_is_killed_leaves_the_old_or_the_new_database(
    killed: Path, backup: Path, signals: Signals, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    ends, marks = [], []
    for line in range(1, 1000, STEP):
        shutil.copytree(killed, work)
        ends.append(signals.run("restore", work, backup, line))
        marks.append(mark_of(work))
        restore(work, backup)
        assert mark_of(work) == "new"
        assert list(work.glob(".*")) == []
        asides = [mark_in(path, tmp_path / "look") for path in work.glob("*.before-restore-?")]
        assert "old" in asides, "the replaced database is never lost"
        shutil.rmtree(work)
        if ends[-1] == 0:
            break
        assert ends[-1] == -signal.SIGKILL
    assert ends[-1] == 0
    assert marks == sorted(marks, key=["old", "new"].index)
    assert len(ends) > 60 / STEP


FULL = """
import resource, sys
from pathlib import Path
from forewarn.clock import SystemClock
from forewarn.errors import ForewarnError
from forewarn.stores.sqlite_backup import back_up, prepare_restore
command, folder, file = sys.argv[1], *map(Path, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    if command == "backup":
        back_up(folder, file, 3)
    else:
        with prepare_restore(folder, file) as restore:
            restore.finish(SystemClock().now(), cancel_pending=False)
except ForewarnError as error:
    print(error)
"""


@pytest.mark.parametrize("command", ["backup", "restore"])
def test_a_full_disk(data: Path, backup: Path, command: str) -> None:
    """A limit of the file size fails like a full disk."""
    good, before = backup.read_bytes(), contents(data)
    result = subprocess.run(
        [sys.executable, "-c", FULL, command, data, backup], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith(f"Cannot {command.replace('backup', 'back up to')} {backup}: ")
    assert result.stdout.count("\n") == 1
    assert {path.name: path.read_bytes() for path in backup.parent.glob("*backup.db*")} == {"backup.db": good}
    after = contents(data)
    assert [name for name in before if name != "lock" and before[name] != after[name]] == []
    assert not list(data.glob("*restore*"))
    restore(data, backup)
    assert mark_of(data) == "new"
