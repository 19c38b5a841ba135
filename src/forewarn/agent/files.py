"""Files that a user has named, read with a size limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import UnreadableFile

if TYPE_CHECKING:
    from typing import BinaryIO

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
