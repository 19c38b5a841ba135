"""A process that commits to a store on a failing disk, and then crashes. Prints the outcome of each commit."""

from __future__ import annotations

import errno
import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from failing_disk import ALWAYS, FailingDisk, Failure
from forewarn.core.state import Changes, HistoryEntry
from forewarn.errors import StoreFailed, StoreOutcomeUnknown
from forewarn.ports import RetentionCutoff
from forewarn.stores.sqlite import SqliteStore

NOW = datetime(2041, 5, 6, tzinfo=UTC)
LARGE = 6_000_000
"""More than SQLite's cache: it writes a part of the transaction to the log before the commit."""


class Program:
    """Commits facts with a name and a size, and history rows."""

    def __init__(self, folder: Path) -> None:
        self.disk = FailingDisk.of_this_process()
        self.store = SqliteStore(folder)
        self._reader = self.store.reader()
        self._sequence = 0

    def commit(self, name: str, size: int = 10) -> str:
        entry = HistoryEntry(NOW, "requested", "test", self._sequence + 1, reason=name)
        try:
            self.store.commit(Changes(facts={name: "x" * size}, history=[entry]))
        except StoreOutcomeUnknown:
            return "unknown"
        except StoreFailed:
            return "failed"
        self._sequence += 1
        return "done"

    def failing(self, failure: Failure, size: int, *, kept: int = 10) -> list[str]:
        """A commit that fails after another one."""
        outcomes = [self.commit("kept", kept)]
        with self.disk.fail(failure):
            return [*outcomes, self.commit("rejected", size)]

    def one_sync(self) -> list[str]:
        return self.failing(Failure("sync"), 50_000)

    def large_transaction(self) -> list[str]:
        return self.failing(Failure("sync"), LARGE)

    def large_transaction_without_space(self) -> list[str]:
        return self.failing(Failure("write", errno.ENOSPC, ALWAYS, skip=100), LARGE)

    def header_of_a_restarted_log(self) -> list[str]:
        """A checkpoint follows the large commit. The next commit starts the log again."""
        return self.failing(Failure("sync"), 50_000, kept=LARGE)

    def first_commit_of_a_restarted_log(self) -> list[str]:
        return self.failing(Failure("sync", skip=1), 50_000, kept=LARGE)

    def some_writes(self) -> list[str]:
        return self.failing(Failure("write", skip=3), 50_000)

    def no_space_for_some_writes(self) -> list[str]:
        return self.failing(Failure("write", errno.ENOSPC, skip=3), 50_000)

    def all_syncs(self) -> list[str]:
        outcomes = [self.commit("kept")]
        with self.disk.fail(Failure("sync", times=ALWAYS)):
            outcomes += [self.commit("unknown"), self.commit("rejected")]
        return [*outcomes, self.commit("later")]

    def all_syncs_until_the_crash(self) -> list[str]:
        outcomes = [self.commit("kept")]
        with self.disk.fail(Failure("sync", times=ALWAYS)):
            return [*outcomes, self.commit("unknown"), self.commit("rejected")]

    def removal(self) -> list[str]:
        outcomes = [self.commit("kept"), self.commit("newest")]
        cutoff = RetentionCutoff(NOW, 2, 0, 0, 0)
        try:
            with self.disk.fail(Failure("sync")):
                self.store.remove_expired(cutoff, 10)
        except StoreFailed:
            outcomes.append("failed")
        return outcomes


if __name__ == "__main__":
    program = Program(Path(sys.argv[1]))
    sys.stdout.write(" ".join(getattr(program, sys.argv[2])()))
    sys.stdout.flush()
    os._exit(9)  # as if it was killed: SQLite closes nothing
