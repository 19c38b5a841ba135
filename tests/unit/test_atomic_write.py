"""A file is written completely or not at all, and is on disk when the write returns."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from forewarn.system.files import sync_folder, write_atomically

# Writes one letter, and is killed at the numbered line of write_atomically or of what it calls.
KILLED = """
import os, signal, sys
from pathlib import Path
from forewarn.system import files
left, path = int(sys.argv[1]), Path(sys.argv[2])
def trace(frame, what, _):
    global left
    if frame.f_code.co_filename != files.__file__:
        return None
    if what == "line":
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
    return trace
sys.settrace(trace)
files.write_atomically(path, b"new" * 100_000)
"""


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_content_and_mode_are_the_last_ones(tmp_path: Path) -> None:
    file = tmp_path / "one"
    write_atomically(file, b"1")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    write_atomically(file, b"2", 0o755)
    assert file.read_bytes() == b"2"
    assert stat.S_IMODE(file.stat().st_mode) == 0o755
    assert names(tmp_path) == {"one"}


def test_a_kill_at_any_line_leaves_the_old_content_or_the_new(tmp_path: Path) -> None:
    file = tmp_path / "file"
    found = []
    for number in range(1, 100):
        file.write_bytes(b"old")
        done = subprocess.run([sys.executable, "-c", KILLED, str(number), str(file)], check=False, timeout=60)
        found.append(file.read_bytes())
        if done.returncode == 0:
            break
    else:
        pytest.fail("it never came to an end")
    assert set(found) == {b"old", b"new" * 100_000}
    assert found == sorted(found, reverse=True), "once it is new it stays new"


def test_the_content_is_on_disk_before_the_name_and_the_name_before_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else f"{os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def noted_replace(path: Path, target: Path) -> Path:
        done.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    write_atomically(tmp_path / "file", b"123")
    assert done == ["3 bytes", "rename", "folder"]


@pytest.mark.parametrize("follow_links", [False, True])
def test_nothing_but_a_file_is_replaced(tmp_path: Path, follow_links: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(OSError, match=f"it is a {name}, not a regular file"):
            write_atomically(tmp_path / name, b"x", follow_links=follow_links)
    assert names(tmp_path) == {"pipe", "folder"}


def test_a_link_is_replaced_unless_it_is_to_be_followed(tmp_path: Path) -> None:
    link, precious = tmp_path / "link", tmp_path / "precious"
    precious.write_bytes(b"as it was")
    link.symlink_to("precious")
    write_atomically(link, b"followed", follow_links=True)
    assert (link.is_symlink(), precious.read_bytes()) == (True, b"followed")
    write_atomically(link, b"replaced")
    assert (link.is_symlink(), link.read_bytes(), precious.read_bytes()) == (False, b"replaced", b"followed")


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "file").write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        write_atomically(tmp_path / "file", b"new")
    assert names(tmp_path) == {"file"}
    assert (tmp_path / "file").read_bytes() == b"old"
    with pytest.raises(OSError, match="Input/output error"):
        sync_folder(tmp_path)


def test_a_file_system_that_cannot_sync_folders_is_good_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(os, "fsync", refuse)
    sync_folder(tmp_path)
