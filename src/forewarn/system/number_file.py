"""A few numbers in a file that is written often: too often to sync it, or to replace it."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING
from zlib import crc32

if TYPE_CHECKING:
    from pathlib import Path


class NumberFile:
    """Keeps the numbers over a kill of the process. A crash of the machine can leave older ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1

    def read(self) -> list[int]:
        """Return the numbers; none if there is no file or if it is damaged."""
        with suppress(OSError, ValueError):
            numbers, _, checksum = self._path.read_text("ascii").strip().rpartition(" ")
            if int(checksum, 16) == crc32(numbers.encode()):
                return [int(number) for number in numbers.split()]
        return []

    def write(self, *numbers: int) -> None:
        """Write the numbers, without a sync. An error leaves older ones, which is harmless."""
        text = " ".join(f"{number:020d}" for number in numbers)
        with suppress(OSError):
            if self._descriptor < 0:
                flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
                self._descriptor = os.open(self._path, flags, 0o600)
            os.pwrite(self._descriptor, f"{text} {crc32(text.encode()):08x}\n".encode(), 0)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
