"""Files that are written completely or not at all, and are on disk when the write returns."""

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
}


def write_atomically(path: Path, content: bytes, mode: int = 0o600, *, follow_links: bool = False) -> None:
    """Write a file with this mode. A reader, or a kill at any moment, finds the old content or the new.

    A link is replaced; with `follow_links` it stays, and the file that it leads to is written.
    OSError: nothing was written, or something other than a file has that name.
    """
    if follow_links:
        refuse_other_than_file(path)  # before it is resolved: a link can lead to itself
        path = Path(os.path.realpath(path))
    elif not path.is_symlink():
        refuse_other_than_file(path)
    # A name that nobody can have prepared: others may write to the folder. O_EXCL follows no link.
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
    """Give a file that is on disk its final name, in the same folder. The name is on disk too when this returns."""
    unfinished.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk, where the user may and the file system can."""
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


def refuse_other_than_file(path: Path) -> None:
    """OSError if a rename to this path would replace something else: a device, for the whole machine."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        raise OSError(None, f"it is {_KINDS.get(kind, 'a special file')}, not a regular file")
