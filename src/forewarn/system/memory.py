"""Memory of the process."""

from __future__ import annotations

import ctypes
from contextlib import suppress


def release_memory() -> None:
    """Return freed memory to the system. The C library would keep it. Takes some milliseconds."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
