"""The file that outlives the agent: what was begun for which event. One agent at a time has it."""

from __future__ import annotations

import fcntl
import json
import logging
import os
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

from forewarn.agent.work.work import from_json, to_json
from forewarn.errors import ForewarnError, NotPermitted, StateInUse

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from forewarn.agent.work.work import Work

logger = logging.getLogger(__name__)

FILE, LOCK = "state.json", "agent.lock"
_VERSION = 1


class StateFile:
    """A folder, held for as long as this lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except (OSError, ValueError) as error:
            problem = getattr(error, "strerror", None) or str(error)
            raise NotPermitted(action="write", path=folder, problem=problem, flag="--state") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise StateInUse(folder=folder) from None

    def load(self) -> list[Work]:
        """What was begun and not undone. A file that cannot be read is put aside, not overwritten."""
        path = self.folder / FILE
        try:
            return read_works(path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise NotPermitted(action="read", path=path, problem=error.strerror, flag="--state") from error
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ForewarnError) as error:
            names = (f".unreadable{number or ''}" for number in count())
            aside = next(path for path in map(path.with_suffix, names) if not path.exists())
            path.replace(aside)
            logger.critical(
                "%s cannot be read (%s). It is kept as %s; nothing in it will be undone.", path, error, aside
            )
            return []

    def save(self, works: Iterable[Work]) -> None:
        """On disk before this returns; a reader, and a kill, find the old file or the new one."""
        path = self.folder / FILE
        unfinished = path.with_suffix(".unfinished")
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)  # somebody may have tidied up
        text = json.dumps({"version": _VERSION, "works": [to_json(work) for work in works]}, indent=1)
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
        folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def close(self) -> None:
        with suppress(OSError):
            os.close(self._lock)


class NoFile:
    """What a rehearsal has instead: nothing is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> list[Work]:
        return []

    def save(self, works: Iterable[Work]) -> None:
        pass

    def close(self) -> None:
        pass


def read_works(path: Path) -> list[Work]:
    """What a state file says."""
    value: Any = json.loads(path.read_text("utf-8"))
    if value["version"] != _VERSION:
        raise ValueError(f"it is of version {value['version']!r}, this agent writes {_VERSION}")
    return [from_json(work) for work in value["works"]]
