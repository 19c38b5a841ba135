"""Reads files that a user has named, with a size limit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from forewarn.errors import UnreadableFile

if TYPE_CHECKING:
    from typing import BinaryIO

MAX_FILE_SIZE = 4_000_000
"""In bytes. A normal config or document has a few thousand."""


def read_whole(path: Path) -> bytes:
    """Read a whole file."""
    try:
        with path.open("rb") as stream:
            return read_bounded(stream, str(path))
    except OSError as error:
        raise UnreadableFile(path=path, problem=f"{error.strerror}.") from error


def read_bounded(stream: BinaryIO, name: str) -> bytes:
    """Read the rest of a stream."""
    found = stream.read(MAX_FILE_SIZE + 1)
    if len(found) > MAX_FILE_SIZE:
        raise UnreadableFile(path=name, problem=f"it is larger than {MAX_FILE_SIZE // 1_000_000} MB.")
    return found


def resolve_path(text: str, folder: Path) -> Path:
    """Return a path from a config file; relative paths start from `folder`. A ValueError says what is wrong."""
    if "\0" in text:
        raise ValueError("Must be a path without null characters.")
    try:
        return folder / Path(text).expanduser()
    except RuntimeError:
        raise ValueError(f"{text!r} starts with ~, but this user has no home folder.") from None
