"""A system clock that a test can set for one process.

CLOCK_MONOTONIC stays as it is, and so does CLOCK_BOOTTIME, unless the test lets time pass.
"""

from __future__ import annotations

import struct
import subprocess
import uuid
from typing import TYPE_CHECKING

from programs import need

if TYPE_CHECKING:
    from pathlib import Path

LIBRARY = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long long *shift; /* of CLOCK_REALTIME, and of CLOCK_BOOTTIME */

__attribute__((constructor)) static void map_file(void) {
    int file = open(getenv("SYSTEM_CLOCK_SHIFT"), O_RDONLY);
    shift = mmap(NULL, 2 * sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t id, struct timespec *found) {
    int result = syscall(SYS_clock_gettime, id, found);
    if (result == 0 && id == CLOCK_REALTIME && shift != MAP_FAILED) found->tv_sec += shift[0];
    if (result == 0 && id == CLOCK_BOOTTIME && shift != MAP_FAILED) found->tv_sec += shift[1];
    return result;
}

int open64(const char *path, int flags, ...) { /* with the boot id of another machine */
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    const char *own = getenv("BOOT_ID_FILE");
    if (own && !strcmp(path, "/proc/sys/kernel/random/boot_id")) path = own;
    return syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}
"""


class ShiftedSystemClock:
    """Shifts the system clock of the processes that start with its variables."""

    def __init__(self, folder: Path) -> None:
        need("cc")
        self._file = folder / "shift"
        self._file.write_bytes(struct.pack("qq", 0, 0))
        source, library = folder / "shift.c", folder / "shift.so"
        source.write_text(LIBRARY)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
        self.variables = {"LD_PRELOAD": str(library), "SYSTEM_CLOCK_SHIFT": str(self._file)}

    def shift(self, seconds: int) -> None:
        """Set the system clock to this distance from the true time."""
        self._write(seconds, 0)

    def boot(self, seconds: int = 0) -> None:
        """Be the clock of a machine of its own, which has just booted. The process must not be running."""
        boot_id = self._file.with_name("boot-id")
        boot_id.write_text(str(uuid.uuid4()))
        self.variables["BOOT_ID_FILE"] = str(boot_id)
        self.shift(seconds)

    def pass_time(self, seconds: int) -> None:
        """Let time pass: both clocks move. The process must not be running, because its timers would not notice."""
        self._write(seconds, seconds)

    def _write(self, *seconds: int) -> None:
        with self._file.open("r+b", buffering=0) as file:
            file.write(struct.pack("qq", *seconds))
