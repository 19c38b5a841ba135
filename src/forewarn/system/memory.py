"""Memory of the process."""

from __future__ import annotations

import ctypes
import resource
import sys
from contextlib import suppress
from pathlib import Path


def resident_bytes() -> int:
    """Return the memory of the process that is in RAM."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux: the maximum so far
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kilobytes if sys.platform == "darwin" else kilobytes * 1024
    return pages * resource.getpagesize()


def release_memory() -> None:
    """Return freed memory to the system. The C library would keep it. Takes some milliseconds."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
