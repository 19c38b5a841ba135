"""Atomic and durable file writes."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a symbolic link",
}


def kind_of(mode: int) -> str:
    """Return what this is, from its mode, if it is not a regular file; otherwise an empty string."""
    kind = stat.S_IFMT(mode)
    return "" if kind == stat.S_IFREG else _KINDS.get(kind, "a special file")


def write_atomically(path: Path, content: bytes, mode: int = 0o600, *, follow_links: bool = False) -> None:
    """Write a file with this mode. Readers see the old or the new content, also after a crash.

    A link is replaced; with `follow_links` its target is written instead.
    Raises OSError if nothing was written, or if the path is not a regular file.
    """
    if follow_links:
        check_regular_file(path)  # before resolving, because a link can point to itself
        path = Path(os.path.realpath(path))
    elif not path.is_symlink():
        check_regular_file(path)
    # A random name, because others may write to the folder. O_EXCL does not follow links.
    unfinished = path.parent / f".forewarn-{os.urandom(8).hex()}"
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        move_into_place(unfinished, path)
    except BaseException:
        with suppress(FileNotFoundError):
            unfinished.unlink()
        raise


def move_into_place(unfinished: Path, path: Path) -> None:
    """Rename a file to its final name in the same folder, and sync the folder."""
    unfinished.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, if the user and the file system allow it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def check_regular_file(path: Path) -> None:
    """Raise OSError if a rename to this path would replace something other than a file, like a device."""
    try:
        kind = kind_of(path.stat().st_mode)
    except FileNotFoundError:
        return
    if kind:
        raise OSError(None, f"it is {kind}, not a regular file")
