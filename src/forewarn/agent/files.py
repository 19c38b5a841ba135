"""Files that a user has named: read with a size limit, written completely or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import UnreadableFile

if TYPE_CHECKING:
    from typing import BinaryIO


# --- Reading --------------------------------------------------------------------------------------


LARGEST = 4_000_000
"""Bytes. A config or a document has thousands."""


def read_whole(path: Path) -> bytes:
    """All that is in it."""
    try:
        with path.open("rb") as stream:
            return read_bounded(stream, str(path))
    except OSError as error:
        raise UnreadableFile(path=path, problem=f"{error.strerror}.") from error


def read_bounded(stream: BinaryIO, name: str) -> bytes:
    """All that is left in it."""
    found = stream.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise UnreadableFile(path=name, problem=f"it has more than {LARGEST // 1_000_000} MB.")
    return found


def meant_path(text: str, folder: Path) -> Path:
    """A path as it stands in a file of that folder. ValueError says what is wrong with it."""
    if "\0" in text:
        raise ValueError("Must be a path, and no path has a null in it.")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r} is in a home, and this user has none.") from None


# --- Writing --------------------------------------------------------------------------------------


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
