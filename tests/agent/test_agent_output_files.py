"""Files that the agent's command line writes: it does not overwrite other files."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest

from forewarn.agent.cli.install import UNIT_NAME
from forewarn.agent.cli.main import main


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("FOREWARN_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "units").mkdir()
    return tmp_path


def bundle(output: Path | str) -> int:
    return main(["bundle", "--output", str(output)])


def install(*arguments: str) -> int:
    return main(["install", "--unit-dir", "units", *arguments])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(path.name if path.parent == Path.cwd() else os.path.relpath(path))


def test_a_bundle_never_takes_the_place_of_a_device_or_a_pipe(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    make_socket(folder / "socket")
    (folder / "link").symlink_to("pipe")
    (folder / "taken").mkdir()
    before = names(folder)
    for name, what in (("pipe", "a pipe"), ("socket", "a socket"), ("link", "a pipe"), ("taken", "a folder")):
        assert bundle(folder / name) == 5
        assert f"Cannot write {folder / name}: it is {what}, not a regular file. " in capsys.readouterr().err
    assert stat.S_ISFIFO((folder / "pipe").lstat().st_mode)
    assert stat.S_ISSOCK((folder / "socket").lstat().st_mode)
    assert (folder / "link").is_symlink()
    assert names(folder) == before


def test_a_bundle_is_written_to_the_target_of_a_symbolic_link(folder: Path) -> None:
    (folder / "versions").mkdir()
    (folder / "versions" / "1.pyz").write_text("older")
    (folder / "agent.pyz").symlink_to("versions/1.pyz")
    (folder / "new.pyz").symlink_to("versions/2.pyz")  # which is not there yet
    assert bundle("agent.pyz") == 0
    assert bundle("new.pyz") == 0
    assert (folder / "agent.pyz").is_symlink()
    assert (folder / "versions" / "1.pyz").read_bytes().startswith(b"#!/usr/bin/env python3\n")
    assert names(folder / "versions") == {"1.pyz", "2.pyz"}


def test_a_symbolic_link_to_itself_is_rejected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "round").symlink_to("round")
    assert bundle("round") == 5
    assert "Cannot write round: " in capsys.readouterr().err
    assert (folder / "round").is_symlink()


def test_a_failed_write_leaves_nothing_behind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "a.pyz").write_text("older")
    before = names(folder)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    assert bundle("a.pyz") == 5
    assert install() == 5
    assert names(folder) == before
    assert names(folder / "units") == set()
    assert (folder / "a.pyz").read_text() == "older"


def test_a_write_to_a_full_disk_leaves_no_file(folder: Path) -> None:
    import resource

    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, kept[1]))
    try:
        assert bundle("a.pyz") == 5
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)
    assert names(folder) == {"units"}


def test_a_name_as_long_as_names_may_be(folder: Path) -> None:
    name = "x" * 255
    assert bundle(name) == 0
    assert names(folder) == {"units", name}


def test_the_temporary_file_cannot_be_redirected(folder: Path) -> None:
    """In a shared folder, a predictable name could be a symbolic link of another user."""
    (folder / "precious").write_text("as it was")
    for number in range(os.getpid() - 2, os.getpid() + 3):
        (folder / f".a.pyz.{number}").symlink_to("precious")
    assert bundle("a.pyz") == 0
    assert (folder / "precious").read_text() == "as it was"


def test_a_unit_replaces_only_a_regular_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_socket(folder / "units" / UNIT_NAME)
    assert install("--force") == 5
    assert f"Cannot write units/{UNIT_NAME}: it is a socket, not a regular file. " in capsys.readouterr().err
    assert stat.S_ISSOCK((folder / "units" / UNIT_NAME).lstat().st_mode)


def test_a_masked_unit_stays_masked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A pipe in place of the real one, which a mistake here would take from the whole machine.
    os.mkfifo(folder / "null")
    monkeypatch.setattr(os, "devnull", str(folder / "null"))
    (folder / "units" / UNIT_NAME).symlink_to(folder / "null")
    for arguments in ((), ("--force",)):
        assert install(*arguments) == 4
        error = capsys.readouterr().err
        assert f"units/{UNIT_NAME} is masked" in error
        assert f"systemctl unmask {UNIT_NAME}" in error
    assert (folder / "units" / UNIT_NAME).readlink() == folder / "null"


def test_a_unit_that_is_not_text_is_not_overwritten(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "units" / UNIT_NAME).write_bytes(b"\xff\xfe")
    assert install() == 4
    assert "exists with different content" in capsys.readouterr().err
    assert install("--force") == 0
