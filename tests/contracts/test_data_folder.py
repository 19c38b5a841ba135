"""The lock of a data folder, who may write to it, and what is not a database file."""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from contextlib import closing
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from forewarn.core.state import Changes, HistoryEntry
from forewarn.errors import DataFolderOfOther, DataFolderWritable, DataInUse, NotARegularFile
from forewarn.stores.sqlite import SqliteStore
from forewarn.stores.sqlite_file import DATABASE_NAME
from programs import need_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


NOW = datetime(2041, 5, 6, tzinfo=UTC)


def test_the_lock_survives_the_removal_of_its_file(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)):
        (tmp_path / "lock").unlink()
        with pytest.raises(DataInUse):
            SqliteStore(tmp_path)
    SqliteStore(tmp_path).close()


def test_the_file_is_locked_too(tmp_path: Path) -> None:
    """Some file systems can lock files, but not folders."""
    with closing(SqliteStore(tmp_path)), (tmp_path / "lock").open("a+") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with (tmp_path / "lock").open("w") as lock:
        lock.write("4711")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(DataInUse, match="process 4711"):
            SqliteStore(tmp_path)


def test_the_lock_follows_no_link(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    (folder / "lock").symlink_to(target)
    with pytest.raises(NotARegularFile, match="lock is a symbolic link, not a regular file"):
        SqliteStore(folder)
    assert target.read_text() == "content"


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path)) as store:
        store.commit(Changes(facts={"a": "1"}, history=[HistoryEntry(NOW, "requested", "test", 1)]))
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert {"lock", DATABASE_NAME, f"{DATABASE_NAME}-wal", f"{DATABASE_NAME}-sequence"} <= modes.keys()
    assert set(modes.values()) == {0o600}


def test_a_folder_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with closing(SqliteStore(tmp_path / "link")), pytest.raises(DataInUse):
        SqliteStore(tmp_path / "real")


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(DataFolderWritable, match=f"chmod go-w {tmp_path}"):
        SqliteStore(tmp_path)
    assert list(tmp_path.iterdir()) == []
    tmp_path.chmod(0o755)
    SqliteStore(tmp_path).close()


def test_a_new_folder_is_for_the_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        SqliteStore(tmp_path / "data").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    need_root()
    os.chown(tmp_path, 12345, 12345)
    with pytest.raises(DataFolderOfOther, match="user id 12345"):
        SqliteStore(tmp_path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("a folder", lambda path: path.mkdir()),
        ("a pipe", os.mkfifo),
        ("a socket", _socket),
        ("a symbolic link to nothing", lambda path: path.symlink_to("nowhere")),
    ],
)
def test_what_is_not_a_file_is_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / DATABASE_NAME)
    with pytest.raises(NotARegularFile, match=f"{DATABASE_NAME} is {kind}, not a regular file"):
        SqliteStore(tmp_path)


def test_a_database_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    SqliteStore(tmp_path / "data").close()
    (tmp_path / "data" / DATABASE_NAME).rename(tmp_path / "other" / DATABASE_NAME)
    (tmp_path / "data" / DATABASE_NAME).symlink_to(tmp_path / "other" / DATABASE_NAME)
    with closing(SqliteStore(tmp_path / "data")) as store:
        assert (tmp_path / "other" / f"{DATABASE_NAME}-wal").exists()
        assert store.load().sequence == 0
