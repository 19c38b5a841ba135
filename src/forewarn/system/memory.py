"""Memory of the process."""

from __future__ import annotations

import ctypes
import gc
import resource
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


def resident_bytes() -> int:
    """Return the memory of the process that is in RAM."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except OSError:  # not Linux: the maximum so far
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return kilobytes if sys.platform == "darwin" else kilobytes * 1024
    return pages * resource.getpagesize()


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Work without full garbage collections. Each visits every VM with all threads stopped, and finds nothing.

    Only in a process of the service itself, which has called gc.freeze at its start. A test's process is not ours.
    """
    own_process = gc.get_freeze_count() > 0
    if own_process:
        gc.disable()
    try:
        yield
    finally:
        if own_process:
            gc.enable()
            gc.freeze()


def release_memory() -> None:
    """Return freed memory to the system. The C library would keep it. Takes some milliseconds."""
    with suppress(OSError, AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
