"""Files that are written for somebody: whole or not at all, and never in the place of what is no file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def write_whole(file: Path, content: bytes, mode: int) -> None:
    """Write it with these rights; OSError if that cannot be. What a link leads to is written, and the link stays."""
    # Only here: an agent at work never writes such files.
    import tempfile

    refuse_other_than_file(file)
    place = Path(os.path.realpath(file))
    # A name that nobody can have prepared: the folder may be one that others write to.
    number, passing = tempfile.mkstemp(prefix=".forewarn-", dir=place.parent)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
            os.fchmod(stream.fileno(), mode)
        Path(passing).replace(place)
    except BaseException:
        Path(passing).unlink()
        raise


def refuse_other_than_file(file: Path) -> None:
    """A rename would take the place of whatever is there: of a device, for the whole machine."""
    try:
        kind = stat.S_IFMT(file.stat().st_mode)
    except FileNotFoundError:
        return
    if kind != stat.S_IFREG:
        raise OSError(None, f"it is {_KINDS.get(kind, 'something else')}, and not a file")
