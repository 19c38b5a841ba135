"""A disk that fails on demand, for a process that preloads a library (failing_disk.c)."""

from __future__ import annotations

import errno
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from programs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

ALWAYS = 1_000_000
LOG, DATABASE = "forewarn.db-wal", "forewarn.db"


class Failure(NamedTuple):
    """Some calls that fail."""

    call: str
    """"sync", "write" or "read"."""
    error: int = errno.EIO
    times: int = 1
    skip: int = 0
    """Number of calls that succeed before."""
    path: str = LOG
    """End of the path of the file."""

    def __str__(self) -> str:
        return f"{self.call} {self.path} {self.error} {self.times} {self.skip}\n"


class FailingDisk:
    """Failures of system calls in the processes that have `variables` in their environment."""

    def __init__(self, variables: dict[str, str]) -> None:
        self.variables = variables
        self._rules = Path(variables["FAILING_DISK"])

    @classmethod
    def build(cls, folder: Path) -> FailingDisk:
        """Compile the library."""
        need("cc")
        library = folder / "failing_disk.so"
        source = Path(__file__).with_name("failing_disk.c")
        command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl", "-lpthread"]
        subprocess.run(command, check=True)
        return cls({"LD_PRELOAD": str(library), "FAILING_DISK": str(folder / "failing-disk")})

    @classmethod
    def of_this_process(cls) -> FailingDisk:
        return cls({"FAILING_DISK": os.environ["FAILING_DISK"]})

    @contextmanager
    def fail(self, *failures: Failure) -> Iterator[None]:
        """Let calls fail while the context is open."""
        unfinished = self._rules.with_suffix(".new")
        unfinished.write_text("".join(map(str, failures)))
        unfinished.rename(self._rules)
        try:
            yield
        finally:
            self._rules.unlink()
